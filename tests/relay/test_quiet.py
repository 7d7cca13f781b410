# SPDX-License-Identifier: GPL-2.0-or-later
"""A round of the relay costs a quiet repository four system calls, and misses nothing that changes."""

import grp
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import rounds, scan
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.rounds import TURNS
from hgext.vcsreplicator.relay.work import Failure
from testing.builders.master.outboxes import Folder, Transaction, following

from .test_rounds import Round

# Repositories of the round: no turn of a folder falls together with that of another one's root.
NAMES = [f"r{number:02}" for number in range(9)]


def read_names(root: Path) -> list[str]:
    return [f"{root}/{name}" for name in NAMES]


@pytest.fixture
def settle(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Has what changed be settled after so many seconds."""
    return lambda seconds: monkeypatch.setattr(scan, "SETTLED", seconds)


@pytest.fixture
def quiet(tmp_path: Path, settle: Callable[[float], None]) -> Round:
    """A root whose repositories are quiet, after some rounds."""
    settle(0.0)
    round_ = Round(tmp_path)
    for name in NAMES:
        round_.create(name, 1)
    time.sleep(0.01)  # the kernel's clock ticks
    round_.make(1000.0)
    return round_


def count_calls(act: Callable[[], object]) -> Counter[str]:
    """Count the calls of functions that ask the kernel about files."""
    calls = Counter[str]()

    def note(_frame: object, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", "") in ("posix", "_io", "io"):
            calls[called.__name__] += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def test_a_quiet_repository_costs_a_round_four_calls(quiet: Round) -> None:
    calls = [count_calls(lambda: quiet.round(1000.0)) for _ in range(TURNS)]
    asked = sum((each for each in calls), Counter[str]())
    assert asked["stat"] <= TURNS * (4 * len(NAMES) + 3) + 10 * (len(NAMES) + 1), "in its turn ten more"
    assert asked["scandir"] <= 2 * (len(NAMES) + 1), "each folder once in its turn"
    assert asked["listdir"] <= 3 * len(NAMES) + TURNS
    assert len(quiet.found.quiet) >= len(NAMES) - 2


def test_in_its_turn_each_quiet_repository_is_looked_at(quiet: Round) -> None:
    looked_at = set[str]()
    for _ in range(TURNS):
        quiet.make(1000.0)
        looked_at |= {*quiet.found.folders} - quiet.found.quiet
    assert looked_at == set(read_names(quiet.root))


def change_nothing_but_the_log(quiet: Round, _store: Path) -> None:
    quiet.confirmed = False


def push(_quiet: Round, store: Path) -> None:
    Outbox(Folder(str(store))).append(Transaction(), following(before_first_event("r03", 1), 2)[1:])
    (store / "journal").touch()
    (store / "journal").unlink()


def lose_mark(_quiet: Round, store: Path) -> None:
    (store / "outbox.sent").unlink()


@pytest.mark.parametrize("change", [change_nothing_but_the_log, push, lose_mark])
def test_what_has_to_be_sent_is_seen_in_the_next_round(quiet: Round, change: Callable[[Round, Path], object]) -> None:
    assert quiet.make(1000.0) == ([], [])
    change(quiet, quiet.root / "r03/.hg/store")
    assert ("r03", "send") in quiet.make(1000.0)[0]


def test_damage_to_the_newest_segment_is_named_in_the_next_round(quiet: Round) -> None:
    segment = quiet.root / "r03/.hg/store/outbox.0001.log"
    with segment.open("r+b") as file:  # no folder shows it
        file.seek(-3, os.SEEK_END)
        file.write(b"xxx")
    [trouble] = quiet.make(1000.0)[1]
    assert trouble.startswith("its outbox cannot be read: ")


def test_damage_done_during_a_look_is_named_in_the_next_round(quiet: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, damaged = quiet.root / "r03/.hg/store/outbox.0001.log", list[str]()

    def damage(folder: str) -> None:
        if folder.endswith("/r03") and not damaged:
            damaged.append(folder)
            with segment.open("r+b") as file:
                file.seek(-3, os.SEEK_END)
                file.write(b"xxx")

    monkeypatch.setattr(rounds, "explain_closed", damage)
    (quiet.root / "r03/.hg/store/phaseroots").touch()
    time.sleep(0.01)
    assert quiet.make(1000.0) == ([], [])
    assert damaged
    time.sleep(0.01)
    [trouble] = quiet.make(1000.0)[1]
    assert trouble.startswith("its outbox cannot be read: ")


def test_a_group_that_may_push_no_more_is_named_in_the_next_round(quiet: Round) -> None:
    """Rights of the folder above leave no trace in the repositories."""
    assert quiet.make(1000.0) == ([], [])
    quiet.root.chmod(0o775)
    assert {trouble.partition(",")[0] for trouble in quiet.make(1000.0)[1]} == {
        f"the group {grp.getgrgid(quiet.root.stat().st_gid).gr_name} may not write there"
    }


@pytest.mark.parametrize("lost", ["requires", "store"])
def test_a_repository_that_lost_a_part_is_none_in_the_next_round(quiet: Round, lost: str) -> None:
    """Only the time of its `.hg` shows it; each push is refused."""
    (quiet.root / "r03/.hg" / lost).rename(quiet.root.parent / "away")
    try:
        quiet.round(1000.0)
        assert f"{quiet.root}/r03" not in quiet.found.folders
    finally:
        (quiet.root.parent / "away").rename(quiet.root / "r03/.hg" / lost)


def test_an_abandoned_transaction_is_rolled_back_in_each_round(quiet: Round) -> None:
    (quiet.root / "r03/.hg/store/journal").touch()
    for _ in range(3):
        time.sleep(0.01)
        assert quiet.make(1000.0)[0] == [("r03", "recover")]


def test_a_repository_with_a_failed_job_is_looked_at_in_each_round(quiet: Round) -> None:
    quiet.failure = Failure(Job.CHECK, "broken", 1000.0)
    quiet.make(1000.0)
    assert not quiet.found.quiet


def test_repositories_that_come_and_go_are_seen_in_the_next_round(quiet: Round) -> None:
    quiet.create("group/new", 1, sent=False)
    shutil.rmtree(quiet.root / "r03")
    (quiet.root / "r04").rename(quiet.root / "r05/inside")
    quiet.make(1000.0)
    there = {os.path.relpath(folder, quiet.root) for folder in quiet.found.folders}
    assert there == {*NAMES, "group/new", "r05/inside"} - {"r03", "r04"}


def test_a_repository_replaced_by_another_one_is_looked_at(quiet: Round) -> None:
    (quiet.root / "r03").rename(quiet.root.parent / "away")
    quiet.create("r03", 1, sent=False)
    try:
        assert ("r03", "send") in quiet.make(1000.0)[0]
    finally:
        shutil.rmtree(quiet.root.parent / "away")


def test_a_folder_that_has_just_changed_is_read_again(quiet: Round, settle: Callable[[float], None]) -> None:
    settle(60.0)
    for name in NAMES:
        (quiet.root / name / ".hg/store/phaseroots").touch()
    for _ in range(2):
        quiet.make(1000.0)
        assert not quiet.found.quiet
