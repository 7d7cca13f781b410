# SPDX-License-Identifier: GPL-2.0-or-later
"""The topic `notices` lost its newest records under an aggregator: it writes them again, once and in order."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
import structlog

from hgext.vcsreplicator.aggregator import recent_notices
from hgext.vcsreplicator.aggregator.decisions import outgoing
from hgext.vcsreplicator.aggregator.lasting import Lasting
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.recent_notices import LONGEST, RecentNotices
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, STATE, NewRecord, Record, topics
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)


class LateLog(MemoryLog):
    """While it `is_late`, it does not tell yet of the newest notice."""

    is_late = False
    aborted: tuple[Record, ...] = ()

    def undone(self, topic: str, position: int, *, stop: threading.Event | None = None) -> list[Record]:
        return [record for record in self.aborted if record.topic == topic and record.offset >= position]

    def undo_newest(self, count: int) -> None:
        """Have the newest notices undone by an abort that other topics do not share."""
        self.aborted += tuple(self.records(NOTICES)[-count:])
        for record in self.aborted:
            self._records[NOTICES, 0].pop(record.offset, None)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        late = self.is_late and topic == NOTICES
        return {partition: end - late for partition, end in super().ends(topic, partitions).items()}


class Aggregator:
    """One session after the other on a log in memory, as `loop.run` has them, and a mirror that serves everything at once."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log = LateLog(self.clock)
        self.log.create(topics(partitions=1))
        ask(self.log, Verb.ADD, "alpha")
        self.lasting = Lasting(self.clock)
        self.stop = threading.Event()
        self.transactor = self.log.transactor(GROUP)
        self.session = self.open()

    def open(self) -> Session:
        self.transactor.renew()
        return Session(SETTINGS, self.log, self.transactor, self.clock, self.lasting, self.stop)

    def push(self, *chains: Chain) -> None:
        for chain in chains:
            send(self.log, chain.take(1))
            value = to_json(chain.ack("alpha", len(chain.events)))
            self.log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=value)])

    def step(self, steps: int = 3) -> None:
        """Go on, through a session that ends, until some heartbeats later."""
        for _ in range(steps):
            try:
                self.session.step(0.0)
            except Unavailable:
                self.session.close()
                self.session = self.open()
            self.clock.advance(SETTINGS.beat)

    def push_some(self, *chains: Chain) -> list[Record]:
        """Push often enough to each; return what was announced."""
        for _ in range(3):
            self.push(*chains)
            self.step(1)
        self.step()
        return self.log.records(NOTICES)


def list_values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def list_seqs(here: Aggregator, chain: Chain) -> list[int]:
    notices = [from_json(Notice, record.value or b"") for record in here.log.records(NOTICES)]
    return [notice.event.seq for notice in notices if notice.event.repository == chain.repository]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_notices_that_the_log_lost_are_written_again_in_order(count: int) -> None:
    here = Aggregator()
    before = here.push_some(Chain("x"), Chain("y"))
    here.log.lose(NOTICES, 0, count)
    with structlog.testing.capture_logs() as lines:
        here.step()
    found = here.log.records(NOTICES)
    assert (list_values(found), [each.headers for each in found]) == (
        list_values(before),
        [each.headers for each in before],
    )
    assert [line["notices"] for line in lines if "topic notices lost" in line["event"]] == [count]


@pytest.mark.parametrize("count", [1, 4])
def test_a_notice_that_meets_the_loss_comes_after_those_lost(count: int) -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain, Chain("y"))
    here.session.step(0.0)  # the next heartbeat is not due yet, so the transaction itself finds the loss
    here.log.lose(NOTICES, 0, count)
    here.push(chain)
    here.step()
    assert list_seqs(here, chain) == [1, 2, 3, 4]


def test_lost_notices_of_several_transactions_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Aggregator()
    before = here.push_some(Chain("x"), Chain("y"))
    monkeypatch.setattr(outgoing, "BATCH_BYTES", 2 * len(before[0].value or b""))
    here.log.lose(NOTICES, 0, 5)
    here.step()
    assert list_values(here.log.records(NOTICES)) == list_values(before)


def test_lost_notices_are_written_again_after_any_end_of_the_session() -> None:
    here = Aggregator()
    before = here.push_some(Chain("x"))
    here.session.close()
    here.log.lose(NOTICES, 0, 2)
    here.session = here.open()
    assert list_values(here.log.records(NOTICES)) == list_values(before)


def test_a_restoring_whose_outcome_is_unknown_is_repeated_once() -> None:
    for is_written in (False, True):
        here = Aggregator()
        before = here.push_some(Chain("x"))
        here.session.close()
        here.log.lose(NOTICES, 0, 2)
        here.log.fail_commits = [is_written]
        with pytest.raises(Unavailable):
            here.open()
        here.session = here.open()
        here.step()
        assert list_values(here.log.records(NOTICES)) == list_values(before)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_notice_of_unknown_outcome_is_announced_once(*, is_written: bool, is_lost: bool) -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.log.fail_commits = [is_written]
    here.push(chain)
    with pytest.raises(Unavailable):
        here.session.step(0.0)
    here.session.close()
    if is_lost:
        here.log.lose(NOTICES, 0, 1)
    here.session = here.open()
    here.step()
    assert list_seqs(here, chain) == [1, 2, 3, 4]


def test_notices_lost_just_before_the_aggregators_end_are_written_again() -> None:
    here = Aggregator()
    before = here.push_some(Chain("x"))
    here.log.lose(NOTICES, 0, 2)
    here.stop.set()
    here.session.finish(ends=True)
    assert list_values(here.log.records(NOTICES)) == list_values(before)


def test_an_aggregator_that_ends_soon_after_a_notice_stores_where_it_stands() -> None:
    here = Aggregator()
    here.push_some(Chain("x"))
    here.stop.set()
    here.session.finish(ends=True)
    assert here.log.stored(GROUP, EVENTS) == here.log.ends(EVENTS)
    beats = [record.value for record in here.log.records(STATE) if record.key == AGGREGATOR]
    assert from_json(AggregatorHeartbeat, beats[-1] or b"").ended


def test_notices_and_states_lost_at_once_come_back_together() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    older = here.log.copied(STATE)
    before = here.push_some(chain)
    here.log.restore(STATE, older)
    here.log.lose(NOTICES, 0, 2)
    here.step()
    assert list_values(here.log.records(NOTICES)) == list_values(before)
    here.push(chain)
    here.step()
    assert list_seqs(here, chain) == list(range(1, 8))


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["emptied", "made anew"])
def test_no_notice_comes_again_in_a_topic_that_was_emptied(*, is_made_anew: bool) -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    if is_made_anew:
        here.log.lose(NOTICES, 0, 1000)
    else:
        here.log.expire(NOTICES, 0)
    here.step()
    here.push(chain)
    here.step()
    assert list_seqs(here, chain) == [4]


def test_a_notice_that_meets_a_topic_made_anew_comes_alone() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.log.lose(NOTICES, 0, 1000)
    here.push(chain)
    here.step()
    assert list_seqs(here, chain) == [4]


def test_an_end_that_is_late_after_a_commit_is_no_loss() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.push(chain)
    session = here.session
    here.log.is_late = True
    here.session.step(0.0)
    here.log.is_late = False
    here.step()
    assert here.session is session
    assert list_seqs(here, chain) == [1, 2, 3, 4]


def test_only_the_newest_notices_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_notices, "MOST", 2)
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.push_some(chain)
    here.log.lose(NOTICES, 0, 4)
    here.step()
    assert list_seqs(here, chain) == [1, 2, 5, 6]


def test_large_notices_are_remembered_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    here, chain = Aggregator(), Chain("x")
    [first, *_] = here.push_some(chain)
    monkeypatch.setattr(recent_notices, "MOST_BYTES", 3 * len(first.value or b""))
    here.push_some(chain)
    here.log.lose(NOTICES, 0, 4)
    here.step()
    assert list_seqs(here, chain) == [1, 2, 5, 6]


@pytest.mark.parametrize("attempts", [1, 2])
def test_notices_that_an_abort_alone_undid_are_written_again_by_the_next_process(attempts: int) -> None:
    """A broker that was killed counts the abort of an expected transaction for the notices of the one before."""
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.session.step(0.0)  # a heartbeat, before the notices
    for number in (4, 5):
        here.push(chain)
        here.session.step(0.0)
        assert list_seqs(here, chain)[-1] == number, "before the next heartbeat"
    for _ in range(attempts):
        here.session.close()
        here.log.undo_newest(2)
        here.lasting = Lasting(here.clock)
        here.session = here.open()
        assert list_seqs(here, chain) == [1, 2, 3, 4, 5]
    here.push(chain)
    here.step()
    assert list_seqs(here, chain) == [1, 2, 3, 4, 5, 6]


def test_a_notice_that_was_aborted_and_never_decided_or_is_there_already_is_not_written() -> None:
    here, chain = Aggregator(), Chain("x")
    notices = here.push_some(chain)
    here.session.step(0.0)  # a heartbeat, before the notice
    here.push(chain)
    here.session.step(0.0)
    newest = here.log.records(NOTICES)[-1]
    undecided = replace(from_json(Notice, newest.value or b""), time=7.0)
    undecided = replace(undecided, event=replace(undecided.event, seq=5))
    other = replace(from_json(Notice, newest.value or b""), time=7.0)  # an attempt before it
    values = [to_json(undecided), to_json(other), b"no notice", None]
    here.log.aborted = tuple(replace(newest, value=value) for value in values)
    here.session.close()
    here.lasting = Lasting(here.clock)
    here.session = here.open()
    assert list_values(here.log.records(NOTICES)) == list_values([*notices, newest])


def test_an_aborted_notice_is_not_written_behind_a_later_one() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.session.step(0.0)  # a heartbeat, before the notices
    here.push(chain)
    here.session.step(0.0)
    here.log.undo_newest(1)
    here.push(chain)
    here.session.step(0.0)
    assert list_seqs(here, chain) == [1, 2, 3, 5]
    here.session.close()
    here.lasting = Lasting(here.clock)
    here.session = here.open()
    assert list_seqs(here, chain) == [1, 2, 3, 5]


def test_notices_that_the_log_kept_for_long_are_forgotten() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    assert here.lasting.recent.has_any()
    here.clock.advance(LONGEST)
    here.step()
    assert not here.lasting.recent.has_any()


def test_an_outage_of_the_log_lets_no_notice_be_forgotten() -> None:
    here, chain = Aggregator(), Chain("x")
    here.push_some(chain)
    here.log.leaderless.add((NOTICES, 0))
    here.clock.advance(2 * LONGEST)
    here.step()
    here.log.lose(NOTICES, 0, 2)
    here.log.leaderless.clear()
    here.step()
    assert list_seqs(here, chain) == [1, 2, 3]


def test_a_start_with_nothing_written_reads_no_notice() -> None:
    here = Aggregator()
    here.push_some(Chain("x"))
    here.log.before["reader"] = lambda *_: pytest.fail("notices were read")
    recent = RecentNotices(here.clock)
    assert recent.find_lost(here.log, threading.Event(), lambda notice: True) == []
