# SPDX-License-Identifier: GPL-2.0-or-later
"""Killed at any line or at any moment, a mirror goes on as if it had not been: nothing lost, nothing twice, no store damaged."""

import os
import pickle
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mercurial import repair

from hgext.vcsreplicator.mirror.pool import CONFIGURATION
from hgext.vcsreplicator.words.event import Type
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.faults import PythonSteps, first_visits
from testing.services.cache import CHECKOUT
from testing.warm_hg import shared_hg

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

WATCHED = ("vcsreplicator/hg/", "pushlog/", "mercurial/transaction.py", "mercurial/repair.py")
MIRROR_TASK = str(CHECKOUT / "testing" / "builders" / "mirror" / "mirror_task.py")
# The line of Mercurial's strip that deletes markers, the changesets being gone.
DELETION = "deleteobsmarkers(repo.obsstore"
TEMPLATE = "{rev} {node} {phase} {obsolete} {bookmarks} {pushid} {pushuser}\n"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def eventful(bench: Bench, path: str) -> Author:
    """A repository with an event of every kind."""
    author = bench.author(path)
    author.push(count=2)
    base = author.tip
    author.push(phase=1)
    author.bookmark("main", base)
    author.push(parent=base, phase=1)
    author.obsolete(author.tip)
    amended = author.push(parent=base, phase=1)
    doomed = author.push(parent=base, phase=1)
    author.obsolete(amended.after.node, doomed.after.node)
    author.push(parent=base)
    author.strip(doomed.after.node)
    author.event(Type.HGRC, hgrc={"web": {"description": "text"}})
    author.rename(bench.master_root, path + "-renamed")
    author.push()
    return author


def same(bench: Bench, author: Author) -> bool:
    arguments = ("log", "--hidden", "-T", TEMPLATE, "--config", "extensions.pushlog=")
    here, there = bench.hg(author, *arguments), bench.hg(author, *arguments, root=bench.master_root)
    return here == there and bench.hg(author, "verify", "-q") == ""


class OneWorker:
    """All events of one repository applied by one process, which is killed at a step."""

    def __init__(self, bench: Bench, author: Author) -> None:
        self.bench, self.author = bench, author
        self.task, self.hgrc = bench.folder / "task", bench.folder / "worker.hgrc"
        self.hgrc.write_text(CONFIGURATION)
        frames = [frame for _, frame in author.frames]
        self.task.write_bytes(pickle.dumps((bench.settings(), frames, author.seq)))
        self.steps = PythonSteps(files=WATCHED, argument=MIRROR_TASK, record=bench.folder / "steps")

    def run(self, environment: dict[str, str]) -> int:
        """One process from beginning to end; its exit code."""
        shield = {"HGRCPATH": str(self.hgrc), "HGRCSKIPREPO": "1", "HGENCODING": "UTF-8"}
        shield |= {"PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "0"}
        python = Path(shared_hg({**environment, **shield})).with_name("python")
        return subprocess.run(
            [python, MIRROR_TASK, str(self.task)], env={**environment, **shield}, check=False
        ).returncode

    def places(self) -> list[int]:
        """The steps at which each line is reached first."""
        return first_visits(self.steps.taken(lambda environment: self.run(dict(environment))))

    def killed_at(self, step: int) -> bool:
        """From nothing: killed at the step, then run again to the end; False if it ended before it came to the step."""
        shutil.rmtree(self.bench.root)
        self.bench.root.mkdir()
        code = self.run({**os.environ, **self.steps.environment(kill_at=step)})
        assert code in (-signal.SIGKILL, 0)
        assert self.run(dict(os.environ)) == 0
        return code != 0


def strike_everywhere(bench: Bench, count: int) -> int:
    """Kills a worker at that many lines, each from nothing; the number of kills, which is nearly all of them."""
    author = eventful(bench, "repo")
    worker = OneWorker(bench, author)
    places = worker.places()
    assert same(bench, author)
    chosen = places if len(places) < count else random.Random(count).sample(places, count)
    struck = 0
    for step in sorted(chosen):
        struck += worker.killed_at(step)
        found = bench.found()[author.repository]
        assert found.checkpoint is not None
        assert (found.checkpoint.digest, found.serving) == (author.digest, author.seq), f"killed at step {step}"
        assert bench.where(author) == bench.home(author), f"killed at step {step}"
        assert "text" in (bench.where(author) / ".hg/hgrc").read_text(), f"killed at step {step}"
        assert same(bench, author), f"killed at step {step}"
    assert struck >= 0.75 * len(chosen), f"only {struck} of {len(chosen)} kills struck"
    return struck


def test_a_worker_killed_at_a_line_leaves_nothing_half_done(bench: Bench) -> None:
    strike_everywhere(bench, 4)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_deletion_killed_at_a_line_is_finished(bench: Bench, kills: int) -> None:
    author = bench.author("repo")
    author.push()
    author.event(Type.DELETED)
    worker = OneWorker(bench, author)
    places = worker.places()
    struck = 0
    for step in sorted(random.Random(1).sample(places, kills)):
        struck += worker.killed_at(step)
        assert bench.found() == {}, f"killed at step {step}"
        assert not bench.where(author).exists(), f"killed at step {step}"
    assert struck >= 0.75 * kills


def test_a_kill_before_a_strip_deletes_its_markers_keeps_none_of_them(bench: Bench) -> None:
    author = eventful(bench, "repo")
    worker = OneWorker(bench, author)
    taken = worker.steps.taken(lambda environment: worker.run(dict(environment)))
    source = Path(repair.__file__).read_text().splitlines()
    [line] = [number for number, text in enumerate(source, 1) if DELETION in text]
    step = next(step for step, place in enumerate(taken, 1) if place.endswith(f"mercurial/repair.py:{line}"))
    assert worker.killed_at(step)
    found = bench.found()[author.repository]
    assert found.checkpoint is not None
    assert (found.checkpoint.digest, found.serving) == (author.digest, author.seq)
    assert same(bench, author)


def kill_at_random(bench: Bench, kills: int) -> tuple[int, int]:
    """Readers and workers are killed while events arrive; in the end everything is as on the master. The kills of each."""
    readers = struck = 0
    chance = random.Random(kills)
    authors = [bench.author(f"project/{number}") for number in range(4)]
    with bench.process() as mirror:
        for number in range(kills):
            for author in authors:
                for _ in range(3):
                    author.push(count=chance.randrange(1, 3))
            bench.send(*authors)
            wanted = chance.choice(authors)
            progress = chance.randrange(wanted.seq - 3, wanted.seq + 1)
            bench.wait(
                lambda acks, a=wanted, p=progress: (k := acks.get(a.repository)) is not None and k.applied >= p,  # type: ignore[misc]
                f"{wanted.path} at {progress}",
            )
            if number % 2:
                mirror.kill()
                mirror.start()
                readers += 1
            elif workers := mirror.workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                struck += 1
        bench.wait_applied(*authors)
    assert all(same(bench, author) for author in authors)
    return readers, struck


def test_readers_and_workers_killed_at_random_lose_nothing(bench: Bench) -> None:
    assert kill_at_random(bench, 10) == (5, 5)


def campaign(folder: Path, kills: int) -> str:
    """Half of the kills at lines of a worker, half at moments that chance chooses; what was killed how often."""
    with Bench(folder / "lines") as bench:
        at_lines = strike_everywhere(bench, kills // 2)
    with Bench(folder / "moments") as bench:
        readers, workers = kill_at_random(bench, kills - at_lines)
    return f"{at_lines + readers + workers} kills: workers at a line {at_lines}, workers {workers}, readers {readers}; all equal"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_readers_and_workers_killed_five_hundred_times_lose_nothing(
    tmp_path: Path, told: Callable[[object], None]
) -> None:
    told(campaign(tmp_path, 500))
