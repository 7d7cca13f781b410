# SPDX-License-Identifier: GPL-2.0-or-later
"""The file of checkpoints: read from its end, cut when it has grown, and never without what a release may still need."""

from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.replica import replicated
from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, locked, prepare
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint
from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.mirror.task import Check, ReadEvent, Task, TaskOutcome
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.wire import decode
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench

pytestmark = pytest.mark.processes


class OneRepository:
    """A repository and the runner that applies its events one at a time, in this process."""

    def __init__(self, bench: Bench, runner: TaskRunner, author: Author) -> None:
        self.bench, self.runner, self.author, self.next = bench, runner, author, 0

    def apply(self, *, released: int) -> TaskOutcome:
        """The author's next event, and the release of an earlier one."""
        frame = self.author.frames[self.next][1]
        item = ReadEvent(frame=decode(frame), partition=0, offset=self.next, size=len(frame))
        self.next += 1
        outcome = self.runner.perform(
            Task(
                repository=self.author.repository,
                path=self.author.path,
                folder=str(self.bench.where(self.author)),
                items=(item,),
                incarnation=self.author.incarnation,
                released=released,
            )
        )
        assert outcome.trouble is None
        return outcome

    @property
    def file(self) -> Path:
        return self.bench.where(self.author) / ".hg/store/replicated.log"


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneRepository:
    hgrc = tmp_path / "worker.hgrc"
    hgrc.write_text(CONFIGURATION)
    monkeypatch.setenv("HGRCPATH", str(hgrc))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    monkeypatch.setattr(replicated, "TRIM_BYTES", 4000)
    with Bench(tmp_path) as bench:
        author = bench.author("repo")
        for _ in range(40):
            author.push()
        return OneRepository(bench, TaskRunner(bench.settings(), OpenRepositories(prepare(), 4), SystemClock()), author)


def test_checkpoints_before_the_release_are_cut_off(one: OneRepository) -> None:
    sizes = []
    for number in range(40):
        outcome = one.apply(released=number)
        sizes.append(one.file.stat().st_size)
        assert outcome.serving == number
    assert max(sizes) < 6000
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.seq == 40


def test_checkpoints_that_wait_for_their_release_stay(one: OneRepository) -> None:
    for _ in range(30):
        one.apply(released=3)
    assert one.file.stat().st_size > 8000
    outcome = one.apply(released=17)
    assert outcome.serving == 17
    watermark = (one.bench.where(one.author) / ".hg/replicated-watermark").read_text()
    assert watermark.startswith("1 17 16 ")


def test_a_large_file_of_which_little_can_go_is_left_alone(one: OneRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    files, parsed = set[int](), list[bytes]()
    for _ in range(30):
        one.apply(released=3)
        files.add(one.file.stat().st_ino)
    real = replicated.checkpoint_of

    def parse(record: bytes) -> Checkpoint:
        parsed.append(record)
        return real(record)

    repo = one.runner.repositories.open(str(one.bench.where(one.author)))
    with locked(repo), monkeypatch.context() as patch:
        patch.setattr(replicated, "checkpoint_of", parse)
        for released in (0, 3):
            replicated.trim(repo, released)
    files.add(one.file.stat().st_ino)
    assert one.file.stat().st_size > replicated.TRIM_BYTES
    assert len(files) == 1
    assert len(parsed) <= 4


def test_reading_through_reports_a_checkpoint_that_is_lower_than_it_was(one: OneRepository) -> None:
    for _ in range(3):
        outcome = one.apply(released=0)
    folder = str(one.bench.where(one.author))
    for seq, lower in ((3, None), (4, outcome.checkpoint)):
        wanted = Check(repository=one.author.repository, folder=folder, seq=seq)
        checked = check(one.runner.repositories, one.runner.settings, wanted)
        assert (checked.problem, checked.lower) == (None, lower)
