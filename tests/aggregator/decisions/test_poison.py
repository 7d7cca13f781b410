# SPDX-License-Identifier: GPL-2.0-or-later
"""One record that makes the aggregator fail unexpectedly: it becomes a reject, and everything else goes on."""

import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hgext.vcsreplicator.aggregator.decisions import deciding, intake, membership
from hgext.vcsreplicator.aggregator.decisions.held import HeldEvent
from hgext.vcsreplicator.aggregator.decisions.levels import MirrorLevels
from hgext.vcsreplicator.aggregator.decisions.poison import Poison, Poisoned, blaming
from hgext.vcsreplicator.aggregator.decisions.repository import Repository
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, NOTICES, ROSTER, ROSTER_REQUESTS, STATE, NewRecord, topics
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, ErrorRecord, Notice
from hgext.vcsreplicator.words.roster import Roster, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.unexpected import fault
from testing.builders.aggregator.aggregating import ask, send
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.waiting import eventually

SETTINGS = AggregatorSettings(group_time=0.0, beat=0.05)


@contextmanager
def running(log: MemoryLog) -> Iterator[threading.Thread]:
    """An aggregator in a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: run(SETTINGS, log, stop=stop, ready=lambda: None))
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics(partitions=1))
    ask(log, Verb.ADD, "alpha")
    return log


def fail_for(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, is_bad: Callable[..., bool]) -> None:
    """Makes a function raise an unexpected exception when it is called with something bad; half done by then."""
    whole = getattr(where, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        found = whole(*arguments, **named)
        if is_bad(*arguments):
            raise ZeroDivisionError("a bug")
        return found

    monkeypatch.setattr(where, name, failing)


def acknowledge(log: MemoryLog, chain: Chain) -> None:
    ack = chain.ack("alpha", len(chain.events))
    log.append([NewRecord(topic=ACKS, key=f"alpha/{chain.repository}", value=to_json(ack))])


def noticed(log: MemoryLog, chain: Chain) -> list[int]:
    events = [from_json(Notice, record.value or b"").event for record in log.records(NOTICES)]
    return [event.seq for event in events if event.repository == chain.repository]


def errors(log: MemoryLog) -> list[ErrorRecord]:
    return [from_json(ErrorRecord, record.value or b"") for record in log.records(ERRORS)]


@pytest.mark.parametrize("where", ["judge", "follow"])
def test_an_event_that_fails_the_aggregator_is_set_aside_with_its_trace(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(deciding, "LOST_PATIENCE", 0.0)  # it waits for what was set aside as for what the log lost
    bad, good = Chain("bad"), Chain("good")
    fail_for(monkeypatch, intake, where, lambda _state, event, *_: event.id == bad.events[1].id)
    send(log, [*bad.take(2), *good.take(2), *bad.take(1)])
    acknowledge(log, bad)
    acknowledge(log, good)
    with running(log) as thread:
        eventually(lambda: noticed(log, good) == [1, 2] and noticed(log, bad) == [1, 3])
        assert thread.is_alive()
    fault, gap = errors(log)
    assert (fault.topic, fault.offset, fault.reason) == ("events", 1, "unexpected ZeroDivisionError: a bug")
    assert "in failing" in (fault.traceback or "")
    assert "events before 3 are missing" in gap.reason


def test_a_level_that_fails_the_aggregator_is_set_aside_once(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = Chain("bad"), Chain("good")
    fail_for(monkeypatch, MirrorLevels, "_take_level", lambda _aggregation, _mirror, name, *_: name == bad.repository)
    send(log, [*bad.take(1), *good.take(1)])
    acknowledge(log, bad)
    acknowledge(log, good)
    with running(log):
        eventually(lambda: noticed(log, good) == [1])
    with running(log):
        send(log, good.take(1))
        acknowledge(log, good)
        eventually(lambda: noticed(log, good) == [1, 2])
    assert noticed(log, bad) == []
    assert [(error.topic, error.key) for error in errors(log)] == [("acks", f"alpha/{bad.repository}")]


def test_a_request_that_fails_the_aggregator_is_set_aside(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for(monkeypatch, membership, "decide", lambda _roster, request, **_: request.mirror == "bad")
    ask(log, Verb.ADD, "bad")
    ask(log, Verb.ADD, "good")
    with running(log):
        eventually(lambda: bool(log.records(ROSTER)) and names(log) == ["alpha", "good"])
    assert [error.topic for error in errors(log)] == ["roster-requests"]


def names(log: MemoryLog) -> list[str]:
    [record] = log.records(ROSTER)
    return [mirror.name for mirror in from_json(Roster, record.value or b"").mirrors]


@pytest.mark.parametrize("number", ["1e999", "-5", "9" * 400, "NaN"], ids=lambda text: f"{text[:5]} of {len(text)}")
def test_unbounded_numbers_in_any_record_stop_no_aggregator_and_no_start(log: MemoryLog, number: str) -> None:
    good, bad = Chain("good"), Chain("bad")
    send(log, good.take(1))
    acknowledge(log, good)
    log.append(
        [
            NewRecord(topic=EVENTS, key=bad.repository, value=with_time(wire.encode(bad.next()), number)),
            NewRecord(topic=ACKS, key=f"alpha/{bad.repository}", value=with_time(to_json(bad.ack("alpha", 1)), number)),
        ]
    )
    ask(log, Verb.ADD, "beta")
    request = log.records(ROSTER_REQUESTS)[-1]
    log.append([NewRecord(topic=ROSTER_REQUESTS, key="odd", value=with_time(request.value or b"", number))])
    with running(log):
        eventually(lambda: len(errors(log)) == 3 and names(log) == ["alpha", "beta"])
    with running(log) as thread:
        send(log, good.take(1))
        acknowledge(log, good)
        ask(log, Verb.DEACTIVATE, "beta")
        eventually(lambda: noticed(log, good) == [1, 2])
        assert thread.is_alive()
    assert sorted(error.topic for error in errors(log)) == ["acks", "events", "roster-requests"]


def with_time(value: bytes, number: str) -> bytes:
    """The record with this number in place of its time; a frame of events has its length in front."""
    text = re.sub(rb'("(?:time|applied_at)":)[0-9.]+', rb"\g<1>" + number.encode(), value)
    assert text != value
    if not value.startswith(wire.MAGIC):
        return text
    return wire.MAGIC + struct.pack(">I", len(text) - 8) + text[8:]


def test_a_repository_whose_decisions_fail_stands_still_alone(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = Chain("bad"), Chain("good")

    def is_bad(repository: Repository, held: HeldEvent, *_: object) -> bool:
        return repository.id == bad.repository and held.seq == 2

    fail_for(monkeypatch, Repository, "announced", is_bad)
    send(log, [*bad.take(1), *good.take(1)])
    acknowledge(log, bad)
    acknowledge(log, good)
    with running(log):
        eventually(lambda: noticed(log, good) == [1] and noticed(log, bad) == [1])
        send(log, [*bad.take(2), *good.take(2)])
        acknowledge(log, bad)
        acknowledge(log, good)
        eventually(lambda: noticed(log, good) == [1, 2, 3])
        eventually(lambda: beat(log).held == 2)
    assert noticed(log, bad) == [1]
    [error] = errors(log)
    assert (error.repository, error.reason) == (
        bad.repository,
        "bad is stalled: unexpected ZeroDivisionError: a bug",
    )
    monkeypatch.undo()
    with running(log):
        eventually(lambda: noticed(log, bad) == [1, 2, 3])


def beat(log: MemoryLog) -> AggregatorHeartbeat:
    [record] = [record for record in log.records(STATE) if record.key == "aggregator"]
    return from_json(AggregatorHeartbeat, record.value or b"")


def test_what_was_left_out_already_is_not_left_out_again() -> None:
    poison, first, second = Poison(), fault(ValueError("1")), fault(ValueError("1"))
    assert first is not None
    assert second is not None
    for what in (("events", 0, 1), "repository"):
        assert poison.add(Poisoned(what, first))
        assert not poison.add(Poisoned(what, second))


def test_trouble_that_was_foreseen_is_blamed_on_nothing() -> None:
    for error in (Unavailable("no broker"), MemoryError()):
        with pytest.raises(type(error)), blaming("repository"):
            raise error
