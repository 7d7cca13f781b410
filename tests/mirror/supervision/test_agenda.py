# SPDX-License-Identifier: GPL-2.0-or-later
"""What waits for a worker, and what for a time: the agenda alone, with a clock moved by hand."""

from typing import Any

import pytest

from hgext.vcsreplicator.mirror.pool import Lane
from hgext.vcsreplicator.mirror.supervision.agenda import Agenda
from hgext.vcsreplicator.mirror.supervision.backlog import Backlog
from hgext.vcsreplicator.mirror.supervision.life import Following
from hgext.vcsreplicator.mirror.supervision.values import Phase
from testing.builders.mirror.lives import following_of
from testing.clock import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def agenda(clock: HandClock) -> Agenda:
    return Agenda(Backlog({0: 0}), clock, 1000)


def healing(name: str, **members: Any) -> Following:
    return following_of(name, name, phase=Phase.HEALING, **members)


def test_those_that_waited_longest_come_first_and_each_once(agenda: Agenda) -> None:
    first, second = healing("1"), healing("2")
    for following in (first, second, first):
        agenda.queue(following)
    assert [agenda.take_next(Lane.REPAIR) for _ in range(2)] == ["1", "2"]
    assert not agenda.has_waiting()


@pytest.mark.parametrize("members", [{"is_running": True}, {"is_resting": True}])
def test_one_that_is_at_work_or_rests_is_not_queued(agenda: Agenda, members: dict[str, bool]) -> None:
    agenda.queue(healing("1", **members))
    assert not agenda.has_waiting(Lane.REPAIR)


@pytest.mark.parametrize(
    ("phase", "lane"),
    [(Phase.HEALING, Lane.REPAIR), (Phase.LEAVING, Lane.LIGHT), (Phase.WAITING, None), (Phase.STREAM, None)],
)
def test_the_phase_decides_the_lane_of_one_without_events(agenda: Agenda, phase: Phase, lane: Lane | None) -> None:
    assert agenda.choose_lane(following_of("1", "1", phase=phase)) is lane


def test_those_whose_rest_is_over_are_due_earliest_first(agenda: Agenda, clock: HandClock) -> None:
    slow, quick = healing("slow"), healing("quick")
    for following, seconds in ((slow, 2.0), (quick, 1.0)):
        following.change(following.rest(until=clock.monotonic() + seconds))
        agenda.set_alarm(following)
    assert list(agenda.take_due()) == []
    clock.advance(2.0)
    assert list(agenda.take_due()) == ["quick", "slow"]
    assert list(agenda.take_due()) == []


def test_a_reminder_lets_the_repository_work_meanwhile(agenda: Agenda, clock: HandClock) -> None:
    following = healing("1")
    agenda.remind(following)
    agenda.queue(following)
    assert agenda.has_waiting(Lane.REPAIR)
    clock.advance(1.0)
    assert list(agenda.take_due()) == ["1"]
