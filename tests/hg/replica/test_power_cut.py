# SPDX-License-Identifier: GPL-2.0-or-later
"""A power cut takes applied events from a mirror's store, and leaves the watermark, which was renamed, ahead of it."""

import os
import shutil
from pathlib import Path

import pytest
from mercurial.revlogutils import constants

from hgext.vcsreplicator.hg.replica import scan
from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.task import Check, ReadEvent
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.wire import decode
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.faults.system import System

from .conftest import Worker


def read_shown(folder: Path) -> tuple[int | None, int, int]:
    """Return the watermark's event, and how many changesets it shows of how many."""
    repo = OpenRepositories(prepare(), 4).open(str(folder)).unfiltered()
    found = watermark.read_watermark(repo.vfs)
    return found.seq if found else None, watermark.count_shown(repo, found), len(repo.changelog)


def read_again(author: Author, seq: int) -> tuple[ReadEvent, ...]:
    frame = author.frames[seq - 1][1]
    return (ReadEvent(frame=decode(frame), partition=0, offset=seq - 1, size=len(frame)),)


@pytest.fixture
def cut(bench: Bench, worker: Worker, tmp_path: Path) -> tuple[Author, Path]:
    """A repository whose store is back at event 3, with the watermark of event 5."""
    author = bench.author("repo")
    for _ in range(2):
        author.push()
    worker.perform(author)
    store = bench.where(author) / ".hg" / "store"
    shutil.copytree(store, tmp_path / "older")
    for _ in range(2):
        author.push()
    assert worker.perform(author).serving == 5
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "older", store)
    return author, bench.where(author)


def test_a_watermark_ahead_of_the_store_says_nothing_of_what_clients_see(cut: tuple[Author, Path]) -> None:
    found = scan.inspect(str(cut[1]))
    assert found is not None
    assert found.checkpoint is not None
    assert (found.checkpoint.seq, found.serving) == (3, 0)


def test_a_mirror_shows_after_a_power_cut_what_it_says_it_serves(cut: tuple[Author, Path], worker: Worker) -> None:
    author, folder = cut
    outcome = worker.perform(author, items=())
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.seq, outcome.serving, read_shown(folder)) == (3, 3, (3, 2, 2))
    assert worker.perform(author, items=read_again(author, 4)).serving == 4
    assert read_shown(folder) == (4, 3, 3)
    assert worker.perform(author, items=read_again(author, 5)).serving == 5
    assert read_shown(folder) == (5, 4, 4)


def test_a_power_cut_that_takes_the_release_waits_for_it(cut: tuple[Author, Path], worker: Worker) -> None:
    author, folder = cut
    outcome = worker.perform(author, items=(), released=2)
    assert (outcome.serving, read_shown(folder)) == (2, (2, 1, 2))


def test_mirrors_get_a_version_that_a_power_cut_left_on_the_master(bench: Bench, worker: Worker) -> None:
    """It has the number of a changeset that was rolled back, which is another changeset by now."""
    author = bench.author("repo")
    old = author.push({"shared": b"old\n"}).after.node
    author.push({"shared": b"new\n"})
    history = author.folder / ".hg/store/data/shared.i"
    left = history.read_bytes()
    author.strip(author.tip)
    history.write_bytes(left)
    author.push({"other": b"other\n"})
    author.push({"shared": b"new\n"})
    author.push({"shared": b"new\n"}, parent=old)  # the same version again, which mirrors have by now
    assert worker.perform(author).trouble is None
    wanted = Check(repository=author.repository, folder=str(bench.home(author)), seq=author.seq, serving=author.seq)
    assert check(OpenRepositories(prepare(), 1), bench.settings(), wanted).problem is None


def test_no_power_cut_empties_a_mirrors_file_of_phases(bench: Bench, worker: Worker, system: System) -> None:
    """An empty file would show what is secret: the content is on the disk before the file has its name."""
    author = bench.author("repo")
    author.push()
    author.push(phase=2)
    synced = list[tuple[str, bool]]()
    system.watch(lambda path: synced.append((os.path.basename(path), os.path.getsize(path) > 0)), "os.fdatasync")
    assert worker.perform(author).trouble is None
    assert [has_content for name, has_content in synced if name.startswith(".phaseroots-")] == [True]
    assert (bench.where(author) / ".hg/store/phaseroots").read_text() == f"2 {author.tip}\n"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of a split
@pytest.mark.parametrize("more", [-5, 5])
def test_no_event_is_applied_into_a_torn_file(bench: Bench, worker: Worker, more: int) -> None:
    author, lines = bench.author("repo"), os.urandom(200_000).hex("\n", 20).encode() + b"\n"
    for number in range(3):
        author.push({"large": lines + b"%d\n" % number})
    before = worker.perform(author)
    contents = bench.where(author) / ".hg/store/data/large.d"
    size = contents.stat().st_size + more
    os.truncate(contents, size)
    author.push({"large": lines + b"new\n"})
    after = worker.perform(author)
    assert after.trouble is not None
    assert after.trouble.reason is Reason.CORRUPT
    assert f"data/large.d is damaged: it has {size} bytes" in after.trouble.note
    assert (after.checkpoint, after.serving) == (before.checkpoint, before.serving)
    assert contents.stat().st_size == size


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "lost", "is_filled"),
    [
        ("00changelog.i", 50, False),
        ("00changelog.i", 50, True),
        ("00changelog.i", 999, False),
        ("00changelog.d", 1, False),
    ],
    ids=["shorter", "zeros", "empty", "data"],
)
def test_a_torn_store_serves_nothing_until_it_is_healed(
    bench: Bench, worker: Worker, name: str, lost: int, is_filled: bool
) -> None:
    author = bench.author("repo")
    bench.serve_master()
    for _ in range(3):
        author.push()
    assert worker.perform(author).serving == 4
    file = bench.where(author) / ".hg/store" / name
    size = file.stat().st_size
    os.truncate(file, max(size - lost, 0))
    if is_filled:
        os.truncate(file, size)
    found = scan.inspect(str(bench.where(author)))
    assert found is not None
    assert found.checkpoint is not None
    assert (found.checkpoint.seq, found.serving) == (4, 0)
    torn = worker.perform(author, items=())
    assert torn.trouble is not None
    assert (torn.serving, torn.trouble.passing) == (0, False)
    healed = worker.perform(author, heal=torn.trouble.reason)
    assert (healed.serving, healed.trouble) == (4, None)


def test_a_changelog_in_one_file_as_older_mercurials_made_it_is_not_torn(bench: Bench, worker: Worker) -> None:
    author = bench.author("repo")
    author.push()
    assert worker.perform(author).serving == 2
    index, data = (bench.where(author) / ".hg/store" / f"00changelog.{end}" for end in "id")
    number = constants.REVLOGV1 | constants.FLAG_INLINE_DATA
    index.write_bytes(constants.INDEX_HEADER.pack(number) + index.read_bytes()[4:] + data.read_bytes())
    data.unlink()
    found = scan.inspect(str(bench.where(author)))
    assert found is not None
    assert (found.serving, read_shown(bench.where(author))) == (2, (2, 1, 1))
