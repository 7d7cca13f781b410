# SPDX-License-Identifier: GPL-2.0-or-later
"""Aggregators that stand by for another: one works, and another takes over when it ends, is silent, or is gone."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from hgext.vcsreplicator.aggregator import standby
from hgext.vcsreplicator.aggregator.loading import IDENTITY
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.aggregator.standby import is_gone, name_process
from hgext.vcsreplicator.log import SERVICES, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import AGGREGATOR, AGGREGATOR_KEY, AggregatorHeartbeat, ServiceReport
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.log.memorylog import MemoryLog
from testing.waiting import eventually

pytestmark = pytest.mark.processes

SETTINGS = AggregatorSettings(group_time=0.0, beat=0.1, takeover_after=1.0)
# A machine that is not this one.
ELSEWHERE = "00000000-0000-0000-0000-000000000000/4026531836/17/99"


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics(partitions=1))
    return log


@contextmanager
def running(log: Log, host: str, instance: str) -> Iterator[Callable[[], None]]:
    """An aggregator or standby in a thread; what is given ends it as a signal does."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=standby.run,
        args=(SETTINGS, log),
        kwargs={"stop": stop, "ready": ready.set, "host": host, "instance": instance},
    )
    thread.start()
    assert ready.wait(10)

    def end() -> None:
        stop.set()
        thread.join()

    try:
        yield end
    finally:
        end()


def active(log: MemoryLog) -> str | None:
    """The process that sent the newest heartbeat."""
    beats = [record.value for record in log.records(STATE) if record.key == AGGREGATOR]
    return from_json(AggregatorHeartbeat, beats[-1] or b"").instance if beats else None


def stands_by(log: MemoryLog, host: str) -> bool | None:
    """What the aggregator on this host reports; None if it withdrew that."""
    value = [record.value for record in log.records(SERVICES) if record.key == f"{AGGREGATOR_KEY}{host}"][-1]
    return from_json(ServiceReport, value).is_standby if value is not None else None


def beat_of(instance: str | None, *, ended: bool = False) -> NewRecord:
    beat = AggregatorHeartbeat(time=1.0, roster=0, held=0, instance=instance, ended=ended)
    return NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(beat))


def test_a_standby_takes_over_at_once_from_an_aggregator_that_ends(log: MemoryLog) -> None:
    first, second = ELSEWHERE, ELSEWHERE.replace("17", "18")
    with ExitStack() as ending:
        end = ending.enter_context(running(log, "one", first))
        eventually(lambda: active(log) == first)
        ending.enter_context(running(log, "two", second))
        eventually(lambda: stands_by(log, "two") is True and stands_by(log, "one") is False)
        before = log.ends(STATE)[0]
        eventually(lambda: log.ends(STATE)[0] > before + 20)
        assert active(log) == first
        end()
        assert stands_by(log, "one") is None
        eventually(lambda: active(log) == second)
        eventually(lambda: stands_by(log, "two") is False)


def test_an_aggregator_that_is_fenced_stands_by_for_the_other(log: MemoryLog) -> None:
    with running(log, "one", ELSEWHERE):
        eventually(lambda: stands_by(log, "one") is False)
        other = log.transactor(IDENTITY)
        eventually(lambda: stands_by(log, "one") is True)
        for _ in range(20):
            other.commit([beat_of("other/1/1/1")])
            threading.Event().wait(0.1)
        assert stands_by(log, "one") is True
        eventually(lambda: active(log) == ELSEWHERE)
        assert stands_by(log, "one") is False


def test_a_silent_aggregator_is_replaced_after_the_time_that_is_set(log: MemoryLog) -> None:
    log.append([beat_of("other/1/1/1")])
    with running(log, "one", ELSEWHERE):
        assert stands_by(log, "one") is True
        eventually(lambda: active(log) == ELSEWHERE)


@pytest.mark.parametrize("is_late", [False, True], ids=["ends unknown", "records not shown"])
def test_silence_counts_only_while_the_log_answers(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    log.append([beat_of("other/1/1/1")])
    ends = log.ends

    def silent(topic: str, *arguments: object) -> dict[int, int]:
        if topic != STATE:
            return ends(topic)
        if is_late:
            return {0: ends(topic)[0] + 1}
        raise Unavailable("no answer")

    with running(log, "one", ELSEWHERE):
        monkeypatch.setattr(log, "ends", silent)
        threading.Event().wait(3 * SETTINGS.takeover_after)
        assert active(log) == "other/1/1/1"
        monkeypatch.setattr(log, "ends", ends)
        eventually(lambda: active(log) == ELSEWHERE)


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
        clock=log._clock,
    )
    assert state is not None
    assert not called


def test_a_process_is_gone_once_it_ended_and_not_before() -> None:
    script = (
        "from hgext.vcsreplicator.aggregator.standby import name_process; print(name_process(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        name = child.stdout.readline().strip()
        assert f"/{child.pid}/" in name
        assert not is_gone(name)
        child.communicate("\n")
    assert is_gone(name)
    assert not is_gone(name_process())
    assert not is_gone(ELSEWHERE)
    assert not is_gone(f"{name_process().partition('/')[0]}/1/{os.getpid()}/1"), "of another container"
