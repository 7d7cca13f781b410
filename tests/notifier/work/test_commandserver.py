# SPDX-License-Identifier: GPL-2.0-or-later
"""A Mercurial in a process of its own: one that another thread ended starts no new process."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.work.commandserver import CommandServer, HgFailed
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def server() -> Iterator[CommandServer]:
    with closing(CommandServer(timeout=60.0, memory=4 * 1024**3)) as server:
        yield server


def test_one_that_was_ended_starts_no_process_when_its_thread_asks(server: CommandServer) -> None:
    server.end()
    with pytest.raises(Unavailable, match="stopping"):
        server.run("version")
    assert server._process is None


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


def test_a_command_under_way_ends_and_the_next_one_does_not_begin(server: CommandServer, tmp_path: Path) -> None:
    server.run("init", str(tmp_path / "served"))
    ending = threading.Timer(0.2, server.end)
    ending.start()
    with pytest.raises(HgFailed, match="ended"):  # a command that never ends by itself
        server.run("serve", "--repository", str(tmp_path / "served"), "--address", "127.0.0.1", "--port", "0")
    ending.join()
    with pytest.raises(Unavailable, match="stopping"):
        server.run("version")


WORKER = """
import sys
from notifier.work.commandserver import CommandServer
server = CommandServer(timeout=60.0, memory=4 * 1024**3)
server.run("init", sys.argv[1])
print(server._process.pid, flush=True)
server.run("serve", "--repository", sys.argv[1], "--address", "127.0.0.1", "--port", "0")
"""


def test_a_command_under_way_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORKER, str(tmp_path / "served")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        hg = int(worker.stdout.readline())
        eventually(lambda: is_listening(hg), "the command")  # it never ends by itself
        worker.kill()
        worker.wait()
        eventually(lambda: not is_listening(hg), "its end")


def is_listening(process: int) -> bool:
    """Return whether the process has a socket."""
    try:
        return any(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{process}/fd").iterdir())
    except FileNotFoundError:
        return False
