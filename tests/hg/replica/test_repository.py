# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories that a worker keeps open, and others move."""

import gc
import os
import weakref
from typing import Any

import pytest
from mercurial import error, scmutil, vfs

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, locked, prepare
from hgext.vcsreplicator.hg.serving import views, watermark
from testing.builders.mirror.mirroring import Bench

pytestmark = pytest.mark.processes


def test_a_repository_that_moves_while_caches_fill_leaves_nothing(
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
    watermark.write_watermark(repo, watermark.Watermark(seq=1, length=len(repo), tip=author.tip, push_id=1))
    monkeypatch.setattr(vfs.vfs, "__call__", move_and_call)
    views.warm(repo)
    assert written
    assert present.exists()
    assert not former.exists()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["bookmarks", "store/phaseroots", "cache/rbc-names-v1"])
def test_a_pipe_in_an_open_repository_is_named_and_not_waited_for(bench: Bench, name: str) -> None:
    author = bench.author("one")
    author.push()
    repositories, file = OpenRepositories(prepare(), 4), author.folder / ".hg" / name
    repositories.open(str(author.folder))
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with pytest.raises(OSError, match=f"Not a file: '{file}'"):
        repositories.open(str(author.folder))


def test_a_worker_without_rust_opens_what_a_mercurial_in_rust_made(bench: Bench) -> None:
    author = bench.author("one")
    author.push()
    with author.repo.wlock(), author.repo.lock():
        scmutil.writereporequirements(author.repo, author.repo.requirements | {b"persistent-nodemap"})
    assert len(OpenRepositories(prepare(), 4).open(str(author.folder)).changelog) == 1


def test_no_hook_runs_where_a_mirror_applies_events(bench: Bench) -> None:
    author = bench.author("one")
    repo, ran = OpenRepositories(prepare(), 4).open(str(author.folder)), []
    for name in (b"pretxnopen", b"pretxnclose", b"txnclose"):
        repo.ui.setconfig(b"hooks", name, lambda **_: ran.append(1))
    with repo.lock(), repo.transaction(b"test"):
        pass
    assert ran == []


def test_a_worker_rolls_back_no_name_that_a_journal_made_up(bench: Bench) -> None:
    author = bench.author("one")
    author.push()
    repo, store = OpenRepositories(prepare(), 4).open(str(author.folder)), author.folder / ".hg/store"
    profile = author.folder.parent / "profile"
    profile.write_text("mine")
    (store / "journal").touch()
    (store / "journal.backupfiles").write_bytes(b"2\nplain\0../../profile\0\0000\n")
    with (
        pytest.raises(error.Abort, match="which no transaction of Mercurial writes; it is not rolled back"),
        locked(repo),
    ):
        pass
    assert profile.exists()
    (store / "journal.backupfiles").write_bytes(b"2\n\0phaseroots\0\0000\n")
    with locked(repo):
        assert not (store / "journal").exists()


def test_closed_repositories_are_collected_rarely_and_never_pile_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [str(bench.author(name).folder) for name in "abcdef"]
    collections, opened = [], weakref.WeakSet[Any]()
    monkeypatch.setattr(gc, "collect", lambda collect=gc.collect: collections.append(collect()))
    repositories = OpenRepositories(prepare(), 3)
    gc.disable()  # nothing else collects
    try:
        for turn in range(12):
            opened.add(repositories.open(folders[turn % 6]))
            assert len(opened) <= 6, "as many closed ones as open ones at most"
    finally:
        gc.enable()
    assert len(collections) == 3, "one for three evictions"
