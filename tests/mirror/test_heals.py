# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository in trouble is detached and heals, or stays detached with its reason; the others go on meanwhile."""

import contextlib
import errno
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mercurial import error, lock

from hgext.vcsreplicator.hg.replica import place, snapshot
from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.replica.troubles import trouble_of
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.log import EVENTS, NewRecord, partition_of
from hgext.vcsreplicator.mirror import pool
from hgext.vcsreplicator.mirror.comparison import Fingerprint
from hgext.vcsreplicator.mirror.notes import Detached, Notes
from hgext.vcsreplicator.mirror.task import Task
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Changing, Diverged, Unavailable
from hgext.vcsreplicator.words.event import MasterSettings, Tip, Type
from hgext.vcsreplicator.words.records import Reason
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def equal(bench: Bench, author: Author) -> bool:
    """Whether mirror and master say the same of every changeset, and the mirror's store is sound."""
    template = "{rev} {node} {phase} {obsolete} {bookmarks} {pushid} {pushuser}\n"
    arguments = ("log", "--hidden", "-T", template, "--config", "extensions.pushlog=")
    try:
        here, there = bench.hg(author, *arguments), bench.hg(author, *arguments, root=bench.master_root)
        return here == there and bench.hg(author, "verify", "-q") == ""
    except AssertionError:
        return False


def two(bench: Bench) -> tuple[Author, Author]:
    """The repository to suffer, and its neighbour in the same partition."""
    return bench.author("patient"), bench.author("neighbour")


def push(bench: Bench, *authors: Author) -> None:
    for author in authors:
        author.push()
    bench.send(*authors)


def test_a_gap_is_filled_from_the_master(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        patient.push()
        bench.sent[patient.repository] += 1  # this one never reaches the log
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)
    assert bench.notes() == []


def test_a_repository_whose_beginning_is_not_in_the_log_is_copied(bench: Bench) -> None:
    patient = bench.author("patient")
    patient.push(count=3)
    patient.push(phase=1)
    patient.obsolete(patient.tip)
    bench.sent[patient.repository] = 3
    bench.send(patient)
    with bench.mirror():
        bench.wait_applied(patient)
        push(bench, patient)
        bench.wait_applied(patient)
    assert equal(bench, patient)


def configure(author: Author, description: str) -> None:
    (author.folder / ".hg/hgrc").write_text(f"[web]\ndescription = {description}\n")
    author.event(Type.HGRC, hgrc={"web": {"description": description}})


@pytest.mark.sample(1)
@pytest.mark.parametrize("reason", ["gap", "corrupt"])
def test_what_was_configured_last_before_a_repair_holds_after_it(bench: Bench, reason: str) -> None:
    patient, _ = two(bench)
    push(bench, patient)
    configure(patient, "first")
    bench.send(patient)
    with bench.mirror():
        bench.wait_applied(patient)
    if reason == "gap":
        patient.push()
        bench.sent[patient.repository] += 1  # this one never reaches the log
    else:
        damage(bench, patient, "revlog truncated")
    configure(patient, "second")
    configure(patient, "third")
    bench.send(patient)
    with bench.mirror():
        bench.wait_detached(patient, reason)
        bench.wait_applied(patient)
        bench.release(patient)
        bench.wait_served(patient)
    assert "third" in (bench.where(patient) / ".hg/hgrc").read_text()


def test_a_bundle_that_is_only_on_the_master_is_fetched(bench: Bench) -> None:
    patient, neighbour = two(bench)
    event = patient.push()
    where = wire.Attachment(where=wire.BundlePlace.MASTER)
    patient.frames[-1] = (event, wire.encode(event, where))
    bench.send(patient)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)


def test_a_change_outside_on_the_master_is_fetched(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with patient.repo.wlock(), patient.repo.lock(), patient.repo.transaction(b"outside"):
        patient.commit(patient.repo.changelog.tip(), {"outside": b"x"})
    patient.event(Type.SYNC, detail={"reason": "outside", "bootstrap": "false"})
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)


def test_a_bundle_with_another_hash_is_rejected_and_fetched(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient)
    patient.push()
    event, frame = patient.frames[-1]
    patient.frames[-1] = (event, frame[:-1] + bytes([frame[-1] ^ 1]))
    bench.send(patient)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)
    assert "SHA-256" in bench.errors()[0].reason


def test_a_repository_that_differs_from_its_event_is_copied_anew(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        bench.release(patient)
        bench.wait_served(patient)
    bench.hg(patient, "debugbuilddag", "+2", "--from-existing")
    with bench.mirror():
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
        served = bench.found()[patient.repository].serving
        assert served == 2  # what was served goes on being served
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)


def test_a_fork_waits_for_an_operator_and_then_follows_the_master(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        event = patient.push()
        other = replace(event, id="f" * 32, after=Tip(length=1, node=event.after.node))
        bench.log.append([NewRecord(topic=EVENTS, key=patient.repository, value=wire.encode(other))])
        push(bench, neighbour)
        bench.wait_detached(patient)
        push(bench, patient, neighbour)
        bench.wait_applied(neighbour)
        bench.wait(lambda acks: acks[patient.repository].applied > 0, "still there")


def test_two_histories_in_the_log_stay_detached_until_a_heal_request(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        event = patient.push()
        forged = replace(event, previous="e" * 32)
        bench.log.append([NewRecord(topic=EVENTS, key=patient.repository, value=wire.encode(forged))])
        ack = bench.wait_detached(patient, "fork")
        assert "e" * 32 in (ack.note or "")
        push(bench, neighbour)
        bench.wait_applied(neighbour)
    with bench.mirror():
        bench.wait_detached(patient, "fork")
        bench.request_heal(patient)
        bench.send(patient)
        bench.wait_applied(patient)
    assert equal(bench, patient)


def test_an_adopted_master_is_followed_as_a_new_incarnation(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        patient.incarnation, patient.seq, patient.last = "d" * 32, 0, None
        patient.digest = "0" * 64
        patient.event(Type.SYNC, detail={"reason": "adopted", "bootstrap": "false"})
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
    checkpoint = bench.found()[patient.repository].checkpoint
    assert checkpoint is not None
    assert checkpoint.incarnation == "d" * 32
    assert len(checkpoint.former) == 1
    assert equal(bench, patient)


def damage(bench: Bench, author: Author, what: str) -> None:
    """Does to the mirror's repository what disks and people do."""
    folder = bench.where(author)
    store = folder / ".hg/store"
    match what:
        case "watermark lost":
            (folder / ".hg/replicated-watermark").unlink()
            (folder / ".hg/replicated-data").unlink()
        case "revlog truncated":
            file = store / "00changelog.i"
            os.truncate(file, file.stat().st_size - 7)
        case "bit flipped in the changelog":
            flip(store / "00changelog.i", 100)
        case "bit flipped in the manifest":
            flip(store / "00manifest.i", 70)
        case "store lost":
            shutil.rmtree(store)
        case "checkpoint damaged":
            flip(store / "replicated.log", -10)
        case "checkpoint lost":
            (store / "replicated.log").unlink()
        case "folder deleted":
            shutil.rmtree(folder)
        case "requirements damaged":
            (folder / ".hg/requires").write_text("nonsense\n")
        case "abandoned lock":
            dead = subprocess.Popen([sys.executable, "-c", ""])
            dead.wait()
            os.symlink(b"%s:%d" % (lock._getlockprefix(), dead.pid), os.fsencode(store / "lock"))
        case "commit by hand":
            bench.hg(author, "debugbuilddag", "+1", "--from-existing")


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "what",
    [
        "watermark lost",
        "revlog truncated",
        "bit flipped in the changelog",
        "bit flipped in the manifest",
        "store lost",
        "checkpoint damaged",
        "checkpoint lost",
        "folder deleted",
        "requirements damaged",
        "abandoned lock",
        "commit by hand",
    ],
)
@pytest.mark.parametrize("when", ["while it runs", "while it is down"])
def test_damage_heals_alone(bench: Bench, what: str, when: str) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    push(bench, patient, neighbour)
    bench.release(patient)
    bench.release(neighbour)
    with bench.mirror(check_interval=0.2):
        bench.wait_applied(patient, neighbour)
        bench.wait_served(patient, neighbour)
        if when == "while it runs":
            damage(bench, patient, what)
            push(bench, patient, neighbour)
            bench.wait_applied(neighbour)
            bench.release(patient)
            bench.wait_applied(patient)
            eventually(lambda: equal(bench, patient) and not bench.notes(), "the damage healed")
    if when == "while it is down":
        damage(bench, patient, what)
        with bench.mirror(check_interval=0.2):
            push(bench, patient, neighbour)
            bench.wait_applied(neighbour)
            bench.release(patient)
            bench.wait_applied(patient)
            eventually(lambda: equal(bench, patient) and not bench.notes(), "the damage healed")
            bench.wait_applied(patient)
            bench.wait_served(patient)
    assert bench.notes() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["lost", "damaged", "of another history"])
def test_a_release_whose_watermark_was_lost_is_shown_again(bench: Bench, what: str) -> None:
    author = bench.author("repo")
    author.push()
    bench.send(author)
    bench.release(author)
    with bench.mirror(check_interval=0.2):
        bench.wait_served(author)
        file = bench.where(author) / ".hg/replicated-watermark"
        sound = file.read_text()
        if what == "lost":
            file.unlink()
        else:
            file.write_text(sound[:-3] if what == "damaged" else sound.replace(author.tip, "1" * 40))
        eventually(lambda: file.exists() and file.read_text() == sound, "the watermark")
        assert bench.notes() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["replicated-watermark", "requires", "store/requires"])
def test_a_pipe_in_one_repository_holds_up_no_start_of_its_mirror(bench: Bench, name: str) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    file = bench.where(patient) / ".hg" / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with bench.process():
        push(bench, neighbour)
        bench.wait_applied(neighbour)
        bench.release(neighbour)
        bench.wait_served(neighbour)
        if name == "replicated-watermark":
            bench.release(patient)
            bench.wait_served(patient)


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_replaces_the_releases_bookmarks_is_replaced(bench: Bench, make: Callable[[Path], None]) -> None:
    patient = bench.author("patient")
    patient.push()
    patient.bookmark("mark", patient.tip)
    bench.send(patient)
    bench.release(patient)
    with bench.process():
        bench.wait_served(patient)
        file = bench.where(patient) / ".hg/replicated-bookmarks"
        shown = file.read_text()
        file.unlink()
        make(file)
        push(bench, patient)
        bench.release(patient)
        bench.wait_served(patient)
        assert file.read_text() == shown != ""


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["bookmarks", "hgrc"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_replaces_a_file_that_mercurial_reads_is_replaced(
    bench: Bench, make: Callable[[Path], None], name: str
) -> None:
    patient, neighbour = two(bench)
    patient.push()
    patient.bookmark("mark", patient.tip)
    bench.send(patient)
    bench.release(patient)
    with bench.process():
        bench.wait_served(patient)
        file = bench.where(patient) / ".hg" / name
        file.unlink(missing_ok=True)
        make(file)
        push(bench, patient, neighbour)
        for author in (patient, neighbour):
            bench.release(author)
        bench.wait_served(patient, neighbour)
        assert equal(bench, patient)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["bookmarks", "replicated-bookmarks"])
@pytest.mark.parametrize("how", ["lost", "older"])
def test_lost_or_older_bookmarks_are_found_without_another_push(bench: Bench, name: str, how: str) -> None:
    patient = bench.author("patient")
    patient.push()
    patient.bookmark("mark", patient.tip)
    bench.send(patient)
    bench.release(patient)
    with bench.mirror(check_interval=0.2):
        bench.wait_served(patient)
        file = bench.where(patient) / ".hg" / name
        older = file.read_text()
        patient.push()
        patient.bookmark("mark", patient.tip)
        bench.send(patient)
        bench.release(patient)
        bench.wait_served(patient)
        sound = file.read_text()
        if how == "lost":
            file.unlink()
        else:
            file.write_text(older)
        eventually(lambda: file.exists() and file.read_text() == sound != older, "the bookmarks")
        eventually(lambda: equal(bench, patient) and bench.notes() == [], "the repository whole")


@pytest.mark.sample(1)
@pytest.mark.parametrize("found_by", ["reading", "push"])
def test_pushes_that_both_files_of_the_pushlog_lack_are_brought_again(bench: Bench, found_by: str) -> None:
    patient = bench.author("patient")
    push(bench, patient)
    with bench.mirror(check_interval=0.2 if found_by == "reading" else 0):
        bench.wait_applied(patient)
        files = [bench.where(patient) / ".hg" / name for name in ("store/pushlog.log", "pushlog2.db")]
        older = [file.read_bytes() for file in files]
        push(bench, patient)
        bench.wait_applied(patient)
        for file, content in zip(files, older, strict=True):
            file.write_bytes(content)
        if found_by == "push":
            push(bench, patient)
        eventually(lambda: equal(bench, patient) and bench.notes() == [], "the repository whole")


def make_healer(bench: Bench, patient: Author, monkeypatch: pytest.MonkeyPatch) -> tuple[TaskRunner, Task]:
    """A worker's side of a heal in this process, and the task for a repository that cannot be read."""
    monkeypatch.setenv("HGRCPATH", str(bench.root / "~vcsreplicator/worker.hgrc"))
    monkeypatch.setenv("HGRCSKIPREPO", "1")
    runner = TaskRunner(bench.settings(), OpenRepositories(prepare(), 4), SystemClock())
    task = Task(repository=patient.repository, path=patient.path, folder=str(bench.where(patient)), heal=Reason.CORRUPT)
    return runner, task


class Killed(BaseException):
    """Instead of a kill."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("place_name", ["exchange", "set_aside"])
def test_a_damaged_repository_never_returns_after_a_kill_at_exchange(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place_name: str
) -> None:
    patient = bench.author("patient")
    patient.push({"file": os.urandom(3000)})
    push(bench, patient)
    with bench.mirror():
        bench.wait_applied(patient)
    flip(bench.where(patient) / ".hg/store/data/file.i", 1000)
    runner, task = make_healer(bench, patient, monkeypatch)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(place, place_name, kill)
        with pytest.raises(Killed):
            runner.perform(task)
    assert runner.perform(task).trouble is None
    assert equal(bench, patient)


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", ["changesets", "heads", "phases", "bookmarks", "markers", "pushlog", "digest"])
def test_a_copy_that_is_not_as_the_master_takes_the_place_of_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    patient = bench.author("patient")
    push(bench, patient)
    with bench.mirror():
        bench.wait_applied(patient)
    runner, task = make_healer(bench, patient, monkeypatch)
    store = (bench.where(patient) / ".hg/store").stat().st_ino
    asked = snapshot.master_fingerprint

    def other(*arguments: Any) -> Fingerprint:
        return replace(asked(*arguments), **{part: "f" * 64})

    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "master_fingerprint", other)
        found = runner.perform(task).trouble
    assert found is not None
    assert (found.reason, part in found.note) == (Reason.DIVERGED, True)
    assert (bench.where(patient) / ".hg/store").stat().st_ino == store
    assert runner.perform(task).trouble is None
    assert (bench.where(patient) / ".hg/store").stat().st_ino != store


@pytest.mark.sample(1)
def test_a_repository_heals_from_a_master_that_changes_all_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = bench.author("patient")
    push(bench, patient)
    with bench.mirror():
        bench.wait_applied(patient)
    runner, task = make_healer(bench, patient, monkeypatch)
    store = (bench.where(patient) / ".hg/store").stat().st_ino

    def change(*_: object) -> None:
        raise Changing("the repository changes while it is read")

    monkeypatch.setattr(snapshot, "master_fingerprint", change)
    assert runner.perform(task).trouble is None
    assert (bench.where(patient) / ".hg/store").stat().st_ino != store


def test_a_store_restored_from_yesterday_is_believed_and_caught_up(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    store = bench.where(patient) / ".hg"
    shutil.copytree(store, bench.folder / "yesterday", symlinks=True)
    with bench.mirror():
        push(bench, patient, neighbour)
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
    shutil.rmtree(store)
    (bench.folder / "yesterday").rename(store)
    with bench.mirror():
        bench.wait(lambda acks: acks[patient.repository].applied == 2, "the lower checkpoint")
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)


def test_a_locked_repository_waits_apart_and_goes_on_when_unlocked(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror(slow_after=0.3):
        bench.wait_applied(patient, neighbour)
        lock = bench.where(patient) / ".hg/store/lock"
        os.symlink("elsewhere.example:1", lock)
        push(bench, patient, neighbour)
        bench.wait_applied(neighbour)
        ack = bench.wait_detached(patient, "locked")
        assert "elsewhere.example:1" in (ack.note or "")
        eventually(bench.everything_passed, "the positions pass what is noted")
        push(bench, patient, neighbour)
        bench.wait_applied(neighbour)
        lock.unlink()
        bench.wait_applied(patient)
    assert equal(bench, patient)


def test_an_event_of_an_unknown_version_waits_apart_for_the_upgrade(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        _, frame = patient.frames[-1]
        newer = frame.replace(b'"version":1}', b'"version":9}')
        assert newer != frame
        bench.log.append([NewRecord(topic=EVENTS, key=patient.repository, value=newer)])
        ack = bench.wait_detached(patient, "unknown-version")
        assert "version 9" in (ack.note or "")
        push(bench, neighbour)
        bench.wait_applied(neighbour)
    with bench.mirror():
        bench.wait(lambda _: bench.notes()[0].attempts == 1, "another attempt after the restart")
        push(bench, neighbour)
        bench.wait_applied(neighbour)
        assert bench.wait_detached(patient, "unknown-version").applied == ack.applied
    assert [note.reason for note in bench.notes()] == [Reason.UNKNOWN_VERSION]
    assert partition_of(patient.repository, 1) == partition_of(neighbour.repository, 1)


# Mercurial, which writes the master's repository in this process, leaves closing files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_sets_one_repository_apart_until_there_is_room(bench: Bench) -> None:
    patient, neighbour = two(bench)
    patient.push(files={"large": random.Random(1).randbytes(300_000)})
    push(bench, patient, neighbour)

    with bench.process(slow_after=0.3) as mirror:
        bench.wait_applied(patient, neighbour)
        mirror.limit_files(200_000)
        patient.push(files={"large": random.Random(2).randbytes(300_000)})
        push(bench, patient, neighbour)
        bench.wait_detached(patient, "disk")
        push(bench, neighbour)
        bench.wait_applied(neighbour)
        eventually(bench.everything_passed, "the positions pass what is noted")
        mirror.limit_files(resource.RLIM_INFINITY)
        bench.wait_applied(patient)
    assert equal(bench, patient)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing below the folder can be written: a mount for root, whom permissions do not stop, permissions for others."""
    if os.geteuid() == 0:
        before = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder, folder]]
        after = ["umount", "--lazy", folder]
    else:
        before, after = [["chmod", "-R", "u-w", folder]], ["chmod", "-R", "u+w", folder]
    try:
        for command in before:
            subprocess.run(command, check=True)
        yield
    finally:
        subprocess.run(after, check=True)


def test_a_read_only_disk_sets_one_repository_apart_for_a_while(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.process(slow_after=0.3):
        bench.wait_applied(patient, neighbour)
        with read_only(bench.where(patient)):
            push(bench, patient, neighbour)
            ack = bench.wait_detached(patient, "disk")
            assert re.search("Read-only|Permission denied", ack.note or "")
            push(bench, neighbour)
            bench.wait_applied(neighbour)
            eventually(bench.everything_passed, "the positions pass what is noted")
        bench.wait_applied(patient)
    assert equal(bench, patient)


def test_a_mirror_that_can_write_nothing_waits_and_passes_nothing(bench: Bench) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.process(slow_after=0.3):
        bench.wait_applied(patient, neighbour)
        eventually(bench.everything_passed, "all positions stored")
        with read_only(bench.root):
            push(bench, patient, neighbour)
            bench.release(patient)
            bench.release(neighbour)
            bench.wait(lambda acks: acks[patient.repository].applied == 2, "the levels before")
            assert not bench.everything_passed()
        bench.wait_applied(patient, neighbour)
        bench.wait_served(patient, neighbour)
    assert equal(bench, patient)
    assert equal(bench, neighbour)


def test_a_bundle_that_unpacks_too_large_is_fetched_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    may_have, limited = 1 << 20, bench.folder / "limited.py"
    limited.write_text(f"from hgext.vcsreplicator.hg.replica import apply\napply.UNPACKED_LIMIT = {may_have}\n")
    monkeypatch.setattr(pool, "CONFIGURATION", f"{pool.CONFIGURATION}[extensions]\nlimited = {limited}\n")
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        store = (bench.where(patient) / ".hg/store").stat().st_ino
        patient.push(files={"zeros": bytes(may_have + 1)})
        _, frame = patient.frames[-1]
        assert len(frame) < wire.INLINE_LIMIT
        push(bench, patient, neighbour)
        assert "unpack" in (bench.wait_detached(patient, "blob-missing").note or "")
        bench.wait_applied(patient, neighbour)
        assert (bench.where(patient) / ".hg/store").stat().st_ino == store


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "disk"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (OSError(errno.EACCES, "Permission denied"), "disk"),
        (error.LockHeld(errno.EAGAIN, b"lock", b"", b"host:1"), "locked"),
        (Unavailable("the blob store is away"), "blob-missing"),
        (Diverged("it differs"), "diverged"),
        (error.RepoError(b"requires nonsense"), "corrupt"),
        (ZeroDivisionError("a mistake of our own"), "corrupt"),
    ],
)
def test_every_trouble_has_a_reason_and_words(problem: Exception, reason: str) -> None:
    found = trouble_of(problem)
    assert found.reason.value == reason
    assert found.note
    assert "b'" not in found.note


def test_a_repository_of_an_unsupported_kind_is_refused_in_words(bench: Bench) -> None:
    patient, neighbour = two(bench)
    event, _ = patient.frames[0]
    patient.frames[0] = (event, wire.encode(replace(event, settings=MasterSettings(requirements=("treemanifest",)))))
    bench.send(patient, neighbour)
    with bench.mirror():
        ack = bench.wait_detached(patient, "refused")
        assert "treemanifest" in (ack.note or "")
        bench.wait_applied(neighbour)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_worker_does_not_grow_over_twenty_thousand_applies(bench: Bench) -> None:
    authors = [bench.author(f"project/{number}") for number in range(100)]

    def memory() -> int:
        return max(int(Path(f"/proc/{worker}/statm").read_text().split()[1]) for worker in mirror.workers) * 4096

    def drain(rounds: int) -> None:
        for _ in range(rounds):
            for author in authors:
                author.push(files={"file": b"x" * 100})
            bench.send(*authors)
            bench.wait_applied(*authors)

    with bench.process() as mirror:
        drain(20)
        before = memory()
        drain(200)
        assert memory() - before < 48 * 1024 * 1024


def test_a_repository_that_was_apart_when_the_log_was_made_anew_heals(bench: Bench) -> None:
    patient, neighbour = two(bench)
    patient.push()
    bench.sent[patient.repository] = 1
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    note = Detached(
        repository=patient.repository,
        path=patient.path,
        partition=0,
        offset=5000,
        reason=Reason.CRASHED,
        note="in the former log",
        since=1.0,
    )
    with contextlib.closing(Notes(Path(bench.settings().folder) / "mirror.db")) as notes:
        notes.detach(note)
    with bench.mirror():
        push(bench, patient, neighbour)
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)
    assert bench.notes() == []


def test_more_repositories_in_trouble_than_readers_all_heal(bench: Bench) -> None:
    authors = [bench.author(f"project/{number}") for number in range(12)]
    push(bench, *authors)
    with bench.mirror():
        bench.wait_applied(*authors)
        for author in authors:
            author.push()
            bench.sent[author.repository] += 1
        push(bench, *authors)
        bench.wait_applied(*authors)
    assert bench.notes() == []
    assert equal(bench, authors[-1])


def test_a_copy_with_an_enemys_journal_is_made_again_alone(bench: Bench, tmp_path: Path) -> None:
    patient, neighbour = two(bench)
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    profile, store = tmp_path / "profile", bench.where(patient) / ".hg/store"
    profile.write_text("mine")
    (store / "journal").touch()
    outside = os.path.relpath(profile, store.parent)
    (store / "journal.backupfiles").write_bytes(b"2\nplain\0%s\0\0000\n" % os.fsencode(outside))
    push(bench, patient, neighbour)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
    assert equal(bench, patient)
    assert profile.read_text() == "mine"
