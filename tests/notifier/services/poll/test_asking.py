# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts that turned hostile, and the poller's questions to them."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from notifier.messages.pushes import LARGE, PushesAnswer
from notifier.services.poll import asking
from notifier.services.poll.asking import AnswerTooLarge, Asker
from notifier.services.poll.settings import PollSettings

pytestmark = pytest.mark.processes


class Hostile(BaseHTTPRequestHandler):
    """Answers without an end, or sends the client elsewhere."""

    server: Any

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/redirecting":
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/large":
            self.wfile.write(b" " * LARGE)
        with contextlib.suppress(OSError):
            while self.path == "/endless":
                self.wfile.write(bytes(1 << 20))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as running:
        state: Any = running
        state.asked = []
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def ask(server: Any, path: str, *, times: int = 1) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"

    async def ask() -> None:
        asker = Asker(PollSettings(url="amqp://h", repositories=(url,)), SystemClock())
        try:
            await asyncio.gather(*(asker.ask(url, None) for _ in range(times)))
        finally:
            await asker.close()

    asyncio.run(ask())


def test_answer_without_an_end_is_given_up(hostile: Any) -> None:
    with pytest.raises(AnswerTooLarge):
        ask(hostile, "/endless")


@pytest.fixture
def read_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has what it is given happen in place of the reading of an answer."""

    def choose(act: Callable[[], object]) -> None:
        def read(text: bytes, where: str) -> PushesAnswer:
            act()
            return PushesAnswer(last=len(text), pushes=())

        monkeypatch.setattr(asking, "read_answer", read)

    return choose


def test_a_large_answer_is_read_beside_the_loop(hostile: Any, read_by: Callable[[Callable[[], object]], None]) -> None:
    """Else a host that sends the largest keeps the poller from all others for seconds."""
    threads = list[threading.Thread]()
    read_by(lambda: threads.append(threading.current_thread()))
    ask(hostile, "/short")
    assert threads != [threading.main_thread()]


def test_large_answers_are_read_one_at_a_time(hostile: Any, read_by: Callable[[Callable[[], object]], None]) -> None:
    """Each may take forty times its size in memory, and a host sends several."""
    at_work = threading.Lock()

    def read() -> None:
        assert at_work.acquire(blocking=False), "another one is read"
        time.sleep(0.1)
        at_work.release()

    read_by(read)
    ask(hostile, "/large", times=3)


def test_redirect_is_not_followed(hostile: Any) -> None:
    with pytest.raises(Unavailable, match="status 302, expected 200, moved to '/elsewhere'"):
        ask(hostile, "/redirecting")
    assert hostile.asked == ["/redirecting"]
