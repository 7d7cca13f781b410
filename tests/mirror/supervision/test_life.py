# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository's life: when it is retried, what is repaired, and from where it is read."""

from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision.life import Deed, needs_repair
from hgext.vcsreplicator.mirror.supervision.values import InTrouble, Moment, Phase
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.retry import Backoff
from testing.builders.mirror.lives import following_of, put

CHECKPOINT = before_first("1" * 32, "2" * 32, "a", 1)
MOMENT = Moment(now=5.0, time=7.0, chance=0.5, partition=3, end=8)


def note(reason: Reason, *, attempts: int = 1, offset: int = 7) -> Detached:
    return Detached(
        repository="1" * 32, path="a", partition=3, offset=offset, reason=reason, note="", since=0.0, attempts=attempts
    )


@pytest.mark.parametrize("reason", [Reason.SLOW, Reason.LOCKED, Reason.CRASHED, Reason.DISK, Reason.UNKNOWN_VERSION])
def test_what_only_took_time_is_read_again_without_the_master(reason: Reason) -> None:
    assert not needs_repair(note(reason, attempts=9))


def test_a_gap_is_read_again_once_before_the_master_is_asked() -> None:
    assert not needs_repair(note(Reason.GAP, attempts=1))
    assert needs_repair(note(Reason.GAP, attempts=2))


@pytest.mark.parametrize("reason", [Reason.CORRUPT, Reason.DIVERGED, Reason.BLOB_MISSING, Reason.EXPIRED])
def test_damage_is_repaired_from_the_master_at_once(reason: Reason) -> None:
    assert needs_repair(note(reason))


@pytest.mark.parametrize("reason", [Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION])
def test_what_needs_an_operator_is_not_tried_again(reason: Reason) -> None:
    following = following_of("1" * 32, "a", unwritten_note=note(reason))
    assert following.noted(MOMENT, Backoff()).todo == (Deed.STOP_READER, Deed.ACK)


def test_attempts_come_ever_more_slowly() -> None:
    delays = []
    for attempts in range(4):
        following = following_of("1" * 32, "a", unwritten_note=note(Reason.LOCKED, attempts=attempts))
        following.change(following.noted(MOMENT, Backoff(first=1, longest=5)))
        delays.append(following.work.rests_until - MOMENT.now)
    assert delays == [1, 2, 4, 5]


def test_reading_goes_on_behind_the_level_that_came_from_the_log() -> None:
    following = following_of("1" * 32, "a", checkpoint=replace(CHECKPOINT, partition=3, offset=41))
    assert following.find_resume_offset(note(Reason.LOCKED)) == 42


def test_reading_goes_on_behind_a_level_from_the_first_record_too() -> None:
    following = following_of("1" * 32, "a", checkpoint=replace(CHECKPOINT, partition=3, offset=0))
    assert following.find_resume_offset(note(Reason.LOCKED)) == 1


def test_after_a_snapshot_reading_goes_on_where_the_note_says() -> None:
    assert following_of("1" * 32, "a", checkpoint=CHECKPOINT).find_resume_offset(note(Reason.GAP)) == 7
    assert following_of("1" * 32, "a").find_resume_offset(note(Reason.GAP)) == 7


@pytest.mark.parametrize(
    ("members", "may"),
    [
        ({}, True),
        ({"incarnation": "3" * 32}, False),  # of a history that was adopted over, or of one that is to come
        ({"incarnation": None}, False),
        ({"checkpoint": None}, False),
        ({"newest_known": (5, CHECKPOINT.id, CHECKPOINT.digest)}, True),
        ({"newest_known": (5, "f" * 64, CHECKPOINT.digest)}, False),  # the aggregator saw another event in its place
        ({"newest_known": (5, CHECKPOINT.id, "f" * 64)}, False),
        ({"newest_known": (4, "f" * 64, "f" * 64)}, True),
        ({"newest_known": (6, "f" * 64, "f" * 64)}, True),
        ({"is_release_stuck": True}, False),
        ({"released": 4}, False),
        ({"serving": 5}, False),
        ({"floor": 6}, False),
    ],
)
def test_what_is_released_is_served_only_of_the_history_that_is_there(members: dict[str, Any], may: bool) -> None:
    checkpoint = replace(CHECKPOINT, seq=5)
    sound = {"checkpoint": checkpoint, "incarnation": checkpoint.incarnation, "released": 5, "serving": 4}
    assert following_of("1" * 32, "a", **{**sound, **members}).may_release is may


def test_only_what_is_carried_lacks_a_replacing_history() -> None:
    own = before_first("r" * 32, "a" * 32, "r", 1)
    following = following_of(own.repository, "r", checkpoint=own, incarnation="b" * 32, retired=("a" * 32,))
    assert [following.lacks(expected) for expected in (0, 1)] == [False, True]
    put(following, retired=())
    assert not following.lacks(1)


def test_a_repository_stays_in_its_phase_until_its_note_is_durable() -> None:
    following = following_of("1" * 32, "a")
    assert following.change(following.plan_note(MOMENT, Reason.GAP, "lost")) == (Deed.WRITE_NOTE,)
    assert (following.phase, following.note) == (Phase.STREAM, None)
    assert following.change(following.noted(MOMENT, Backoff()))[0] is Deed.STOP_READER
    assert (following.work.phase, following.trouble.unwritten_note) == (Phase.WAITING, None)


def test_a_task_that_succeeds_ends_the_count_of_its_troubles() -> None:
    following = following_of(
        "1" * 32, "a", note=note(Reason.DIVERGED), tries=2, troubled_since=1.0, is_release_stuck=True
    )
    step = following.succeed(MOMENT, is_carried=True)
    assert step.trouble == InTrouble(note=note(Reason.DIVERGED))
