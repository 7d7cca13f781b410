# SPDX-License-Identifier: GPL-2.0-or-later
"""A Mercurial in a process of its own: one that another thread ended starts no new process."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.errors import Unavailable
from notifier.work.commandserver import CommandServer, HgFailed

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
