# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's log lines name the repository, its path, and the event that they are about."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.log import EVENTS
from hgext.vcsreplicator.mirror.pool import Answered
from hgext.vcsreplicator.mirror.sources import ReadRecords
from hgext.vcsreplicator.mirror.supervision import backlog
from hgext.vcsreplicator.mirror.task import Trouble
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import Reason
from testing.builders.aggregator.chains import Chain
from testing.builders.mirror.supervising import Bench, checkpoint

NAMES = ("repository", "path", "seq", "event_id")


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def names(lines: list[Any], event: str) -> list[tuple[object, ...]]:
    """What the lines of this event say of repository, path, sequence and id."""
    return [tuple(line.get(name) for name in NAMES) for line in lines if line["event"] == event]


def of(event: Event) -> tuple[object, ...]:
    return event.repository, event.path, event.seq, event.id


def apply_one(bench: Bench) -> tuple[Event, Event]:
    """A repository of which the first of two events is applied, and the second is with a worker."""
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    bench.read(second)
    return first, second


def test_a_line_about_a_detached_repository_names_the_event(bench: Bench, lines: list[Any]) -> None:
    first, second = apply_one(bench)
    trouble = Trouble(reason=Reason.LOCKED, note="locked by vm/1:2")
    bench.answer(bench.pool.given[-1], done=0, checkpoint=checkpoint(first), folder="/x", serving=1, trouble=trouble)
    [line] = [line for line in lines if line["event"] == "detached"]
    assert names(lines, "detached") == [of(second)]
    assert (line["applied"], line["reason"], line["note"]) == (1, "locked", "locked by vm/1:2")


def test_a_line_about_a_detached_repository_names_the_last_applied(bench: Bench, lines: list[Any]) -> None:
    [first] = Chain("r").take(1)
    bench.read(first)
    bench.applied(first)
    bench.detach(first.repository, Reason.CORRUPT, "damaged")
    [line] = [line for line in lines if line["event"] == "detached"]
    assert names(lines, "detached") == [of(first)]
    assert line["applied"] == 1


def test_a_line_about_a_repository_without_an_event_names_its_path(bench: Bench, lines: list[Any]) -> None:
    chain = Chain("r")
    following = bench.mirror.state.table.get_or_add(chain.repository, "r")
    bench.mirror.detachments.detach(following, Reason.GAP, "lacks one")
    assert names(lines, "detached") == [(chain.repository, "r", None, None)]


def test_line_about_a_note_that_cannot_be_written_names_the_event(bench: Bench, lines: list[Any]) -> None:
    _, second = apply_one(bench)
    with bench.full_disk():
        bench.detach(second.repository, Reason.GAP, "lacks one")
    assert names(lines, "note not written") == [of(second)]


def test_a_line_about_a_dead_worker_names_the_first_event_of_its_task(bench: Bench, lines: list[Any]) -> None:
    _, second = apply_one(bench)
    bench.mirror.receive(Answered(worker=bench.pool.given[-1], answer=None))
    [line] = [line for line in lines if line["event"] == "worker died"]
    assert names(lines, "worker died") == [of(second)]
    assert line["events"] == 1


def test_a_line_about_a_dead_worker_without_an_event_names_the_path(bench: Bench, lines: list[Any]) -> None:
    bench.break_down()
    bench.passes(60)
    worker = bench.pool.given[-1]
    assert worker.busy.items == ()
    bench.mirror.receive(Answered(worker=worker, answer=None))
    assert names(lines, "worker died") == [(worker.busy.repository, "broken1", None, None)]


def test_line_about_a_worker_that_hung_names_the_first_event_of_its_task(bench: Bench, lines: list[Any]) -> None:
    _, second = apply_one(bench)
    bench.passes(int(bench.settings.hung_after) + 2)
    assert names(lines, "worker hung") == [of(second)]


def test_lines_about_the_way_back_name_the_last_event_that_was_applied(bench: Bench, lines: list[Any]) -> None:
    [first] = Chain("r").take(1)
    bench.read(first)
    bench.applied(first)
    bench.detach(first.repository, Reason.DIVERGED, "differs")
    bench.passes(60)
    bench.answer(bench.pool.given[-1], done=0, checkpoint=checkpoint(first), folder="/x", serving=1)
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    end = {(EVENTS, 0): bench.mirror.state.backlog.next(0)}
    bench.mirror.receive(ReadRecords(records=(), positions=end, follows=following.id, run=following.work.run))
    assert names(lines, "healed") == names(lines, "rejoined") == [of(first)]


def test_line_about_an_unexpected_exception_at_a_record_names_its_event(
    bench: Bench, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = apply_one(bench)

    def fail(*_: object) -> object:
        raise ZeroDivisionError("a mistake of our own")

    monkeypatch.setattr(backlog, "_decode_record", fail)
    monkeypatch.setattr("hgext.vcsreplicator.mirror.supervision.intake.checked_event", fail)
    record = bench.record(EVENTS, first.repository, wire.encode(second))
    bench.mirror.intake.take_record(replace(record, headers=wire.headers(second, "hg://master")))
    [line] = [line for line in lines if line["event"] == "unexpected"]
    assert (line["repository"], line["seq"], line["event_id"]) == (second.repository, str(second.seq), second.id)
