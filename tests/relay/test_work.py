# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's work on repositories, with outboxes written without Mercurial."""

import contextlib
import errno
import fcntl
import functools
import grp
import os
import pwd
import shlex
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
from mercurial import error as error_of_mercurial
from structlog.testing import capture_logs

from hgext.vcsreplicator.log import EVENTS, NewRecord, partition_of, topics
from hgext.vcsreplicator.outbox.entry import Entry, NewestEvent, before_first_event
from hgext.vcsreplicator.outbox.file import Fork, Outbox
from hgext.vcsreplicator.relay import partitions
from hgext.vcsreplicator.relay import work as relay_work
from hgext.vcsreplicator.relay.fork import StateWatch
from hgext.vcsreplicator.relay.jobs import Job, RepositoryBusy, RepositoryJobs
from hgext.vcsreplicator.relay.loss import KnownPlace, LossWatch
from hgext.vcsreplicator.relay.partitions import FRESH
from hgext.vcsreplicator.relay.reasons.rights import explain
from hgext.vcsreplicator.relay.sending import BATCH, EventSender
from hgext.vcsreplicator.relay.work import RECOVERY_RETRIES, WAITING, Failure, Obstacle, Work, choose_delay
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import NoRoom, Refused, Unavailable
from testing.builders.aggregator.states import state_of
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.clock import HandClock
from testing.faults.system import System
from testing.metrics import value_of
from testing.waiting import eventually


class Locked(PlainPort):
    """Repositories whose locks another process holds until they are `open`; counts the attempts, which raise `trouble`."""

    def __init__(self) -> None:
        super().__init__()
        self.open = False
        self.asked = Counter[str]()
        self.trouble: Exception | None = None
        self.on_recover: Callable[[], object] = lambda: None

    def recover(self, folder: str) -> bool:
        self.asked[os.path.basename(folder)] += 1
        if self.trouble is not None:
            raise self.trouble
        self.on_recover()
        return self.open

    announce = recover


class NotedLosses(LossWatch):
    """Runs a callback once, before it says what is known, or once it has confirmed something."""

    before_places: Callable[[], object] | None = None
    after_confirm: Callable[[], object] | None = None

    def newest_places(self) -> Mapping[int, KnownPlace]:
        if (act := self.before_places) is not None:
            self.before_places = None
            act()
        return super().newest_places()

    def confirm(self, *arguments: Any) -> None:
        super().confirm(*arguments)
        if (act := self.after_confirm) is not None:
            self.after_confirm = None
            act()


@dataclass
class Master:
    """Repositories below a folder, and the relay's work on them with two workers."""

    root: Path
    log: MemoryLog
    work: Work
    locked: Locked
    clock: HandClock
    losses: NotedLosses
    jobs: RepositoryJobs
    watch: StateWatch

    def write(self, name: str, entries: Sequence[Entry]) -> Outbox:
        """Appends to the outbox of a repository."""
        store = self.root / name / ".hg" / "store"
        store.mkdir(parents=True, exist_ok=True)
        box = Outbox(Folder(str(store)))
        box.append(Transaction(), entries)
        return box

    def poke(self, name: str) -> None:
        self.work.add(self.folder(name), Job.SEND, now=True)

    def folder(self, name: str) -> str:
        """Of a repository."""
        return str(self.root / name)

    def until(self, claim: Callable[[], bool]) -> None:
        """Lets time pass, so that what is put off is retried, until the claim is true."""

        def passed() -> bool:
            self.clock.advance(60)
            return claim()

        eventually(passed)

    def until_done(self, box: Outbox) -> None:
        """Waits until everything is sent, and nothing runs any more that could ask the log."""
        eventually(lambda: not box.has_unsent() and not value_of(WAITING))

    def sent(self) -> list[str]:
        """The identifiers of the events in the log."""
        reader = self.log.reader({(EVENTS, partition): 0 for partition in range(self.log.partitions(EVENTS))})
        return [wire.decode(record.value).event.id for record in reader.poll(0.0) if record.value]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_work, "TICK", 0.01)


@pytest.fixture
def unread(tmp_path: Path, log: MemoryLog) -> Iterator[Master]:
    """A master whose relay has not read yet what the log knows of the repositories."""
    stop = threading.Event()
    log.create(topics())
    watch = StateWatch(log, stop)
    locked, clock = Locked(), HandClock()
    sender = EventSender(log=log, source="hg://master", make_bundle=locked.make_bundle, store_blob=None)
    losses = NotedLosses(log, watch.state, clock)
    jobs = RepositoryJobs(sender, locked, watch, losses)
    work = Work(jobs.table(), workers=2, stop=stop, clock=clock)
    yield Master(tmp_path, log, work, locked, clock, losses, jobs, watch)
    stop.set()
    work.drain(60.0)
    watch.close()


@pytest.fixture
def master(unread: Master) -> Master:
    unread.watch.start()
    return unread


@pytest.mark.parametrize("pushed_since", [0, 1, 2])
def test_a_store_restored_while_the_relay_runs_is_a_fork(master: Master, pushed_since: int) -> None:
    first = following(before_first_event("a", 1), 1)
    newest = following(NewestEvent.of(first[0].event), 1)
    box = master.write("a", first + newest)
    master.poke("a")
    eventually(lambda: not box.has_unsent())
    for file in (master.root / "a" / ".hg" / "store").iterdir():
        file.unlink()
    box = master.write("a", first + following(NewestEvent.of(first[0].event), pushed_since))
    master.poke("a")
    eventually(lambda: box.fork() is not None or not box.has_unsent())
    assert "restored from a backup" in box.fork().reason
    assert master.sent() == [entry.event.id for entry in first + newest]


@pytest.mark.parametrize("begins", ["as cp does", "as mv does"])
def test_a_fork_ends_once_the_outbox_is_whole_again(master: Master, begins: str) -> None:
    """An operator brings it back, and the relay looks at half of it."""
    box = master.write("a", following(before_first_event("a", 1), 2))
    master.poke("a")
    master.until_done(box)
    segment = master.root / "a/.hg/store/outbox.0001.log"
    whole = segment.read_bytes()
    segment.write_bytes(b"") if begins == "as cp does" else segment.unlink()
    changed: list[str] = []
    master.jobs.on_fork_changed = changed.append
    send = master.jobs.table()[Job.SEND]
    send(master.folder("a"))
    assert "which is not in the outbox" in box.fork().reason
    segment.write_bytes(whole)
    box.append(Transaction(), following(box.newest(), 1))
    send(master.folder("a"))
    assert box.fork() is None
    assert not box.has_unsent()
    assert changed == [master.folder("a")] * 2


def test_the_log_is_asked_once_for_a_push_and_again_after_trouble(master: Master) -> None:
    asked: list[str] = []
    master.log.before["ends"] = lambda topic, _: topic == EVENTS and asked.append(topic)

    def check() -> int:
        """How often the log is asked before something of the repository may be sent."""
        asked.clear()
        master.losses.check(master.folder("a"), box)
        return len(asked)

    box = master.write("a", following(before_first_event("a", 1), 1))
    master.poke("a")
    master.until_done(box)
    assert [check(), check()] == [1, 0]
    master.losses.doubt(master.folder("a"))
    assert check() > 0
    master.clock.advance(FRESH)
    assert [check(), check()] == [1, 0]
    # The ends that were seen before it was sent do not show that the log has it.
    box.append(Transaction(), following(box.newest(), 1))
    master.poke("a")
    master.until_done(box)
    partition = box.sent().partition
    assert check() > 0
    assert master.losses.eras()[partition] == 0
    master.clock.advance(FRESH)
    master.log.lose(EVENTS, partition, 1)
    assert check() > 0
    assert master.losses.eras()[partition] == 1


def test_a_loss_shown_by_an_append_after_the_question_is_not_passed(master: Master) -> None:
    first = following(before_first_event("a", 1), 1)
    box = master.write("a", first)
    master.poke("a")
    eventually(lambda: not box.has_unsent())
    partition = box.sent().partition
    fill = NewRecord(topic=EVENTS, key="another", value=b"", partition=partition)
    master.log.append([fill])  # so that the ends that were seen lie beyond the known record
    master.losses.check(master.folder("a"), box)

    def lose_and_notice() -> None:
        master.log.lose(EVENTS, partition, 2)
        [(_, offset)] = master.log.append([fill])
        with pytest.raises(Unavailable):
            master.losses.check_appended(partition, offset, master.losses.newest_places())

    master.losses.before_places = lose_and_notice
    second = following(NewestEvent.of(first[0].event), 1)
    box.append(Transaction(), second)
    master.poke("a")
    eventually(lambda: not box.has_unsent())
    assert master.sent() == [entry.event.id for entry in first + second]


def test_a_loss_shown_by_an_append_between_batches_is_not_passed(master: Master) -> None:
    entries = following(before_first_event("a", 1), BATCH + 1)
    box = master.write("a", entries)

    def lose() -> None:
        partition, before = box.sent().partition, master.losses.newest_places()
        master.log.lose(EVENTS, partition, 1)
        [(_, offset)] = master.log.append([NewRecord(topic=EVENTS, key="b", value=b"", partition=partition)])
        with pytest.raises(Unavailable):
            master.losses.check_appended(partition, offset, before)

    master.losses.after_confirm = lose
    master.poke("a")
    eventually(lambda: not box.has_unsent())
    assert not is_confirmed(master.losses, master, box, "a")
    master.poke("a")
    eventually(lambda: {entry.event.id for entry in entries} == set(master.sent()))


def test_a_fork_found_once_stops_its_repository_until_an_act(master: Master) -> None:
    box = master.write("a", following(before_first_event("a", 1), 1))
    box.set_fork(Fork(reason="another history"))
    master.poke("a")
    master.until(lambda: value_of(relay_work.WAITING) == 0)
    assert box.has_unsent()
    assert box.fork() == Fork(reason="another history")


def test_what_a_relay_sent_earlier_is_reported_to_a_waiting_push(master: Master) -> None:
    heard: list[tuple[str, int]] = []
    master.jobs.on_sent = lambda folder, seq: heard.append((os.path.basename(folder), seq))
    box = master.write("a", following(before_first_event("a", 1), 2))
    master.poke("a")
    master.until(lambda: value_of(relay_work.WAITING) == 0)
    assert not box.has_unsent()
    assert [seq for _, seq in heard] == [1, 2, 2]
    master.poke("a")
    master.until(lambda: value_of(relay_work.WAITING) == 0)
    assert heard[3:] == [("a", 2)]


def test_repositories_whose_lock_another_process_holds_stop_no_other(master: Master) -> None:
    boxes = {name: master.write(name, following(before_first_event(name, 1), 1)) for name in "abcd"}
    with ExitStack() as held:
        for name in "abc":
            assert held.enter_context(boxes[name].sending(wait=False))
            master.poke(name)
        master.poke("d")
        eventually(lambda: not boxes["d"].has_unsent())
    master.until(lambda: not any(box.has_unsent() for box in boxes.values()))
    assert len(master.sent()) == 4


def test_a_repository_that_cannot_be_announced_yet_is_tried_again(master: Master) -> None:
    box = master.write("a", following(before_first_event("a", 1), 1))
    master.work.add(master.folder("a"), Job.ANNOUNCE)
    eventually(lambda: master.locked.asked["a"])
    master.locked.open = True
    master.until(lambda: not box.has_unsent())


def test_a_running_transaction_does_not_keep_its_repository_unsent(master: Master) -> None:
    box = master.write("a", following(before_first_event("a", 1), 1))
    (master.root / "a" / ".hg" / "store" / "journal").touch()
    master.poke("a")
    master.work.add(master.folder("a"), Job.RECOVER)
    master.until(lambda: value_of(relay_work.WAITING) == 0)
    assert not box.has_unsent()
    assert master.locked.asked["a"] == RECOVERY_RETRIES + 1


def test_what_was_committed_before_a_stuck_transaction_is_sent_alone(master: Master) -> None:
    entries = following(before_first_event("a", 1), 2)
    box = master.write("a", entries[:1])
    store = master.root / "a" / ".hg" / "store"
    (store / "journal").write_text(f"outbox.0001.log\0{(store / 'outbox.0001.log').stat().st_size}\n")
    master.write("a", entries[1:])
    master.locked.trouble = OSError("its journal is damaged")
    master.work.add(master.folder("a"), Job.RECOVER)
    master.poke("a")
    master.until(lambda: box.sent() is not None and master.work.unrecovered.get(master.folder("a")))
    assert master.sent() == [entries[0].event.id]
    (store / "journal").unlink()  # as a commit does
    master.poke("a")
    master.until(lambda: master.sent() == [entry.event.id for entry in entries])


class RestoredLog(MemoryLog):
    """A log that is restored between the relay's check and its append: calls `restore_now` once, before the next append."""

    restore_now: Callable[[], object] | None = None

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        act, self.restore_now = self.restore_now, None
        if act is not None:
            act()
        return super().append(messages, timeout=timeout)


@pytest.fixture
def log() -> RestoredLog:
    return RestoredLog()


def sent_to(master: Master, box: Outbox, entries: Sequence[Entry]) -> None:
    """Append these to the outbox and have them sent; the relay knows it a moment after the marker moved."""
    box.append(Transaction(), entries)
    master.poke("a")
    master.until(lambda: not box.has_unsent() and is_confirmed(master.losses, master, box, "a"))


def is_confirmed(watch: LossWatch, master: Master, box: Outbox, name: str) -> bool:
    """Whether the log is known to have what the marker says."""
    return watch.is_confirmed(master.folder(name), box.sent().id)


def test_a_batch_that_fills_more_than_a_restored_log_lost_shows_the_loss(master: Master, log: RestoredLog) -> None:
    entries = following(before_first_event("a", 1), 9)
    box = master.write("a", [])
    sent_to(master, box, entries[:3])
    [partition] = [number for number, end in log.ends(EVENTS).items() if end]
    log.restore_now = lambda: log.lose(EVENTS, partition, 2)
    sent_to(master, box, entries[3:])
    assert {entry.event.id for entry in entries} == set(master.sent())


@pytest.mark.parametrize("filled", [1, 4], ids=["less", "more"])
def test_a_loss_that_another_repository_filled_is_found_once_it_is_known(
    master: Master, log: RestoredLog, filled: int
) -> None:
    entries = following(before_first_event("a", 1), 4)
    box = master.write("a", [])
    sent_to(master, box, entries[:3])
    [partition] = [number for number, end in log.ends(EVENTS).items() if end]

    def restore() -> None:
        """Another worker's record, whose offset it does not know yet, takes the place of the newest."""
        log.lose(EVENTS, partition, 2)
        log.append([NewRecord(topic=EVENTS, key="b", value=b"", partition=partition)] * filled)

    log.restore_now = restore
    sent_to(master, box, entries[3:])
    known = master.losses.newest_places()[partition]
    with contextlib.suppress(Unavailable):
        master.losses.check_appended(partition, 1, {partition: replace(known, offset=2)})  # that worker's answer comes
    master.poke("a")
    master.until(lambda: {entry.event.id for entry in entries} == set(master.sent()))


def test_another_repositorys_first_event_in_a_lost_place_shows_the_loss(master: Master, log: RestoredLog) -> None:
    box = master.write("a", [])
    sent_to(master, box, following(before_first_event("a", 1), 1))
    [partition] = [number for number, end in log.ends(EVENTS).items() if end]
    count = log.partitions(EVENTS)
    made = (following(before_first_event("b", 1), 1) for _ in iter(int, 1))
    [entry] = next(entries for entries in made if partition_of(entries[0].event.repository, count) == partition)
    log.restore_now = lambda: log.lose(EVENTS, partition, 1)
    other = master.write("b", [entry])
    master.poke("b")
    master.until(lambda: not other.has_unsent() and is_confirmed(master.losses, master, other, "b"))
    assert not is_confirmed(master.losses, master, box, "a")


def reason_of(master: Master, folder: str) -> str | None:
    """Why the newest attempt in a repository failed."""
    failure = master.work.failed.get(folder)
    return failure.reason if failure else None


def give(folder: str) -> str:
    """The command that gives a repository to this user."""
    return f"vcsreplicator rights {pwd.getpwuid(os.geteuid()).pw_name} {shlex.quote(folder)}"


@pytest.mark.parametrize("mode", [0o755, 0o2775], ids=["one user", "a group pushes"])
def test_a_group_that_may_write_beside_a_repository_may_write_in_it(tmp_path: Path, mode: int) -> None:
    """But none on its hgrc, whose hooks run as the user who serves it."""
    tmp_path.chmod(mode)
    folder = f"{tmp_path}/a"
    expected = give(folder)
    if mode & 0o20:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(tmp_path.stat().st_gid).gr_name
        expected = f"vcsreplicator rights {user}:{group} {folder}"
    denied = PermissionError(errno.EACCES, "Permission denied", f"{folder}/.hg/store")
    assert explain(folder, denied) == f"Permission denied: {folder}/.hg/store; as root, run: {expected}"


def test_a_file_of_another_user_is_reported_with_the_command_for_it(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `hg init` leaves if root runs it; root itself, who may run this test, is refused nothing."""
    box, folder = master.write("it's", following(before_first_event("it's", 1), 1)), master.folder("it's")
    lock = f"{folder}/.hg/store/outbox.lock"
    with monkeypatch.context() as denied:
        error = PermissionError(errno.EACCES, "Permission denied", os.fsencode(lock))
        denied.setattr(fcntl, "flock", Mock(side_effect=error))
        master.work.on_failed = Mock()
        master.poke("it's")
        reason = eventually(lambda: reason_of(master, folder))
        master.work.on_failed.assert_called_with(folder, "Permission denied", False)
    assert reason == f"Permission denied: {lock}; as root, run: {give(folder)}"
    master.until(lambda: not box.has_unsent())


def test_a_relay_that_starts_sends_what_the_log_lost_meanwhile(master: Master, log: RestoredLog) -> None:
    box = master.write("a", [])
    sent_to(master, box, following(before_first_event("a", 1), 1))
    log.lose(EVENTS, box.sent().partition, 1)
    LossWatch(log, lambda repository: None).check(master.folder("a"), box)
    assert box.has_unsent()


def test_a_relay_that_starts_believes_the_aggregator_until_a_loss(master: Master, log: RestoredLog) -> None:
    [entry] = following(before_first_event("a", 1), 1)
    box, folder = master.write("a", []), master.folder("a")
    sent_to(master, box, [entry])
    watch = LossWatch(log, lambda repository: state_of(entry.event))
    watch.check(folder, box)
    assert is_confirmed(watch, master, box, "a")
    log.lose(EVENTS, box.sent().partition, 1)
    watch.check_partitions()
    assert not is_confirmed(watch, master, box, "a")
    watch.check(folder, box)
    assert box.has_unsent()


def test_a_loss_behind_other_records_ends_what_is_known(master: Master, log: RestoredLog) -> None:
    box = master.write("a", [])
    sent_to(master, box, following(before_first_event("a", 1), 1))
    partition = box.sent().partition
    watch = LossWatch(log, lambda repository: None)
    watch.check(master.folder("a"), box)
    [(_, offset)] = log.append([NewRecord(topic=EVENTS, key="b", value=b"", partition=partition)])
    other = master.write("b", following(before_first_event("b", 1), 1))  # another process sent it
    mark = replace(next(other.unsent()).sent(), partition=partition, offset=offset)
    other.prepare_sent(mark)
    other.move_sent(mark)
    log.lose(EVENTS, partition, 2)
    log.append([NewRecord(topic=EVENTS, key="c", value=b"", partition=partition)] * 2)
    assert is_confirmed(watch, master, box, "a")
    watch.check(master.folder("b"), other)
    assert other.has_unsent()
    assert not is_confirmed(watch, master, box, "a")


def test_events_are_not_sent_while_another_process_sends_them(master: Master) -> None:
    box = master.write("a", following(before_first_event("a", 1), 1))
    with box.sending(wait=False), pytest.raises(RepositoryBusy):
        master.jobs.table()[Job.SEND](master.folder("a"))
    assert master.sent() == []


def test_a_log_is_not_called_available_while_events_wait(master: Master) -> None:
    available: list[tuple[str, bool]] = []
    master.jobs.on_available = lambda *answer: available.append(answer)
    box = master.write("a", [])
    check = master.jobs.table()[Job.CHECK]
    check(master.folder("a"))
    assert available == [(master.folder("a"), True)]
    box.append(Transaction(), following(before_first_event("a", 1), 1))
    with pytest.raises(RepositoryBusy):
        check(master.folder("a"))
    box.set_fork(Fork(reason="another history"))
    check(master.folder("a"))
    assert available[1:] == [(master.folder("a"), False)]


def test_an_outbox_that_lacks_what_its_marker_says_was_sent_is_a_fork(master: Master) -> None:
    entries = following(before_first_event("a", 1), 2)
    box = master.write("a", entries)
    *_, newest = box.unsent()  # another process sent both
    mark = replace(newest.sent(), partition=0, offset=1)
    box.prepare_sent(mark)
    box.move_sent(mark)
    for file in (master.root / "a" / ".hg" / "store").glob("outbox.*.log"):
        file.unlink()
    box = master.write("a", entries[:1])
    master.jobs.table()[Job.SEND](master.folder("a"))
    assert "restored from a backup" in box.fork().reason
    assert master.sent() == []


def test_a_mark_that_an_account_wrote_makes_one_fork_and_not_one_each_round(master: Master) -> None:
    """The outbox has the event, and not where the mark says: the fork is void and comes again."""
    box = master.write("a", following(before_first_event("a", 1), 1))
    [newest] = box.unsent()
    box.mark_sent(replace(newest.sent(), end=newest.end + 1, partition=0, offset=1))
    changed: list[str] = []
    master.jobs.on_fork_changed = changed.append
    for _ in range(3):
        master.jobs.table()[Job.SEND](master.folder("a"))
    assert box.fork() is not None
    assert changed == [master.folder("a")]


def test_a_log_that_does_not_answer_is_not_called_available(master: Master, log: RestoredLog) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("away")

    available: list[str] = []
    master.jobs.on_available = lambda folder, is_available: available.append(folder)
    master.write("a", [])
    log.before["ends"] = fail
    with pytest.raises(Unavailable):
        master.jobs.table()[Job.CHECK](master.folder("a"))
    assert available == []


def test_a_transaction_rolled_back_elsewhere_is_not_looked_at_again(master: Master) -> None:
    master.write("a", [])
    journal = master.root / "a" / ".hg" / "store" / "journal"
    journal.touch()
    master.locked.on_recover = journal.unlink
    master.jobs.table()[Job.RECOVER](master.folder("a"))


def test_why_a_repository_is_tried_again_can_be_asked_until_it_is_sent(master: Master) -> None:
    box, folder = master.write("a", following(before_first_event("a", 1), 1)), master.folder("a")
    store = master.root / "a" / ".hg" / "store"
    assert reason_of(master, folder) is None
    (store / "outbox.lock").mkdir()
    master.poke("a")
    assert "outbox.lock" in eventually(lambda: reason_of(master, folder))
    (store / "outbox.lock").rmdir()
    master.until(lambda: not box.has_unsent())
    eventually(lambda: reason_of(master, folder) is None)


def test_since_when_no_attempt_succeeds_is_known_of_refused_jobs_too(master: Master) -> None:
    folder, began = master.folder("a"), master.clock.now()
    box = master.write("a", following(before_first_event("a", 1), 1))
    master.locked.trouble = Refused("no mirror can have this name")
    for later in (0, 60):
        master.work.add(folder, Job.ANNOUNCE)
        eventually(lambda: reason_of(master, folder) and not value_of(WAITING))
        known = Failure(Job.ANNOUNCE, "no mirror can have this name", began, is_permanent=True)
        assert master.work.failed.get(folder) == known, later
        master.clock.advance(60)
    master.poke("a")
    master.until_done(box)
    assert master.work.failed.get(folder) is None


# One job at a time, and when it is retried


class Jobs:
    """Jobs of repositories below a folder; each waits until it `may_end`, and fails while there is `trouble`."""

    def __init__(self, root: Path, workers: int = 2) -> None:
        self.root, self.begun = root, Counter[str]()
        self.may_end, self.trouble = threading.Event(), False
        self.stop, self.clock = threading.Event(), HandClock()
        self._table: dict[Job, Callable[[str], object]] = {Job.SEND: self.send}
        table = {job: functools.partial(self._run, job) for job in Job}
        self.ran, self._passed = list[tuple[str, Job]](), threading.Event()
        self.work = Work(table, workers=workers, stop=self.stop, clock=self.clock)

    def _run(self, job: Job, folder: str) -> None:
        if folder == str(self.root):
            self._passed.set()
            return
        self.ran.append((os.path.basename(folder), job))
        self._table[job](folder)

    def attempt(self, name: str, *wanted: Job) -> list[Job]:
        """Have these jobs of a repository attempted, and what is put off there; return those that ran, in order."""
        self.ran.clear()
        self.work.add(str(self.root / name), *wanted, now=True)
        self.wait()
        return [job for ran, job in self.ran if ran == name]

    def wait(self) -> None:
        """Wait until the one worker has ended what was begun before."""
        self._passed.clear()
        self.work.add(str(self.root), Job.SEND)
        assert self._passed.wait(60)

    def do(self, table: Mapping[Job, Callable[[str], object]]) -> None:
        """What each job does from now on."""
        self._table.clear()
        self._table.update(table)

    def send(self, folder: str) -> None:
        name = os.path.basename(folder)
        self.begun[name] += 1
        if name == "a":
            assert self.may_end.wait(60)
            if self.trouble:
                raise Unavailable("away")

    def poke(self, name: str, *, now: bool = False) -> None:
        (self.root / name / ".hg").mkdir(parents=True, exist_ok=True)
        self.work.add(str(self.root / name), Job.SEND, now=now)

    def pass_b(self) -> None:
        """Another repository's job runs: by then, a job that was asked for before has begun, if it may."""
        before = self.begun["b"]
        self.poke("b")
        eventually(lambda: self.begun["b"] > before)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.may_end.set()
    made.stop.set()
    made.work.drain(60.0)


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[Jobs]:
    """Jobs that run one after another; the folders of "a" and "b" are those of repositories."""
    for name in "ab":
        (tmp_path / name / ".hg").mkdir(parents=True)
    made = Jobs(tmp_path, workers=1)
    yield made
    made.stop.set()
    made.work.drain(60.0)


def test_a_repository_asked_for_while_its_job_runs_is_done_once_more(jobs: Jobs) -> None:
    jobs.poke("a")
    eventually(lambda: jobs.begun["a"])
    jobs.poke("a", now=True)
    jobs.pass_b()
    assert jobs.begun["a"] == 1
    jobs.may_end.set()
    eventually(lambda: jobs.begun["a"] == 2)


def test_what_failed_waits_for_its_time_unless_it_is_wanted_now(jobs: Jobs) -> None:
    jobs.trouble = True
    jobs.may_end.set()
    jobs.poke("a")
    eventually(lambda: (failure := jobs.work.failed.get(str(jobs.root / "a"))) and failure.reason == "away")
    jobs.poke("a")
    jobs.pass_b()
    assert jobs.begun["a"] == 1
    jobs.poke("a", now=True)
    eventually(lambda: jobs.begun["a"] == 2)


def test_a_success_ends_the_count_of_failures_although_more_is_to_be_done(one_worker: Jobs) -> None:
    jobs, busy = one_worker, Mock(side_effect=RepositoryBusy("locked by 77"))
    jobs.do({Job.SEND: Mock(side_effect=Unavailable("away"))})
    for _ in range(RECOVERY_RETRIES):
        jobs.attempt("a", Job.SEND)
    jobs.do({Job.SEND: lambda folder: jobs.work.add(folder, Job.RECOVER), Job.RECOVER: busy})
    jobs.attempt("a")
    jobs.wait()
    assert jobs.ran == [("a", Job.SEND), ("a", Job.RECOVER)]
    assert jobs.attempt("a") == [Job.RECOVER], "it is not left to the next round"


def test_what_the_log_takes_again_is_tried_at_once_in_the_others(jobs: Jobs) -> None:
    away = True

    def send(folder: str) -> None:
        jobs.begun[folder[-1]] += 1
        if away:
            raise Unavailable("away")
        if folder[-1] == "c":
            raise Unavailable("its own trouble")

    jobs.do({Job.SEND: send})
    for name in "abc":
        jobs.poke(name)
    eventually(lambda: len(jobs.work.failed) == 3)
    away = False
    jobs.poke("a", now=True)
    eventually(lambda: jobs.begun == {"a": 2, "b": 2, "c": 2}, "all were tried once more")


@pytest.mark.parametrize(
    ("outcomes", "starts"),
    [
        ({Job.RECOVER: OSError("broken")}, True),
        ({Job.CHECK: RepositoryBusy("its events are not sent yet")}, True),
        ({Job.CHECK: Unavailable("away")}, False),
        ({Job.SEND: FileNotFoundError("gone")}, False),
    ],
    ids=["not rolled back", "more to send", "away again", "gone"],
)
def test_only_an_answer_of_the_log_starts_the_others(
    one_worker: Jobs, outcomes: Mapping[Job, Exception], *, starts: bool
) -> None:
    jobs = one_worker
    jobs.do({Job.SEND: Mock(side_effect=Unavailable("away"))})
    for name in "ab":
        jobs.attempt(name, Job.SEND)
    if isinstance(outcomes.get(Job.SEND), FileNotFoundError):
        (jobs.root / "a" / ".hg").rmdir()
    jobs.do({job: Mock(side_effect=outcomes.get(job)) for job in Job})
    jobs.attempt("a", Job.RECOVER, Job.SEND, Job.CHECK)
    jobs.wait()
    assert (("b", Job.SEND) in jobs.ran) is starts


def test_a_failed_attempt_costs_the_same_for_any_number_that_waits(one_worker: Jobs) -> None:
    jobs, steps = one_worker, Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> Any:
        steps[event] += frame.f_code.co_filename == relay_work.__file__
        return count

    def attempt(name: str) -> int:
        """The lines that the worker runs."""
        steps.clear()
        assert jobs.attempt(name, Job.SEND) == [Job.SEND]
        return steps["line"]

    others = [f"b/{number}" for number in range(50)]
    for name in others:
        (jobs.root / name / ".hg").mkdir(parents=True)
    jobs.do({Job.SEND: Mock(side_effect=Unavailable("away"))})
    threading.settrace(count)  # the worker's thread begins with its first job
    try:
        alone = [attempt("a") for _ in range(5)][-1]
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    for name in others:
        jobs.work.add(str(jobs.root / name), Job.SEND)
    jobs.wait()
    assert 0 < attempt("a") < alone + len(others)


def test_the_fewer_wait_for_the_log_the_more_often_each_is_tried(one_worker: Jobs) -> None:
    jobs = one_worker

    def is_tried_soon(*names: str) -> bool:
        """Whether "a" is, after these failed six times."""
        jobs.do({Job.SEND: Mock(side_effect=Unavailable("away"))})
        for _ in range(6):
            for name in names:
                jobs.work.add(str(jobs.root / name), Job.SEND, now=True)
            jobs.wait()
        jobs.ran.clear()
        jobs.clock.advance(0.5)
        jobs.work.add(str(jobs.root / "a"))
        jobs.wait()
        return ("a", Job.SEND) in jobs.ran

    many = ["a", *(f"b/{number}" for number in range(40))]
    for name in many:
        (jobs.root / name / ".hg").mkdir(parents=True, exist_ok=True)
    assert not is_tried_soon(*many)
    jobs.do({Job.SEND: Mock()})
    jobs.attempt("a")
    eventually(lambda: not value_of(WAITING))
    assert is_tried_soon("a")


def test_repositories_that_wait_for_the_log_are_not_tried_all_at_once() -> None:
    delays = {choose_delay(Obstacle.AWAY, 100, 1000) for _ in range(20)}
    assert len(delays) > 10
    assert all(0.8 <= delay <= 1.2 for delay in delays)


def test_what_no_memory_holds_is_named_and_tried_ever_less_often(one_worker: Jobs) -> None:
    class Text:
        pass

    held = weakref.WeakSet[Text]()

    def unpack(folder: str) -> None:
        text = Text()
        text.itself = text  # type: ignore[attr-defined]
        held.add(text)
        try:
            raise MemoryError
        except Exception as error:
            raise error_of_mercurial.StorageError(b"revlog decompress error") from error

    jobs, folder = one_worker, str(one_worker.root / "a")
    jobs.do({Job.SEND: unpack})
    for _ in range(20):
        assert jobs.attempt("a", Job.SEND) == [Job.SEND]
        assert not held, "what the job had in memory stays there"
    assert jobs.work.failed[folder].reason == relay_work.NEEDS_MEMORY
    jobs.ran.clear()
    jobs.clock.advance(60)
    jobs.work.add(folder)
    jobs.wait()
    assert not jobs.ran


def test_a_repository_goes_on_after_another_ones_job_held_all_memory(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none for the line about a failure either, nor for another thread."""

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    def start(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    jobs.trouble = True
    with monkeypatch.context() as without:
        without.setattr(relay_work, "explain", fail)
        jobs.poke("a")
        eventually(lambda: jobs.begun["a"])
        without.setattr(threading.Thread, "start", start)
        jobs.poke("b")
        jobs.may_end.set()
        eventually(lambda: jobs.begun["b"])
    jobs.trouble = False
    jobs.poke("a", now=True)
    eventually(lambda: not value_of(WAITING))


def test_no_job_begins_after_the_wish_to_stop(jobs: Jobs) -> None:
    jobs.stop.set()
    jobs.poke("b")
    jobs.work.drain(60.0)
    assert not jobs.begun


def run_all(jobs: Jobs, *failing: Job) -> tuple[list[Job], set[Job]]:
    """Which jobs of a repository ran, in order, and which are retried."""
    jobs.do({job: Mock(side_effect=Unavailable("away") if job in failing else None) for job in Job})
    ran = jobs.attempt("a", *Job)
    jobs.do({job: Mock() for job in Job})
    return ran, set(jobs.attempt("a"))


def test_jobs_run_in_their_order_and_none_behind_one_that_failed(one_worker: Jobs) -> None:
    jobs = one_worker
    assert run_all(jobs) == (list(Job), set())
    assert run_all(jobs, Job.ANNOUNCE) == ([Job.RECOVER, Job.ANNOUNCE], set(Job))


def test_behind_a_stuck_transaction_events_are_sent_and_none_written(one_worker: Jobs) -> None:
    jobs = one_worker
    assert run_all(jobs, Job.RECOVER) == ([Job.RECOVER, Job.SEND, Job.CHECK], {Job.RECOVER, Job.ANNOUNCE})
    assert run_all(jobs, Job.RECOVER, Job.SEND) == ([Job.RECOVER, Job.SEND], set(Job))


@pytest.mark.parametrize(
    ("file", "reasons"),
    [("a/.hg/store/outbox.sent", ["Permission denied"]), ("ab/.hg/store/outbox.sent", []), ("blobs", []), (None, [])],
)
def test_only_a_file_of_the_repository_shows_that_rights_are_missing(
    one_worker: Jobs, file: str | None, reasons: list[str]
) -> None:
    jobs = one_worker
    heard: list[str] = []
    jobs.work.on_failed = lambda folder, reason, is_full: heard.append(reason) if not is_full else None
    path = os.fsencode(jobs.root / file) if file else None
    denied = PermissionError(errno.EACCES, "Permission denied", path)
    jobs.do({job: Mock(side_effect=denied) for job in (Job.RECOVER, Job.SEND)})
    for job in (Job.RECOVER, Job.SEND):  # an abandoned transaction keeps no committed event from being sent
        jobs.attempt("a", job)
    assert heard == reasons
    assert jobs.attempt("a") == [Job.RECOVER, Job.SEND]


def test_a_pusher_reads_which_disk_is_full_at_once(one_worker: Jobs) -> None:
    jobs = one_worker
    heard: list[tuple[str, bool]] = []
    jobs.work.on_failed = lambda folder, reason, is_full: heard.append((reason, is_full))
    jobs.do({Job.SEND: Mock(side_effect=NoRoom("blobs: /blobs: no space left on its disk"))})
    jobs.attempt("a", Job.SEND)
    assert heard == [("blobs: /blobs: no space left on its disk", True)]
    assert jobs.attempt("a") == [Job.SEND]


def test_a_failure_is_told_although_an_earlier_job_was_busy(one_worker: Jobs) -> None:
    jobs, folder = one_worker, str(one_worker.root / "a")

    def fail(folder: str) -> None:
        raise Unavailable("no room")

    jobs.do({Job.RECOVER: Mock(side_effect=RepositoryBusy("locked by 77")), Job.ANNOUNCE: fail})
    with capture_logs() as lines:
        jobs.attempt("a", Job.RECOVER, Job.ANNOUNCE)
    assert jobs.work.failed[folder] == Failure(Job.ANNOUNCE, "no room", jobs.clock.now())
    assert jobs.work.unrecovered[folder] == Failure(Job.RECOVER, "locked by 77", jobs.clock.now(), is_busy=True)
    assert jobs.attempt("a") == [Job.RECOVER, Job.ANNOUNCE]
    assert [line["reason"] for line in lines if line["event"] == "will try again"] == ["no room"]


def test_a_transaction_without_rollback_is_known_since_its_first_failure(one_worker: Jobs) -> None:
    jobs, folder = one_worker, str(one_worker.root / "a")
    stuck = Failure(Job.RECOVER, "broken", jobs.clock.now())
    for send in (Mock(), Mock(side_effect=Unavailable("away")), Mock()):
        jobs.do({Job.RECOVER: Mock(side_effect=OSError("broken")), Job.SEND: send})
        jobs.attempt("a", Job.RECOVER, Job.SEND)
        send.assert_called_once()
        assert jobs.work.unrecovered.get(folder) == stuck
        away = jobs.work.failed.get(folder)
        assert (away and away.reason) == (send.side_effect and "away")
        jobs.clock.set_back(-600)


def test_a_transaction_that_is_left_alone_for_now_is_known_to_be_stuck(one_worker: Jobs) -> None:
    """Its lock may be that of a killed process whose parent has not noticed."""
    jobs, folder = one_worker, str(one_worker.root / "a")
    jobs.do({Job.RECOVER: Mock(side_effect=RepositoryBusy("locked by 77"))})
    stuck = Failure(Job.RECOVER, "locked by 77", jobs.clock.now(), is_busy=True)
    for _ in range(2):
        for wanted in ((Job.RECOVER,), *((),) * RECOVERY_RETRIES):
            assert jobs.attempt("a", *wanted) == [Job.RECOVER]
            assert jobs.work.unrecovered.get(folder) == stuck
            jobs.clock.set_back(-600)
        assert not jobs.attempt("a"), "it is left to the next round"
        assert jobs.work.unrecovered.get(folder) == stuck


def test_failures_of_repositories_that_are_gone_are_forgotten(jobs: Jobs) -> None:
    jobs.work.failed = {name: Failure(Job.ANNOUNCE, "refused", 1.0) for name in ("a", "b")}
    jobs.work.unrecovered = {name: Failure(Job.RECOVER, "broken", 1.0) for name in ("a", "b")}
    jobs.work.forget_failures(["b", "c"])
    assert list(jobs.work.failed) == list(jobs.work.unrecovered) == ["b"]


def test_a_repository_that_the_relay_may_not_look_into_is_not_gone(one_worker: Jobs, system: System) -> None:
    """It is retried, and a pusher who waits reads why."""
    jobs, folder = one_worker, str(one_worker.root / "a")
    denied = PermissionError(errno.EACCES, "Permission denied", f"{folder}/.hg/store/outbox.lock")
    system.refuse(errno.EACCES, "os.stat", at=f"{folder}/*")
    jobs.do({Job.SEND: Mock(side_effect=denied)})
    jobs.work.on_failed = Mock()
    jobs.attempt("a", Job.SEND)
    jobs.work.on_failed.assert_called_once_with(folder, "Permission denied", False)
    assert jobs.attempt("a") == [Job.SEND]


def test_a_repository_that_the_disk_does_not_show_now_is_not_gone(one_worker: Jobs) -> None:
    jobs, folder = one_worker, one_worker.root / "a"
    (folder / ".hg").rmdir()
    (folder / ".hg").symlink_to(".hg")  # who looks gets ELOOP
    jobs.do({Job.SEND: lambda folder: os.listdir(os.path.join(folder, ".hg", "store")) and None})
    jobs.attempt("a", Job.SEND)
    assert jobs.work.failed.get(str(folder)) is not None
    assert jobs.attempt("a") == [Job.SEND]


def test_what_failed_in_a_repository_that_is_gone_is_not_tried_again(one_worker: Jobs) -> None:
    (one_worker.root / "a" / ".hg").rmdir()
    assert run_all(one_worker, Job.RECOVER) == ([Job.RECOVER], set())


def names(lines: Sequence[Mapping[str, Any]], event: str) -> tuple[object, ...]:
    """What the first line of this event says of folder, repository, path, sequence and id."""
    line = next(line for line in lines if line["event"] == event)
    return tuple(line.get(name) for name in ("folder", "repository", "path", "seq", "event_id"))


def of(master: Master, entry: Entry) -> tuple[object, ...]:
    event = entry.event
    return master.folder("a"), event.repository, event.path, event.seq, event.id


def test_line_about_a_fork_names_the_newest_event_of_the_outbox(master: Master) -> None:
    entries = following(before_first_event("a", 1), 2)
    box = master.write("a", entries)
    master.poke("a")
    master.until_done(box)
    for file in (master.root / "a" / ".hg" / "store").iterdir():
        file.unlink()
    entries = [entries[0], *following(NewestEvent.of(entries[0].event), 1)]
    box = master.write("a", entries)
    with capture_logs() as lines:
        master.poke("a")
        eventually(lambda: box.fork() is not None)
    assert names(lines, "fork: nothing is sent, pushes are refused") == of(master, entries[-1])


@pytest.mark.parametrize(("error", "line"), [(Unavailable, "will try again"), (Refused, "refused")])
def test_line_about_a_failed_attempt_names_the_first_event_that_waits(
    master: Master, error: type[Exception], line: str
) -> None:
    entries = following(before_first_event("a", 1), 3)
    box = master.write("a", entries[:1])
    master.poke("a")
    master.until_done(box)
    master.write("a", entries[1:])
    master.log.before["append"] = Mock(side_effect=error("away"))
    with capture_logs() as lines:
        master.poke("a")
        eventually(lambda: any(each["event"] == line for each in lines))
    assert names(lines, line) == of(master, entries[1])


def test_a_line_about_a_failed_attempt_names_the_newest_event(master: Master) -> None:
    entries = following(before_first_event("a", 1), 2)
    box = master.write("a", entries)
    master.poke("a")
    master.until_done(box)
    master.clock.advance(FRESH)
    master.log.before["ends"] = Mock(side_effect=Unavailable("away"))
    with capture_logs() as lines:
        master.poke("a")
        eventually(lambda: any(each["event"] == "will try again" for each in lines))
    assert names(lines, "will try again") == of(master, entries[-1])


def test_a_line_about_a_failed_attempt_without_outbox_names_the_folder(master: Master) -> None:
    master.write("a", following(before_first_event("a", 1), 1))
    (master.root / "a" / ".hg" / "store" / "outbox.0001.log").write_bytes(b"something else")
    with capture_logs() as lines:
        master.poke("a")
        eventually(lambda: any(each["event"] == "will try again" for each in lines))
    assert names(lines, "will try again") == (master.folder("a"), None, None, None, None)


def test_line_about_an_announced_repository_names_its_event(master: Master) -> None:
    [entry] = following(before_first_event("a", 1), 1)
    box = master.write("a", [entry])
    master.locked.open = True
    with capture_logs() as lines:
        master.work.add(master.folder("a"), Job.ANNOUNCE)
        eventually(lambda: not box.has_unsent())
    assert names(lines, "repository announced") == of(master, entry)


def test_lines_about_a_loss_name_the_newest_event_of_the_repository(master: Master) -> None:
    entries = following(before_first_event("a", 1), 2)
    box = master.write("a", entries)
    master.poke("a")
    master.until_done(box)
    partition = partition_of(entries[0].event.repository, master.log.partitions(EVENTS))
    master.log.lose(EVENTS, partition, 2)
    with capture_logs() as lines:
        master.losses.doubt(master.folder("a"))
        master.poke("a")
        eventually(lambda: len(master.sent()) == 2)
    assert names(lines, "the log lost events: they are sent again") == of(master, entries[-1])
    [lost] = [line for line in lines if line["event"] == "the log lost its newest records"]
    assert lost["event_id"] == entries[-1].event.id


# One partition without a leader


def write_into(master: Master, partition: int, name: str) -> Outbox:
    """Writes the first event of a repository that has this partition."""
    while True:
        entries = following(before_first_event(name, 1), 1)
        if partition_of(entries[0].event.repository, master.log.partitions(EVENTS)) == partition:
            return master.write(name, entries)


def push(master: Master, box: Outbox, name: str) -> None:
    box.append(Transaction(), following(box.newest(), 1))
    master.poke(name)


def test_other_partitions_are_sent_while_one_has_no_leader(master: Master) -> None:
    there, gone, late = (write_into(master, number, name) for number, name in ((1, "there"), (2, "gone"), (2, "late")))
    for box, name in ((there, "there"), (gone, "gone")):
        master.poke(name)
        master.until_done(box)
    master.log.leaderless.add((EVENTS, 2))
    push(master, gone, "gone")
    master.poke("late")
    master.until(lambda: all(map(master.work.failed.get, map(master.folder, ("gone", "late")))))
    for _ in range(2):
        push(master, there, "there")
        eventually(lambda: not there.has_unsent())
    assert gone.has_unsent()
    assert late.has_unsent()
    master.log.leaderless.clear()
    master.until(lambda: not gone.has_unsent() and not late.has_unsent())


def test_two_lines_tell_of_a_leaderless_partition_for_any_number(master: Master) -> None:
    boxes = {f"waiting{number}": write_into(master, 2, f"waiting{number}") for number in range(10)}
    for name, box in boxes.items():
        master.poke(name)
        master.until_done(box)
    master.log.leaderless.add((EVENTS, 2))
    with capture_logs() as lines:
        for _ in range(3):
            for name, box in boxes.items():
                push(master, box, name)
            master.until(lambda: all(master.work.failed.get(master.folder(name)) for name in boxes))
        began = master.clock.monotonic()
        master.until(lambda: sum(line["event"] == "will try again" for line in lines) >= 3 * len(boxes))
        master.clock.advance(600)
        master.until(lambda: master.clock.monotonic() - began > 660)
        lasted = master.clock.monotonic() - began
        master.log.leaderless.clear()
        master.until(lambda: not any(box.has_unsent() for box in boxes.values()))
    away, back = [line for line in lines if line["log_level"] != "debug"]
    assert (away["event"], away["partition"], away["log_level"]) == ("partition does not answer", 2, "warning")
    assert "has no leader" in away["reason"]
    assert (back["event"], back["partition"], back["log_level"]) == ("partition answers again", 2, "info")
    assert back["seconds"] >= lasted


def test_no_line_per_repository_says_that_states_are_not_read_yet(unread: Master) -> None:
    master = unread
    boxes = [master.write(name, following(before_first_event(name, 1), 1)) for name in "abc"]
    with capture_logs() as lines:
        for name in "abc":
            master.poke(name)
        eventually(lambda: all(master.work.failed.get(master.folder(name)) for name in "abc"))
        assert not [line for line in lines if line["log_level"] != "debug"]
        master.watch.start()
        master.until(lambda: not any(box.has_unsent() for box in boxes))


def test_the_log_is_available_while_another_partition_has_no_leader(master: Master) -> None:
    available: list[str] = []
    master.jobs.on_available = lambda folder, is_available: available.append(folder)
    for number, name in ((1, "there"), (2, "gone")):
        box = write_into(master, number, name)
        master.poke(name)
        master.until_done(box)
    master.log.leaderless.add((EVENTS, 2))
    check = master.jobs.table()[Job.CHECK]
    check(master.folder("there"))
    with pytest.raises(Unavailable):
        check(master.folder("gone"))
    assert available == [master.folder("there")]


@pytest.fixture
def turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a repository waits for an answer that another one has asked for, in seconds."""
    monkeypatch.setattr(partitions, "TURN", request.param)


@pytest.mark.usefixtures("turn")
@pytest.mark.parametrize("turn", [0.01], indirect=True)
def test_a_partition_that_does_not_answer_does_not_occupy_all_workers(master: Master, log: RestoredLog) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def hang(topic: str, which: Collection[int] | None) -> None:
        if topic == EVENTS and (which is None or 2 in which):
            is_asked.set()
            assert may_answer.wait(60)

    log.before["ends"] = hang
    hanging = {name: write_into(master, 2, name) for name in "abc"}
    there = write_into(master, 1, "there")
    for name in hanging:
        master.poke(name)
    assert is_asked.wait(60)
    master.poke("there")
    try:
        eventually(lambda: not there.has_unsent())
        assert all(box.has_unsent() for box in hanging.values())
    finally:
        may_answer.set()
    master.until(lambda: not any(box.has_unsent() for box in hanging.values()))


def test_repositories_of_a_partition_that_answers_slowly_share_the_answer(master: Master, log: RestoredLog) -> None:
    asked = list[object]()

    def answer_slowly(topic: str, which: Collection[int] | None) -> None:
        if topic == EVENTS:
            asked.append(which)
            master.clock.advance(4 * FRESH)

    boxes = {name: write_into(master, 2, name) for name in "ab"}
    log.before["ends"] = answer_slowly
    for name, box in boxes.items():
        master.losses.check(master.folder(name), box)
    assert asked == [[2]]


@pytest.mark.usefixtures("turn")
@pytest.mark.parametrize("turn", [3600.0], indirect=True)
def test_repositories_of_a_failing_partition_share_the_failure(master: Master, log: RestoredLog) -> None:
    asked, may_answer, fails = list[object](), threading.Event(), True

    def hang(topic: str, which: Collection[int] | None) -> None:
        if topic == EVENTS and which == [2]:
            asked.append(which)
            if fails:
                raise Unavailable("no leader")
            assert may_answer.wait(60)

    def has_failed(name: str) -> bool:
        return master.work.failed.get(master.folder(name)) is not None

    log.before["ends"] = hang
    waiting = {f"waiting{number}": write_into(master, 2, f"waiting{number}") for number in range(20)}
    there, first, *others = write_into(master, 1, "there"), *waiting
    for name in waiting:
        master.poke(name)
    eventually(lambda: all(map(has_failed, waiting)))
    assert len(asked) == 1, "one asked for all"
    fails = False
    master.clock.advance(FRESH)
    master.work.add(master.folder(first), Job.SEND, now=True)
    eventually(lambda: len(asked) == 2)
    for name in others:
        master.poke(name)
    master.poke("there")
    try:
        eventually(lambda: not there.has_unsent())
        assert all(box.has_unsent() for box in waiting.values())
    finally:
        may_answer.set()
    eventually(lambda: not any(box.has_unsent() for box in waiting.values()), "all are sent, though no time passes")
