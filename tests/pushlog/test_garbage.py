# SPDX-License-Identifier: GPL-2.0-or-later
"""The server of one push over SSH collects cyclic garbage rarely; a process that lives longer does so as often as without us."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

REPORTER = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count(), file=sys.stderr))
"""


def thresholds(folder: Path, *command: str, hgrc: str) -> list[int]:
    """The first threshold, and how many objects are frozen, at the end of a command of `hg`."""
    (folder / "reporter.py").write_text(REPORTER)
    # Loaded first, so it reports last.
    (folder / "hgrc").write_text(f"[extensions]\nreporter = {folder}/reporter.py\n{hgrc}")
    environment = {**os.environ, "HGRCPATH": str(folder / "hgrc")}
    program = str(Path(sys.executable).with_name("hg"))
    done = subprocess.run(
        [program, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    return [int(number) for number in done.stderr.split()[-2:]]


def test_a_server_over_ssh_alone_collects_garbage_rarely(tmp_path: Path) -> None:
    thresholds(tmp_path, "init", "repository", hgrc="")
    ordinary = thresholds(tmp_path, "-R", "repository", "serve", "--stdio", hgrc="")
    threshold, frozen = thresholds(tmp_path, "-R", "repository", "serve", "--stdio", hgrc="pushlog =\n")
    assert threshold >= 10 * ordinary[0]
    assert frozen > ordinary[1]
    assert thresholds(tmp_path, "-R", "repository", "log", hgrc="pushlog =\n") == ordinary
