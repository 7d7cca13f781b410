# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror applies every event exactly once in effect, in order, and serves what is released."""

import errno
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mercurial import config

from hgext.vcsreplicator.log import EVENTS, ROSTER, NewRecord
from hgext.vcsreplicator.log.blobs import open_blobs
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror import pool, service
from hgext.vcsreplicator.mirror.pool import Lane, Worker, WorkerPool
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.event import MasterSettings, Type
from hgext.vcsreplicator.words.roster import Mirror as Member
from hgext.vcsreplicator.words.roster import MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.mirror.mirroring import Bench
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def log_of(bench: Bench, author: object, root: Path | None = None) -> str:
    """Everything a repository says of its changesets, hidden ones included."""
    template = "{rev} {node} {phase} {obsolete} {bookmarks}\n"
    return bench.hg(author, "log", "--hidden", "-T", template, root=root)  # type: ignore[arg-type]


def test_pushes_arrive_and_are_served_when_released(bench: Bench) -> None:
    author = bench.author("project/repo")
    for _ in range(5):
        author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        assert bench.found()[author.repository].serving == 0
        bench.release(author, 3)
        bench.wait(lambda acks: acks[author.repository].serving == 3, "serving 3")
        bench.release(author)
        bench.wait_served(author)
    assert log_of(bench, author) == log_of(bench, author, bench.master_root)
    watermark = (bench.where(author) / ".hg/replicated-watermark").read_text()
    assert re.fullmatch(rf"1 6 5 {author.tip} 5\n", watermark)


def test_records_that_stand_twice_are_applied_once(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    author.push()
    bench.log.append([message for message in author.messages() for _ in range(2)])
    bench.log.append(author.messages())
    with bench.mirror():
        bench.wait_applied(author)
        eventually(bench.everything_passed, "all positions stored")
    assert bench.found()[author.repository].checkpoint.seq == 3  # type: ignore[union-attr]
    assert bench.errors() == []


def test_a_mirror_started_again_reads_on_where_it_was(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
    assert bench.hg(author, "verify", "-q") == ""


def test_phases_bookmarks_and_markers_arrive_with_hidden_changesets(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    base = author.tip
    author.push(phase=1)
    draft = author.tip
    author.push(parent=base, phase=2)
    author.bookmark("main", base)
    author.bookmark("feature/ä", draft)
    author.obsolete(author.tip)
    author.publish(draft)
    author.bookmark("main", draft)
    author.bookmark("feature/ä", None)
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
    assert log_of(bench, author) == log_of(bench, author, bench.master_root)
    assert "secret obsolete" in log_of(bench, author)


def test_a_strip_is_repeated_and_later_pushes_follow(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    base = author.tip
    author.push()
    stripped = author.tip
    author.push(parent=base)
    author.strip(stripped)
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        bench.release(author)
        bench.wait_served(author)
    assert log_of(bench, author) == log_of(bench, author, bench.master_root)
    assert stripped not in log_of(bench, author)


def test_a_censored_revision_is_erased_and_later_pushes_follow(bench: Bench) -> None:
    author = bench.author("repo")
    author.push(files={"key": b"the secret"})
    author.push(files={"key": b"nothing"})
    bench.send(author)
    bench.release(author)
    with bench.mirror():
        bench.wait_served(author)
        assert bench.hg(author, "cat", "-r", "0", str(bench.where(author) / "key")) == "the secret"
        author.censor("key")
        author.push(files={"key": b"something"})
        bench.send(author)
        bench.wait_applied(author)
        bench.release(author)
        bench.wait_served(author)
        bench.log.append(author.messages())  # all of it again
        author.push()
        bench.send(author)
        bench.wait_applied(author)
    ignore = ("--config", "censor.policy=ignore")
    assert bench.hg(author, "cat", "-r", "0", str(bench.where(author) / "key"), *ignore) == ""
    assert log_of(bench, author) == log_of(bench, author, bench.master_root)
    found = bench.found()[author.repository]
    assert found.checkpoint is not None
    assert found.checkpoint.digest == author.digest


def test_a_renamed_repository_moves_and_leaves_no_folder(bench: Bench) -> None:
    author = bench.author("old/place/repo")
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        author.rename(bench.master_root, "new/repo")
        author.push()
        bench.send(author)
        bench.release(author)
        bench.wait_served(author)
    assert not (bench.root / "old").exists()
    assert bench.where(author) == bench.home(author)
    assert log_of(bench, author) == log_of(bench, author, bench.master_root)


def test_a_deleted_repository_goes_and_a_new_one_may_take_its_path(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        author.event(Type.DELETED)
        bench.send(author)
        bench.release(author, deleted=True)
        bench.wait(lambda acks: acks[author.repository].serving == author.seq, "the deletion acknowledged")
        assert not bench.home(author).exists()
        bench.release(author, deleted=True, noticed=author.seq)
        bench.wait(lambda acks: author.repository not in acks, "the ack gone")
        author.folder.rename(bench.folder / "gone")
        successor = bench.author("repo", generation=2)
        successor.push()
        bench.send(successor)
        bench.wait_applied(successor)
    assert log_of(bench, successor) == log_of(bench, successor, bench.master_root)


def test_a_backup_ignores_deletions(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    author.event(Type.DELETED)
    bench.send(author)
    bench.release(author, deleted=True)
    with bench.mirror(backup=True):
        bench.wait_served(author)
    assert author.tip in log_of(bench, author)
    assert bench.where(author) == bench.home(author)


def test_allowed_configuration_arrives_and_nothing_that_runs(bench: Bench) -> None:
    author = bench.author("repo")
    author.event(
        Type.HGRC,
        hgrc={
            "web": {"description": "a repository", "static": "/etc"},
            "phases": {"publish": "false"},
            "hooks": {"pretxnclose": "touch /tmp/run"},
            "extensions": {"evil": "/tmp/evil.py"},
            "experimental": {"evolution": "all\n[hooks]\nx=y"},
        },
    )
    bench.send(author)
    with bench.mirror():
        bench.release(author)
        bench.wait_served(author)
        read = config.config()
        read.parse(b"hgrc", (bench.where(author) / ".hg/hgrc").read_bytes())
        assert {section: dict(read.items(section)) for section in read} == {
            b"web": {b"description": b"a repository"},
            b"phases": {b"publish": b"false"},
            b"experimental": {b"evolution": b"all\n[hooks]\nx=y"},  # a value, though it looks like a section
        }
        author.event(Type.HGRC, hgrc={})
        bench.send(author)
        bench.release(author)
        bench.wait_served(author)
    assert not (bench.where(author) / ".hg/hgrc").exists()


def test_heartbeats_and_foreign_keys_pass(bench: Bench) -> None:
    author = bench.author("repo")
    bench.log.append([NewRecord(topic=EVENTS, key="another", value=message.value) for message in author.messages()])
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        eventually(lambda: len(bench.errors()) == 1, "the foreign record rejected")
        eventually(bench.everything_passed, "all positions stored")
    assert "is not the repository" in bench.errors()[0].reason


def test_a_bundle_in_the_blob_store_is_fetched_and_its_loss_detaches(bench: Bench) -> None:
    blobs = f"file://{bench.folder}/blobs"
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    event = author.push(files={"large": b"0123456789" * 100_000})
    frame = wire.decode(author.frames[-1][1])
    attachment = open_blobs(blobs).put([frame.body])
    author.frames[-1] = (event, wire.encode(event, attachment))
    bench.send(author)
    with bench.mirror(blobs=blobs):
        bench.wait_applied(author)
        lost = author.push()
        author.frames[-1] = (lost, wire.encode(lost, replace(attachment, name="0" * 64 + ".hg", sha256="0" * 64)))
        bench.send(author)
        ack = bench.wait_detached(author, "blob-missing")
        assert "is not set" in (ack.note or "") or "blob" in (ack.note or "")
        neighbour.push()
        bench.send(neighbour)
        bench.wait_applied(neighbour)
        eventually(bench.everything_passed, "the positions pass what is noted")


def test_a_mirror_that_does_not_carry_a_repository_passes_its_events(bench: Bench) -> None:
    inside, outside = bench.author("project/inside"), bench.author("private/outside")
    rules = Rules(include=("re:project/",))
    roster = Roster(version=1, mirrors=(Member(name="alpha", state=MirrorState.ACTIVE, rules=rules),))
    bench.log.append([NewRecord(topic=ROSTER, key="roster", value=to_json(roster))])
    for author in (inside, outside):
        author.push()
    bench.send(inside, outside)
    with bench.mirror():
        bench.wait_applied(inside)
        eventually(bench.everything_passed, "all positions stored")
    assert not bench.where(outside).exists()
    assert bench.ack(outside) is None


def test_wire_paths_are_rewritten_to_folders(bench: Bench) -> None:
    author = bench.author("project/inside")
    author.push()
    bench.send(author)
    bench.release(author)
    with bench.mirror(paths={"project": "served/elsewhere"}):
        bench.wait_served(author)
    assert (bench.root / "served/elsewhere/inside/.hg").exists()


def test_of_two_paths_with_one_folder_the_second_is_refused(bench: Bench) -> None:
    first, second, third = bench.author("here/repo"), bench.author("there/repo", generation=2), bench.author("other")
    bench.send(first)
    bench.release(first)
    with bench.mirror(paths={"here": "served", "there": "served"}):
        bench.wait_served(first)
        bench.send(second, third)
        ack = bench.wait_detached(second, "refused")
        assert "here/repo" in (ack.note or "")
        first.push()
        bench.send(first)
        bench.wait_applied(first, third)


def test_a_second_mirror_on_one_root_is_refused(bench: Bench) -> None:
    with bench.mirror(), pytest.raises(BadConfig, match=r"another mirror, .* works in"), bench.mirror():
        pass


def test_workers_that_hang_hold_up_nothing_for_long_and_are_killed(bench: Bench) -> None:
    authors = [bench.author(f"project/{number}") for number in range(6)]
    bench.send(*authors)
    with bench.process(slow_after=0.3, hung_after=3.0) as mirror:
        bench.wait_applied(*authors)
        hung = mirror.workers
        for worker in hung:
            os.kill(worker, signal.SIGSTOP)
        for author in authors:
            author.push()
        bench.send(*authors)
        bench.wait_applied(*authors)
        eventually(lambda: set(hung) - set(mirror.workers), "a hung worker is killed")


def test_a_mirror_of_the_same_name_elsewhere_is_refused(bench: Bench, tmp_path: Path) -> None:
    author = bench.author("repo")
    with bench.mirror():
        bench.send(author)
        bench.wait_applied(author)
        other = replace(bench.settings(), root=str(tmp_path / "elsewhere"))
        with (
            open_log(bench.url, creates=True) as log,
            pytest.raises(BadConfig, match="another mirror of this name works on"),
        ):
            service.run(other, log, stop=threading.Event(), ready=lambda: None)
        author.push()
        bench.send(author)
        bench.wait_applied(author)
    with bench.mirror():  # again, at once
        pass
    stop = threading.Event()
    with open_log(bench.url, creates=True) as log:  # silent now: its place is free
        service.run(other, log, stop=stop, ready=stop.set)
    assert stop.is_set()


def test_a_worker_that_is_killed_while_the_mirror_starts_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = bench.author("project/repo")
    author.push()
    bench.send(author)
    start = WorkerPool.start
    killed: list[Worker] = []

    def start_and_kill_the_first(pool: WorkerPool, lane: Lane) -> Worker:
        worker = start(pool, lane)
        if not killed:
            worker.process.kill()
            killed.append(worker)
        return worker

    monkeypatch.setattr(WorkerPool, "start", start_and_kill_the_first)
    with bench.mirror():
        bench.wait_applied(author)
    assert killed


def test_workers_that_cannot_start_are_told_as_what_they_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WorkerPool", partial(WorkerPool, nursery="hgext.vcsreplicator.hg.no_such_module"))
    with pytest.raises(BadConfig, match="its workers cannot start"), bench.mirror():
        pass


def test_deleted_repositories_are_kept_for_a_while_and_then_removed(bench: Bench) -> None:
    author = bench.author("repo")
    author.push()
    author.event(Type.DELETED)
    bench.send(author)
    bench.release(author, deleted=True)
    aside = bench.root / "~vcsreplicator/aside"
    with bench.mirror(keep_deleted_days=1):
        bench.wait(lambda acks: author.repository in acks and acks[author.repository].serving == author.seq, "deleted")
        assert len(list(aside.iterdir())) == 1
    with bench.mirror(keep_deleted_days=0):
        eventually(lambda: not list(aside.iterdir()), "it is removed")
    bench.log.acknowledge("mirror-alpha", EVENTS, dict.fromkeys(range(4), 0))
    with bench.mirror():
        eventually(bench.everything_passed, "read again")
    assert bench.found() == {}


def test_caches_are_warmed_after_a_release(bench: Bench) -> None:
    author = bench.author("repo")
    author.push(count=3)
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        bench.release(author)
        bench.wait_served(author)
        caches = bench.where(author) / ".hg/cache"
        eventually(lambda: any("replicated" in path.name for path in caches.iterdir()), "a cache of the view")


def test_a_mirror_that_can_start_no_worker_goes_on_and_stops_as_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[WorkerPool] = []
    refusals: list[object] = []

    def refuse(*arguments: object) -> None:
        refusals.append(arguments)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def make_pool(*arguments: Any) -> WorkerPool:
        pools.append(WorkerPool(*arguments))
        return pools[0]

    monkeypatch.setattr(service, "WorkerPool", make_pool)
    author = bench.author("repo")
    bench.send(author)
    with bench.mirror():
        bench.wait_applied(author)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_start_process", refuse)
            for worker in [*pools[0].workers]:
                worker.process.kill()
            author.push()
            bench.send(author)
            eventually(lambda: len(refusals) > 1, "it tries again")
        bench.wait_applied(author)
        monkeypatch.setattr(pool, "_start_process", refuse)
        for worker in [*pools[0].workers]:
            worker.process.kill()
        author.push()
        bench.send(author)
        eventually(lambda: len(refusals) > 3, "it tries again")
    assert not bench.everything_passed()


def test_of_idle_workers_only_light_ones_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.5)
    start, started = WorkerPool.start, list[Worker]()

    def start_and_note(pool: WorkerPool, lane: Lane) -> Worker | None:
        if (worker := start(pool, lane)) is not None:
            started.append(worker)
        return worker

    monkeypatch.setattr(WorkerPool, "start", start_and_note)
    with bench.mirror(beat_interval=0.2):
        eventually(lambda: any(each.lane is Lane.CHECK and each.tasks for each in started), "old copies are removed")
        eventually(
            lambda: [each.lane for each in started if each.process.poll() is None] == [Lane.LIGHT] * 2, "it ended"
        )


def test_an_ack_says_that_a_setting_is_assumed_until_an_event_states_it(bench: Bench) -> None:
    author = bench.author("one")
    author.push()
    for number, (event, encoded) in enumerate(author.frames):
        frame, silent = wire.decode(encoded), replace(event, settings=MasterSettings())
        author.frames[number] = silent, wire.encode(silent, frame.header.attachment, frame.body)
    with bench.mirror():
        bench.send(author)
        bench.wait(lambda acks: author.repository in acks and acks[author.repository].assumed is True, "assumed")
        author.push()
        bench.send(author)
        bench.wait(lambda acks: acks[author.repository].assumed is None, "stated")
