# SPDX-License-Identifier: GPL-2.0-or-later
"""Objects of a bucket."""

from typing import Any

from hgext.vcsreplicator.words.clock import Clock

from .exchange import HttpAnswer
from .learned import LearnedRequest


class ObjectWriter:
    """Writes objects of JSON to a bucket with a client of boto3; for any threads.

    Keys consist of characters that a URL may have. `credentials` are the client's.
    """

    def __init__(self, client: Any, bucket: str, credentials: Any, clock: Clock) -> None:
        self._client, self._bucket = client, bucket
        self._request = LearnedRequest(client, "s3.PutObject", credentials, clock, _is_stored)

    def write(self, key: str, content: bytes) -> None:
        """Write an object; raises what boto3 does."""
        answer = self._request.send(f"/{key}", content)
        if answer is None or not _is_stored(answer):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, ContentType="application/json")


def _is_stored(answer: HttpAnswer) -> bool:
    """Return whether an answer says nothing but that the object is stored.

    boto3 looks into the content of others, which may be an error.
    """
    return answer.status == 200 and not answer.content
