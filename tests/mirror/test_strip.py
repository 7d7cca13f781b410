# SPDX-License-Identifier: GPL-2.0-or-later
"""A strip on a mirror: what was shown and stays is shown on, a watermark that fits nothing stays so, bookmarks survive a kill."""

import shutil
from pathlib import Path

import pytest
from mercurial.node import hex

from hgext.vcsreplicator.hg import observe
from hgext.vcsreplicator.hg.replica import acts, replicated
from hgext.vcsreplicator.hg.replica.repository import locked
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint
from hgext.vcsreplicator.mirror.task import ReadEvent
from hgext.vcsreplicator.words.wire import decode
from pushlog.versions import factory
from testing.builders.mirror.author import Author


class Mirror:
    """A mirror's copy of the author's repository as it is now, which the author's next event changes."""

    def __init__(self, author: Author, folder: Path) -> None:
        self.author = author
        shutil.copytree(author.folder, folder / "mirror")
        self.repo = factory.repository(author.ui, bytes(folder / "mirror")).unfiltered()
        tip = observe.tip(self.repo)
        self.checkpoint = Checkpoint(
            repository=author.repository,
            incarnation=author.incarnation,
            path=author.path,
            generation=1,
            seq=author.seq,
            id=author.last or "",
            digest=author.digest,
            length=tip.length,
            tip=tip.node,
            push=author.pushes,
            time=1.0,
        )

    def release(self, length: int) -> None:
        tip = hex(self.repo.changelog.node(length - 1)).decode()
        watermark.write_watermark(
            self.repo, watermark.Watermark(seq=self.checkpoint.seq - 1, length=length, tip=tip, push_id=length)
        )

    def act(self) -> None:
        _, frame = self.author.frames[-1]
        item = ReadEvent(frame=decode(frame), partition=0, offset=1, size=len(frame))
        with locked(self.repo):
            acts.carry_out(self.repo, replicated.read(self.repo) or self.checkpoint, item, 2.0)

    @property
    def shown(self) -> list[str]:
        length = watermark.count_shown(self.repo, watermark.read_watermark(self.repo.vfs))
        return [hex(self.repo.changelog.node(rev)).decode() for rev in range(length)]


@pytest.fixture
def author(tmp_path):
    (tmp_path / "master").mkdir()
    return Author(tmp_path / "master", "repo")


@pytest.fixture
def branches(author):
    """A base, two branches on it, and a changeset on the second of them."""
    base = author.push().after.node
    first = author.push(parent=base, phase=1).after.node
    second = author.push(parent=base, phase=1).after.node
    return base, first, second, author.push(parent=second, phase=1).after.node


def test_a_strip_hides_nothing_that_was_released_and_stays(author, branches, tmp_path):
    base, first, second, _newest = branches
    mirror = Mirror(author, tmp_path)
    mirror.release(3)
    author.strip(first)
    mirror.act()
    assert mirror.shown == [base, second]


def test_a_strip_of_what_is_not_released_hides_nothing(author, branches, tmp_path):
    base, first, second, newest = branches
    mirror = Mirror(author, tmp_path)
    mirror.release(3)
    author.strip(newest)
    mirror.act()
    assert mirror.shown == [base, first, second]


@pytest.mark.parametrize("length", [3, 9])
def test_a_watermark_that_fits_nothing_is_not_made_valid_by_a_strip(author, branches, tmp_path, length):
    mirror = Mirror(author, tmp_path)
    damaged = b"1 3 %d %s 3\n" % (length, b"0" * 40)
    mirror.repo.vfs.write(watermark.WATERMARK, damaged)
    author.strip(branches[1])
    mirror.act()
    assert mirror.repo.vfs.read(watermark.WATERMARK) == damaged


def test_a_release_from_before_a_strip_finds_the_level_of_its_event(author, branches, tmp_path):
    mirror = Mirror(author, tmp_path)
    replicated.record(mirror.repo, mirror.checkpoint)
    author.strip(branches[1])
    mirror.act()
    checkpoint, _moved = replicated.find(mirror.repo, mirror.checkpoint.seq)
    assert checkpoint == mirror.checkpoint


class Killed(Exception):
    """Stands for a kill: nothing catches it."""


def test_a_strip_killed_before_mercurial_moves_bookmarks_keeps_them(author, branches, tmp_path, monkeypatch):
    base, first, *_ = branches
    author.bookmark("here", first)
    mirror = Mirror(author, tmp_path)
    author.strip(first)
    transaction = type(mirror.repo).transaction

    def killed(repo, description, report=None):
        if description == b"repair":
            raise Killed
        return transaction(repo, description, report)

    with monkeypatch.context() as patched:
        patched.setattr(type(mirror.repo), "transaction", killed)
        with pytest.raises(Killed):
            mirror.act()
    mirror.repo = factory.repository(author.ui, mirror.repo.root).unfiltered()
    mirror.act()
    assert observe.bookmarks(mirror.repo, ["here"]) == {"here": base}
    assert observe.tip(mirror.repo) == author.frames[-1][0].after
