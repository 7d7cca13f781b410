# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from goes along with its event to the notice, in headers alone."""

from collections.abc import Callable

import pytest

from hgext.vcsreplicator.log import EVENTS, PENDING
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.wire import CONNECTION, connection_headers, read_connection
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation

FROM = PushConnection(address="203.0.113.7", client="planted-agent")
HEADERS = {"ce_id": "x", "ce_source": "hg://master", **connection_headers(FROM)}


def push(fed: FedAggregation, chain: Chain) -> None:
    """A creation, and a push that carries a connection."""
    fed.event(chain.next())
    fed.event(chain.next(), headers=HEADERS)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_notice_carries_its_events_connection_outside_its_value(restarts: bool) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    push(fed, chain)
    fed.commit()
    if restarts:
        fed.restart()
    fed.ack(chain.ack("alpha", 2))
    assert fed.commit() == [1, 2]
    assert [read_connection(headers) for headers in fed.notice_headers] == [None, FROM]
    assert set(fed.notice_headers[1]) == {CONNECTION}
    assert not [value for topic in fed.topics.values() for value in topic.values() if b"planted" in value]


def test_an_event_that_pending_lost_is_read_again_with_its_connection() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    push(fed, chain)
    fed.commit()
    fed.topics[PENDING].clear()
    fed.restart()
    fed.read_again()
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    assert [read_connection(headers) for headers in fed.notice_headers] == [None, FROM]


def test_an_event_that_waits_for_a_newer_aggregator_keeps_its_connection(upgrade: Callable[[], object]) -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(chain.next())
    fed.event(chain.next(version=2), headers=HEADERS)
    fed.commit()
    upgrade()
    fed.restart()
    fed.ack(chain.ack("alpha", 2))
    fed.commit()
    assert [read_connection(headers) for headers in fed.notice_headers] == [None, FROM]


def test_errors_hold_nothing_of_a_connection() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    record = fed.record(EVENTS, chain.repository, b"no frame", HEADERS)
    fed.take(fed.take_event, record)
    fed.event(Chain("x", incarnation=2).next(), headers=HEADERS)
    fed.commit()
    assert len(fed.errors) == 2
    assert "planted" not in repr(fed.errors)


def test_a_transaction_is_bounded_with_large_connections_too(limit_batch: Callable[..., None]) -> None:
    limit_batch(size=100_000)
    fed, chain = FedAggregation("alpha"), Chain("x")
    headers = connection_headers(PushConnection(forwarded="1" * 20_000))
    fed.event(*chain.take(30), headers=headers)
    fed.commit()
    fed.transactions.clear()
    fed.ack(chain.ack("alpha", 30))
    fed.commit()
    assert max(fed.transactions) < 15
