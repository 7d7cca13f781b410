# SPDX-License-Identifier: GPL-2.0-or-later
"""Adoptions name the histories that they replace; what they name is untrusted."""

from hgext.vcsreplicator.aggregator.decisions.arrival import Arrival, follow, judge
from hgext.vcsreplicator.words.event import Event, Type, replaced_incarnations
from testing.builders.chains import Chain, identifier


def adoption(chain: Chain, replaces: str) -> Event:
    return chain.next(Type.SYNC, detail={"reason": "adopted", "replaces": replaces})


def test_a_history_that_was_never_seen_is_retired_by_the_adoption_that_replaced_it() -> None:
    first, between, last = (Chain("x", incarnation=number) for number in (1, 2, 3))
    state = follow(None, first.next(), Arrival.FIRST, 1)
    state = follow(state, adoption(last, between.incarnation), Arrival.ADOPTED, 1)
    assert state.retired == (first.incarnation, between.incarnation)
    assert judge(state, adoption(between, first.incarnation), lambda seq: None) is Arrival.REPEAT


def test_an_adoption_replaces_neither_itself_nor_what_is_no_identifier_and_two_histories_at_most() -> None:
    chain, names = Chain("x"), [identifier(number) for number in range(4)]
    assert replaced_incarnations(adoption(chain, " ".join(names))) == tuple(names[:2])
    assert replaced_incarnations(adoption(Chain("x"), f"{chain.incarnation} {names[0]}")) == (names[0],)
    assert replaced_incarnations(adoption(Chain("x"), f"../x {names[0]}")) == (names[0],)
    assert replaced_incarnations(Chain("x").next()) == ()
