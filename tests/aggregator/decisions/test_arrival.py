# SPDX-License-Identifier: GPL-2.0-or-later
"""What an event, or a notice, is to the state of its repository. What adoptions name is untrusted."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.decisions.arrival import Arrival, adopts, follow, is_older, judge, recovered
from hgext.vcsreplicator.words.event import MOST_REPLACED, Event, Type, replaced_incarnations
from hgext.vcsreplicator.words.records import FormerPath, Notice, RepositoryState
from testing.builders.aggregator.chains import Chain, identifier


def adoption(chain: Chain, replaces: str) -> Event:
    return chain.next(Type.SYNC, detail={"reason": "adopted", "replaces": replaces})


def test_an_unseen_history_is_retired_by_the_adoption_that_replaced_it() -> None:
    first, between, last = (Chain("x", incarnation=number) for number in (1, 2, 3))
    state = follow(None, first.next(), Arrival.FIRST, 1)
    state = follow(state, adoption(last, between.incarnation), Arrival.ADOPTED, 1)
    assert state.retired == (first.incarnation, between.incarnation)
    assert judge(state, adoption(between, first.incarnation), lambda seq: None) is Arrival.REPEAT


def test_only_the_first_event_of_a_history_retires_others() -> None:
    chain = Chain("x")
    state = follow(None, chain.next(), Arrival.FIRST, 1)
    assert follow(state, adoption(chain, identifier("another")), Arrival.NEXT, 1).retired == ()


def test_an_adoption_replaces_neither_itself_nor_a_bad_identifier() -> None:
    chain, names = Chain("x"), [identifier(number) for number in range(MOST_REPLACED + 2)]
    assert replaced_incarnations(adoption(chain, " ".join(names))) == tuple(names[:MOST_REPLACED])
    assert replaced_incarnations(adoption(Chain("x"), f"{chain.incarnation} {names[0]}")) == (names[0],)
    assert replaced_incarnations(adoption(Chain("x"), f"../x {names[0]}")) == (names[0],)
    assert replaced_incarnations(Chain("x").next()) == ()


def state_after(*events: Event, **members: object) -> RepositoryState:
    """The state of a repository that took these events of one history."""
    state = None
    for event in events:
        state = follow(state, event, Arrival.FIRST if state is None else Arrival.NEXT, 1)
    assert state is not None
    return replace(state, **members)  # type: ignore[arg-type]


def notice_of(event: Event, *streams: str, roster: int = 1, base: int | None = None) -> Notice:
    return Notice(event=event, time=1.0, roster=roster, acks=(), previous=dict.fromkeys(streams), base=base)


# Judging


def test_an_adoption_of_other_histories_counts_unless_it_is_read_again() -> None:
    state, new = state_after(Chain("x").next()), Chain("x", incarnation=2)
    event = adoption(new, f"{identifier(1)} {identifier(2)}")
    assert judge(state, event, lambda seq: None) is Arrival.ADOPTED
    assert judge(state, event, lambda seq: None, is_again=True) is Arrival.FORK


@pytest.mark.parametrize("kind", [Type.RENAMED, Type.CHANGED])
def test_only_a_creation_or_a_sync_adopts_a_history(kind: Type) -> None:
    state = state_after(Chain("x").next())
    event = Chain("x", incarnation=2).next(kind, detail={"from": "adopted"})
    assert judge(state, event, lambda seq: None) is Arrival.FORK


def test_what_did_not_fit_is_settled_by_an_adoptions_first_event_alone() -> None:
    plain, new = Chain("x"), Chain("x", incarnation=2)
    created = plain.next()
    adopting, next_one = adoption(new, plain.incarnation), new.next()
    state = follow(state_after(created), adopting, Arrival.ADOPTED, 1)
    assert adopts(state, adopting, Arrival.REPEAT)
    assert not adopts(state, next_one, Arrival.NEXT)
    assert not adopts(state, created, Arrival.REPEAT)
    assert not adopts(state_after(created), created, Arrival.REPEAT)


def test_an_event_that_arrives_leaves_the_roster_of_the_newest_decision() -> None:
    chain = Chain("x")
    state = state_after(chain.next(), roster=3)
    assert follow(state, chain.next(), Arrival.NEXT, 5).roster == 3


# Recovering from notices


def test_a_state_is_older_than_the_notices_behind_it_alone() -> None:
    old, new = Chain("x"), Chain("x", incarnation=2)
    first, second, third = old.take(3)
    state = state_after(first, second, third, noticed=2)
    assert [is_older(state, notice_of(event)) for event in (first, second, third)] == [False, False, True]
    event = adoption(new, old.incarnation)
    assert is_older(state, notice_of(event))
    assert not is_older(follow(state, event, Arrival.ADOPTED, 1), notice_of(third))
    assert is_older(None, notice_of(first))


def test_a_state_that_was_lost_is_what_the_notice_says() -> None:
    *_, event = Chain("x").take(4)
    state = recovered(None, notice_of(event, "changegroup.1", roster=7, base=5))
    assert (state.seq, state.released, state.noticed, state.roster, state.base) == (4, 4, 4, 7, 5)
    assert state.streams == {"changegroup.1": event.id}


def test_a_notice_takes_no_release_back_and_leaves_other_streams_alone() -> None:
    chain = Chain("x")
    events = chain.take(5)
    stays = tuple(FormerPath(path=path, generation=1, until=until) for path, until in (("a", 3), ("b", 4), ("c", 5)))
    streams = {"changegroup.1": events[1].id, "newrepo.1": events[0].id}
    state = state_after(*events, released=4, noticed=2, streams=streams, stays=stays)
    after = recovered(state, notice_of(events[2], "changegroup.1", roster=7))
    assert (after.seq, after.released, after.noticed, after.roster) == (5, 4, 3, 7)
    assert after.streams == {"changegroup.1": events[2].id, "newrepo.1": events[0].id}
    assert [stay.path for stay in after.stays] == ["b", "c"]
