# SPDX-License-Identifier: GPL-2.0-or-later
"""Confirmations of a channel: each delivery gets one answer, and none is forgotten."""

from notifier.clients.amqp.confirms import Confirms


def sent(*ids: str) -> Confirms:
    """A channel on which these were sent as deliveries 0, 1, …, one second after the other."""
    confirms = Confirms()
    for number, message_id in enumerate(ids):
        confirms.send(number, message_id, float(number))
    return confirms


def test_one_tag_confirms_one_delivery_and_only_once() -> None:
    confirms = sent("a", "b")
    assert confirms.confirm(2, multiple=False) == [(1, False)]
    assert confirms.confirm(2, multiple=False) == []
    assert confirms.unknown() == [0]


def test_multiple_confirms_all_up_to_the_tag() -> None:
    confirms = sent("a", "b", "c")
    assert confirms.confirm(2, multiple=True) == [(0, False), (1, False)]
    assert confirms.unknown() == [2]


def test_a_message_once_returned_is_judged_anew_at_its_next_attempt() -> None:
    confirms = sent("a", "b")
    confirms.mark_returned("a")
    assert confirms.confirm(1, multiple=False) == [(0, True)]
    confirms.send(2, "a", 9.0)
    assert confirms.confirm(3, multiple=False) == [(2, False)]


def test_nothing_is_kept_of_what_a_broker_returns_that_was_not_sent() -> None:
    confirms = sent("a")
    confirms.mark_returned("invented")
    assert confirms == sent("a")
    confirms.mark_returned("a")
    assert confirms.confirm(1, multiple=False) == [(0, True)]


def test_nacked_deliveries_are_held_and_unknown_until_released() -> None:
    confirms = sent("a", "b")
    for number, _ in confirms.confirm(2, multiple=True):
        confirms.hold_nacked(number, 5.0 + number)
    assert confirms.nacked_before(4.9) == []
    assert confirms.nacked_before(5.0) == [0]
    assert confirms.unknown() == [0, 1]
    confirms.release_nacked([0])
    assert confirms.unknown() == [1]


def test_the_oldest_wait_begins_anew_after_a_pause_of_the_broker() -> None:
    confirms = sent("a", "b")
    assert confirms.oldest_since() == 0.0
    confirms.confirm(1, multiple=False)
    assert confirms.oldest_since() == 1.0
    confirms.restart_waits(7.0)
    assert confirms.oldest_since() == 7.0
    confirms.confirm(2, multiple=False)
    assert confirms.oldest_since() is None
