# SPDX-License-Identifier: GPL-2.0-or-later
"""What a release and a notice cost at a real broker, in requests one after the other: mirrors and receivers wait for each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hgext.vcsreplicator.aggregator.loading import GROUP, IDENTITY
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, STATE, Log, NewRecord, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.checks.requests import TRANSACTIONAL, watch_requests
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services]

PARTITIONS = 4

ADDED, PRODUCED, ENDED = "AddPartitionsToTxn", "Produce in transaction", "EndTxn"


@pytest.fixture
def log(kafka: Kafka, unique_name: str) -> Iterator[Log]:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=PARTITIONS))
        yield log


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_requests(monkeypatch)


class Flow:
    """One repository on one mirror: each step is a record, and what the aggregator makes of it."""

    def __init__(self, log: Log, session: Session, requests: list[str]) -> None:
        self.log, self.session, self.requests = log, session, requests
        self.chain = Chain("x")

    def push(self) -> None:
        """An event that the aggregator has taken and prepares for."""
        send(self.log, [self.chain.next()])
        self.step_until(lambda: self.session.aggregation.output.has_output, "taken")

    def answer(self, *, serving: int) -> list[str]:
        """The mirror has applied everything and serves this much; returns the requests from its ack until the commit's answer."""
        self.requests.clear()
        value = to_json(self.chain.ack("alpha", len(self.chain.events), serving=serving))
        topic = NOTICES if serving == len(self.chain.events) else STATE
        end = self.log.ends(topic)
        self.log.append([NewRecord(topic=ACKS, key=f"alpha/{self.chain.repository}", value=value)])
        self.step_until(lambda: ENDED in self.requests, "committed")
        found = [request for request in self.requests if request in TRANSACTIONAL]
        eventually(lambda: self.log.ends(topic) != end, "it can be read")
        return found[: found.index(ENDED) + 1]

    def wait_until_prepared(self) -> None:
        """Waits until what was expected is prepared, as it is while mirrors work."""
        producer = self.session._transactor._producer  # type: ignore[attr-defined]
        eventually(lambda: producer._transaction_manager._partitions_in_transaction, "prepared")

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        def stepped() -> bool:
            self.session.step(0.05)
            return bool(condition())

        eventually(stepped, what, every=0.0)


@contextmanager
def flow(log: Log, requests: list[str], *, wait: float) -> Iterator[Flow]:
    """An aggregator whose new events wait so long for their release, and its heartbeat no shorter."""
    ask(log, Verb.ADD, "alpha")
    settings = AggregatorSettings(group_time=wait, beat=wait)
    with Session(settings, log, log.transactor(IDENTITY), SystemClock()) as session:
        eventually(lambda: session.step(0.1) or session.aggregation.roster.mirrors, "the mirror is known")
        yield Flow(log, session, requests)


def test_a_release_and_a_notice_are_two_round_trips_each(log: Log, requests: list[str]) -> None:
    with flow(log, requests, wait=4.9) as it:
        for number in range(1, 4):
            it.push()
            it.wait_until_prepared()
            assert it.answer(serving=number - 1) == [PRODUCED, ENDED]
            it.wait_until_prepared()
            assert it.answer(serving=number) == [PRODUCED, ENDED]


def test_what_was_not_prepared_is_added_in_one_round_trip(log: Log, requests: list[str]) -> None:
    with flow(log, requests, wait=3600.0) as it:
        for number in range(1, 4):
            it.push()
            for serving in (number - 1, number):
                found = it.answer(serving=serving)
                # A broker that still ends the transaction before is asked again.
                assert found[max(0, found.count(ADDED) - 1) :] == [ADDED, PRODUCED, ENDED]


def test_positions_are_stored_with_the_heartbeat_and_at_the_end(log: Log, requests: list[str]) -> None:
    with flow(log, requests, wait=4.9) as it:
        place = partition_of(it.chain.repository, PARTITIONS)
        it.push()
        it.answer(serving=0)
        it.answer(serving=1)
        assert not log.stored(GROUP, EVENTS).get(place)
        requests.clear()
        it.step_until(lambda: log.stored(GROUP, EVENTS).get(place) == 1, "stored")
        assert requests.count(ENDED) == 1
        it.push()
        it.session.finish()
        assert log.stored(GROUP, EVENTS)[place] == 2
