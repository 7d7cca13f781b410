# SPDX-License-Identifier: GPL-2.0-or-later
"""What the asking end makes of sockets: it believes few, waits a little, and says why it got no answer."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.dashboard.asked import question
from hgext.vcsreplicator.dashboard.asked.question import ANSWER_LIMIT, StatusAnswer, StatusQuestion, _is_believed, ask
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.status.summary import make_summary
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import to_json

QUESTION = StatusQuestion(log="some log", expected=Expectations())
SUMMARY = make_summary(Picture(), 1_700_000_000.0, Expectations())
STRANGER, OWN = 65533, 65500


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="asked-"))  # a socket's path may have 107 bytes
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def answering(folder: Path, act: Callable[[socket.socket], object]) -> Iterator[str]:
    """A socket at which one peer is taken, and something is done with it."""
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                act(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        thread.join(60)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_the_answer_is_what_was_sent(folder: Path) -> None:
    received = []

    def act(connection: socket.socket) -> None:
        received.append(read_all(connection))
        connection.sendall(to_json(StatusAnswer(summary=SUMMARY)))

    with answering(folder, act) as path:
        assert ask(path, QUESTION, patience=60.0) == SUMMARY
    assert received == [to_json(QUESTION)]


WHOLE = to_json(StatusAnswer(summary=SUMMARY))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", r"closed without an answer; may your user ask \(dashboard\.socket-users\)\?"),
        (b"\x00\xff garbage", "not JSON"),
        (WHOLE[:-1], "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (WHOLE.replace(b'"events":0', b'"events":-1'), "events"),
        (WHOLE.replace(b'"events":0', b'"events":0,"more":0'), "more"),
        (to_json(StatusAnswer(declined="another version")), "declined: another version"),
        (b"{}", "declined"),
        (b" " * (ANSWER_LIMIT + 1), f"more than {ANSWER_LIMIT} bytes"),
    ],
    ids=["nothing", "garbage", "truncated", "deep", "wrong", "newer", "declined", "empty", "huge"],
)
def test_what_is_no_whole_answer_is_none(folder: Path, said: bytes, why: str) -> None:
    def act(connection: socket.socket) -> None:
        read_all(connection)
        connection.sendall(said)

    with answering(folder, act) as path, pytest.raises(Unavailable, match=why):
        ask(path, QUESTION, patience=60.0)


def test_an_end_that_sends_on_and_on_is_left_after_the_time(folder: Path) -> None:
    def act(connection: socket.socket) -> None:
        while True:
            connection.sendall(b" ")
            time.sleep(0.01)

    with answering(folder, act) as path, pytest.raises(Unavailable, match=r"timed out|time is over"):
        ask(path, QUESTION, patience=0.3)


def test_an_end_that_says_nothing_is_left_after_the_time(folder: Path) -> None:
    over = threading.Event()
    with answering(folder, lambda connection: over.wait(60)) as path:
        with pytest.raises(Unavailable, match=r"timed out|time is over"):
            ask(path, QUESTION, patience=0.3)
        assert not over.is_set()
        over.set()


def test_an_end_that_takes_no_connection_is_left_after_the_time(folder: Path) -> None:
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as others:
        listener.bind(path)
        listener.listen(0)
        for _ in range(5):  # more than wait to be taken
            other = others.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(path)
        with pytest.raises(Unavailable):
            ask(path, QUESTION, patience=0.3)


@pytest.mark.parametrize("name", ["nothing", "file", "stale", "n" * 200, "nul\0"])
def test_what_is_no_socket_of_a_living_process_is_no_answer(folder: Path, name: str) -> None:
    (folder / "file").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "stale"))
    with pytest.raises(Unavailable):
        ask(str(folder / name), QUESTION, patience=60.0)


def test_a_stranger_is_asked_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "read_peer", lambda connection: (STRANGER, STRANGER))
    received = []

    def act(connection: socket.socket) -> None:
        received.append(read_all(connection))
        connection.sendall(to_json(StatusAnswer(summary=SUMMARY)))

    with (
        answering(folder, act) as path,
        pytest.raises(Unavailable, match="nor the owner of a folder that only root could make"),
    ):
        ask(path, QUESTION, patience=60.0)
    assert received == [b""]


ROOTS = (0, 0o755)
OPEN = (0, 0o1777)


@pytest.mark.parametrize(
    ("user", "folders", "is_believed"),
    [
        (0, {}, True),
        (OWN, {}, True),
        (STRANGER, {"/": ROOTS, "/run": ROOTS, "/run/x": (STRANGER, 0o755)}, True),
        (STRANGER, {"/": ROOTS, "/run": ROOTS, "/run/x": ROOTS}, False),
        (STRANGER, {"/": ROOTS, "/run": ROOTS, "/run/x": OPEN}, False),
        (STRANGER, {"/": ROOTS, "/run": OPEN, "/run/x": (STRANGER, 0o755)}, False),
        (STRANGER, {"/": ROOTS, "/run": (0, 0o775), "/run/x": (STRANGER, 0o755)}, False),
        (STRANGER, {"/": ROOTS, "/run": (STRANGER, 0o755), "/run/x": (STRANGER, 0o755)}, False),
        (STRANGER, {"/": OPEN, "/run": ROOTS, "/run/x": (STRANGER, 0o755)}, False),
    ],
    ids=["root", "own", "owner", "roots-folder", "open", "open-above", "group-above", "own-above", "open-top"],
)
def test_who_is_believed(
    user: int, folders: dict[str, tuple[int, int]], is_believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(path: str) -> SimpleNamespace:
        owner, mode = folders[path]
        return SimpleNamespace(st_uid=owner, st_mode=0o40000 | mode)

    names = SimpleNamespace(realpath=lambda path: path, dirname=os.path.dirname)
    monkeypatch.setattr(question, "os", SimpleNamespace(geteuid=lambda: OWN, stat=describe, path=names))
    assert _is_believed(user, "/run/x/socket") is is_believed
