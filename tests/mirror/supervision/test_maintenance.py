# SPDX-License-Identifier: GPL-2.0-or-later
"""Work that no push waits for: when it may begin, and what its results change. Workers are played by hand."""

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.hg.replica import place
from hgext.vcsreplicator.mirror.pool import Answered, Lane
from hgext.vcsreplicator.mirror.supervision.maintenance import SWEEP_INTERVAL, WARM_AFTER, WARM_AT_LATEST
from hgext.vcsreplicator.mirror.supervision.supervisor import BUSY_TURN
from hgext.vcsreplicator.mirror.task import Check, Checked, Sweep, TaskOutcome, Warm
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import Reason
from testing.builders.aggregator.chains import Chain
from testing.builders.mirror.lives import put
from testing.builders.mirror.supervising import Bench, checkpoint
from testing.faults.system import System


def begun(bench: Bench, kind: type[Any]) -> list[Any]:
    """The tasks of a kind that are under way."""
    return [worker.busy for worker in bench.pool.workers if isinstance(worker.busy, kind)]


def check_every(bench: Bench, seconds: float, *, share: float = 1.0) -> None:
    bench.settings = replace(bench.settings, check_interval=seconds, check_share=share)
    bench.start({0: 0})
    bench.pool.limits[Lane.CHECK] = 1


def apply(bench: Bench, event: Event) -> None:
    """Without the caches that are filled after it."""
    bench.read(event)
    bench.mirror.receive(
        Answered(
            worker=bench.pool.given[-1],
            answer=TaskOutcome(
                repository=event.repository, done=1, checkpoint=checkpoint(event), folder="/x", serving=0
            ),
        )
    )


def test_caches_are_filled_while_light_workers_do_only_slow_work(bench: Bench) -> None:
    event, other = Chain("r").next(), Chain("other").next()
    apply(bench, event)
    bench.read(other)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    bench.mirror.maintenance.mark_cold(following, relock=True)
    bench.mirror.maintenance.mark_cold(following)
    bench.passes(1)
    assert begun(bench, Warm) == []
    bench.pool.given[-1].is_slow = True
    bench.mirror.turn(0)
    assert begun(bench, Warm) == [Warm(repository=event.repository, folder="/x", relock=True)]


def test_caches_are_filled_after_the_release_so_that_its_ack_goes_first(bench: Bench) -> None:
    event = Chain("r").next()
    apply(bench, event)
    bench.passes(1)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    bench.mirror.maintenance.mark_cold(following)
    bench.mirror.turn(0)
    assert (begun(bench, Warm), bench.mirror.turn_time()) == ([], BUSY_TURN)
    bench.clock.advance(WARM_AFTER)
    bench.mirror.turn(0)
    assert begun(bench, Warm) == [Warm(repository=event.repository, folder="/x")]


def test_pushes_without_a_pause_put_off_the_filling_only_for_a_time(bench: Bench) -> None:
    events = [Chain(name).next() for name in ("a", "b", "busy")]
    for event in events[:2]:
        apply(bench, event)
        following = bench.mirror.state.table.get(event.repository)
        assert following is not None
        bench.mirror.maintenance.mark_cold(following)
    bench.clock.advance(WARM_AT_LATEST - 1.0)
    bench.read(events[2])
    assert begun(bench, Warm) == []
    bench.clock.advance(1.0)
    bench.mirror.turn(0)
    bench.mirror.turn(0)
    assert begun(bench, Warm) == [Warm(repository=events[0].repository, folder="/x")]


def test_a_repository_with_a_long_task_keeps_its_turn(bench: Bench) -> None:
    event, other = Chain("r").next(), Chain("other").next()
    for each in (event, other):
        apply(bench, each)
        following = bench.mirror.state.table.get(each.repository)
        assert following is not None
        put(following, is_running=each is event)
        bench.mirror.maintenance.mark_cold(following, relock=True)
    bench.clock.advance(WARM_AFTER)
    bench.mirror.turn(0)
    assert begun(bench, Warm) == [Warm(repository=other.repository, folder="/x", relock=True)]
    del bench.pool.workers[-1:]
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    put(following, is_running=False)
    bench.mirror.turn(0)
    assert begun(bench, Warm) == [Warm(repository=event.repository, folder="/x", relock=True)]


def test_what_was_set_aside_long_ago_is_removed_once_in_an_interval(bench: Bench) -> None:
    bench.pool.limits[Lane.CHECK] = 9
    bench.passes(100)
    [sweep] = begun(bench, Sweep)
    assert sweep.age == bench.settings.keep_deleted_days * DAY
    assert 0 <= bench.clock.now() - sweep.now <= 100
    bench.clock.advance(SWEEP_INTERVAL)
    bench.passes(1)
    assert len(begun(bench, Sweep)) == 2


def test_removals_have_their_turn_beside_a_constant_reading_through(bench: Bench) -> None:
    """Without any removal copies that were set aside would fill the disk."""
    check_every(bench, 60.0)
    apply(bench, Chain("large").next())
    begun_kinds = []
    for seconds in (SWEEP_INTERVAL, 60.0, SWEEP_INTERVAL, 60.0):
        bench.clock.advance(seconds)
        bench.mirror.turn(0)
        [worker] = [each for each in bench.pool.workers if isinstance(each.busy, Check | Sweep)]
        task = worker.busy
        begun_kinds.append(type(task))
        answer = task if isinstance(task, Sweep) else Checked(repository=task.repository, problem=None)
        bench.mirror.receive(Answered(worker=worker, answer=answer))
    assert begun_kinds == [Sweep, Check, Sweep, Check]


def test_a_copy_that_cannot_be_removed_stays_and_holds_up_no_other(
    bench: Bench, tmp_path: Path, system: System
) -> None:
    aside = tmp_path / "aside"
    for name in ("a", "foreign", "z"):
        (aside / name / "hg").mkdir(parents=True)
    (aside / "file").touch()
    system.refuse(errno.EPERM, "shutil.rmtree", at=f"{aside}/foreign")
    kept = place.remove_old(str(tmp_path), time.time() + 3600.0, 3600.0)
    assert sorted(os.listdir(aside)) == ["file", "foreign"]
    assert sorted(kept) == [f"{aside}/file: Not a directory", f"{aside}/foreign: Operation not permitted"]
    bench.pool.limits[Lane.CHECK] = 1
    bench.passes(100)
    [worker] = [each for each in bench.pool.workers if isinstance(each.busy, Sweep)]
    with structlog.testing.capture_logs() as lines:
        bench.mirror.receive(Answered(worker=worker, answer=replace(worker.busy, kept=kept)))
    [line] = lines
    assert (line["log_level"], line["event"], line["count"]) == ("error", "old copies not removed", 2)
    assert line["reasons"] == kept


def answer_check(bench: Bench) -> str:
    """Answer the reading that is under way, and return its repository."""
    [worker] = [each for each in bench.pool.workers if isinstance(each.busy, Check)]
    repository: str = worker.busy.repository
    bench.mirror.receive(Answered(worker=worker, answer=Checked(repository=repository, problem=None)))
    return repository


def test_repositories_are_read_through_for_a_share_of_the_time(bench: Bench) -> None:
    check_every(bench, 1.0, share=0.1)
    bench.pool.limits[Lane.CHECK] = 9
    for name in "abc":
        apply(bench, Chain(name).next())
    bench.passes(1)
    bench.passes(20)  # what it takes
    answer_check(bench)
    bench.passes(179)
    assert begun(bench, Check) == []
    bench.passes(1)
    assert len(begun(bench, Check)) == 1


def test_a_worker_that_died_of_a_reading_rests_for_it_too(bench: Bench) -> None:
    check_every(bench, 1.0, share=0.1)
    bench.pool.limits[Lane.CHECK] = 9
    for name in "abc":
        apply(bench, Chain(name).next())
    bench.passes(11)
    [worker] = [each for each in bench.pool.workers if isinstance(each.busy, Check)]
    bench.mirror.receive(Answered(worker=worker, answer=None))
    bench.passes(89)
    assert begun(bench, Check) == []
    bench.passes(1)
    assert len(begun(bench, Check)) == 1


def test_all_repositories_are_read_through_once_in_an_interval(bench: Bench) -> None:
    check_every(bench, 100.0)
    bench.pool.limits[Lane.CHECK] = 9
    events = [Chain(name).next() for name in "abc"]
    for event in events:
        apply(bench, event)
    bench.passes(5)
    read = []
    for _ in events:
        read.append(answer_check(bench))
        bench.passes(1)
    assert sorted(read) == sorted(event.repository for event in events)
    bench.passes(95)
    assert begun(bench, Check) == []
    bench.passes(2)
    assert len(begun(bench, Check)) == 1


def test_no_worker_starts_while_nothing_is_to_be_read_through(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    check_every(bench, 100.0)
    bench.pool.limits[Lane.CHECK] = 9
    asked: list[object] = []
    idle = bench.pool.idle
    monkeypatch.setattr(bench.pool, "idle", lambda lane: asked.append(lane) or idle(lane))
    apply(bench, Chain("r").next())
    bench.passes(6)
    answer_check(bench)
    asked.clear()
    bench.passes(90)
    assert Lane.CHECK not in asked
    bench.passes(10)
    assert Lane.CHECK in asked


def test_a_detached_repository_is_not_read_through_and_keeps_its_reason(bench: Bench) -> None:
    check_every(bench, 1.0)
    event = Chain("r").next()
    apply(bench, event)
    bench.detach(event.repository, Reason.FORK, "two histories")
    bench.passes(10)
    assert begun(bench, Check) == []
    bench.mirror.maintenance.take_checked(Checked(repository=event.repository, problem="torn"))
    assert [note.reason for note in bench.notes.detached()] == [Reason.FORK]


@pytest.mark.parametrize("meanwhile", ["deleted", "renamed", "under way", None])
def test_a_repository_that_a_check_misses_may_have_been_moved(bench: Bench, meanwhile: str | None) -> None:
    """A reading lasts while the task that moves or deletes the repository begins and ends."""
    event = Chain("r").next()
    apply(bench, event)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    after: dict[str | None, dict[str, object]]
    after = {"deleted": {"folder": None}, "renamed": {"folder": "/b"}, "under way": {"is_running": True}, None: {}}
    put(following, **{"folder": "/a", **after[meanwhile]})
    missed = Checked(repository=event.repository, problem="it is not here any more", sought="/a")
    bench.mirror.maintenance.take_checked(missed)
    assert [note.reason for note in bench.notes.detached()] == ([] if meanwhile else [Reason.CORRUPT])


def test_a_level_that_went_down_is_read_from_the_beginning_of_the_log(bench: Bench) -> None:
    first, second = Chain("r").take(2)
    for event in (first, second):
        apply(bench, event)
    bench.mirror.maintenance.take_checked(Checked(repository=first.repository, problem=None, lower=checkpoint(first)))
    assert [(note.reason, note.offset) for note in bench.notes.detached()] == [(Reason.GAP, 0)]


def test_a_release_that_a_check_does_not_find_is_carried_out_again(bench: Bench) -> None:
    event = Chain("r").next()
    apply(bench, event)
    following = bench.mirror.state.table.get(event.repository)
    assert following is not None
    put(following, incarnation=event.incarnation, released=1, serving=1)
    for shown, serving in (((2, 0), 1), ((1, 0), 0)):
        bench.mirror.maintenance.take_checked(Checked(repository=event.repository, problem=None, shown=shown))
        assert following.disk.serving == serving
        assert bench.mirror.state.agenda.is_queued(following) == (serving == 0)
