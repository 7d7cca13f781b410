# SPDX-License-Identifier: GPL-2.0-or-later
"""Objects of a bucket, each written by a request of which most is made once.

boto3 resolves, prepares and interprets each request anew. For a small object that is half of its processor time. Here the first
request is boto3's; the following ones go to the same place, with the same headers, signer and connections. They are signed anew, so
credentials may change. After a request that did not store its object, the next one is boto3's again. boto3 follows redirects, and
says what is wrong. With a botocore that works differently inside, all requests are boto3's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import AWSRequest

# How a botocore shows that it has not the parts that are used here.
_DIFFERENT = (AttributeError, KeyError, TypeError)
# What signers read of a request's context; the rest is about one request.
_SIGNED_BY = ("auth_type", "client_config", "endpoint_properties", "has_streaming_input", "signing")


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownRequest:
    """What the requests for all objects of a bucket have in common."""

    url: str
    auth_path: str
    headers: Mapping[str, str]
    context: Mapping[str, Any]
    signer: Any
    connections: Any

    def send(self, path: str, content: bytes) -> bool:
        """Send an object; return whether it is stored. Raises what boto3 does."""
        request = AWSRequest(
            "PUT", self.url + path, headers=self.headers, data=content, auth_path=self.auth_path + path
        )
        request.context = dict(self.context)
        self.signer.sign("PutObject", request)
        return _is_stored(self.connections.send(request.prepare()))


class ObjectWriter:
    """Writes objects of JSON to a bucket with a client of boto3; for any threads.

    Keys consist of characters that a URL may have.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket
        self._signer: Any = None
        self._known: _KnownRequest | None = None
        self._is_known_botocore = True
        client.meta.events.register("before-call.s3.PutObject", self._note_signer)
        client.meta.events.register("needs-retry.s3.PutObject", self._note_request)

    def write(self, key: str, content: bytes) -> None:
        """Write an object; raises what boto3 does."""
        known, is_stored = self._known, False
        try:
            is_stored = known is not None and known.send(f"/{key}", content)
        except _DIFFERENT:
            self._is_known_botocore = False
        finally:
            if not is_stored:
                self._known = None
        if not is_stored:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, ContentType="application/json")

    def _note_signer(self, **told: Any) -> None:
        self._signer = told.get("request_signer")

    def _note_request(self, **told: Any) -> None:
        """Note how boto3 stored an object."""
        try:
            if self._is_known_botocore:
                self._known = _learn_request(self._signer, **told)
        except _DIFFERENT:
            self._is_known_botocore = False


def _learn_request(
    signer: Any, request_dict: dict[str, Any], response: Any, endpoint: Any, **_: object
) -> _KnownRequest | None:
    """Return what all requests have in common, or None if this one stored nothing."""
    path, url, context = request_dict["url_path"], request_dict["url"], request_dict["context"]
    if response is None or not _is_stored(response[0]) or not url.endswith(path):
        return None
    return _KnownRequest(
        url=url.removesuffix(path),
        auth_path=(request_dict.get("auth_path") or "").removesuffix(path),
        headers=request_dict["headers"],
        context={name: context[name] for name in _SIGNED_BY if name in context},
        signer=signer,
        connections=endpoint.http_session,
    )


def _is_stored(answer: Any) -> bool:
    """Return whether an answer says nothing but that the object is stored.

    boto3 looks into the content of others, which may be an error.
    """
    return bool(answer.status_code == 200 and not answer.content)
