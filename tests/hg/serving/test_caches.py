# SPDX-License-Identifier: GPL-2.0-or-later
"""Caches of a repository that moves away while they are written: nothing stands at its former path afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mercurial import vfs

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.serving import views, watermark
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from testing.builders.mirroring import Bench

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    (tmp_path / "worker.hgrc").write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "worker.hgrc"))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    with Bench(tmp_path) as bench:
        yield bench


def test_a_repository_that_moves_while_its_caches_are_filled_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = bench.author("old")
    author.push()
    former, present = author.folder, author.folder.with_name("new")
    written: list[bytes] = []
    call = vfs.vfs.__call__

    def move_and_call(opener: Any, path: bytes, mode: bytes = b"rb", **named: Any) -> Any:
        if opener.base.endswith(b"cache") and mode != b"rb":
            written.append(path)
            if former.exists():
                former.rename(present)
        return call(opener, path, mode, **named)

    repo = OpenRepositories(prepare(), 4).open(str(former))
    for cache in (former / ".hg/cache").iterdir():
        cache.unlink()
    watermark.write_watermark(repo, seq=1, length=len(repo), tip=author.tip, push_id=1)
    monkeypatch.setattr(vfs.vfs, "__call__", move_and_call)
    views.warm(repo)
    assert written
    assert present.exists()
    assert not former.exists()


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


def test_what_serves_a_mirror_writes_caches_only_where_the_repository_is(bench: Bench, tmp_path: Path) -> None:
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
