# SPDX-License-Identifier: GPL-2.0-or-later
"""What a task gets, and what becomes of its outcome: workers are played by hand."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, STATE
from hgext.vcsreplicator.mirror.pool import Lane
from hgext.vcsreplicator.mirror.task import FoundRepository, Task, Warm
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.event import Event, Type
from hgext.vcsreplicator.words.records import Reason
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.lives import put
from testing.builders.mirror.supervising import Bench, checkpoint, until_given


def task(bench: Bench) -> Task:
    """The newest."""
    found = bench.pool.given[-1].busy
    assert isinstance(found, Task)
    return found


def sequences(bench: Bench) -> list[int]:
    """Of the events in the newest task."""
    return [item.event.seq for item in task(bench).items]


def far(event: Event) -> bytes:
    """A record of the event whose bundle is in the blob store."""
    place = wire.Attachment(where=wire.BundlePlace.BLOB, name="0" * 64 + ".hg", size=600_000, sha256="0" * 64)
    return wire.encode(event, place)


def renamed(bench: Bench, chain: Chain, path: str) -> Event:
    """The event that renamed the repository, which the mirror has applied."""
    bench.read(chain.next())
    bench.applied(chain.events[-1])
    event = chain.next(Type.RENAMED, path=path, detail={"from": chain.path})
    bench.read(event)
    bench.applied(event)
    return event


def test_a_repository_forgotten_while_it_waited_has_one_task_at_a_time(bench: Bench) -> None:
    bench.pool.limits[Lane.LIGHT] = 0
    first, second = Chain("r").take(2)
    bench.read(first)
    following = bench.mirror.state.table.get(first.repository)
    assert following is not None
    bench.mirror.departures.abandon(following)
    bench.read(first, second)
    del bench.pool.limits[Lane.LIGHT]
    bench.mirror.turn(0)
    bench.mirror.turn(0)
    assert len(bench.pool.given) == 1


def test_an_event_whose_bundle_is_elsewhere_is_a_task_of_its_own(bench: Bench) -> None:
    chain = Chain("r")
    events = chain.take(5)
    bench.read(events[0])
    assert sequences(bench) == [1]
    bench.read(events[1])
    bench.records(*(bench.record(EVENTS, chain.repository, far(event)) for event in events[2:4]))
    bench.read(events[4])
    found = []
    for event in events:
        bench.applied(event)
        bench.mirror.turn(0)
        found.append(sequences(bench))
    assert found[:4] == [[2], [3], [4], [5]]


def test_a_renamed_repository_is_repaired_from_where_it_is_now(bench: Bench) -> None:
    chain = Chain("old")
    bench.records(bench.record(STATE, chain.repository, to_json(state_of(Chain("old").next()))))
    renamed(bench, chain, "new")
    bench.detach(chain.repository, Reason.CORRUPT, "damaged")
    until_given(bench, chain.repository)
    assert (task(bench).heal, task(bench).path) == (Reason.CORRUPT, "new")


def test_a_repository_that_the_master_renamed_is_repaired_there(bench: Bench) -> None:
    chain = Chain("old")
    first = chain.next()
    bench.read(first)
    bench.applied(first)
    bench.detach(chain.repository, Reason.CORRUPT, "damaged")
    event = chain.next(Type.RENAMED, path="new", detail={"from": "old"})
    bench.records(bench.record(STATE, chain.repository, to_json(state_of(event))))
    until_given(bench, chain.repository)
    assert (task(bench).heal, task(bench).path) == (Reason.CORRUPT, "new")


def test_a_deletion_noticed_while_its_task_runs_is_forgotten_after_it(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    bench.read(created)
    bench.applied(created)
    bench.read(deleted)
    over = state_of(deleted, deleted=True, released=2, noticed=2)
    bench.records(bench.record(STATE, chain.repository, to_json(over)))
    gone = checkpoint(deleted, deleted=True)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=None, folder=None, serving=0, gone=gone)
    assert bench.mirror.state.table.get(chain.repository) is None


def test_a_deletion_released_long_ago_is_carried_out_once_applied(bench: Bench) -> None:
    chain = Chain("r")
    created, deleted = chain.next(), chain.next(Type.DELETED)
    over = state_of(deleted, deleted=True, released=2, noticed=2)
    bench.mirror.control.load(STATE, chain.repository, to_json(over))
    put(bench.mirror.state.table.get_or_add(chain.repository, "r"), checkpoint=checkpoint(created))
    bench.read(deleted)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=checkpoint(deleted, deleted=True), folder="/x", serving=1)
    bench.mirror.turn(0)
    assert (task(bench).items, task(bench).released, task(bench).incarnation) == ((), 2, deleted.incarnation)


def test_an_ack_has_the_floor_of_the_outcome_and_its_time_of_serving(bench: Bench) -> None:
    first, second, third = Chain("r").take(3)
    for event, served_at, floor in ((first, 7.0, 0), (second, 0.0, 3), (third, 0.0, 0)):
        bench.read(event)
        outcome = {"checkpoint": checkpoint(event, time=99.0), "folder": "/x", "serving": 1, "floor": floor}
        bench.answer(bench.pool.given[-1], done=1, served_at=served_at, **outcome)
        ack = bench.writer.acks[event.repository]
        assert (ack.served_at, ack.floor) == (7.0, floor)


def test_a_level_that_a_repair_brings_is_not_served_since_the_former_one(bench: Bench) -> None:
    chain = Chain("r")
    first, second = chain.take(2)
    adopted = replace(checkpoint(second), incarnation="e" * 32)
    steps = ((first, checkpoint(first), 1, 7.0), (second, checkpoint(second), 2, 0.0), (chain.next(), adopted, 2, 0.0))
    times = [7.0]
    for event, reached, serving, served_at in steps:
        bench.read(event)
        bench.clock.advance(17.0)
        bench.answer(
            bench.pool.given[-1], done=1, checkpoint=reached, folder="/x", serving=serving, served_at=served_at
        )
        if not served_at:
            times.append(bench.clock.now())
        assert bench.writer.acks[event.repository].served_at == times[-1]
    assert len(set(times)) == 3


def test_after_a_start_a_level_has_the_time_of_its_own_ack_alone(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    bench.read(first)
    bench.answer(bench.pool.given[-1], done=1, checkpoint=checkpoint(first), folder="/x", serving=1, served_at=7.0)
    acked = bench.writer.acks[first.repository]
    for reached, serving, served_at in ((first, 1, 7.0), (second, 2, bench.clock.now())):
        found = FoundRepository(folder="/x", checkpoint=checkpoint(reached), serving=serving)
        bench.mirror.startup.adopt(found, acked)
        following = bench.mirror.state.table.get(first.repository)
        assert following is not None
        assert following.disk.served_at == served_at


def test_caches_are_filled_once_more_is_served(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    warmed = []
    for event, serving in ((first, 1), (second, 1)):
        bench.read(event)
        bench.answer(bench.pool.given[-1], done=1, checkpoint=checkpoint(event), folder="/x", serving=serving)
        bench.passes(1)
        for worker in [worker for worker in bench.pool.workers if isinstance(worker.busy, Warm)]:
            warmed.append(serving)
            bench.pool.workers.remove(worker)
    assert warmed == [1]


@pytest.mark.parametrize("is_backup", [False, True])
def test_a_task_on_a_backup_says_that_nothing_may_be_set_aside(bench: Bench, is_backup: bool) -> None:
    bench.settings = replace(bench.settings, backup=is_backup)
    bench.start({0: 0})
    bench.read(Chain("r").next())
    assert task(bench).keep is is_backup
