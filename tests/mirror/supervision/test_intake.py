# SPDX-License-Identifier: GPL-2.0-or-later
"""What the stream brings: where a repository resumes that cannot take an event, and what this mirror leaves out."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, ROSTER, STATE, Record, check_message, partition_of
from hgext.vcsreplicator.mirror.pool import Lane
from hgext.vcsreplicator.mirror.supervision.intake import checked_event
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.supervising import Bench


def given(bench: Bench) -> list[str]:
    """The repositories of which a worker has or had a task."""
    return [worker.busy.repository for worker in bench.pool.given]


def carry(bench: Bench, *rules: str) -> None:
    mirror = Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=rules))
    bench.records(bench.record(ROSTER, KEY, to_json(Roster(version=1, mirrors=(mirror,)))))


def test_a_repository_with_events_too_fast_is_detached_and_resumes(
    bench: Bench,
) -> None:
    bench.settings = replace(bench.settings, repository_buffer_bytes=1500)
    bench.start({0: 0})
    bench.pool.limits[Lane.LIGHT] = 0
    bench.read(*Chain("r").take(5))
    [note] = bench.notes.detached()
    assert (note.reason, note.offset) == (Reason.SLOW, 0)
    assert bench.mirror.state.backlog.bytes == 0


def test_an_event_that_is_read_again_after_it_was_applied_is_no_work(bench: Bench) -> None:
    event = Chain("r").next()
    bench.read(event)
    bench.applied(event)
    bench.read(event)
    assert len(bench.pool.given) == 1


def test_events_of_before_a_rename_to_another_path_are_left_out(
    bench: Bench,
) -> None:
    chain = Chain("this/r")
    created, left = chain.next(), chain.next(Type.RENAMED, path="other/r", detail={"from": "this/r"})
    back = chain.next(Type.RENAMED, path="this/r", detail={"from": "other/r"})
    carry(bench, "re:this/.*")
    bench.records(bench.record(STATE, chain.repository, to_json(state_of(left))))
    bench.read(created, left)
    assert given(bench) == []
    bench.read(back)
    assert given(bench) == [chain.repository]


def test_a_rename_out_of_what_is_carried_is_carried_itself(bench: Bench) -> None:
    chain = Chain("this/r")
    created, left = chain.next(), chain.next(Type.RENAMED, path="other/r", detail={"from": "this/r"})
    carry(bench, "re:this/.*")
    bench.read(created)
    bench.applied(created)
    bench.read(left)
    assert given(bench) == [chain.repository] * 2


def test_a_state_that_cannot_be_read_detaches_no_repository(bench: Bench) -> None:
    event = Chain("r").next()
    bench.read(event)
    bench.applied(event)
    bench.records(bench.record(STATE, event.repository, b"junk"))
    assert bench.notes.detached() == []
    assert len(bench.writer.others) == 1


def test_an_event_that_cannot_be_read_is_where_its_repository_resumes(bench: Bench) -> None:
    event = Chain("r").next()
    bench.read(event)
    bench.applied(event)
    at = bench.offset
    bench.records(bench.record(EVENTS, event.repository, b"junk"))
    [note] = bench.notes.detached()
    assert (note.reason, note.offset) == (Reason.GAP, at)


def test_an_event_in_another_partition_than_its_repository_is_rejected(bench: Bench) -> None:
    bench.start({0: 0, 1: 0})
    chain = Chain("r")
    record = bench.record(EVENTS, chain.repository, wire.encode(chain.next()))
    for partition in (0, 1):
        bench.records(replace(record, partition=partition))
    assert len(bench.writer.others) == 1


def test_an_event_of_a_newer_version_waits_for_an_upgrade(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.applied(first)
    newer = wire.encode(second).replace(b'"version":1}', b'"version":9}')
    bench.records(bench.record(EVENTS, first.repository, newer))
    bench.passes(1000)
    [note] = bench.notes.detached()
    assert (note.reason, note.attempts) == (Reason.UNKNOWN_VERSION, 0)
    assert len(bench.pool.given) == 1


def test_a_reject_fits_into_the_log_with_any_value(bench: Bench) -> None:
    bench.records(bench.record(EVENTS, "a" * 32, bytes(8_000_000)))
    [message] = bench.writer.others
    check_message(message)


def test_a_record_in_a_strange_partition_is_rejected_with_the_cause() -> None:
    event = Chain("r").next()
    own = partition_of(event.repository, 20)
    record = Record(
        topic=EVENTS,
        partition=(own + 1) % 20,
        offset=0,
        key=event.repository,
        value=wire.encode(event),
        headers={},
        time=0.0,
    )
    with pytest.raises(MalformedEvent) as caught:
        checked_event(record, 20)
    assert str(caught.value) == (
        f"record: stands in partition {(own + 1) % 20}, and of 20 partitions the repository has {own}; "
        "if partitions were added to events, restart all services (docs/log.md, Topics)"
    )
    assert checked_event(replace(record, partition=own), 20) is not None
