# SPDX-License-Identifier: GPL-2.0-or-later
"""What the processes of a mirror do with Ctrl-C, which a terminal sends to all of them, and a nursery when the system refuses."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from hgext.vcsreplicator.mirror.nursery import Nursery, start
from hgext.vcsreplicator.mirror.pool import NURSERY
from testing.waiting import PATIENCE

pytestmark = pytest.mark.processes

# A nursery that forks by a system call that does not exist.
REFUSING = """
from hgext.vcsreplicator.hg.replica import nursery
from hgext.vcsreplicator.mirror import forking
forking.SYS_CLONE = dict.fromkeys(forking.SYS_CLONE, 100_000)
nursery.main()
"""


def test_a_nursery_that_is_interrupted_while_it_imports_becomes_ready(tmp_path: Path) -> None:
    nursery = Nursery({**os.environ, "HGRCSKIPREPO": "1", "HGRCPATH": str(tmp_path)}, NURSERY)
    try:
        nursery.process.send_signal(signal.SIGINT)
        nursery.wait(PATIENCE)
        assert nursery.is_ready
        nursery.process.send_signal(signal.SIGINT)
        assert nursery.process.poll() is None
    finally:
        nursery.close()


def test_a_nursery_whose_parent_is_killed_ends_without_a_word(tmp_path: Path) -> None:
    """What the parent did not read makes its end of the socket break instead of close."""
    environment = {**os.environ, "HGRCSKIPREPO": "1", "HGRCPATH": str(tmp_path)}
    ours, theirs = socket.socketpair()
    started = subprocess.Popen(
        [sys.executable, "-m", NURSERY, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
        stderr=subprocess.PIPE,
    )
    with started as nursery, ours:
        theirs.close()
        assert select.select([ours], [], [], PATIENCE)[0]
        ours.close()
        assert (nursery.communicate()[1], nursery.returncode) == (b"", 0)


def test_the_supervisor_still_gets_interrupts_after_a_start() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with start("this", 0, os.environ) as process:
        process.kill()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_fork_that_the_system_refuses_is_no_process_and_one_log_line(tmp_path: Path) -> None:
    (tmp_path / "refusing_nursery.py").write_text(REFUSING)
    environment = {**os.environ, "HGRCSKIPREPO": "1", "HGRCPATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    nursery = Nursery(environment, "refusing_nursery")
    try:
        assert nursery.wait(PATIENCE)
        with structlog.testing.capture_logs() as lines, open(os.devnull) as file:
            assert [nursery.fork(file.fileno()) for _ in range(2)] == [None, None]
        expected = {"event": "worker not forked", "log_level": "warning", "number": errno.ENOSYS}
        assert [line | {"reason": ""} for line in lines] == [expected | {"reason": ""}] * 2
        assert [line["reason"] for line in lines] == [os.strerror(errno.ENOSYS)] * 2
        assert nursery.is_ready
    finally:
        nursery.close()
