# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests of one operation of boto3, of which most is made once.

boto3 resolves, prepares, signs and interprets each request anew. For a small one that is most of its processor time. Here
the first request is boto3's; the following ones go to the same place, with the same headers, through the same pool of connections.
They are signed anew, with the present credentials, provided that our signature of the first request is boto3's. After a request
that did not succeed, the next one is boto3's again. boto3 follows redirects, and says what is wrong. With a botocore that
works differently inside, or signs differently, all requests are boto3's.
"""

import datetime
import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hgext.vcsreplicator.words.clock import Clock

from .exchange import HttpAnswer, exchange
from .signature import SignatureScope, signed_headers

# How a botocore shows that it has not the parts that are used here.
_UNKNOWN_BOTOCORE = (AttributeError, KeyError, TypeError)
# Where a request notes what was sent for it, until it is answered.
_SENT = "vcsreplicator-sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownRequest:
    """What the requests of an operation have in common.

    `connections` is a pool of urllib3.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    scope: SignatureScope
    connections: Any

    def sign(self, url: str, checksum: str, credentials: Any, now: float) -> dict[str, str]:
        """Return the headers of a request to this URL."""
        frozen = credentials.get_frozen_credentials()
        return signed_headers(self.method, url, checksum, self.headers, self.scope, frozen, now)

    def send(self, path: str, content: bytes, credentials: Any, now: float) -> HttpAnswer:
        """Send a request; return the answer. Raises HTTPClientError."""
        parts = urlsplit(self.url + path)
        headers = self.sign(self.url + path, hashlib.sha256(content).hexdigest(), credentials, now)
        more = {"Host": parts.netloc, "Accept-Encoding": "identity", "Content-Length": str(len(content))}
        return exchange(self.connections, self.method, parts.path, {**more, **headers}, content)


class LearnedRequest:
    """The requests of one operation of a client of boto3; for any threads.

    `operation` is `SERVICE.NAME`. Paths consist of characters that a URL may have. `credentials` are the client's. `is_success`
    says whether an answer says that the request did what it should.
    """

    def __init__(
        self, client: Any, operation: str, credentials: Any, clock: Clock, is_success: Callable[[HttpAnswer], bool]
    ) -> None:
        self._credentials, self._clock, self._is_success = credentials, clock, is_success
        self._known: _KnownRequest | None = None
        self._is_known_botocore = True
        self._unsent = threading.local()
        client.meta.events.register(f"before-send.{operation}", _note_sent)
        client.meta.events.register(f"needs-retry.{operation}", self._note_request)

    def send(self, path: str, content: bytes) -> HttpAnswer | None:
        """Send a request; return the answer, None if only boto3 can send it now.

        Raises HTTPClientError.
        """
        known, answer = self._known, None
        self._unsent.content = content
        try:
            if known is not None:
                answer = known.send(path, content, self._credentials, self._clock.now())
        except _UNKNOWN_BOTOCORE:
            self._is_known_botocore = False
        finally:
            if answer is None or not self._is_success(answer):
                self._known = None
        return answer

    def _note_request(self, **details: Any) -> None:
        """Note how boto3 sent a request."""
        try:
            if self._is_known_botocore:
                self._known = self._learn_request(**details)
        except _UNKNOWN_BOTOCORE:
            self._is_known_botocore = False

    def _learn_request(self, request_dict: dict[str, Any], response: Any, **_: object) -> _KnownRequest | None:
        """Return what all requests have in common.

        Returns None if this one did not succeed, or if our signature is not boto3's. The signature covers the content: boto3 sent
        what this thread was to send.
        """
        path, sent = request_dict["url_path"], request_dict["context"].pop(_SENT)
        authorization, date = _read_header(sent, "Authorization"), _read_header(sent, "X-Amz-Date")
        scope = SignatureScope.of(authorization)
        if response is None or not sent.url.endswith(path) or scope is None:
            return None
        answer, connections = response[0], response[0].raw._pool
        if not self._is_success(HttpAnswer(status=answer.status_code, content=answer.content)):
            return None
        if connections.proxy is not None and connections.scheme == "http":
            return None  # such a proxy needs another request
        known = _KnownRequest(
            method=request_dict["method"],
            url=sent.url.removesuffix(path),
            headers=dict(request_dict["headers"]),
            scope=scope,
            connections=connections,
        )
        time = datetime.datetime.strptime(date, "%Y%m%dT%H%M%S%z").timestamp()
        checksum = hashlib.sha256(getattr(self._unsent, "content", b"")).hexdigest()
        ours = known.sign(sent.url, checksum, self._credentials, time)
        return known if ours["Authorization"] == authorization else None


def _note_sent(request: Any, **_: object) -> None:
    request.context[_SENT] = request


def _read_header(sent: Any, name: str) -> str:
    value = sent.headers[name]
    return value.decode() if isinstance(value, bytes) else str(value)
