# SPDX-License-Identifier: GPL-2.0-or-later
"""A Mercurial in a process of its own, within limits: after another thread ended it, it starts no new process."""

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.services.work import commandserver
from notifier.services.work.commandserver import CommandServer, HgFailed, TooMuchPrinted
from testing.builders.notifier.working import HgHost, find_children, hg
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def server() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


def test_one_that_was_ended_starts_no_process_when_its_thread_asks(server: CommandServer) -> None:
    before = find_children()
    server.end()
    with pytest.raises(Unavailable, match="stopping"):
        server.run("version")
    assert find_children() <= before


@pytest.mark.parametrize(
    ("reason", "code", "lacked"),
    [
        ("transaction abort! rollback completed abort: No space left on device", 255, True),
        ("abort: Disk quota exceeded: '/c/x'", 255, True),
        ("remote: abort: No space left on device abort: pull failed on remote", 100, False),
        ("abort: Permission denied", 255, False),
    ],
)
def test_only_a_disk_of_this_machine_lacked_room(reason: str, code: int, lacked: bool) -> None:
    assert HgFailed(f"hg pull: exit code {code}: {reason}", code).lacked_room == lacked


@pytest.mark.parametrize("words", ["Permission denied", "No space left on device", "waiting for lock"])
def test_words_of_a_page_that_a_host_answers_are_the_hosts(words: str) -> None:
    said = (
        f"abort: 'http://h/x/' does not appear to be an hg repository: ---%<--- (text/html) <h1>{words}</h1> ---%<---"
    )
    error = HgFailed(f"hg pull: exit code 255: {said}", 255)
    assert (error.is_of_host, error.is_locked, error.lacked_room, error.may_be_the_clone) == (True, False, False, False)


def test_mercurial_that_ends_at_its_start_is_the_installations_trouble(
    server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hg = tmp_path / "hg"
    hg.write_text("#!/bin/sh\nexit 1\n")
    hg.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(Unavailable, match="hg cannot be started: its process ended"):
        server.run("version")
    monkeypatch.undo()
    assert "Mercurial" in server.run("version")


def serve(server: CommandServer, folder: Path) -> None:
    """Run a command that never ends by itself."""
    server.run("init", str(folder))
    server.run("serve", "--repository", str(folder), "--address", "127.0.0.1", "--port", "0")


def test_a_command_under_way_ends_and_the_next_one_does_not_begin(server: CommandServer, tmp_path: Path) -> None:
    before = find_children()
    server.run("version")
    [process] = find_children() - before
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serve, server, tmp_path / "served")
        eventually(lambda: is_listening(process), "the command")
        server.end()
        with pytest.raises(HgFailed, match="killed"):
            running.result()
    with pytest.raises(Unavailable, match="stopping"):
        server.run("version")


WORKER = """
import pathlib, sys
from notifier.services.work.commandserver import CommandServer
server = CommandServer(timeout=60.0, memory=4 * 1024**3)
server.run("init", sys.argv[1])
print(*(each.read_text() for each in pathlib.Path("/proc/self/task").glob("*/children")), flush=True)
server.run("serve", "--repository", sys.argv[1], "--address", "127.0.0.1", "--port", "0")
"""


def test_a_command_under_way_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORKER, str(tmp_path / "served")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        hg = int(worker.stdout.readline())
        try:
            eventually(lambda: is_listening(hg), "the command")  # it never ends by itself
        finally:
            worker.kill()
        worker.wait()
        eventually(lambda: not is_listening(hg), "its end")


def is_listening(process: int) -> bool:
    """Return whether the process has a socket."""
    try:
        return any(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{process}/fd").iterdir())
    except FileNotFoundError:
        return False


# -- limits


def test_command_has_a_limit_of_time(tmp_path: Path) -> None:
    hasty = CommandServer(timeout=60.0, memory=4 * 1024**3)
    hasty.run("version")  # on a loaded machine its start alone may take longer than the limit below
    hasty._timeout = 1.0
    with closing(hasty), pytest.raises(HgFailed, match="did not end within 1 s") as raised:
        serve(hasty, tmp_path / "served")
    assert not raised.value.may_be_the_clone


def test_command_has_a_limit_of_memory() -> None:
    small = CommandServer(timeout=60.0, memory=300 * 1024**2)
    with closing(small), pytest.raises(HgFailed, match="out of memory") as raised:
        small.run("debugtemplate", "{pad('', 200000000)}")
    assert not raised.value.may_be_the_clone


def test_command_has_a_limit_of_the_size_of_a_file(
    server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commandserver, "LARGEST_FILE", 10_000)
    hg("init", str(tmp_path / "large"))
    (tmp_path / "large" / "file").write_bytes(os.urandom(100_000))
    hg("-R", str(tmp_path / "large"), "commit", "--addremove", "--quiet", "--user", "dana", "--message", "large")
    with pytest.raises(HgFailed, match="File too large") as raised:
        server.run("bundle", "--all", "-R", str(tmp_path / "large"), str(tmp_path / "bundle"))
    assert not raised.value.may_be_the_clone


@pytest.mark.parametrize("template", ["{pad('', 500)}", "{pad('', 50)}"], ids=["one piece", "many pieces"])
def test_command_has_a_limit_of_output(server: CommandServer, tmp_path: Path, template: str) -> None:
    before = find_children()
    server.run("init", str(tmp_path / "long"))
    server.run("debugbuilddag", "-R", str(tmp_path / "long"), "+10")
    words = ("log", "-R", str(tmp_path / "long"), "-T", template)
    assert len(server.run(*words, most=10_000)) >= 500
    [process] = find_children() - before
    with pytest.raises(TooMuchPrinted):
        server.run(*words, most=499)
    assert process not in find_children()


def test_output_beyond_its_limit_is_not_read(server: CommandServer) -> None:
    server.run("version")
    tracemalloc.start()
    try:
        with pytest.raises(TooMuchPrinted):
            server.run("debugtemplate", "{pad('', 20000000)}", most=1000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# -- nothing that a user, host or repository configures


def test_configuration_of_users_and_repositories_runs_no_hook(
    server: CommandServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hg("init", str(tmp_path / "hooked"))
    for name, file in (("of a user", tmp_path / "hgrc"), ("of a repository", tmp_path / "hooked/.hg/hgrc")):
        file.write_text(f"[hooks]\npre-log.{file.parent.name} = touch '{tmp_path}/{name}'\n")
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    server.run("log", "-R", str(tmp_path / "hooked"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["hgrc", "hooked"]


class Missing(BaseHTTPRequestHandler):
    """Has nothing, and notes who asked."""

    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_clone_bundles_that_a_host_offers_are_not_fetched(server: CommandServer, tmp_path: Path) -> None:
    with HgHost(tmp_path / "host") as host, ThreadingHTTPServer(("127.0.0.1", 0), Missing) as elsewhere:
        nodes = host.add("offering", 3)
        elsewhere.seen = []  # type: ignore[attr-defined]
        hidden = host.folder / "offering/.hg"
        (hidden / "hgrc").write_text("[extensions]\nclonebundles =\n")
        (hidden / "clonebundles.manifest").write_text(
            f"http://127.0.0.1:{elsewhere.server_port}/x BUNDLESPEC=gzip-v2\n"
        )
        thread = threading.Thread(target=elsewhere.serve_forever, args=(0.05,))
        thread.start()
        try:
            server.run("init", str(tmp_path / "clone"))
            server.run("pull", "-R", str(tmp_path / "clone"), host.url("offering"))
        finally:
            elsewhere.shutdown()
            thread.join()
    assert server.run("log", "-R", str(tmp_path / "clone"), "-r", "all()", "-T", "{node}\n").split() == nodes
    assert not elsewhere.seen  # type: ignore[attr-defined]


def test_subrepositories_are_not_looked_at(server: CommandServer, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    hg("init", str(outer))
    hg("init", str(outer / "inner"))
    (outer / ".hgsub").write_text("inner = inner\n")
    hg("-R", str(outer), "commit", "--addremove", "--quiet", "--user", "dana", "--message", "sub")
    with pytest.raises(HgFailed, match="subrepos not enabled"):
        server.run("files", "--subrepos", "-R", str(outer), "-r", "tip")
