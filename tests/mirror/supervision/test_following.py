# SPDX-License-Identifier: GPL-2.0-or-later
"""When a repository that is detached is retried, what is repaired, and from where it is read."""

from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision.following import Following, needed_repair, resume_offset, retry_delay
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.retry import Backoff

CHECKPOINT = before_first("1" * 32, "2" * 32, "a", 1)


def note(reason: Reason, *, attempts: int = 1, offset: int = 7) -> Detached:
    return Detached(
        repository="1" * 32, path="a", partition=3, offset=offset, reason=reason, note="", since=0.0, attempts=attempts
    )


@pytest.mark.parametrize("reason", [Reason.SLOW, Reason.LOCKED, Reason.CRASHED, Reason.DISK, Reason.UNKNOWN_VERSION])
def test_what_only_took_time_is_read_again_without_the_master(reason: Reason) -> None:
    assert needed_repair(note(reason, attempts=9)) is None


def test_a_gap_is_read_again_once_before_the_master_is_asked() -> None:
    assert needed_repair(note(Reason.GAP, attempts=1)) is None
    assert needed_repair(note(Reason.GAP, attempts=2)) is Reason.GAP


@pytest.mark.parametrize("reason", [Reason.CORRUPT, Reason.DIVERGED, Reason.BLOB_MISSING, Reason.EXPIRED])
def test_damage_is_repaired_from_the_master_at_once(reason: Reason) -> None:
    assert needed_repair(note(reason)) is reason


@pytest.mark.parametrize("reason", [Reason.FORK, Reason.REFUSED, Reason.UNKNOWN_VERSION])
def test_what_needs_an_operator_is_not_tried_again(reason: Reason) -> None:
    assert retry_delay(note(reason), Backoff(), 0.5) is None


def test_attempts_come_ever_more_slowly() -> None:
    delays = [retry_delay(note(Reason.LOCKED, attempts=n), Backoff(first=1, longest=5), 0.5) for n in range(4)]
    assert delays == [1, 2, 4, 5]


def test_reading_goes_on_behind_the_level_that_came_from_the_log() -> None:
    following = Following(id="1" * 32, path="a", checkpoint=replace(CHECKPOINT, partition=3, offset=41))
    assert resume_offset(following, note(Reason.LOCKED)) == 42


def test_after_a_snapshot_reading_goes_on_where_the_note_says() -> None:
    assert resume_offset(Following(id="1" * 32, path="a", checkpoint=CHECKPOINT), note(Reason.GAP)) == 7
    assert resume_offset(Following(id="1" * 32, path="a"), note(Reason.GAP)) == 7


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
    assert Following(id="1" * 32, path="a", **{**sound, **members}).may_release is may


def test_only_what_is_carried_lacks_a_history_that_replaced_the_mirrors_own() -> None:
    own = before_first("r" * 32, "a" * 32, "r", 1)
    following = Following(id=own.repository, path="r", checkpoint=own, incarnation="b" * 32, retired=("a" * 32,))
    assert [following.lacks(expected) for expected in (0, 1)] == [False, True]
    following.retired = ()
    assert not following.lacks(1)
