# SPDX-License-Identifier: GPL-2.0-or-later
"""Aggregators that stand by for another: one works, and another takes over when it ends, is silent, or is gone."""

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator import loop, metrics, standby
from hgext.vcsreplicator.aggregator.alarms import SILENT
from hgext.vcsreplicator.aggregator.loading import IDENTITY
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import PENDING, SERVICES, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log import standby as following
from hgext.vcsreplicator.log.standby import StandbyReader, name_process
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.records import (
    AGGREGATOR,
    AGGREGATOR_FORMAT,
    AGGREGATOR_KEY,
    AggregatorHeartbeat,
    ServiceReport,
)
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog, MemoryTransactor
from testing.clock import HandClock
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

SETTINGS = AggregatorSettings(group_time=0.0, beat=0.1, takeover_after=1.0)
# Of a standby that takes over from no silent aggregator.
PATIENT = replace(SETTINGS, takeover_after=3600.0)
# A machine that is not this one.
ELSEWHERE = "00000000-0000-0000-0000-000000000000/4026531836/17/99"


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics(partitions=1))
    return log


@contextmanager
def running(
    log: Log, host: str, instance: str, settings: AggregatorSettings = SETTINGS, clock: Clock | None = None
) -> Iterator[Callable[[], None]]:
    """An aggregator or standby in a thread; what is given ends it as a signal does.

    By a clock that is moved by hand no silence is longer because this machine is busy.
    """
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=standby.run,
        args=(settings, log),
        kwargs={"stop": stop, "ready": ready.set, "host": host, "instance": instance, "clock": clock},
    )
    thread.start()
    assert ready.wait(PATIENCE)

    def end() -> None:
        stop.set()
        thread.join()

    try:
        yield end
    finally:
        end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby looks often."""
    monkeypatch.setattr(following, "POLL", 0.05)


def active(log: MemoryLog) -> str | None:
    """The process that sent the newest heartbeat."""
    beats = [record.value for record in log.records(STATE) if record.key == AGGREGATOR]
    return from_json(AggregatorHeartbeat, beats[-1] or b"").instance if beats else None


def stands_by(log: MemoryLog, host: str) -> bool | None:
    """What the aggregator on this host reports, once it has reported; None if it withdrew that."""
    key = f"{AGGREGATOR_KEY}{host}"
    values = eventually(lambda: [record.value for record in log.records(SERVICES) if record.key == key], "a report")
    return from_json(ServiceReport, values[-1]).is_standby if values[-1] is not None else None


def beat_of(instance: str | None, *, ended: bool = False) -> NewRecord:
    beat = AggregatorHeartbeat(time=1.0, roster=0, held=0, instance=instance, ended=ended)
    return NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(beat))


def test_a_standby_takes_over_at_once_from_an_aggregator_that_ends(log: MemoryLog) -> None:
    first, second = ELSEWHERE, ELSEWHERE.replace("17", "18")
    with ExitStack() as ending:
        end = ending.enter_context(running(log, "one", first))
        eventually(lambda: active(log) == first)
        ending.enter_context(running(log, "two", second, PATIENT))
        eventually(lambda: stands_by(log, "two") is True and stands_by(log, "one") is False)
        before = log.ends(STATE)[0]
        eventually(lambda: log.ends(STATE)[0] > before + 20)
        assert active(log) == first
        end()
        assert stands_by(log, "one") is None
        eventually(lambda: active(log) == second)
        eventually(lambda: stands_by(log, "two") is False)


def test_an_aggregator_that_is_fenced_stands_by_for_the_other(log: MemoryLog) -> None:
    with running(log, "one", ELSEWHERE, PATIENT):
        eventually(lambda: stands_by(log, "one") is False)
        log.transactor(IDENTITY)
        eventually(lambda: stands_by(log, "one") is True)
        other = [beat_of("other/1/1/1"), beat_of("other/1/1/1", ended=True)]
        log.append(other)
        # Again until it is heard: the first may have read them before it stood by.
        eventually(lambda: active(log) == ELSEWHERE or not log.append(other))
        eventually(lambda: stands_by(log, "one") is False)


class CutOffLog(MemoryLog):
    """The same log, by which a process reaches the broker of the topics, and not the one that coordinates its transactions."""

    def __init__(self, log: MemoryLog) -> None:
        vars(self).update(vars(log))
        self.is_cut_off = True

    def transactor(self, identity: str, *, group: str | None = None) -> MemoryTransactor:
        if self.is_cut_off:
            raise Unavailable("the coordinator does not answer")
        return super().transactor(identity, group=group)


def test_a_process_that_cannot_begin_keeps_no_other_from_its_turn(log: MemoryLog) -> None:
    stop, second = threading.Event(), ELSEWHERE.replace("17", "18")
    first = threading.Thread(
        target=standby.run,
        args=(SETTINGS, CutOffLog(log)),
        kwargs={"stop": stop, "ready": lambda: None, "host": "one", "instance": ELSEWHERE},
    )
    first.start()
    try:
        stands_by(log, "one")
        with running(log, "two", second):
            eventually(lambda: active(log) == second, timeout=20.0)
    finally:
        stop.set()
        first.join()


def test_a_process_that_can_never_load_keeps_no_other_from_its_turn(log: MemoryLog) -> None:
    """It reaches all brokers but one that it must read from."""
    stop, second, partly = threading.Event(), ELSEWHERE.replace("17", "18"), CutOffLog(log)
    partly.is_cut_off, partly.leaderless = False, {(PENDING, 0)}
    first = threading.Thread(
        target=standby.run,
        args=(SETTINGS, partly),
        kwargs={"stop": stop, "ready": lambda: None, "host": "one", "instance": ELSEWHERE},
    )
    first.start()
    try:
        eventually(lambda: stands_by(log, "one") is False)
        with running(log, "two", second):
            eventually(lambda: active(log) == second, timeout=20.0)
    finally:
        stop.set()
        first.join()


class NotingLog(MemoryLog):
    """Notes the processes whose heartbeats it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str | None] = []

    def put(self, message: NewRecord) -> tuple[int, int]:
        if message.key == AGGREGATOR:
            self.writers.append(from_json(AggregatorHeartbeat, message.value or b"").instance)
        return super().put(message)


class StoppableLog(NotingLog):
    """The same log, by which a process that is stopped, as by SIGSTOP, does nothing."""

    def __init__(self, log: NotingLog) -> None:
        vars(self).update(vars(log))
        self.goes_on = threading.Event()
        self.goes_on.set()

    def append(self, *given: Any, **named: Any) -> list[tuple[int, int]]:
        self.goes_on.wait()
        return super().append(*given, **named)

    def commit(self, *given: Any) -> list[tuple[int, int]]:
        self.goes_on.wait()
        return super().commit(*given)

    def collect(self, *given: Any) -> list[Record]:
        self.goes_on.wait()
        return super().collect(*given)


def test_an_aggregator_that_is_stopped_and_returns_writes_no_more() -> None:
    log = NotingLog()
    log.create(topics(partitions=1))
    writers = log.writers
    stoppable, other = StoppableLog(log), ELSEWHERE.replace("17", "18")
    with ExitStack() as ending:
        ending.enter_context(running(stoppable, "one", ELSEWHERE, PATIENT))
        eventually(lambda: ELSEWHERE in writers)
        ending.enter_context(running(log, "two", other))
        ending.callback(stoppable.goes_on.set)
        stoppable.goes_on.clear()
        eventually(lambda: active(log) == other)
        stoppable.goes_on.set()
        eventually(lambda: stands_by(log, "one") is True)
        count = len(writers)
        eventually(lambda: len(writers) > count + 5)
        assert [writer for writer, _ in itertools.groupby(writers)] == [ELSEWHERE, other]


def test_a_silent_aggregator_is_replaced_after_the_time_that_is_set(log: MemoryLog) -> None:
    clock = HandClock()
    log.append([beat_of("other/1/1/1")])
    with running(log, "one", ELSEWHERE, clock=clock):
        assert stands_by(log, "one") is True
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or active(log) == ELSEWHERE)


class LateLog(MemoryLog):
    """While it `is_late`, `state` ends behind the records that it shows; `asked` counts the questions."""

    is_late, asked = False, 0

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        found = super().ends(topic, partitions)
        if topic == STATE and self.is_late:
            self.asked += 1
            return {0: found[0] + 1}
        return found


@pytest.mark.usefixtures("quick")
def test_silence_does_not_count_while_the_log_shows_no_records() -> None:
    log, clock = LateLog(), HandClock()
    log.create(topics(partitions=1))
    log.append([beat_of("other/1/1/1")])
    with capture_logs() as lines, running(log, "one", ELSEWHERE, clock=clock):
        log.is_late = True
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or log.asked > 2)
        assert "taking over" not in [line["event"] for line in lines]
        log.is_late = False
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or active(log) == ELSEWHERE)


@pytest.mark.usefixtures("quick")
def test_silence_counts_only_while_the_log_answers(log: MemoryLog) -> None:
    log.append([beat_of("other/1/1/1")])
    clock, asked = HandClock(), list[str]()

    def refuse(topic: str, _: object) -> None:
        if topic == STATE:
            asked.append(topic)
            raise Unavailable("no answer")

    with capture_logs() as lines, running(log, "one", ELSEWHERE, clock=clock):
        log.before["ends"] = refuse
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or len(asked) > 2)
        assert "taking over" not in [line["event"] for line in lines]
        log.before.clear()
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or active(log) == ELSEWHERE)


@pytest.mark.parametrize(
    "beat",
    [beat_of(None), beat_of("other/1/1/1", ended=True), beat_of(f"{name_process().rpartition('/')[0]}/0")],
    ids=["of an earlier release", "ended", "of a process of this machine that is gone"],
)
def test_an_aggregator_does_not_wait_for_one_that_does_not_work(beat: NewRecord, log: MemoryLog) -> None:
    log.append([beat])
    called = list[str]()
    state = standby.wait_for_turn(
        SETTINGS,
        log,
        name_process(),
        is_fenced=False,
        stop=threading.Event(),
        stands_by=lambda: called.append("stands by"),
        clock=log.clock,
    )
    assert state is not None
    assert not called


@pytest.mark.usefixtures("quick")
def test_a_killed_aggregator_of_this_machine_is_replaced_at_once(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = set[str]()
    monkeypatch.setattr(following, "is_gone", dead.__contains__)
    log.append([beat_of("other/1/1/1")])
    with running(log, "one", ELSEWHERE, PATIENT):
        log.append([beat_of("other/1/1/1")])
        assert stands_by(log, "one") is True
        dead.add("other/1/1/1")
        eventually(lambda: active(log) == ELSEWHERE)


def test_a_standby_goes_on_when_state_loses_records(log: MemoryLog) -> None:
    copy = log.copied(STATE)
    log.append([beat_of("other/1/1/1")])
    with running(log, "one", ELSEWHERE):
        log.restore(STATE, copy)
        eventually(lambda: active(log) == ELSEWHERE)


@pytest.mark.usefixtures("quick")
def test_an_outage_of_the_log_is_a_line_and_its_end_another(log: MemoryLog) -> None:
    log.append([beat_of("other/1/1/1")])
    clock, asked = HandClock(), list[str]()
    log.before["beginnings"] = lambda topic, _: asked.append(topic)
    with capture_logs() as lines, running(log, "one", ELSEWHERE, clock=clock):
        log.leaderless.add((STATE, 0))
        asked.clear()
        # A standby that heard nothing for long asks where the topic ends.
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or asked.count(STATE) > 3)
        log.leaderless.clear()
        eventually(lambda: any(line["event"] == "log answers again" for line in lines))
    said = [line["event"] for line in lines]
    assert [said.count(text) for text in ("standing by", "log unavailable", "log answers again")] == [1, 1, 1]


def test_two_that_load_longer_than_they_wait_do_not_alternate(log: MemoryLog) -> None:
    log.append([beat_of("other/1/1/1")])
    log.before["beginnings"] = lambda topic, _: topic == PENDING and threading.Event().wait(3 * SETTINGS.takeover_after)
    with running(log, "one", ELSEWHERE):
        threading.Event().wait(1.8 * SETTINGS.takeover_after)
        with running(log, "two", ELSEWHERE.replace("17", "18")):
            eventually(lambda: active(log) != "other/1/1/1")


def let_wait(log: MemoryLog, clock: HandClock, rounds: int) -> None:
    """Advance by 0.6 of a standby's patience, `rounds` times, each after a new report of the aggregator on the host `one`."""
    for _ in range(rounds):
        end = log.ends(SERVICES)[0]

        def has_reported(since: int = end) -> bool:
            newest = [record.offset for record in log.records(SERVICES) if record.key == f"{AGGREGATOR_KEY}one"]
            return newest[-1] >= since

        eventually(has_reported)
        clock.advance(0.6 * SETTINGS.takeover_after)


@pytest.mark.usefixtures("quick")
def test_an_aggregator_that_loads_for_long_is_not_fenced() -> None:
    """What was written while the clock stood is read, or known to be unread, once it has moved."""
    log = MemoryLog(clock := HandClock())
    log.create(topics(partitions=1))
    log.append([beat_of("other/1/1/1")])
    may_load, makers = threading.Event(), list[str]()
    log.before["beginnings"] = lambda topic, _: topic == PENDING and may_load.wait(PATIENCE)
    log.before["transactor"] = makers.append
    with running(log, "one", ELSEWHERE, clock=clock):
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or makers)
        with running(log, "two", ELSEWHERE.replace("17", "18"), clock=clock):
            let_wait(log, clock, 10)
            assert len(makers) == 1
            may_load.set()
            eventually(lambda: active(log) == ELSEWHERE)


@pytest.mark.usefixtures("quick")
def test_two_that_need_several_attempts_to_begin_do_not_alternate() -> None:
    log = MemoryLog(clock := HandClock())
    log.create(topics(partitions=1))
    log.append([beat_of("other/1/1/1")])
    makers = list[str]()
    log.before["transactor"] = makers.append
    with capture_logs() as lines, running(troubled := CutOffLog(log), "one", ELSEWHERE, clock=clock):
        eventually(lambda: clock.advance(SETTINGS.takeover_after) or "taking over" in [line["event"] for line in lines])
        with running(log, "two", ELSEWHERE.replace("17", "18"), clock=clock):
            let_wait(log, clock, 4)
            assert not makers
            troubled.is_cut_off = False
            eventually(lambda: active(log) == ELSEWHERE)


def test_an_aggregator_that_has_loaded_reports_less_often_than_it_beats(log: MemoryLog) -> None:
    with running(log, "one", ELSEWHERE):
        eventually(lambda: stands_by(log, "one") is False)
        beats, reports = log.ends(STATE)[0], log.ends(SERVICES)[0]
        eventually(lambda: log.ends(STATE)[0] >= beats + 6)
        assert log.ends(SERVICES)[0] <= reports + 1


def test_an_aggregator_waits_for_another_that_still_loads(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "is_gone", "other/1/1/1".__eq__)
    log.append([beat_of("other/1/1/1")])
    report = ServiceReport(time=log.clock.now(), version="1", instance="loads/1/1/1", works=(AGGREGATOR,))
    log.append([NewRecord(topic=SERVICES, key=f"{AGGREGATOR_KEY}two", value=to_json(report))])
    with running(log, "one", ELSEWHERE, PATIENT):
        assert stands_by(log, "one") is True


@pytest.mark.usefixtures("quick")
def test_reports_of_an_aggregator_that_hangs_keep_no_other_from_its_turn(log: MemoryLog) -> None:
    log.append([beat_of("other/1/1/1")])
    report = ServiceReport(time=log.clock.now(), version="1", instance="other/1/1/1", works=(AGGREGATOR,))
    with running(log, "one", ELSEWHERE, replace(SETTINGS, takeover_after=0.3)):
        again = NewRecord(topic=SERVICES, key=f"{AGGREGATOR_KEY}two", value=to_json(report))
        eventually(lambda: log.append([again]) and active(log) == ELSEWHERE, every=0.1)


def test_a_fenced_aggregator_keeps_no_session_and_no_thread(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = weakref.WeakSet[Session]()

    class Kept(Session):
        def __init__(self, *arguments: Any) -> None:
            kept.add(self)
            super().__init__(*arguments)

    monkeypatch.setattr(loop, "Session", Kept)
    monkeypatch.setattr(loop, "THREAD_KEPT", 0.1)
    with running(log, "one", ELSEWHERE):
        eventually(lambda: stands_by(log, "one") is False and active(log) == ELSEWHERE)
        log.transactor(IDENTITY)
        eventually(lambda: stands_by(log, "one") is True)
        eventually(lambda: gc.collect() >= 0 and not kept)
        eventually(lambda: "stop" not in {thread.name for thread in threading.enumerate()})


def test_a_fenced_aggregator_shows_no_alarms(log: MemoryLog) -> None:
    def shown() -> tuple[dict[str, float], float]:
        """The alarms, and how many events are held."""
        alarms = [sample for metric in metrics.ALARMS.collect() for sample in metric.samples]
        [held] = [sample.value for metric in metrics.HELD.collect() for sample in metric.samples]
        return {sample.labels["alarm"]: sample.value for sample in alarms}, held

    clock = HandClock()
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.ACTIVATE, "alpha")
    send(log, Chain("x").take(1))
    with running(log, "one", ELSEWHERE, replace(PATIENT, silence=1.0), clock):
        eventually(lambda: clock.advance(SETTINGS.beat) or (shown()[0].get(SILENT), shown()[1]) == (1, 1))
        log.transactor(IDENTITY)
        eventually(lambda: clock.advance(SETTINGS.beat) or stands_by(log, "one") is True)
        assert shown() == ({}, 0)


def test_a_process_that_fails_does_not_withdraw_its_report(log: MemoryLog) -> None:
    newer = AggregatorHeartbeat(time=1.0, roster=0, held=0, format=AGGREGATOR_FORMAT + 1)
    log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(newer))])
    with pytest.raises(BadConfig):
        standby.run(SETTINGS, log, stop=threading.Event(), ready=lambda: None, host="one")
    assert stands_by(log, "one") is True


@pytest.mark.usefixtures("quick")
def test_states_that_another_writes_are_signs_of_it_too(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([beat_of("other/1/1/1")])
    clock, looks, find = HandClock(), list[StandbyReader](), StandbyReader.find_turns
    monkeypatch.setattr(StandbyReader, "find_turns", lambda reader: looks.append(reader) or find(reader))
    with running(log, "one", ELSEWHERE, clock=clock):
        for _ in range(3):
            clock.advance(0.8 * SETTINGS.takeover_after)
            count = len(looks)
            eventually(lambda count=count: len(looks) > count + 1)  # type: ignore[misc]
            log.append([NewRecord(topic=STATE, key="a repository", value=b"{}")])
        assert active(log) == "other/1/1/1"


def test_a_newer_release_that_began_meanwhile_is_not_fenced(log: MemoryLog) -> None:
    newer = AggregatorHeartbeat(time=1.0, roster=0, held=0, format=AGGREGATOR_FORMAT + 1)
    stop = threading.Event()

    def fail_once(_: str) -> None:
        log.before.clear()
        log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(newer))])
        raise Unavailable("no answer")

    log.before["transactor"] = fail_once
    with pytest.raises(BadConfig):
        standby.run(SETTINGS, log, stop=stop, ready=stop.set, host="one")
