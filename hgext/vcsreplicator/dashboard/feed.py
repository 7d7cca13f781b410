# SPDX-License-Identifier: GPL-2.0-or-later
"""Announcements as they come, by Server-Sent Events; the id of each is the offset of its notice."""

import json
import time
from collections.abc import AsyncIterator, Callable

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from .recent import RecentEvent
from .settings import ReaderRole
from .watcher import LogWatcher

# Feeds at a time; seconds between two looks, and between two signs of life.
FEEDS, LOOK, BEAT = 50, 0.5, 15.0


class Feed:
    """Sends each reader what was announced after its `Last-Event-ID`, or from now on."""

    def __init__(self, watcher: LogWatcher, name_for: Callable[[Request], Callable[[str, str], str]]) -> None:
        self._watcher, self._name_for = watcher, name_for
        self._open = 0

    async def answer(self, request: Request) -> Response:
        if self._open >= FEEDS:
            return PlainTextResponse("Too many feeds are open.\n", 503, {"retry-after": "30"})
        return StreamingResponse(self._send(request), media_type="text/event-stream")

    async def _send(self, request: Request) -> AsyncIterator[str]:
        name, is_reader = self._name_for(request), request.state.role is ReaderRole.READER
        last = _read_last(request)
        if last is None:
            last = max((event.notice or 0 for event in self._watcher.announced), default=-1)
        self._open += 1
        try:
            yield "retry: 3000\n\n"
            sent = time.monotonic()
            while True:
                for event in self._watcher.announced:
                    if event.notice is not None and event.notice > last:
                        last, sent = event.notice, time.monotonic()
                        yield _write(event, name(event.repository, event.path), with_user=is_reader)
                if time.monotonic() - sent > BEAT:
                    sent = time.monotonic()
                    yield ": still here\n\n"
                await anyio.sleep(LOOK)
        finally:
            self._open -= 1


def _read_last(request: Request) -> int | None:
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) < 19 else None


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
