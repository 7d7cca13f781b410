# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from goes along with its event to the notice, in headers alone."""

import pytest

from hgext.vcsreplicator.aggregator.decisions import outgoing
from hgext.vcsreplicator.log import EVENTS, PENDING
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.wire import CONNECTION, connection_headers, read_connection
from testing.builders.chains import Chain
from testing.builders.hands import Hands

FROM = PushConnection(address="203.0.113.7", client="planted-agent")
HEADERS = {"ce_id": "x", "ce_source": "hg://master", **connection_headers(FROM)}


def push(hands: Hands, chain: Chain) -> None:
    """A creation, and a push that carries a connection."""
    hands.event(chain.next())
    hands.event(chain.next(), headers=HEADERS)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_notice_carries_the_connection_of_its_event_and_its_value_does_not(restarts: bool) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    push(hands, chain)
    hands.commit()
    if restarts:
        hands.restart()
    hands.ack(chain.ack("alpha", 2))
    assert hands.commit() == [1, 2]
    assert [read_connection(headers) for headers in hands.notice_headers] == [None, FROM]
    assert set(hands.notice_headers[1]) == {CONNECTION}
    assert not [value for topic in hands.topics.values() for value in topic.values() if b"planted" in value]


def test_an_event_that_pending_lost_is_read_again_with_its_connection() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    push(hands, chain)
    hands.commit()
    hands.topics[PENDING].clear()
    hands.restart()
    hands.read_again()
    hands.ack(chain.ack("alpha", 2))
    hands.commit()
    assert [read_connection(headers) for headers in hands.notice_headers] == [None, FROM]


def test_an_event_that_waits_for_a_newer_aggregator_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(chain.next())
    hands.event(chain.next(version=2), headers=HEADERS)
    hands.commit()
    monkeypatch.setattr(wire, "VERSION", 2)
    hands.restart()
    hands.ack(chain.ack("alpha", 2))
    hands.commit()
    assert [read_connection(headers) for headers in hands.notice_headers] == [None, FROM]


def test_errors_hold_nothing_of_a_connection() -> None:
    hands, chain = Hands("alpha"), Chain("x")
    hands.event(*chain.take(2))
    record = hands.record(EVENTS, chain.repository, b"no frame", HEADERS)
    hands.take(hands.take_event, record)
    hands.event(Chain("x", incarnation=2).next(), headers=HEADERS)
    hands.commit()
    assert len(hands.errors) == 2
    assert "planted" not in repr(hands.errors)


def test_a_transaction_is_bounded_with_large_connections_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "BATCH_BYTES", 100_000)
    hands, chain = Hands("alpha"), Chain("x")
    headers = connection_headers(PushConnection(forwarded="1" * 20_000))
    hands.event(*chain.take(30), headers=headers)
    hands.commit()
    hands.transactions.clear()
    hands.ack(chain.ack("alpha", 30))
    hands.commit()
    assert max(hands.transactions) < 15
