# SPDX-License-Identifier: GPL-2.0-or-later
"""No record, and nothing that a record causes, stops a mirror: it becomes a reject, or the trouble of one repository."""

import json
from dataclasses import replace
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.log import ACKS, ERRORS, EVENTS, ROSTER, STATE, NewRecord
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.mirror import metrics
from hgext.vcsreplicator.mirror.service import _find_own_records, _read_acks
from hgext.vcsreplicator.mirror.supervision import backlog
from hgext.vcsreplicator.mirror.supervision.agenda import Agenda
from hgext.vcsreplicator.mirror.supervision.dispatch import TaskDispatch
from hgext.vcsreplicator.mirror.supervision.life import Deed, Following
from hgext.vcsreplicator.mirror.supervision.state import RepositoryTable
from hgext.vcsreplicator.mirror.task import Task, Trouble
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.records import ErrorRecord, Reason
from hgext.vcsreplicator.words.roster import KEY, Roster
from hgext.vcsreplicator.words.shape import from_json, plain
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.supervising import Bench


def rejects(bench: Bench) -> list[ErrorRecord]:
    return [from_json(ErrorRecord, message.value or b"") for message in bench.writer.others if message.topic == ERRORS]


def goes_on(bench: Bench) -> bool:
    """Whether a push to another repository is worked on."""
    [event] = Chain("neighbour").take(1)
    bench.read(event)
    bench.passes(1)
    return any(isinstance(w.busy, Task) and w.busy.repository == event.repository for w in bench.pool.given)


def changed(value: Any, **members: Any) -> bytes:
    return json.dumps({**plain(value), **members}).encode()


STATE_OF = state_of(Chain("r").next())
HOSTILE = {
    "an id that is a path": (STATE, "../../victim", changed(STATE_OF, repository="../../victim")),
    "a path that leads out": (STATE, STATE_OF.repository, changed(STATE_OF, path="../../victim")),
    "a path that is no text": (STATE, STATE_OF.repository, changed(STATE_OF, path="\udcff")),
    "another's key": (STATE, "f" * 32, changed(STATE_OF)),
    "no JSON": (STATE, STATE_OF.repository, b"\xff"),
    "a number without end": (STATE, "aggregator", b'{"time":1e999,"roster":1,"held":0}'),
    "a number of 400 digits": (STATE, "aggregator", b'{"time":' + b"9" * 400 + b',"roster":1,"held":0}'),
    "a time beyond the clock": (STATE, "aggregator", b'{"time":1e300,"roster":1,"held":0}'),
    "a rule that is no text": (ROSTER, KEY, changed(Roster(version=9), mirrors=[{"name": "alpha", "rules": 1}])),
    "an event of 400 digits": (EVENTS, "f" * 32, b"VCR1\x00\x00\x01\x9f" + b'{"event":{"seq":' + b"9" * 400),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("when", ["while it runs", "at the start"])
def test_a_hostile_record_is_set_aside_and_everything_else_goes_on(bench: Bench, what: str, when: str) -> None:
    topic, key, value = HOSTILE[what]
    if when == "while it runs":
        bench.records(bench.record(topic, key, value))
        assert [(record.topic, record.key) for record in rejects(bench)] == [(topic, key)]
    elif topic == STATE:
        bench.mirror.control.load(STATE, key, value)
    elif topic == ROSTER:
        bench.mirror.control.load(ROSTER, "roster", value)
    bench.passes(3)
    assert bench.pool.given == []
    assert bench.notes.detached() == []
    assert goes_on(bench)


def test_a_line_about_a_rejected_record_names_path_and_event(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    record = bench.record(EVENTS, second.repository, wire.encode(second)[:-1] + b"\xff")
    with structlog.testing.capture_logs() as lines:
        bench.records(replace(record, headers=wire.headers(second, "hg://master")))
        bench.records(bench.record(EVENTS, "another" * 100, b"no event"))
    known, other = [line for line in lines if line["event"] == "record rejected"]
    assert (known["repository"], known["path"]) == (first.repository, first.path)
    assert (known["seq"], known["event_id"]) == (str(second.seq), second.id)
    assert other["repository"] == ("another" * 100)[:200]
    assert other.keys().isdisjoint({"path", "seq", "event_id"})


def fail_unexpectedly(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a mistake of our own")


@pytest.mark.parametrize(
    ("part", "act"),
    [(backlog, "_decode_record"), (RepositoryTable, "get_or_add"), (Following, "is_at"), (Agenda, "queue")],
)
def test_an_unexpected_exception_detaches_the_records_repository(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: Any, act: str
) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    with monkeypatch.context() as patched:
        patched.setattr(part, act, fail_unexpectedly)
        bench.mirror.intake.take_record(bench.record(EVENTS, second.repository, wire.encode(second)))
    [told] = rejects(bench)
    assert (told.repository, told.topic, told.offset) == (first.repository, EVENTS, 1)
    assert "a mistake of our own" in told.reason
    assert "Traceback" in (told.traceback or "")
    [note] = bench.notes.detached()
    assert (note.repository, note.offset) == (first.repository, 1)
    assert goes_on(bench)


def test_an_unexpected_exception_over_an_outcome_detaches_one_repository(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    with monkeypatch.context() as patched:
        patched.setattr(metrics.APPLIED, "inc", fail_unexpectedly)
        bench.applied(event)
    assert bench.writer.acks[event.repository].detached == Reason.CRASHED
    assert goes_on(bench)
    bench.passes(100)
    assert attempts(bench, event.repository) > 0


def attempts(bench: Bench, repository: str) -> int:
    [note] = [note for note in bench.notes.detached() if note.repository == repository]
    return note.attempts


@pytest.mark.parametrize(("part", "act"), [(TaskDispatch, "_make_task"), (Agenda, "choose_lane")])
def test_an_unexpected_exception_over_a_task_detaches_one_repository(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: Any, act: str
) -> None:
    [event] = Chain("r").take(1)
    before = getattr(part, act)

    def fails(self: Any, following: Any) -> Any:
        return (
            fail_unexpectedly()
            if following.id == event.repository and following.phase == "stream"
            else before(self, following)
        )

    bench.mirror.intake.take_record(bench.record(EVENTS, event.repository, wire.encode(event)))
    with monkeypatch.context() as patched:
        patched.setattr(part, act, fails)
        bench.mirror.turn(0)
        assert bench.writer.acks[event.repository].detached == Reason.CRASHED
        assert goes_on(bench)


def test_an_exception_in_an_attempt_to_heal_is_a_failed_attempt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.break_down()
    [note] = bench.notes.detached()
    with monkeypatch.context() as patched:
        patched.setitem(bench.mirror.state.deeds, Deed.ATTEMPT, fail_unexpectedly)
        bench.passes(10)
        assert goes_on(bench)
    bench.passes(100)
    assert attempts(bench, note.repository) > 0


def test_trouble_over_a_file_whose_name_is_no_text_is_noted(bench: Bench) -> None:
    [event] = Chain("r").take(1)
    bench.read(event)
    trouble = Trouble(reason=Reason.DISK, note="data/\udcff.i: No space left on device")
    bench.answer(bench.pool.given[-1], done=0, checkpoint=None, folder=None, serving=0, trouble=trouble)
    [note] = bench.notes.detached()
    assert note.note == "data/?.i: No space left on device"


def test_what_the_machine_is_short_of_is_no_fault_of_a_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    [event] = Chain("r").take(1)

    def short(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(backlog, "_decode_record", short)
    with pytest.raises(MemoryError):
        bench.mirror.intake.take_record(bench.record(EVENTS, event.repository, wire.encode(event)))
    assert rejects(bench) == []


@pytest.mark.parametrize("value", [b"\xff", b'{"applied":' + b"9" * 400 + b"}", b'{"served_at":1e999}'])
def test_an_unreadable_level_of_its_own_is_passed_over_at_the_start(bench: Bench, value: bytes) -> None:
    key = f"alpha/{'e' * 32}"
    bench.log.append([NewRecord(topic=ACKS, key=key, value=value)])
    records = _find_own_records(bench.settings, read_table(bench.log, ACKS))
    assert records.keys() == {key}
    assert _read_acks(bench.settings, records.items()) == {}
