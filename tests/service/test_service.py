# SPDX-License-Identifier: GPL-2.0-or-later
"""How a service ends: an exit code for its unit, and one line with the reason."""

import errno
import io
import json
import logging
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import structlog

from hgext.vcsreplicator import cli, service
from hgext.vcsreplicator.cli import verbs
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.service import serve
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, TopicMissing, Unavailable
from testing.log_lines import write_every_line
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are the test run's."""
    monkeypatch.setattr(service, "stop_on_signals", threading.Event)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logging_to(file: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have log lines written to this standard error as the service `web` writes them."""
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", file)
        service.configure_logging("web")
        try:
            yield
        finally:
            write_every_line(sys.__stderr__)


def test_a_terminal_gets_the_control_characters_of_a_path_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with logging_to(terminal, monkeypatch):
        structlog.get_logger().warning("request ended", path="/a\x1b]0;b\x7f")
        logging.getLogger("waitress").error("Exception while serving %s", "/c\x1b]0;d")
    assert r"'/a\x1b]0;b\x7f'" in terminal.getvalue()
    assert r"/c\x1b]0;d" in terminal.getvalue()


def test_what_a_library_reports_is_a_log_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP server reports each request that waits for one of its two threads."""
    written, goes_on, address = io.StringIO(), threading.Event(), ("127.0.0.1", free_port())

    def stage(*_: object) -> None:
        with ExitStack() as clients:
            for _ in range(3):
                client = clients.enter_context(socket.create_connection(address, timeout=60))
                client.sendall(b"GET /held HTTP/1.0\r\n\r\n")
            eventually(lambda: "Task queue depth" in written.getvalue(), "the report")
            goes_on.set()

    with logging_to(written, monkeypatch):
        assert serve(stage, listen=address, pages={"/held": lambda: {"held": goes_on.wait(60)}}) == 0
    said = [json.loads(line) for line in written.getvalue().splitlines()]
    deep = [line for line in said if line.get("library") == "waitress.queue"]
    assert {(line["service"], line["level"]) for line in deep} == {("web", "warning")}
    assert deep[0]["text"].startswith("Task queue depth is ")


def test_what_a_library_fails_on_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    with logging_to(written, monkeypatch):
        try:
            raise RuntimeError("a fault of a library")
        except RuntimeError:
            logging.getLogger("any").exception("failed at %d", 7)
    line = json.loads(written.getvalue())
    assert (line["level"], line["library"], line["text"]) == ("error", "any", "failed at 7")
    assert "RuntimeError: a fault of a library" in line["exception"]


def full_database() -> sqlite3.Error:
    """What SQLite says when no page is left."""
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.Error) as caught:
        database.execute("CREATE TABLE t (x)")
    database.close()
    return caught.value


def because_of(cause: Exception) -> BadConfig:
    error = BadConfig("state: /var/x: cannot be used")
    error.__cause__ = cause
    return error


def ends(error: Exception) -> tuple[int, list[dict[str, object]]]:
    """The exit code of a service whose stage raises this, and what it logged."""

    def stage(*_: object) -> None:
        raise error

    with structlog.testing.capture_logs() as lines:
        return serve(stage), [dict(line) for line in lines]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadConfig("mirror.toml: root: expected a folder"), 78),
        (because_of(FileNotFoundError(errno.ENOENT, "No such file")), 78),
        (because_of(PermissionError(errno.EACCES, "Permission denied")), 78),
        (because_of(BlockingIOError(errno.EAGAIN, "the lock is another's")), 78),
        (because_of(OSError(errno.ENOSPC, "No space left on device")), 1),
        (because_of(OSError(errno.EMFILE, "Too many open files")), 1),
        (because_of(OSError(errno.EIO, "Input/output error")), 1),
        (because_of(OSError(errno.ENOTCONN, "Transport endpoint is not connected")), 1),
        (because_of(TimeoutError(errno.ETIMEDOUT, "Connection timed out")), 1),
        (because_of(OSError(errno.EHOSTDOWN, "Host is down")), 1),
        (because_of(OSError(errno.EHOSTUNREACH, "No route to host")), 1),
        (because_of(OSError(errno.ENETUNREACH, "Network is unreachable")), 1),
        (because_of(OSError(errno.ENETDOWN, "Network is down")), 1),
        (because_of(ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort")), 1),
        (because_of(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")), 78),
        (because_of(full_database()), 1),
        (because_of(OSError(errno.EADDRINUSE, "Address already in use")), 1),
        (because_of(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")), 1),
        (because_of(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), 78),
        (TopicMissing("topic events: not in the log"), 1),
        (OSError(errno.EMFILE, "Too many open files"), 1),
        (Unavailable("the log is away"), 1),
        (Fenced("a newer one"), 1),
    ],
    ids=str,
)
def test_a_unit_stays_down_only_for_what_an_operator_must_change(error: Exception, code: int) -> None:
    ended, [line] = ends(error)
    assert ended == code
    assert line["log_level"] == "error"
    assert line["reason"] == str(error)


def test_what_may_pass_is_not_called_a_wrong_configuration() -> None:
    _, [line] = ends(because_of(OSError(errno.EADDRINUSE, "Address already in use")))
    assert line["kind"] == "OSError"


def test_a_host_that_cannot_be_found_is_named_in_one_line() -> None:
    with structlog.testing.capture_logs() as lines:
        serve(lambda *_: None, listen=("nohost.invalid", 9103))
    [line] = lines
    assert "exc_info" not in line
    assert str(line["reason"]).startswith("listen: nohost.invalid:9103 cannot be used: ")


def test_a_fault_of_ours_is_reported_with_its_traceback() -> None:
    ended, [line] = ends(RuntimeError("a fault of our own"))
    assert (ended, line["event"], line["exc_info"]) == (1, "crashed", True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (because_of(OSError(errno.ENOSPC, "No space left on device")), 1),
        (BadConfig("wrong"), 78),
        (OSError(errno.EMFILE, "Too many open files"), 1),
    ],
    ids=str,
)
def test_before_a_service_began_it_is_the_same(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> Callable[[], None]:
        raise error

    monkeypatch.setattr(verbs.program, "main", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"vcsreplicator: {error}\n"


@pytest.mark.parametrize("header", ["Content-Length: 1", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/health", "/metrics", "/live"])
def test_a_page_of_a_service_takes_no_body(path: str, header: str) -> None:
    address = ("127.0.0.1", free_port())

    def stage(*_: object) -> None:
        with socket.create_connection(address, timeout=60) as client:
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n".encode())
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 413 "), "and the connection is closed"

    assert serve(stage, listen=address) == 0
