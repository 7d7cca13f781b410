# SPDX-License-Identifier: GPL-2.0-or-later
"""What a master's hgweb spends on a request: it reopens a repository after each change, and a served folder's for each request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SERVE = """
import gc, os, sys
from mercurial import extensions, ui as uimod
from mercurial.hgweb import hgweb

before, folder = gc.get_threshold(), sys.argv[1].encode()
configuration = uimod.ui.load()
for section, key, value in (
    (b"extensions", b"vcsreplicator", b""),
    (b"vcsreplicator", b"role", b"master"),
    (b"vcsreplicator", b"log", b"sqlite://" + folder + b"/log.db"),
    (b"vcsreplicator-roots", folder, b"."),
):
    configuration.setconfig(section, key, value)
extensions.loadall(configuration)
"""
COLLECTS = """
assert gc.get_threshold() != before
served = hgweb(os.path.join(folder, b"x"), baseui=configuration)
assert gc.get_threshold() == before
"""
LOADS_ONCE = """
from pushlog import seams

finished = []
finish, seams.finish_imports = seams.finish_imports, lambda: finished.append(finish())
for _each in range(3):
    hgweb(os.path.join(folder, b"x"), baseui=configuration)
assert len(finished) == 1, finished
"""


def test_hgweb_of_a_master_collects_garbage_as_often_as_without_us(tmp_path: Path) -> None:
    # Else it would keep what it had of a repository before, a whole index, for long.
    serve(tmp_path, COLLECTS)


def test_hgweb_of_a_master_loads_its_modules_at_the_first_repository(tmp_path: Path) -> None:
    serve(tmp_path, LOADS_ONCE)


def serve(folder: Path, claims: str) -> None:
    """Run a program that serves a master's repository."""
    environment = {**os.environ, "HGRCPATH": ""}
    subprocess.run([sys.executable, "-m", "mercurial", "init", str(folder / "x")], env=environment, check=True)
    subprocess.run([sys.executable, "-c", SERVE + claims, str(folder)], env=environment, check=True)
