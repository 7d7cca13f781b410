# SPDX-License-Identifier: GPL-2.0-or-later
"""A repair that cannot be done leaves all as it is; a copy shows what its predecessor showed, under the same rules for readers."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.hg.replica import healing, scan
from hgext.vcsreplicator.hg.replica.checking import check
from hgext.vcsreplicator.hg.replica.place import waiting_of
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.task import Check
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Reason
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.faults.permission import closed
from testing.faults.system import System

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("reason", [Reason.GAP, Reason.CORRUPT])
def test_a_repair_without_a_master_leaves_the_ack_where_it_is(bench: Bench, worker: Any, reason: Reason) -> None:
    author = bench.author("repo")
    author.push()
    before = worker.perform(author)
    assert before.trouble is None
    after = worker.perform(author, heal=reason)
    assert after.trouble is not None
    assert "master is not set: there is nothing to heal from" in after.trouble.note
    assert (after.checkpoint, after.folder, after.serving) == (before.checkpoint, before.folder, author.seq)


def test_a_copy_after_its_newest_push_was_stripped_misses_no_push(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    author.push()
    author.strip(author.tip)
    assert worker.perform(author).trouble is None
    assert worker.perform(author, heal=Reason.CORRUPT).trouble is None
    author.push()
    healed = worker.perform(author)
    assert (healed.trouble, healed.serving) == (None, author.seq)
    wanted = Check(repository=author.repository, folder=str(bench.home(author)), seq=author.seq, serving=author.seq)
    assert check(OpenRepositories(prepare(), 1), bench.settings(), wanted).problem is None


@pytest.mark.parametrize("left", [0, 64])
@pytest.mark.parametrize("reason", [Reason.GAP, Reason.CORRUPT])
def test_no_repair_takes_over_what_the_master_lost(bench: Bench, worker: Any, reason: Reason, left: int) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    author.push()
    before = worker.perform(author)
    os.truncate(author.folder / ".hg/store/00changelog.i", left)
    after = worker.perform(author, heal=reason)
    assert after.trouble is not None
    assert "lost changesets" in after.trouble.note
    assert after.trouble.passing
    assert (after.checkpoint, after.folder, after.serving) == (before.checkpoint, before.folder, author.seq)
    found = scan.inspect(str(bench.where(author)))
    assert found is not None
    assert found.serving == author.seq


def restrict(author: Author, user: str) -> None:
    """Let one user alone read."""
    (author.folder / ".hg/hgrc").write_text(f"[web]\nallow_read = {user}\n")
    author.event(Type.HGRC, hgrc={"web": {"allow_read": user}})


def test_a_copy_keeps_its_reader_rules_until_its_own_release(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    restrict(author, "first")
    assert worker.perform(author).trouble is None
    shown = author.seq
    restrict(author, "second")
    healed = worker.perform(author, released=shown, heal=Reason.CORRUPT)
    assert (healed.trouble, healed.serving) == (None, shown)
    assert healed.checkpoint is not None
    assert healed.checkpoint.seq == author.seq
    assert "allow_read = first\n" in (bench.home(author) / ".hg/hgrc").read_text()
    worker.perform(author, heal=Reason.GAP)
    assert "allow_read = second\n" in (bench.home(author) / ".hg/hgrc").read_text()


def test_a_copy_in_place_of_one_without_its_reader_rules_has_them(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    restrict(author, "dana")
    assert worker.perform(author).serving == author.seq
    rules = bench.home(author) / ".hg/hgrc"
    rules.unlink()
    assert worker.perform(author, heal=Reason.CORRUPT).serving == author.seq
    assert "allow_read = dana\n" in rules.read_text()


def test_rules_for_readers_are_on_disk_before_what_they_guard_is_shown(
    bench: Bench, worker: Any, system: System
) -> None:
    author = bench.author("repo")
    author.push()
    restrict(author, "dana")
    done = []
    system.watch(lambda path: done.append(os.path.basename(path)), "os.fdatasync")
    system.watch(lambda _: done.append("shown"), "os.rename", at=f"*/{os.fsdecode(watermark.WATERMARK)}")
    assert worker.perform(author).serving == author.seq
    assert "hgrc.new" in done[: done.index("shown")]


class Killed(BaseException):
    """Instead of a kill."""


def test_rules_that_a_killed_repair_left_do_not_outlive_their_removal(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    restrict(author, "first")
    worker.perform(author)
    keep = healing._keep_hgrc

    def keep_and_be_killed(*arguments: Any) -> None:
        keep(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(healing, "_keep_hgrc", keep_and_be_killed)
        with pytest.raises(Killed):
            worker.perform(author, heal=Reason.CORRUPT)
    (author.folder / ".hg/hgrc").unlink()
    author.event(Type.HGRC, hgrc={})
    assert worker.perform(author).serving == author.seq
    assert worker.perform(author, heal=Reason.CORRUPT).trouble is None
    assert not (bench.home(author) / ".hg/hgrc").exists()


def test_a_copy_that_can_never_have_its_path_is_refused_at_once(bench: Bench, worker: Any) -> None:
    former = bench.author("repo")
    former.push()
    assert worker.perform(former).serving == former.seq
    shutil.move(former.folder, bench.folder / "gone")
    author = bench.author("repo")  # of the same generation: the master forgot the one before
    author.push()
    bench.serve_master()
    trouble = worker.perform(author, folder=None, heal=Reason.BOOTSTRAP).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.note) == (Reason.REFUSED, f"path 'repo' is taken by repository {former.repository}")
    assert set(bench.found()) == {former.repository}


def test_a_form_of_a_newer_mercurial_is_named_and_healed_by_a_copy(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    assert worker.perform(author).serving == author.seq
    requires = bench.home(author) / ".hg/requires"
    requires.write_text(requires.read_text() + "form-of-tomorrow\n")
    shown = author.seq
    author.push()
    before = worker.perform(author, released=shown)
    assert before.trouble is not None
    assert (before.trouble.reason, before.serving) == (Reason.CORRUPT, shown)
    assert "requires features unknown to this Mercurial: form-of-tomorrow" in before.trouble.note
    healed = worker.perform(author, heal=Reason.CORRUPT)
    assert (healed.trouble, healed.serving) == (None, author.seq)
    assert "form-of-tomorrow" not in requires.read_text()


def test_a_half_made_copy_in_the_way_is_damage_that_heals_at_once(bench: Bench, worker: Any) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    left = Path(waiting_of(bench.settings().folder, author.repository)) / ".hg/store"
    left.mkdir(parents=True)
    before = worker.perform(author, folder=None)
    assert before.trouble is not None
    assert (before.trouble.reason, before.trouble.passing) == (Reason.CORRUPT, False)
    healed = worker.perform(author, folder=None, heal=Reason.CORRUPT)
    assert (healed.trouble, healed.serving) == (None, author.seq)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["", ".hg/store", ".hg/store/replicated.log"])
def test_a_repository_that_the_mirror_may_not_read_waits_until_it_may(bench: Bench, worker: Any, name: str) -> None:
    author = bench.author("repo")
    bench.serve_master()
    author.push()
    assert worker.perform(author).trouble is None
    home = bench.home(author)
    author.push()
    with closed(home / name):
        for members in ({}, {"heal": Reason.GAP}, {"heal": Reason.CORRUPT}):
            trouble = worker.perform(author, **members).trouble
            assert trouble is not None
            assert (trouble.reason, trouble.passing) == (Reason.DISK, True)
            assert "Permission denied" in trouble.note
    assert worker.perform(author, heal=Reason.GAP).trouble is None
    assert [found.folder for found in scan.scan(str(bench.root), bench.settings().folder)] == [str(home)]
