# SPDX-License-Identifier: GPL-2.0-or-later
"""A master's hgweb reopens a repository after each change: what it had of it before, a whole index, is not kept for long."""

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
assert gc.get_threshold() != before
served = hgweb(os.path.join(folder, b"x"), baseui=configuration)
assert gc.get_threshold() == before
"""


def test_hgweb_of_a_master_looks_for_cyclic_garbage_as_often_as_without_us(tmp_path: Path) -> None:
    environment = {**os.environ, "HGRCPATH": ""}
    subprocess.run([sys.executable, "-m", "mercurial", "init", str(tmp_path / "x")], env=environment, check=True)
    subprocess.run([sys.executable, "-c", SERVE, str(tmp_path)], env=environment, check=True)
