# SPDX-License-Identifier: GPL-2.0-or-later
"""The ASGI application of the edge: its answers to requests.

It does not look into a body. If it refuses a request before it has read the body, it answers at once and closes the connection.
Before it closes, it reads and discards for a while what the client still sends, because a client that is sending would otherwise
not see the answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

import structlog

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.version import VERSION

from ...messages.raw import HEADERS, RawMessage, WrongUri, parse_uri, to_line, write_timestamp
from .intake import EdgeIntake, Outcome
from .metrics import ANSWERS
from .settings import EdgeSettings

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Answer = tuple[HTTPStatus, bytes]

# The headers that become attributes, by their names in a request.
_KEPT_HEADERS = {name.replace("_", "-").encode("ascii"): name for name in HEADERS}

# Most bytes of the rest of a refused request that are read, and for how many seconds.
_LINGER_BYTES, _LINGER_SECONDS = 16 * 1024 * 1024, 5.0

# Digits of a length, leading zeros included.
_LENGTH_DIGITS = 20

# Numbers of parts of a path: telemetry's, and others with and without an id; the first part is empty.
_TELEMETRY_PARTS, _PARTS, _PARTS_WITHOUT_ID = 9, 6, 5

_ANSWERS: Mapping[Outcome, Answer] = {
    Outcome.TAKEN: (HTTPStatus.OK, b""),
    Outcome.TOO_LARGE: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"larger than the log takes\n"),
    Outcome.FULL: (HTTPStatus.INSUFFICIENT_STORAGE, b"the queue or its disk is full; send it again later\n"),
    Outcome.FAILED: (HTTPStatus.INTERNAL_SERVER_ERROR, b"not taken; send it again later\n"),
}

_PAGES = {
    "/__heartbeat__": b"able to take messages\n",
    "/__lbheartbeat__": b"running\n",
    "/__version__": json.dumps({"name": "vcsreplicator", "version": VERSION}).encode() + b"\n",
}

logger = structlog.get_logger()


class RefusedRequest(Exception):
    """A request answered with an error; `allow` are the methods of its path."""

    def __init__(self, status: HTTPStatus, reason: str, *, allow: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.allow = status, reason, allow


class EdgeApplication:
    """The application over one intake."""

    def __init__(self, settings: EdgeSettings, intake: EdgeIntake, clock: Clock) -> None:
        self._settings, self._intake, self._clock = settings, intake, clock
        self._answers = {status: ANSWERS.labels(str(status.value)) for status in HTTPStatus if status >= 200}

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        try:
            if not scope["path"].startswith("/submit/"):
                status, content = await self._answer_page(scope)
            elif (taken := await self._take_submission(scope, receive)) is None:
                return
            else:
                status, content = taken
        except RefusedRequest as refusal:
            self._answers[refusal.status].inc()
            await _refuse(refusal, receive, send)
            return
        except Exception as error:
            logger.error("request failed", kind=type(error).__name__, exc_info=True)
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, b"an unexpected error\n"
        self._answers[status].inc()
        headers = [(b"content-length", str(len(content)).encode())]
        if content:
            kind = b"application/json" if content.startswith(b"{") else b"text/plain; charset=utf-8"
            headers += [(b"content-type", kind), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _take_submission(self, scope: AsgiMessage, receive: Receive) -> Answer | None:
        """Take a submission and return the answer; None if not all of it came."""
        attributes = self._read_attributes(scope)
        self._check(scope, attributes)
        body = await _read_body(receive)
        if body is None:
            return None
        return _ANSWERS[await self._intake.submit(to_line(RawMessage(body, attributes)))]

    def _check(self, scope: AsgiMessage, attributes: MutableMapping[str, str]) -> None:
        """Raise RefusedRequest for a request whose body need not be read."""
        if scope["method"] not in ("POST", "PUT"):
            raise RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST or PUT", allow="POST, PUT")
        length = attributes.get("content_length")
        if length is None:
            raise RefusedRequest(HTTPStatus.LENGTH_REQUIRED, "expected Content-Length")
        # `int` raises for thousands of digits, and takes signs, blanks and the digits of other scripts.
        if len(length) > _LENGTH_DIGITS or not (length.isascii() and length.isdigit()):
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, f"expected Content-Length of at most {_LENGTH_DIGITS} digits")
        if int(length) > self._settings.max_body_bytes:
            reason = f"expected a body of at most {self._settings.max_body_bytes} bytes"
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        uri = attributes["uri"]
        try:
            submission = parse_uri(uri, attributes.get("args", ""), without_id=self._settings.without_id)
        except WrongUri as error:
            parts = uri.count("/") + 1
            is_telemetry = uri.startswith("/submit/telemetry/")
            lengths = (_TELEMETRY_PARTS,) if is_telemetry else (_PARTS, _PARTS_WITHOUT_ID)
            status = HTTPStatus.BAD_REQUEST if parts in lengths else HTTPStatus.NOT_FOUND
            raise RefusedRequest(status, str(error)) from None
        if submission.is_of(self._settings.reserved):
            name = f"{submission.namespace}.{submission.type}"
            raise RefusedRequest(HTTPStatus.FORBIDDEN, f"only the notifier writes {name}; take another type")

    def _read_attributes(self, scope: AsgiMessage) -> dict[str, str]:
        """Return a request's attributes; a repeated header's values are joined by comma."""
        attributes = {
            "submission_timestamp": write_timestamp(self._clock.now()),
            "uri": scope["raw_path"].decode("latin-1"),
            "protocol": f"HTTP/{scope['http_version']}",
            "method": scope["method"],
        }
        if scope["query_string"]:
            attributes["args"] = scope["query_string"].decode("latin-1")
        if scope["client"]:
            attributes["remote_addr"] = scope["client"][0]
        for header, value in scope["headers"]:
            name = _KEPT_HEADERS.get(header)
            if name is not None:
                text = value.decode("latin-1")
                attributes[name] = f"{attributes[name]}, {text}" if name in attributes else text
        return attributes

    async def _answer_page(self, scope: AsgiMessage) -> Answer:
        content = _PAGES.get(scope["path"])
        if content is None:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, "expected /submit/…")
        if scope["method"] not in ("GET", "HEAD"):
            raise RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET", allow="GET, HEAD")
        if scope["path"] == "/__heartbeat__" and not await asyncio.to_thread(self._intake.is_able):
            return HTTPStatus.INTERNAL_SERVER_ERROR, b"no room on disk, and messages cannot go to the log\n"
        return HTTPStatus.OK, content


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body, of a checked size; None if the connection ended before."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message["body"])
        if not message.get("more_body"):
            return b"".join(pieces)


async def _refuse(refusal: RefusedRequest, receive: Receive, send: Send) -> None:
    """Answer, then discard for a while what the client sends, and close.

    It closes the connection once the request ends, or after `_LINGER_BYTES` or `_LINGER_SECONDS`.
    """
    content = f"{refusal.reason}\n".encode()
    headers = [
        (b"content-length", str(len(content)).encode()),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"connection", b"close"),
    ]
    if refusal.allow:
        headers.append((b"allow", refusal.allow.encode("ascii")))
    await send({"type": "http.response.start", "status": int(refusal.status), "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
