# SPDX-License-Identifier: GPL-2.0-or-later
"""Announcements by Server-Sent Events; the id of each is its notice's offset."""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .recent import RecentEvent
from .watcher import LogWatcher

# Feeds that may be open at a time.
FEEDS = 50
# Seconds between two looks, and between two heartbeats.
LOOK, BEAT = 0.5, 15.0


class Feed:
    """Sends each reader what was announced after its `Last-Event-ID`, or from now on."""

    def __init__(self, watcher: LogWatcher, name_for: Callable[[Request], Callable[[str, str], str]]) -> None:
        self._watcher, self._name_for = watcher, name_for
        self._open = 0

    async def answer(self, request: Request) -> Response:
        if self._open >= FEEDS:
            return PlainTextResponse("Too many feeds are open.\n", 503, {"retry-after": "30"})
        self._open += 1
        return _FeedResponse(self._send(request), self._release)

    def _release(self) -> None:
        self._open -= 1

    async def _send(self, request: Request) -> AsyncIterator[str]:
        name, is_reader = self._name_for(request), request.state.role.sees_all
        last = _find_last(self._watcher.announced, _read_last(request))
        yield "retry: 3000\n\n"
        sent = time.monotonic()
        while True:
            self._watcher.note_interest()
            for event in self._watcher.announced:
                if event.number > last:
                    last, sent = event.number, time.monotonic()
                    yield _write(event, name(event.repository, event.path), with_user=is_reader)
            if time.monotonic() - sent > BEAT:
                sent = time.monotonic()
                yield ": still here\n\n"
            await anyio.sleep(LOOK)


class _FeedResponse(StreamingResponse):
    """A response that frees its feed's place at the end, even if it sent nothing."""

    def __init__(self, content: AsyncIterator[str], release: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


def _read_last(request: Request) -> int | None:
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None


def _find_last(announced: Sequence[RecentEvent], notice: int | None) -> int:
    """Return the number of the last announcement that a reader has.

    `notice` is its `Last-Event-ID`, None for a new reader. If it is no longer kept, fall back to the newest earlier one.
    """
    before = [each for each in announced if notice is None or each.notice == notice]
    before = before or [each for each in announced if each.notice is not None and each.notice < (notice or 0)]
    return max((each.number for each in before), default=-1)


def _write(event: RecentEvent, name: str, *, with_user: bool) -> str:
    content = {
        "repository": name,
        "seq": event.seq,
        "type": event.type,
        "push": event.push,
        "time": event.time,
        "announced": event.announced,
    }
    if with_user:
        content["user"] = event.user
    return f"id: {event.notice}\ndata: {json.dumps(content)}\n\n"
