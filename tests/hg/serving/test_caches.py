# SPDX-License-Identifier: GPL-2.0-or-later
"""Caches of a repository that moves away while they are written: nothing stands at its former path afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.builders.mirror.mirroring import Bench

pytestmark = pytest.mark.processes


WRITE = """
import os, sys
from mercurial import extensions, hg, ui
from pushlog.versions import initialize
initialize()
ours = ui.ui.load()
extensions.loadall(ours)
repo = hg.repository(ours, sys.argv[1].encode()).unfiltered()
repo.cachevfs.write(b"one", b"1")
os.rename(sys.argv[1], sys.argv[2])
for opener in (repo.cachevfs, repo.wcachevfs):
    for how in ({}, {"atomictemp": True}):
        try:
            opener(b"two", b"wb", **how)
        except FileNotFoundError:
            print("refused")
"""


def test_what_serves_a_mirror_writes_caches_only_where_the_repository_is(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        author = bench.author("old")
        author.push()
    hgrc = tmp_path / "serve.hgrc"
    hgrc.write_text("[extensions]\n*:required = yes\npushlog=\nvcsreplicator=\n[vcsreplicator]\nrole=mirror\n")
    former, present = str(author.folder), str(author.folder.with_name("new"))
    environment = {**os.environ, "HGRCPATH": str(hgrc)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRITE, former, present],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["refused"] * 4
    assert not os.path.exists(former)
