# SPDX-License-Identifier: GPL-2.0-or-later
"""What the processes of a mirror do with Ctrl-C, which a terminal sends to all of them."""

import os
import signal
from pathlib import Path

import pytest

from hgext.vcsreplicator.mirror.nursery import Nursery, start
from testing.waiting import PATIENCE

pytestmark = pytest.mark.processes


def test_a_nursery_that_is_interrupted_while_it_imports_becomes_ready(tmp_path: Path) -> None:
    nursery = Nursery({**os.environ, "HGRCSKIPREPO": "1", "HGRCPATH": str(tmp_path)})
    try:
        nursery.process.send_signal(signal.SIGINT)
        nursery.wait(PATIENCE)
        assert nursery.is_ready
        nursery.process.send_signal(signal.SIGINT)
        assert nursery.process.poll() is None
    finally:
        nursery.close()


def test_the_supervisor_still_gets_interrupts_after_a_start() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with start("this", 0, os.environ) as process:
        process.kill()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
