# SPDX-License-Identifier: GPL-2.0-or-later
"""The topic `state` alone is older than the rest: nothing is announced twice, and no sequence and no `previous` goes back."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.aggregator import session as sessions
from hgext.vcsreplicator.aggregator.loading import GROUP, load_roster
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.aggregator.watching import ROSTER_INTERVAL
from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, PENDING, ROSTER, STATE, NewRecord, topics
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Notice, RepositoryState
from hgext.vcsreplicator.words.roster import KEY, Roster, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryCopy, MemoryLog, MemoryTransactor
from testing.clock import HandClock
from testing.seeds import ends

SETTINGS = AggregatorSettings(group_time=0.0, beat=5.0)


class Installation:
    """An aggregator on a log in memory, and one mirror that serves everything."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(self.clock)
        self.log.create(topics(partitions=1))
        ask(self.log, Verb.ADD, "alpha")
        self.session = self.opened()

    def restart(self, meanwhile: Callable[[], object]) -> None:
        self.session.close()
        meanwhile()
        self.session = self.opened()

    def step(self, *chains: Chain) -> None:
        """The mirror serves all of these; some heartbeats later all is decided."""
        self.acknowledged(*chains)
        for _ in range(4):
            self.session.step(0.0)
            self.clock.advance(5.0)

    def acknowledged(self, *chains: Chain) -> None:
        for chain in chains:
            ack = to_json(chain.ack("alpha", len(chain.events)))
            self.log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=ack)])

    def state(self, chain: Chain) -> RepositoryState:
        [value] = [record.value for record in self.log.records(STATE) if record.key == chain.repository]
        return from_json(RepositoryState, value or b"")

    def told(self) -> list[tuple[str, int, str | None]]:
        """Path, public sequence and `previous` of every push that was announced."""
        notices = [from_json(Notice, record.value or b"") for record in self.log.records(NOTICES)]
        return [
            (notice.event.path, (notice.base or 0) + notice.event.seq, notice.previous["changegroup.1"])
            for notice in notices
            if "changegroup.1" in notice.previous
        ]

    def opened(self) -> Session:
        return Session(SETTINGS, self.log, self.log.transactor(GROUP), self.clock)


def chained(chain: Chain, *, first: int = 0) -> list[tuple[str, int, str | None]]:
    pushes = [event for event in chain.events if event.type is Type.CHANGED]
    before = [None, *(event.id for event in pushes)]
    return [(event.path, event.seq, previous) for event, previous in zip(pushes, before[:-1], strict=True)]


@pytest.mark.parametrize("pushed", [0, 1, 3], ids=["nothing", "one", "several"])
def test_a_state_restored_older_while_down_repeats_no_notice(pushed: int) -> None:
    here, chain, new = Installation(), Chain("x"), Chain("new")
    send(here.log, chain.take(3))
    here.step(chain)
    older = here.log.copied(STATE)
    send(here.log, [*chain.take(2), *new.take(2)])
    here.step(chain, new)
    send(here.log, chain.take(pushed))
    here.step()  # seen, and not announced
    here.restart(lambda: here.log.restore(STATE, older))
    here.step(chain, new)
    send(here.log, chain.take(2))
    here.step(chain)
    assert [each for each in here.told() if each[0] == "x"] == chained(chain)
    assert [each for each in here.told() if each[0] == "new"] == chained(new)
    assert here.state(new).noticed == 2


def test_a_state_from_before_an_adoption_takes_no_public_sequence_back() -> None:
    here, chain, new = Installation(), Chain("x"), Chain("x", incarnation=2)
    send(here.log, chain.take(2))
    here.step(chain)
    older = here.log.copied(STATE)
    send(here.log, chain.take(2))
    here.step(chain)
    send(here.log, [new.next(Type.SYNC, detail={"reason": "adopted"}), new.next()])
    here.step(new)
    here.restart(lambda: here.log.restore(STATE, older))
    send(here.log, new.take(1))
    here.step(new)
    ids = [event.id for event in (*chain.events[1:], *new.events[1:])]
    assert here.told() == [
        ("x", sequence, previous) for sequence, previous in zip((2, 3, 4, 6, 7), [None, *ids[:-1]], strict=True)
    ]
    assert (here.state(new).retired, here.state(new).base) == ((chain.incarnation,), 4)


def test_a_state_names_the_master_whose_relay_sent_the_newest_event() -> None:
    here, chain = Installation(), Chain("x")
    for source in ("hg://left", "hg://right", "h" * 201, ""):
        event = chain.next()
        headers = wire.headers(event, source) if source else {}
        here.log.append([NewRecord(topic=EVENTS, key=chain.repository, value=wire.encode(event), headers=headers)])
        here.step(chain)
        assert here.state(chain).source == ("hg://left" if source == "hg://left" else "hg://right")
        here.restart(lambda: None)


def adopted(*chains: Chain) -> None:
    """Begin each history with the adoption that replaces the one before it."""
    for before, chain in pairwise(chains):
        chain.next(Type.SYNC, detail={"reason": "adopted", "replaces": before.incarnation})


def histories(count: int) -> list[Chain]:
    return [Chain("x", incarnation=number + 1) for number in range(count)]


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "held"])
@pytest.mark.parametrize("count", [3, 4])
def test_a_state_from_before_adoptions_announces_no_replaced_history(count: int, *, announced: bool) -> None:
    here, chains = Installation(), histories(count)
    first, *between, last = chains
    send(here.log, first.take(3))
    here.step(first)
    older = here.log.copied(STATE)
    adopted(*chains)
    for chain in between:
        send(here.log, [*chain.events, *chain.take(2)])
        here.step()
    send(here.log, [*last.events, *last.take(1)])
    here.step(*[last] * announced)
    here.restart(lambda: here.log.restore(STATE, older))
    here.step(last)
    send(here.log, [last.next(), *Chain("x", generation=2).take(4)[3:]])  # a gap: the partition is read again
    here.step(last)
    assert [event for event, _, _ in here.told()] == ["x"] * 4
    assert [previous for _, _, previous in here.told()] == [
        None, first.events[1].id, first.events[2].id, last.events[1].id
    ]  # fmt: skip
    assert here.state(last).incarnation == last.incarnation
    assert here.state(last).fork is None


def adopted_thrice() -> tuple[Installation, Chain, Chain, MemoryCopy]:
    """An installation, the first and the last of four histories, and `state` from before the adoptions; the last one is held."""
    here, chains = Installation(), histories(4)
    first, *between, last = chains
    send(here.log, first.take(3))
    here.step(first)
    older = here.log.copied(STATE)
    adopted(*chains)
    for chain in between:
        send(here.log, [*chain.events, *chain.take(2)])
        here.step()
    send(here.log, [*last.events, *last.take(2)])
    here.step()
    return here, first, last, older


def test_old_state_and_lost_events_announce_no_replaced_history() -> None:
    here, first, last, older = adopted_thrice()
    here.restart(lambda: [here.log.restore(STATE, older), here.log.lose(EVENTS, 0, 2)])
    here.step(last)
    send(here.log, [*last.events, *last.take(1)])
    here.step(last)
    assert [previous for _, _, previous in here.told()][2:] == [first.events[2].id, *(e.id for e in last.events[1:3])]
    assert here.state(last).incarnation == last.incarnation


def test_an_adoption_of_an_unread_history_is_a_fork_until_the_next() -> None:
    """The log lost two adoptions, and the second, sent again, names the first alone, as an older release does."""
    here, (first, between, newest, last) = Installation(), histories(4)
    adopted(first, between, newest, last)
    send(here.log, first.take(4))
    here.step(first)
    send(here.log, [*between.events, *newest.events])
    here.restart(lambda: [here.log.lose(EVENTS, 0, 5), send(here.log, newest.events)])
    here.step(newest)
    for _ in range(2):
        send(here.log, newest.take(1))
        here.step(newest)
        assert (here.state(first).incarnation, here.state(first).fork) == (first.incarnation, newest.events[-1].id)
    send(here.log, [*last.events, *last.take(1)])
    here.step(last)
    assert (here.state(last).incarnation, here.state(last).noticed, here.state(last).fork) == (
        last.incarnation,
        2,
        None,
    )


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("taken", ends(range(9)))
def test_a_start_killed_in_a_cut_log_goes_on_with_the_present_history(
    taken: int, monkeypatch: pytest.MonkeyPatch, *, is_cut_off: bool
) -> None:
    here, first, last, older = adopted_thrice()
    lost = [event for event in last.events if event.seq > 1]
    with monkeypatch.context() as slow:
        slow.setattr(sessions, "READ_LIMIT", 1)
        slow.setattr(sessions, "READS", 1)
        here.session.close()
        here.log.restore(STATE, older)
        here.log.lose(EVENTS, 0, 2)
        here.log.fail_commits = [True] * is_cut_off  # the first transaction takes effect, and is the last
        with contextlib.suppress(Unavailable):
            here.session = here.opened()
            here.session.step(0.0)
        here.restart(lambda: None)
        for _ in range(taken):
            here.session.step(0.0)
            here.session.commit()
            here.clock.advance(5.0)
    here.restart(lambda: send(here.log, lost))  # beyond the position that was stored before the loss
    here.step(last)
    send(here.log, last.take(1))
    here.step(last)
    assert [previous for _, _, previous in here.told()][2:] == [first.events[2].id, *(e.id for e in last.events[1:3])]
    assert here.state(last).incarnation == last.incarnation
    assert here.state(last).fork is None


@pytest.mark.parametrize("lost", [(STATE,), (STATE, PENDING)], ids=["state", "both"])
def test_notices_of_an_adopted_history_outlast_an_older_state(
    lost: tuple[str, ...],
) -> None:
    here, (first, last) = Installation(), histories(2)
    send(here.log, first.take(5))
    here.step(first)
    older = {topic: here.log.copied(topic) for topic in lost}
    adopted(first, last)
    send(here.log, [*last.events, *last.take(1)])
    here.step()  # held
    here.restart(lambda: [here.log.restore(*each) for each in older.items()])
    here.step(last)
    assert [previous for _, _, previous in here.told()][4:] == [first.events[-1].id]


@pytest.mark.parametrize("leaves", [Type.DELETED, Type.RENAMED])
def test_a_successor_waits_for_a_repository_whose_state_was_lost(leaves: Type) -> None:
    here, chain, new = Installation(), Chain("x"), Chain("x", generation=2)
    here.step()
    older = here.log.copied(STATE)
    send(here.log, chain.take(2))
    if leaves is Type.RENAMED:
        chain.path = "elsewhere"
    send(here.log, [chain.next(leaves), *chain.take(leaves is Type.RENAMED)])
    here.step()
    here.restart(lambda: here.log.restore(STATE, older))
    send(here.log, new.take(2))
    here.step(new)
    assert here.told() == []
    here.step(chain, new)
    assert here.told()[-1] == ("x", 2, None)


def test_a_successor_waits_at_each_path_of_a_repository_without_state() -> None:
    here, chain, new = Installation(), Chain("x"), Chain("y", generation=2)
    here.step()
    older = here.log.copied(STATE)
    send(here.log, chain.take(2))
    for path in ("y", "z"):
        chain.path = path
        send(here.log, [chain.next(Type.RENAMED)])
    here.step()
    here.restart(lambda: here.log.restore(STATE, older))
    send(here.log, new.take(2))
    here.step(new)
    assert here.told() == []
    here.step(chain, new)
    assert here.told()[-1] == ("y", 2, None)


def test_a_state_that_went_back_under_an_aggregator_is_written_again() -> None:
    here, chain, other = Installation(), Chain("x"), Chain("other")
    send(here.log, [*chain.take(3), *other.take(1)])
    here.step(chain, other)
    older = here.log.copied(STATE)
    send(here.log, [*chain.take(20), *other.take(1)])
    here.step(chain, other)
    here.log.restore(STATE, older)
    assert here.state(chain).released == 3
    here.step()
    assert (here.state(chain).released, here.state(chain).noticed) == (23, 23)
    assert here.state(other).noticed == 2


@pytest.mark.parametrize("written", [0, 1, 30], ids=["nothing", "less", "more"])
def test_a_state_that_lost_less_than_a_heartbeats_worth_is_written_again(written: int) -> None:
    here, chain, other = Installation(), Chain("x"), Chain("other")
    send(here.log, [*chain.take(3), *other.take(1)])
    here.step(chain, other)
    here.session.step(0.0)  # a heartbeat: all else up to the next one comes before it
    older = here.log.copied(STATE)
    send(here.log, chain.take(4))
    here.acknowledged(chain)
    here.session.step(0.0)
    assert here.state(chain).noticed == 7
    here.log.restore(STATE, older)
    for _ in range(written):
        send(here.log, other.take(1))
        here.acknowledged(other)
        here.session.step(0.0)
    assert here.state(chain).noticed == 3
    here.step()
    assert (here.state(chain).noticed, here.state(other).noticed) == (7, 1 + written)


def test_a_state_that_is_made_of_what_waits_is_written_again() -> None:
    """Or a mirror that lost the repository would never know that it was deleted, and its deletion would wait for that mirror."""
    here, chain = Installation(), Chain("x")
    here.step()
    older = here.log.copied(STATE)
    send(here.log, [*chain.take(4), chain.next(Type.DELETED)])
    here.step()
    here.restart(lambda: here.log.restore(STATE, older))
    here.step()
    assert (here.state(chain).seq, here.state(chain).deleted) == (5, True)


def test_a_kill_at_the_first_heartbeat_after_lost_state_repeats_nothing() -> None:
    here, chain = Installation(), Chain("x")
    here.step()
    older = here.log.copied(STATE)
    send(here.log, chain.take(4))
    here.step(chain)
    here.log.restore(STATE, older)
    here.log.fail_commits = [True]  # written, and killed before the answer
    with pytest.raises(Unavailable):
        here.step()
    here.restart(lambda: None)
    here.step()
    assert here.told() == chained(chain)


@pytest.mark.parametrize("decided", [False, True], ids=["loaded", "decided since"])
def test_a_roster_lost_under_a_running_aggregator_is_written_again(*, decided: bool) -> None:
    here, chain = Installation(), Chain("x")
    emptied: MemoryCopy = ({(ROSTER, 0): {}}, {(ROSTER, 0): 0}, {})
    here.step()
    here.restart(lambda: None)
    here.step()
    if decided:
        ask(here.log, Verb.ADD, "beta")
        here.step()
    roster = here.session.aggregation.roster
    here.log.restore(ROSTER, emptied)
    here.clock.advance(ROSTER_INTERVAL)
    here.step()
    assert load_roster(here.log) == roster
    here.restart(lambda: None)
    send(here.log, chain.take(2))
    here.step()
    assert here.told() == []
    here.step(chain)
    assert bool(here.told()) != decided  # `beta` never served it


@pytest.mark.parametrize("lost", [ROSTER, STATE])
def test_what_its_topic_lost_just_after_it_was_read_is_written_again(lost: str) -> None:
    here, chain = Installation(), Chain("x")
    older = here.log.copied(lost)
    send(here.log, chain.take(2))
    here.step(chain)
    here.restart(lambda: None)
    here.log.restore(lost, older)
    here.step()
    assert load_roster(here.log) == here.session.aggregation.roster
    assert [record.key for record in here.log.records(ROSTER)] == [KEY]
    assert here.state(chain).noticed == 2


def test_a_roster_lost_between_two_sessions_is_written_again() -> None:
    here, stop = Installation(), threading.Event()
    here.step()
    here.session.close()
    roster = load_roster(here.log)
    commits = list[bool]()

    class Transactor(MemoryTransactor):
        def commit(self, messages: Sequence[NewRecord], **options: Any) -> list[tuple[int, int]]:
            commits.append(any(message.topic == ROSTER for message in messages))
            if len(commits) == 1:
                raise Unavailable("no answer")
            if len(commits) == 5:
                stop.set()
            return super().commit(messages, **options)

        def renew(self) -> None:
            here.log.restore(ROSTER, ({(ROSTER, 0): {}}, {(ROSTER, 0): 0}, {}))
            super().renew()

    epoch = here.log.transactor(GROUP).epoch
    here.log.transactor = lambda identity: Transactor(here.log, identity, epoch)  # type: ignore[method-assign, assignment]
    run(AggregatorSettings(beat=0.02), here.log, stop=stop, ready=lambda: None)
    assert commits[1]
    assert load_roster(here.log) == roster


def test_a_roster_lost_just_before_the_aggregators_end_is_written_again() -> None:
    here = Installation()
    here.step()
    roster = here.session.aggregation.roster
    here.log.restore(ROSTER, ({(ROSTER, 0): {}}, {(ROSTER, 0): 0}, {}))
    here.session.finish()
    assert load_roster(here.log) == roster


def test_an_aggregators_end_asks_nothing_of_a_log_that_did_not_answer() -> None:
    here = Installation()
    here.step()
    here.log.leaderless.add((STATE, 0))
    here.step()
    asked = list[str]()
    here.log.before["ends"] = lambda topic, _: asked.append(topic)
    here.session.finish()
    assert asked == []


def test_the_end_of_an_aggregator_writes_no_roster_that_is_there() -> None:
    here = Installation()
    here.step()
    before = len(here.log.records(ROSTER))
    here.session.finish()
    assert len(here.log.records(ROSTER)) == before


def test_a_start_names_a_roster_that_lost_its_newest_version() -> None:
    here = Installation()
    older = [here.log.copied(topic) for topic in (ROSTER, PENDING)]
    here.step()
    newest = here.session.aggregation.roster.version
    with structlog.testing.capture_logs() as lines:
        here.restart(lambda: [here.log.restore(*each) for each in zip((ROSTER, PENDING), older, strict=True)])
    named = [(line["version"], line["newest"]) for line in lines if "roster lost" in line["event"]]
    assert named == [(0, newest)]


@pytest.mark.parametrize("lost", [ROSTER, PENDING])
def test_another_process_writes_again_what_its_topic_lost_of_the_roster(lost: str) -> None:
    here = Installation()
    older = here.log.copied(lost)
    here.step()
    roster = here.session.aggregation.roster
    here.restart(lambda: here.log.restore(lost, older))
    assert here.session.aggregation.roster == roster
    here.step()
    for topic in (ROSTER, PENDING):
        [found] = [record for record in here.log.records(topic) if record.key == KEY]
        assert from_json(Roster, found.value or b"") == roster


def test_a_roster_that_stands_is_not_written_again() -> None:
    here = Installation()
    here.step()
    before = here.log.ends(ROSTER)
    here.clock.advance(ROSTER_INTERVAL)
    here.step()
    assert here.log.ends(ROSTER) == before


def test_a_state_that_stands_is_not_written_again() -> None:
    here, chain = Installation(), Chain("x")
    send(here.log, chain.take(3))
    here.step(chain)
    before = here.log.copied(STATE)[2][STATE, 0, chain.repository]
    here.step()
    here.step()
    assert here.log.copied(STATE)[2][STATE, 0, chain.repository] == before


def test_a_loss_of_state_reads_no_more_notices_than_are_newer_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here, chain = Installation(), Chain("x")
    send(here.log, chain.take(30))
    here.step(chain)
    read: list[int] = []
    recover = type(here.session.aggregation).recover
    monkeypatch.setattr(
        type(here.session.aggregation),
        "recover",
        lambda aggregation, notice: (read.append(notice.event.seq), recover(aggregation, notice))[1],
    )
    here.restart(lambda: None)
    assert read == []
