# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's socket."""

import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.relay import server as relay_server
from hgext.vcsreplicator.relay.admission import RelaySocket
from hgext.vcsreplicator.relay.client import REASON_LIMIT, RelayLine
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.server import Server
from hgext.vcsreplicator.words.records import RepositoryState
from testing.builders.aggregator.states import some_state
from testing.faults.system import System
from testing.waiting import eventually


class Work:
    """Counts what the server asks for: once for each peer that names its repository, once for each that waits."""

    def __init__(self) -> None:
        self.pokes = 0

    def add(self, folder: str, job: Job, *, now: bool = False) -> None:
        assert job is Job.SEND, folder
        self.pokes += 1


class Listener:
    """A listening socket of a process that has no file descriptor left while `full`."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.full, self.refused = real, False, 0

    def accept(self) -> Any:
        if self.full:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class CrowdedSocket(RelaySocket):
    """A relay's socket in such a process."""

    listener: Listener

    def _listen(self) -> socket.socket:
        self.listener = Listener(super()._listen())
        return self.listener  # type: ignore[return-value]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="server-"))  # a socket's path may have 107 bytes
    (made / "repo" / ".hg" / "store").mkdir(parents=True)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def work() -> Work:
    return Work()


def find_none(repository: str) -> None:
    """A relay that has read no state."""


@contextmanager
def serving(
    relay_socket: RelaySocket, folder: Path, work: Work, find_state: Callable[[str], RepositoryState | None]
) -> Iterator[Server]:
    """A running server for the repositories in a folder."""
    server = Server(relay_socket, work=work, roots=(str(folder),), find_state=find_state)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def crowded(folder: Path, work: Work) -> Iterator[CrowdedSocket]:
    """The socket of a running server."""
    made = CrowdedSocket(str(folder / "socket"), group_of=str(folder))
    with serving(made, folder, work, find_none):
        yield made


class Known(dict[str, RepositoryState]):
    """The states that a relay has read, and how often the server asked for one."""

    asked = 0

    def find(self, repository: str) -> RepositoryState | None:
        self.asked += 1
        return self.get(repository)


@pytest.fixture
def known() -> Known:
    """What the relay of `server` has read."""
    return Known()


@pytest.fixture
def server(folder: Path, work: Work, known: Known) -> Iterator[Server]:
    """A running server."""
    relay_socket = RelaySocket(str(folder / "socket"), group_of=str(folder))
    with serving(relay_socket, folder, work, known.find) as server:
        yield server


# What a peer asks of event 5.
QUESTION = {"ask": "mirrors", "id": "a" * 32, "incarnation": "b" * 32, "announced": 5}


def state(*, repository: str = "a" * 32, incarnation: str = "b" * 32, noticed: int) -> RepositoryState:
    return some_state(repository=repository, incarnation=incarnation, seq=9, released=9, noticed=noticed)


def ask(peer: socket.socket, known: Known) -> None:
    """Ask about the notice of event 5, and wait until the server, which keeps the question first, looks for the state."""
    say(peer, **QUESTION)
    eventually(lambda: known.asked)


def read_answer(peer: socket.socket) -> object:
    peer.settimeout(60.0)
    line = peer.makefile("rb").readline()
    return json.loads(line) if line else None


def connect(folder: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(folder / "socket"))
    say(peer, repository=str(folder / "repo"))
    return peer


def say(peer: socket.socket, **message: object) -> None:
    peer.sendall(json.dumps(message).encode() + b"\n")


def test_a_reason_of_a_refusal_is_one_line_of_bounded_length(folder: Path, server: Server) -> None:
    heard = list[str | None]()
    server.on_push = lambda _folder, reason: heard.append(reason)
    with connect(folder) as peer:
        say(peer, refused="no\nCRITICAL: all is lost\x1b[2J" + 1000 * "x")
        eventually(lambda: heard)
    [reason] = heard
    assert reason is not None
    assert reason.startswith(r"no\nCRITICAL: all is lost\x1b[2Jxxx")
    assert len(reason) == REASON_LIMIT


def test_without_descriptors_peers_are_heard_and_nothing_spins(
    folder: Path, work: Work, crowded: CrowdedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "FULL_PAUSE", 3600.0)
    with connect(folder) as inside, capture_logs() as told:
        say(inside, seq=1)
        eventually(lambda: work.pokes == 2)
        crowded.listener.full = True
        with connect(folder) as outside:
            eventually(lambda: crowded.listener.refused)
            for seq in range(2, 12):
                say(inside, seq=seq)
                eventually(lambda expected=seq: work.pokes == expected + 1)
            assert crowded.listener.refused <= 11
            crowded.listener.full = False
            say(inside, seq=12)
            say(outside, seq=1)
            eventually(lambda: work.pokes == 15)
    assert [line["log_level"] for line in told] == ["error", "info"]


def test_connections_are_taken_again_when_there_is_room_again(
    folder: Path, work: Work, crowded: CrowdedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "FULL_PAUSE", 0.01)
    crowded.listener.full = True
    with connect(folder) as outside:
        eventually(lambda: crowded.listener.refused > 1)
        crowded.listener.full = False
        say(outside, seq=1)
        eventually(lambda: work.pokes == 2)


@pytest.mark.parametrize("noticed", [5, 6])
def test_a_peer_is_answered_once_a_state_says_that_the_notice_is_written(
    folder: Path, server: Server, known: Known, noticed: int
) -> None:
    with connect(folder) as peer:
        ask(peer, known)
        server.announced(state(noticed=noticed))
        assert read_answer(peer) == {"announced": noticed}
        server.announced(state(noticed=7))
        known["a" * 32] = state(noticed=8)
        say(peer, **QUESTION)
        assert read_answer(peer) == {"announced": 8}, "the first question is answered once"


@pytest.mark.parametrize(("noticed", "answer"), [(5, {"announced": 5, "mirrors": 2}), (6, {"announced": 6})])
def test_the_count_of_mirrors_of_a_later_notice_is_not_that_of_the_push(
    folder: Path, server: Server, known: Known, noticed: int, answer: dict[str, int]
) -> None:
    with connect(folder) as peer:
        ask(peer, known)
        server.announced(replace(state(noticed=noticed), served_by=2))
        assert read_answer(peer) == answer


def test_a_peer_with_an_earlier_notice_is_answered_at_once(folder: Path, server: Server, known: Known) -> None:
    known["a" * 32] = state(noticed=5)
    with connect(folder) as peer:
        say(peer, **QUESTION)
        assert read_answer(peer) == {"announced": 5}


def test_a_state_that_is_read_while_a_peer_asks_answers_it(folder: Path, work: Work) -> None:
    def find_state(repository: str) -> None:
        running.announced(state(noticed=5))

    relay_socket = RelaySocket(str(folder / "socket"), group_of=str(folder))
    with serving(relay_socket, folder, work, find_state) as running, connect(folder) as peer:
        say(peer, **QUESTION)
        assert read_answer(peer) == {"announced": 5}


@pytest.mark.parametrize(
    "other",
    [state(noticed=4), state(incarnation="e" * 32, noticed=9), state(repository="f" * 32, noticed=9)],
    ids=["an earlier event", "another incarnation", "another repository"],
)
def test_a_state_without_the_notice_answers_no_peer(
    folder: Path, server: Server, known: Known, other: RepositoryState
) -> None:
    known["a" * 32] = other
    with connect(folder) as peer:
        ask(peer, known)
        server.announced(other)
        server.announced(state(noticed=8))
        assert read_answer(peer) == {"announced": 8}


def test_a_peer_that_is_gone_waits_for_no_notice(folder: Path, server: Server, known: Known) -> None:
    with connect(folder) as peer:
        ask(peer, known)
    eventually(lambda: not server._awaited)


@pytest.mark.parametrize("wrong", [{"id": ["a"]}, {"incarnation": None}, {"announced": "5"}, {"announced": True}])
def test_a_question_about_mirrors_of_another_shape_ends_the_conversation(
    folder: Path, server: Server, wrong: dict[str, object]
) -> None:
    with connect(folder) as peer:
        say(peer, **{**QUESTION, **wrong})
        assert read_answer(peer) is None


class ClosedSocket(RelaySocket):
    """Admits no one."""

    def is_admitted(self, connection: socket.socket) -> bool:
        return False


def test_a_refused_user_is_named_in_the_log(folder: Path, work: Work) -> None:
    relay_socket = ClosedSocket(str(folder / "socket"), group_of=str(folder))
    with capture_logs() as logs, serving(relay_socket, folder, work, find_none), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(folder / "socket"))
        assert peer.recv(1) == b""
    assert logs == [{"event": "peer refused", "uid": os.getuid(), "log_level": "warning"}]


def test_a_push_knows_a_relay_that_waits_from_one_that_is_gone(folder: Path, work: Work) -> None:
    relay_socket = RelaySocket(str(folder / "socket"), group_of=str(folder))
    with serving(relay_socket, folder, work, find_none):
        line = RelayLine.open(str(folder / "socket"), str(folder / "repo"))
        assert line is not None
        line.report_commit(5)
        assert line.wait_until_sent(patience=0.01) is False
    assert line.wait_until_sent(patience=60.0) is None
    line.close()


def test_a_push_to_a_repository_that_the_relay_may_not_look_into_is_heard(
    folder: Path, server: Server, work: Work, system: System
) -> None:
    """A pusher whose umask closes a new folder reads why the push waits, not that no relay answers."""
    repository = str(folder / "repo")
    system.refuse(errno.EACCES, "os.stat", at=f"{repository}/*")
    line = RelayLine.open(str(folder / "socket"), repository)
    assert line is not None
    line.report_commit(1)
    eventually(lambda: work.pokes == 2)
    server.failed(repository, "Permission denied", False)
    assert line.wait_until_sent(patience=60.0) is False
    assert line.failure == "Permission denied"


def test_a_push_that_asks_for_reasons_reads_why_the_relay_cannot_send_it(
    folder: Path, server: Server, work: Work
) -> None:
    line = RelayLine.open(str(folder / "socket"), str(folder / "repo"))
    older = connect(folder)
    assert line is not None
    say(older, seq=1)
    line.report_commit(1)
    eventually(lambda: work.pokes == 4)
    server.failed(str(folder / "repo"), "Permission denied", False)
    assert line.wait_until_sent(patience=60.0) is False
    assert (line.failure, line.is_full) == ("Permission denied", False)
    line.report_commit(1)
    eventually(lambda: work.pokes == 5)
    server.failed(str(folder / "repo"), "no space", True)
    assert line.wait_until_sent(patience=60.0) is False
    assert (line.failure, line.is_full) == ("no space", True)
    server.sent(str(folder / "repo"), 1)
    assert read_answer(older) == {"sent": 1}
    line.close()
    older.close()
