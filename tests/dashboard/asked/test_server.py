# SPDX-License-Identifier: GPL-2.0-or-later
"""The answering end: bounded in all that a peer may do, and it goes on after everything."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.dashboard.asked import server
from hgext.vcsreplicator.dashboard.asked.question import (
    QUESTION_LIMIT,
    StatusAnswer,
    StatusQuestion,
    ask,
    set_time_left,
)
from hgext.vcsreplicator.dashboard.asked.server import CONNECTIONS, AnswerServer
from hgext.vcsreplicator.relay.admission import HeldSocket
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import make_summary
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import to_json
from testing.waiting import eventually
from tests.relay.test_server import Listener

SUMMARY = make_summary(Picture(), 1_700_000_000.0, Expectations())
QUESTION = StatusQuestion(log="some log", expected=Expectations(destinations=("lines",), relay="hg://master", warn=3))


class Serving:
    """A server whose answers a test gives."""

    def __init__(self, held: HeldSocket, path: str) -> None:
        self.path, self.held = path, held
        self.asked: list[StatusQuestion] = []
        self.reply: Callable[[], StatusAnswer] = lambda: StatusAnswer(summary=SUMMARY)

    def answer(self, question: StatusQuestion, deadline: float) -> StatusAnswer:
        reply = self.reply
        self.asked.append(question)
        return reply()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(self.path)
        return connection

    def ask(self) -> object:
        return ask(self.path, QUESTION, patience=60.0)


class ClosedSocket(HeldSocket):
    """Admits no one."""

    def is_admitted(self, connection: socket.socket) -> bool:
        return False


class CountingSocket(HeldSocket):
    """Counts the peers that it took."""

    taken = 0

    def is_admitted(self, connection: socket.socket) -> bool:
        self.taken += 1
        return super().is_admitted(connection)


class CrowdedSocket(HeldSocket):
    """The socket of a process that has no file descriptor left at first."""

    listener: Listener

    def _listen(self) -> socket.socket:
        self.listener = Listener(super()._listen())
        self.listener.full = True
        return self.listener  # type: ignore[return-value]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="asked-"))  # a socket's path may have 107 bytes
    yield made
    shutil.rmtree(made)


@pytest.fixture
def serving(folder: Path) -> Iterator[Serving]:
    made = Serving(
        CountingSocket(str(folder / "socket"), key="dashboard.socket", service="dashboard"), str(folder / "socket")
    )
    with capture_logs() as logs, AnswerServer(made.held, made.answer):
        yield made
    assert not [entry for entry in logs if entry["event"] == "question failed"] or made.asked == ["a bug"]


def test_a_question_is_answered_again_and_again(serving: Serving) -> None:
    assert [serving.ask() for _ in range(3 * CONNECTIONS)] == [SUMMARY] * (3 * CONNECTIONS)
    assert serving.asked == [QUESTION] * (3 * CONNECTIONS)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\xff",
        b"[" * 50_000,
        b" " * (QUESTION_LIMIT + 100_000),
        to_json(QUESTION)[:-1],
        to_json(QUESTION).replace(b'"warn":3', b'"warn":-3'),
        to_json(QUESTION).replace(b'"patience":60.0', b'"patience":1e300'),
        to_json(QUESTION).replace(b'"patience":60.0', b'"patience":NaN'),
        b'{"log": 1}',
    ],
    ids=["nothing", "garbage", "deep", "huge", "truncated", "negative", "endless", "nan", "wrong"],
)
def test_what_is_no_question_gets_no_summary_and_the_next_one_does(serving: Serving, said: bytes) -> None:
    for _ in range(2 * CONNECTIONS):
        with serving.connect() as peer:
            with contextlib.suppress(OSError):
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                assert b"summary" not in peer.recv(1_000_000)
    assert serving.asked == []
    assert serving.ask() == SUMMARY


def test_a_peer_that_says_nothing_keeps_no_other_out(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 3600.0)
    with serving.connect():
        for _ in range(CONNECTIONS):
            assert serving.ask() == SUMMARY


@pytest.mark.parametrize("way", ["silent", "slow", "deaf"])
def test_many_peers_that_hold_a_connection_are_left_after_the_time(
    serving: Serving, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deaf have to ask first; the answer to them takes nearly all of the time."""
    monkeypatch.setattr(server, "PATIENCE", 60.0 if way == "deaf" else 0.3)
    rests = [0.3] * CONNECTIONS if way == "deaf" else []

    def leave_the_rest(connection: socket.socket, deadline: float) -> None:
        set_time_left(connection, time.monotonic() + rests.pop() if rests else deadline)

    monkeypatch.setattr(server, "set_time_left", leave_the_rest)
    assert isinstance(serving.held, CountingSocket)
    held = serving.held
    serving.reply = lambda: StatusAnswer(summary=SUMMARY, declined="x" * 3_000_000)  # more than a socket keeps
    stop = threading.Event()

    def drip(peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.01):
                peer.sendall(b" ")

    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            peer = stack.enter_context(serving.connect())
            if way == "slow":
                threading.Thread(target=drip, args=(peer,), daemon=True).start()
            elif way == "deaf":
                peer.sendall(to_json(QUESTION))
                peer.shutdown(socket.SHUT_WR)
        eventually(lambda: (len(serving.asked) if way == "deaf" else held.taken) == CONNECTIONS)
        monkeypatch.setattr(server, "PATIENCE", 60.0)
        serving.reply = lambda: StatusAnswer(summary=SUMMARY)
        assert serving.ask() == SUMMARY
        stop.set()


def test_a_peer_that_leaves_before_the_answer_is_forgotten(serving: Serving) -> None:
    go = threading.Event()

    def reply() -> StatusAnswer:
        go.wait(60)
        return StatusAnswer(summary=SUMMARY, declined="x" * 1_000_000)

    serving.reply = reply
    for _ in range(CONNECTIONS):
        with serving.connect() as peer:
            peer.sendall(to_json(QUESTION))
            peer.shutdown(socket.SHUT_WR)
    go.set()
    assert serving.ask() == SUMMARY


def test_a_bug_in_the_answer_ends_nothing(serving: Serving) -> None:
    def fail() -> StatusAnswer:
        raise RuntimeError("a bug")

    serving.reply = fail
    for _ in range(CONNECTIONS):
        with pytest.raises(Unavailable):
            serving.ask()
    serving.reply = lambda: StatusAnswer(summary=SUMMARY)
    assert serving.ask() == SUMMARY
    serving.asked[:] = ["a bug"]  # type: ignore[list-item]


def test_an_answer_that_is_too_long_is_declined(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_LIMIT", 100)
    with pytest.raises(Unavailable, match="declined: the answer has"):
        serving.ask()


def test_strangers_get_no_answer_and_fill_no_log(folder: Path) -> None:
    held = ClosedSocket(str(folder / "socket"), key="dashboard.socket", service="dashboard")
    made = Serving(held, str(folder / "socket"))
    with capture_logs() as logs, AnswerServer(held, made.answer):
        with pytest.raises(Unavailable):
            made.ask()
        for _ in range(19):
            with made.connect() as connection:
                assert connection.recv(1) == b""
    assert made.asked == []
    refused = [entry for entry in logs if entry["event"] == "peer refused"]
    assert [(entry["uid"], entry["count"]) for entry in refused] == [(os.getuid(), 1)]


def test_a_process_without_file_descriptors_answers_again_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FULL_PAUSE", 0.01)
    crowded = CrowdedSocket(str(folder / "socket"), key="dashboard.socket", service="dashboard")
    serving = Serving(crowded, str(folder / "socket"))
    with AnswerServer(crowded, serving.answer):
        eventually(lambda: crowded.listener.refused > 2 * CONNECTIONS)
        crowded.listener.full = False
        assert serving.ask() == SUMMARY


def test_the_end_of_the_block_waits_for_no_peer(folder: Path) -> None:
    held = HeldSocket(str(folder / "socket"), key="dashboard.socket", service="dashboard")
    serving = Serving(held, str(folder / "socket"))
    others = set(threading.enumerate())
    with AnswerServer(held, serving.answer):
        assert len(set(threading.enumerate()) - others) == CONNECTIONS
    assert set(threading.enumerate()) <= others
    assert not (folder / "socket").exists()
