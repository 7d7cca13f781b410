# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue of one repository: what it lacks, and how its levels pass over what is lost."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.decisions.arrival import Arrival, follow
from hgext.vcsreplicator.aggregator.decisions.held import HeldEvent
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
from hgext.vcsreplicator.aggregator.decisions.standing import Standing
from hgext.vcsreplicator.log import EVENTS, Record
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import FormerPath, Pending
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain, identifier
from testing.builders.aggregator.states import some_state

ROSTER = Roster(version=1, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE),))


def stored(event: Event) -> HeldEvent:
    """An event as `pending` has it."""
    value = to_json(Pending(event=event, partition=0, offset=event.seq, arrived=1.0))
    return HeldEvent.stored(event.seq, value, {})


def held(chain: Chain, *held_events: HeldEvent, released: int, noticed: int) -> Repository:
    """The repository of this chain, loaded with these events in its queue."""
    repository = Repository(chain.repository)
    for event in chain.events:
        arrival = Arrival.NEXT if repository.state else Arrival.FIRST
        repository.state = follow(repository.state, event, arrival, 1)
    assert repository.state is not None
    repository.state = replace(repository.state, released=released, noticed=noticed)
    for each in held_events:
        repository.add(each)
    repository.end_loading()
    return repository


def incomplete() -> tuple[Chain, Repository]:
    """Six events, the first announced, four released; the queue has the third and the fifth alone."""
    chain = Chain("x")
    chain.take(6)
    return chain, held(chain, *(stored(chain.events[seq - 1]) for seq in (3, 5)), released=4, noticed=1)


def record_at(offset: int) -> Record:
    return Record(topic=EVENTS, partition=0, offset=offset, key="x", value=b"", headers={}, time=1.0)


def levels(repository: Repository) -> tuple[int, int]:
    assert repository.state is not None
    return repository.state.released, repository.state.noticed


# What the queue lacks


def test_a_queue_lacks_events_that_are_neither_announced_nor_held() -> None:
    chain, repository = incomplete()
    assert [event.seq for event in chain.events if repository.lacks(event)] == [2, 4, 6]
    assert not repository.lacks(chain.next())
    assert not repository.lacks(replace(chain.events[1], incarnation=identifier("another")))


@pytest.mark.parametrize("seq", [2, 4, 6])
def test_a_queue_lacks_no_event_that_does_not_fit_its_neighbours(seq: int) -> None:
    chain, repository = incomplete()
    assert not repository.lacks(replace(chain.events[seq - 1], id=identifier("another")))


def test_a_queue_lacks_an_event_before_one_that_cannot_be_read() -> None:
    chain = Chain("x")
    chain.take(3)
    repository = held(chain, HeldEvent.stored(3, b"{", {}), released=1, noticed=1)
    assert repository.lacks(chain.events[1])


def test_an_event_that_fills_a_queue_is_released_if_the_state_says_so() -> None:
    chain, repository = incomplete()
    repository.fill(stored(chain.events[5]))
    assert repository.next_to_release() is repository.queue[1]
    repository.fill(stored(chain.events[3]))
    assert [each.seq for each in repository.queue] == [3, 4, 5, 6]
    assert repository.next_to_release() is repository.queue[2]


def test_a_level_is_compared_with_an_event_once_that_fills_the_queue() -> None:
    chain, repository = incomplete()
    repository.take_level("alpha", replace(chain.ack("alpha", 4), digest="f" * 64))
    assert repository.standing("alpha") is Standing.COUNTS
    repository.fill(stored(chain.events[3]))
    assert repository.standing("alpha") is Standing.FOREIGN


def test_a_level_at_an_event_that_cannot_be_read_counts() -> None:
    chain = Chain("x")
    chain.take(3)
    repository = held(chain, HeldEvent.stored(2, b"{", {}), stored(chain.events[2]), released=1, noticed=1)
    repository.take_level("alpha", chain.ack("alpha", 2))
    assert repository.standing("alpha") is Standing.COUNTS


def test_a_mirror_of_a_former_history_lags_by_all_present_events() -> None:
    chain = Chain("x")
    chain.take(4)
    repository = held(chain, released=4, noticed=4)
    repository.take_level("alpha", replace(chain.ack("alpha", 3), incarnation=identifier("former")))
    roster = Roster(version=1, mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE),))
    assert list(repository.measure_lags(roster)) == [("alpha", 4)]


def test_what_the_state_calls_announced_or_released_is_so_after_a_start() -> None:
    chain = Chain("x")
    chain.take(4)
    repository = held(chain, *map(stored, chain.events[1:]), released=3, noticed=2)
    assert [each.seq for each in repository.queue] == [3, 4]
    assert repository.next_to_release() is repository.queue[1]


# What is lost


def test_levels_pass_over_lost_events_in_their_turn() -> None:
    _, repository = incomplete()
    assert repository.count_lost() == 3
    assert levels(repository) == (4, 1)
    repository.announced(repository.queue[0], 1, None, 1)
    assert levels(repository) == (4, 3)
    repository.release(repository.queue[0], 1)
    assert levels(repository) == (6, 3)
    repository.announced(repository.queue[0], 1, None, 1)
    assert levels(repository) == (6, 5)
    repository.pass_newest()
    assert levels(repository) == (6, 6)


def test_a_filled_queue_lacks_nothing_more_and_moves_its_levels_by_one() -> None:
    chain, repository = incomplete()
    for seq in (2, 4, 6):
        repository.fill(stored(chain.events[seq - 1]))
    assert repository.count_lost() == 0
    assert not repository.is_incomplete
    repository.announced(repository.queue[0], 1, None, 1)
    assert levels(repository) == (4, 2)


def test_a_decision_names_the_version_of_the_roster_behind_it() -> None:
    chain = Chain("x")
    chain.take(1)
    repository = held(chain, stored(chain.events[0]), released=0, noticed=0)
    repository.release(repository.queue[0], 7)
    assert repository.state is not None
    assert repository.state.roster == 7
    repository.announced(repository.queue[0], 8, None, 1)
    assert repository.state.roster == 8


def test_a_state_has_the_number_of_mirrors_of_the_newest_notice_alone() -> None:
    chain = Chain("x")
    chain.take(2)
    repository = held(chain, *map(stored, chain.events), released=0, noticed=0)
    assert repository.state is not None
    repository.release(repository.queue[0], 1)
    assert repository.state.served_by is None
    repository.announced(repository.queue[0], 1, None, 3)
    assert repository.state.served_by == 3
    repository.release(repository.queue[0], 1)
    assert repository.state.served_by == 3
    _, passing = incomplete()
    passing.count_lost()
    passing.announced(passing.queue[0], 1, None, 3)
    passing.release(passing.queue[0], 1)
    passing.announced(passing.queue[0], 1, None, 3)
    passing.pass_newest()
    assert passing.state is not None
    assert passing.state.served_by is None, "the levels passed over lost events, which had no notice"


# Its path


@pytest.mark.parametrize(
    ("path", "generation", "occupied"),
    [("x", 3, None), ("x", 2, False), ("x", 1, False), ("y", 3, False), ("left", 2, True), ("left", 1, False)],
)
def test_a_repository_occupies_its_path_for_later_generations_alone(
    path: str, generation: int, occupied: bool | None
) -> None:
    chain = Chain("x", generation=2)
    chain.take(1)
    repository = held(chain, released=1, noticed=1)
    assert repository.state is not None
    repository.state = replace(repository.state, stays=(FormerPath(path="left", generation=1, until=2),))
    assert repository.occupies(path, generation) is occupied


@pytest.mark.parametrize("waits", ["an event", "one of a newer version", "one that a newer aggregator stored"])
def test_a_repository_occupies_its_path_while_anything_of_it_waits(waits: str) -> None:
    chain = Chain("x")
    chain.take(1)
    repository = held(chain, released=1, noticed=1)
    if waits == "an event":
        repository.add(stored(chain.next()))
    elif waits == "one of a newer version":
        repository.hold_newer(record_at(5))
    else:
        repository.is_stored_newer = True
    assert repository.occupies("x", 2) is True
    assert repository.state is not None
    repository.state = replace(repository.state, deleted=True)
    assert repository.occupies("x", 2) is False


# What cannot be read, and what remains of a former history


def test_an_unreadable_released_event_is_taken_out_and_releases_none() -> None:
    chain = Chain("x")
    chain.take(4)
    waiting = [HeldEvent.stored(2, b"{", {}), *map(stored, chain.events[2:])]
    repository = held(chain, *waiting, released=3, noticed=1)
    assert repository.drop_broken() is waiting[0]
    assert repository.next_to_release() is waiting[2]


def test_a_lost_state_is_made_of_the_newest_history_alone() -> None:
    old, new = Chain("x"), Chain("x", incarnation=2)
    repository = Repository(new.repository)
    for event in (*old.take(1), *new.take(3)[1:]):
        repository.add(stored(event))
    repository.end_loading()
    assert repository.state is not None
    assert (repository.state.incarnation, repository.state.seq) == (new.incarnation, 3)
    assert [each.seq for each in repository.queue] == [2, 3]


# What a newer aggregator will read


def test_a_record_is_behind_a_newer_version_whichever_was_read_first() -> None:
    repository = Repository("x")
    assert not repository.is_behind_newer(record_at(9))
    for offset in (5, 3, 7):
        repository.hold_newer(record_at(offset))
    assert [offset for offset in range(9) if repository.is_behind_newer(record_at(offset))] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("released", [0, 2])
def test_a_mirror_without_a_level_serves_not_even_the_first_event(released: int) -> None:
    chain = Chain("x")
    chain.take(2)
    repository = held(chain, *map(stored, chain.events), released=released, noticed=0)
    assert repository.count_unserved("alpha") == 2


# What a start makes of the queue alone


@pytest.mark.parametrize("count", [1, 2])
def test_a_state_that_is_made_of_the_queue_is_of_no_roster_yet(count: int) -> None:
    repository, chain = Repository("x"), Chain("x")
    for event in chain.take(count):
        repository.add(stored(event))
    repository.end_loading()
    assert repository.state is not None
    assert (repository.state.seq, repository.state.noticed, repository.state.roster) == (count, 0, 0)


# What an operator is told


@pytest.mark.parametrize(("released", "late"), [(1, ()), (2, ("alpha",))])
def test_an_event_waits_for_a_mirror_to_serve_it_once_it_is_released(released: int, late: tuple[str, ...]) -> None:
    chain = Chain("x")
    chain.take(3)
    repository = held(chain, *map(stored, chain.events[1:]), released=released, noticed=1)
    repository.take_level("alpha", chain.ack("alpha", 2, 0))
    assert repository.find_late(ROSTER) == late


def test_a_repository_without_a_waiting_event_waits_for_no_mirror() -> None:
    assert Repository(Chain("x").repository).find_late(ROSTER) == ()


@pytest.mark.parametrize(
    ("released", "is_deleted", "former", "present"),
    [(0, False, 0, 0), (1, False, 1, 0), (2, False, 1, 0), (3, False, 0, 2), (4, False, 0, 2), (4, True, 0, 0)],
)
def test_a_mirror_shows_a_repository_at_the_path_of_the_released_event(
    released: int, is_deleted: bool, former: int, present: int
) -> None:
    repository, stay = Repository("a" * 32), FormerPath(path="former", generation=1, until=3)
    repository.state = some_state(
        path="present", generation=2, seq=4, released=released, stays=(stay,), deleted=is_deleted
    )
    assert [repository.find_generation(path) for path in ("former", "present")] == [former, present]


def test_a_queue_lacks_the_next_event_until_that_fills_it() -> None:
    chain, repository = incomplete()
    assert repository.lacks_next()
    repository.fill(stored(chain.events[1]))
    assert not repository.lacks_next()


def test_an_empty_queue_lacks_the_next_event_if_the_state_has_more() -> None:
    chain = Chain("x")
    chain.take(2)
    assert held(chain, released=1, noticed=1).lacks_next()
    assert not held(chain, released=2, noticed=2).lacks_next()
