# SPDX-License-Identifier: GPL-2.0-or-later
"""With `lock` a Mercurial that lacks the extension cannot open a mirror's repositories; what has it serves them as ever."""

import os
import subprocess

import pytest

from hgext.vcsreplicator.hg.replica.scan import is_locked
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.waiting import eventually
from testing.warm_hg import shared_hg
from tests.hg.serving.test_watermark import served

pytestmark = pytest.mark.processes


def plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HGRCPATH": os.devnull, "HGPLAIN": "1"}
    return subprocess.run(
        [shared_hg(environment), *arguments], env=environment, check=False, capture_output=True, text=True
    )


def is_open(bench: Bench, author: Author) -> bool:
    """Whether a Mercurial without the extension opens the repository."""
    done = plain("-R", str(bench.where(author)), "log", "-l1", "-T.")
    assert done.returncode == 0 or "exp-vcsreplicator" in done.stderr, done.stderr
    assert is_locked(str(bench.where(author))) == (done.returncode != 0)
    return done.returncode == 0


def pushed(bench: Bench, path: str) -> Author:
    author = bench.author(path)
    author.push()
    bench.send(author)
    bench.release(author)
    return author


def test_a_locked_mirror_is_closed_to_a_mercurial_without_the_extension(bench: Bench) -> None:
    author = pushed(bench, "repo")
    with bench.mirror(lock=True):
        bench.wait_served(author)
        assert not is_open(bench, author)
        author.push()
        bench.send(author)
        bench.release(author)
        bench.wait_served(author)
    assert not is_open(bench, author)
    with served(bench, author) as url:
        for options in ((), ("--stream",)):
            target = str(bench.folder / f"clone{len(options)}")
            assert plain("clone", "-q", *options, url, target).returncode == 0
            assert plain("-R", target, "id", "-i", "--debug").stdout.strip() == author.tip


def test_a_mirror_locks_and_unlocks_what_it_has_without_an_event(bench: Bench) -> None:
    author = pushed(bench, "repo")
    with bench.mirror():
        bench.wait_served(author)
    assert is_open(bench, author)
    for lock in (True, False, True):
        with bench.mirror(lock=lock):
            eventually(lambda lock=lock: is_locked(str(bench.where(author))) is lock, f"lock is {lock}")  # type: ignore[misc]
            assert is_open(bench, author) is not lock
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
    assert is_open(bench, author)


def test_a_copy_from_the_master_is_locked_before_it_has_a_place(bench: Bench) -> None:
    author = pushed(bench, "repo")
    with bench.mirror(lock=True):
        bench.wait_served(author)
        before = (bench.where(author) / ".hg/store").stat().st_ino
        bench.request_heal(author)
        eventually(lambda: (bench.where(author) / ".hg/store").stat().st_ino != before, "a new copy")
        assert not is_open(bench, author)
        eventually(lambda: bench.notes() == [], "in the stream again")
        author.push()
        bench.send(author)
        bench.wait_applied(author)
        assert not is_open(bench, author)
