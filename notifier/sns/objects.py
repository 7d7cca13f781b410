# SPDX-License-Identifier: GPL-2.0-or-later
"""Objects of a bucket, each written by a request of which most is made once.

boto3 resolves, prepares, signs and interprets each request anew. For a small object that is two thirds of its processor time. Here
the first request is boto3's; the following ones go to the same place, with the same headers, through the same pool of connections.
They are signed anew, with the present credentials, provided that our signature of the first request is boto3's. After a request
that did not store its object, the next one is boto3's again. boto3 follows redirects, and says what is wrong. With a botocore that
works differently inside, or signs differently, all requests are boto3's.
"""

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import HTTPClientError
from urllib3.exceptions import HTTPError

from hgext.vcsreplicator.words.clock import Clock

from .signature import SignatureScope, signed_headers

# How a botocore shows that it has not the parts that are used here.
_DIFFERENT = (AttributeError, KeyError, TypeError)
# Where a request notes what was sent for it, until it is answered.
_SENT = "vcsreplicator-sent"
_SIGNATURE = ("Authorization", "X-Amz-Content-SHA256", "X-Amz-Date")


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownRequest:
    """What the requests for all objects of a bucket have in common.

    `connections` is a pool of urllib3.
    """

    url: str
    headers: Mapping[str, str]
    scope: SignatureScope
    connections: Any

    def send(self, path: str, content: bytes, credentials: Any, now: float) -> bool:
        """Send an object; return whether it is stored. Raises BotoCoreError."""
        url, checksum = self.url + path, hashlib.sha256(content).hexdigest()
        headers = signed_headers(url, checksum, self.headers, self.scope, credentials.get_frozen_credentials(), now)
        headers["Content-Length"] = str(len(content))
        try:
            answer = self.connections.urlopen(
                "PUT", urlsplit(url).path, content, headers, False, False, False, decode_content=False
            )
        except HTTPError as error:
            raise HTTPClientError(error=error) from error
        return _is_stored(answer.status, answer.data)


class ObjectWriter:
    """Writes objects of JSON to a bucket with a client of boto3; for any threads.

    Keys consist of characters that a URL may have. `credentials` are the client's.
    """

    def __init__(self, client: Any, bucket: str, credentials: Any, clock: Clock) -> None:
        self._client, self._bucket, self._credentials, self._clock = client, bucket, credentials, clock
        self._known: _KnownRequest | None = None
        self._is_known_botocore = True
        client.meta.events.register("before-send.s3.PutObject", _note_sent)
        client.meta.events.register("needs-retry.s3.PutObject", self._note_request)

    def write(self, key: str, content: bytes) -> None:
        """Write an object; raises what boto3 does."""
        known, is_stored = self._known, False
        try:
            is_stored = known is not None and known.send(f"/{key}", content, self._credentials, self._clock.now())
        except _DIFFERENT:
            self._is_known_botocore = False
        finally:
            if not is_stored:
                self._known = None
        if not is_stored:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, ContentType="application/json")

    def _note_request(self, **told: Any) -> None:
        """Note how boto3 stored an object."""
        try:
            if self._is_known_botocore:
                self._known = _learn_request(self._credentials, **told)
        except _DIFFERENT:
            self._is_known_botocore = False


def _note_sent(request: Any, **_: object) -> None:
    request.context[_SENT] = request


def _learn_request(credentials: Any, request_dict: dict[str, Any], response: Any, **_: object) -> _KnownRequest | None:
    """Return what all requests have in common.

    Returns None if this one stored nothing, or if our signature is not boto3's.
    """
    path, sent = request_dict["url_path"], request_dict["context"].pop(_SENT)
    authorization, checksum, date = [_read_header(sent, name) for name in _SIGNATURE]
    scope = SignatureScope.of(authorization)
    if response is None or not sent.url.endswith(path) or scope is None:
        return None
    answer, connections = response[0], response[0].raw._pool
    if not _is_stored(answer.status_code, answer.content):
        return None
    if connections.proxy is not None and connections.scheme == "http":
        return None  # such a proxy needs another request
    known = _KnownRequest(
        url=sent.url.removesuffix(path),
        headers=dict(request_dict["headers"]),
        scope=scope,
        connections=connections,
    )
    time = datetime.datetime.strptime(date, "%Y%m%dT%H%M%S%z").timestamp()
    ours = signed_headers(sent.url, checksum, known.headers, scope, credentials.get_frozen_credentials(), time)
    return known if ours["Authorization"] == authorization else None


def _read_header(sent: Any, name: str) -> str:
    value = sent.headers[name]
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_stored(status: int, content: bytes) -> bool:
    """Return whether an answer says nothing but that the object is stored.

    boto3 looks into the content of others, which may be an error.
    """
    return status == 200 and not content
