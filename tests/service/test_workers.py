# SPDX-License-Identifier: GPL-2.0-or-later
"""A request of `vcsreplicator web` that exceeds its budget, or whose client leaves, ends and harms no other."""

import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen
from wsgiref.util import setup_testing_defaults

import pytest

from hgext.vcsreplicator.cli.web import NURSERY
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.mirror import nursery
from hgext.vcsreplicator.service import workers as module
from hgext.vcsreplicator.service.worker import END, FRAME, LENGTH, WRITES, answer_requests, ask_to_write
from hgext.vcsreplicator.service.workers import Workers
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

# Pages that are worse than any that a client can ask for.
PAGES = r"""
import fcntl, os, re, time
from mercurial.hgweb import webcommands

def page(function):
    name = function.__name__.encode()
    setattr(webcommands, function.__name__, webcommands.webcommand(name)(function))

def spin():
    end = time.process_time() + 2.2
    while time.process_time() < end:
        pass

@page
def expression(web):
    "A loop of C, which no exception and no signal handler of Python ends."
    re.match("(.|.)*Z", "a" * 60)

@page
def memory(web):
    kept = []
    while True:
        kept.append(bytearray(64 * 1024**2))

@page
def lock(web):
    with open(FILE, "w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        time.sleep(1_000_000)

@page
def begun(web):
    web.res.setbodygen(piece() for piece in [lambda: b"a" * 300_000, lambda: re.match("(.|.)*Z", "a" * 60)])
    return web.res.sendresponse()

@page
def long(web):
    "Two seconds and a half, and more than a MiB before each half of one."
    def pieces():
        for _ in range(5):
            end = time.process_time() + 0.5
            while time.process_time() < end:
                pass
            yield b"a" * 1_100_000
    web.res.setbodygen(pieces())
    return web.res.sendresponse()

@page
def process(web):
    web.res.setbodybytes(b"%d" % os.getpid())
    return web.res.sendresponse()

@page
def large(web):
    web.res.setbodybytes(b"a" * 9_000_000)
    return web.res.sendresponse()

@page
def error(web):
    raise AttributeError("of the page")

def uisetup(ui):
    ui.setconfig(b"hooks", b"pretxnclose.spin", lambda **_: spin())
"""


@pytest.fixture(autouse=True)
def warm() -> Iterator[None]:
    """Start servers and nurseries warm: what is shown here begins once they answer."""
    with warm_starts():
        yield


@pytest.fixture
def hgrc(tmp_path: Path) -> str:
    """An hgrc with these pages, for a root with one repository, which takes pushes."""
    (tmp_path / "pages.py").write_text(PAGES.replace("FILE", repr(str(tmp_path / "lock"))))
    (tmp_path / "hgrc").write_text(
        f"[extensions]\n*:required = yes\npushlog =\npages = {tmp_path}/pages.py\n[web]\npush_ssl = no\nallow_push = *\n"
    )
    subprocess.run([shared_hg(), "init", str(tmp_path / "root" / "known")], check=True)
    return str(tmp_path / "hgrc")


@pytest.fixture
def url(tmp_path: Path, hgrc: str) -> Iterator[str]:
    """A server of this root with two threads, one second, which may become two, and 512 MiB for a request."""
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "web", "--root", str(tmp_path / "root")]
    limits = ["--threads", "2", "--seconds", "1", "--memory", "512"]
    environment = {**os.environ, "HGRCPATH": hgrc}
    with subprocess.Popen([*command, "--listen", where, *limits], env=environment) as server:
        try:
            eventually(lambda: is_answering(f"http://{where}/known?style=raw"), "the server")
            yield f"http://{where}/known"
        finally:
            server.terminate()
        assert server.wait(PATIENCE) in (0, -signal.SIGKILL)


def get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, bytes(answer.read())
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def is_answering(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ("expression", b"Service Unavailable: the request took more processor time than a request may\n"),
        ("memory", b"Service Unavailable: the request took more memory than a request may\n"),
    ],
)
def test_a_request_beyond_its_budget_is_refused_and_others_are_answered(url: str, page: str, answer: bytes) -> None:
    with ThreadPoolExecutor(2) as pool:  # one for each thread of the server
        hostile = [pool.submit(get, f"{url}/{page}") for _ in range(2)]
        assert get(f"{url}/json-pushes") == (200, b"{}")
        assert {each.result() for each in hostile} == {(503, answer)}
    assert get(f"{url}/json-pushes") == (200, b"{}")


def test_an_answer_that_ends_early_is_broken_off(url: str) -> None:
    with pytest.raises(http.client.IncompleteRead):
        get(f"{url}/begun")


def test_an_answer_that_its_client_takes_gets_more_time(url: str) -> None:
    assert get(f"{url}/long") == (200, b"a" * 5_500_000)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "behind"),
    [("GET", b""), ("POST", b""), ("OPTIONS", b""), ("GET", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)],
)
def test_a_request_whose_client_has_left_ends(url: str, tmp_path: Path, method: str, behind: bytes) -> None:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as client:
        client.sendall(f"{method} /known/lock HTTP/1.1\r\nHost: a\r\n\r\n".encode() + behind)
        eventually(lambda: is_locked(tmp_path / "lock"), "the request to wait")
    eventually(lambda: not is_locked(tmp_path / "lock"), "the request to end")


def is_locked(file: Path) -> bool:
    """Whether a process has locked the file."""
    with file.open("a") as ours:
        try:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_push_has_no_budget_once_its_transaction_is_open(url: str, tmp_path: Path) -> None:
    (tmp_path / "client.hgrc").write_text("[ui]\nusername = a\n")
    environment = {**os.environ, "HGRCPATH": str(tmp_path / "client.hgrc")}
    subprocess.run([shared_hg(), "clone", "-q", url, str(tmp_path / "client")], check=True, env=environment)
    (tmp_path / "client" / "a").write_bytes(os.urandom(1_000_000))  # a body that waitress writes to a file
    for words in (["commit", "-q", "-A", "-m", "a"], ["push", "-q"]):
        subprocess.run([shared_hg(), *words], cwd=tmp_path / "client", check=True, env=environment)
    assert b"lastpushid" in get(f"{url}/json-pushes?version=2")[1]
    assert get(f"{url}/json-pushes")[1] != b"{}"


def test_a_worker_that_was_killed_is_replaced(url: str) -> None:
    workers = {int(get(f"{url}/process")[1]) for _ in range(3)}  # two, if one still ends its answer
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        eventually(lambda worker=worker: has_ended(worker), "the worker to end")
    assert int(get(f"{url}/process")[1]) not in workers


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_request_ends_with_its_server(url: str, tmp_path: Path) -> None:
    server = int(Path(f"/proc/{int(get(f'{url}/process')[1])}/stat").read_text().rsplit(")", 1)[1].split()[1])
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as client:
        client.sendall(b"GET /known/lock HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: is_locked(tmp_path / "lock"), "the request to wait")
        os.kill(server, signal.SIGKILL)
        eventually(lambda: not is_locked(tmp_path / "lock"), "the request to end")


def test_a_nursery_that_was_killed_is_replaced(url: str) -> None:
    worker = int(get(f"{url}/process")[1])
    server = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    [nursery] = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "nursery\n"]
    for process in (nursery, worker):
        os.kill(process, signal.SIGKILL)
        eventually(lambda process=process: has_ended(process), "the process to end")
    assert get(f"{url}/json-pushes") == (200, b"{}")


def call(workers: Workers, page: str = "process") -> Iterator[bytes]:
    """Ask for the process that answers, or for another page; it is busy until all is read."""
    environ = {"QUERY_STRING": "", "PATH_INFO": f"/known/{page}", "waitress.client_disconnected": lambda: False}
    setup_testing_defaults(environ)
    return workers(environ, lambda _status, _headers: None)


def test_a_nursery_that_hangs_holds_up_no_request_with_a_worker(
    tmp_path: Path, hgrc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HGRCPATH", hgrc)
    monkeypatch.setattr(nursery, "PATIENCE", 10 * PATIENCE)
    workers = Workers(NURSERY, str(tmp_path / "root"), "web", "60", str(1024**3), threads=3)
    hanging = workers._nursery.process.pid
    with closing(workers), ThreadPoolExecutor(3) as pool:
        begun = call(workers)
        busy = next(begun)
        os.kill(hanging, signal.SIGSTOP)
        try:
            waits = [pool.submit(lambda: b"".join(call(workers))) for _ in range(2)]
            eventually(workers._forking.locked, "a request to wait for a new worker")
            assert pool.submit(list, begun).result(PATIENCE) == []
            first = next(as_completed(waits, PATIENCE))
            assert first.result() == busy
            assert pool.submit(lambda: b"".join(call(workers))).result(PATIENCE) == busy
        finally:
            os.kill(hanging, signal.SIGKILL)


def test_the_server_holds_no_more_than_a_part_of_a_large_answer(
    tmp_path: Path, hgrc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no budget of memory; hgweb gives a whole file as one piece."""
    monkeypatch.setenv("HGRCPATH", hgrc)
    with closing(Workers(NURSERY, str(tmp_path / "root"), "web", "60", str(1024**3), threads=3)) as workers:
        pieces = list(map(len, call(workers, "large")))
    assert sum(pieces) == 9_000_000
    assert max(pieces) <= 1024**2


def test_a_nursery_that_does_not_begin_in_time_is_ended(
    tmp_path: Path, hgrc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request would leave one behind while the disk of the repositories hangs."""
    monkeypatch.setenv("HGRCPATH", hgrc)
    made: list[subprocess.Popen[bytes]] = []
    start = nursery.start
    monkeypatch.setattr(nursery, "start", lambda *arguments: made.append(start(*arguments)) or made[-1])
    workers = Workers(NURSERY, str(tmp_path / "root"), "web", "60", str(1024**3), threads=3)
    monkeypatch.setattr(module, "_START", 0.0)
    with closing(workers):
        os.kill(made[0].pid, signal.SIGKILL)
        for _ in range(2):
            assert b"".join(call(workers)) == b"Service Unavailable: no worker could be started\n"
        assert [each.poll() is not None for each in made] == [True] * 3


def test_a_worker_that_is_given_up_opens_no_transaction() -> None:
    """Between its word that it writes and the server's reading it may be killed."""
    ours, theirs = socket.socketpair()
    opened = []

    def push(_environ: dict[str, Any], _start_response: Any) -> list[bytes]:
        ask_to_write(theirs)
        opened.append(True)
        return []

    with ThreadPoolExecutor(1) as pool, ours, theirs:
        ended = pool.submit(answer_requests, theirs, push, lambda: None, lambda: True)
        for is_heard in (True, False):
            content = json.dumps({"length": 0}).encode()
            ours.sendall(LENGTH.pack(len(content)) + content)
            assert FRAME.unpack(ours.recv(FRAME.size, socket.MSG_PEEK | socket.MSG_WAITALL)) == (WRITES, 0)
            assert len(opened) == (not is_heard)
            if is_heard:
                ours.recv(FRAME.size)
                ours.sendall(b".")
                assert FRAME.unpack(ours.recv(FRAME.size, socket.MSG_WAITALL)) == (END, 0)
        ours.shutdown(socket.SHUT_RDWR)
        ended.result(PATIENCE)
    assert opened == [True]


def test_a_request_that_raises_is_a_500_and_the_log_has_the_reason(url: str) -> None:
    assert get(f"{url}/error") == (
        500,
        b"The request failed; the server's log has the reason.\n",
    )


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_request_that_names_no_length_of_its_body_is_answered(url: str, method: str) -> None:
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE) as client:
        client.sendall(f"{method} {where.path}?style=raw HTTP/1.0\r\n\r\n".encode())
        assert client.makefile("rb").read().startswith(b"HTTP/1.0 200 ")


def test_a_worker_whose_answer_the_server_did_not_read_ends_without_a_traceback() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"an answer")
    ours.close()
    with theirs:
        answer_requests(theirs, lambda environ, start: [], lambda: None, lambda: True)
