# SPDX-License-Identifier: GPL-2.0-or-later
"""From a request to the log, or to the queue on disk while the log is away."""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from hgext.vcsreplicator.log import Log, NewRecord, Topic
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, Unavailable
from notifier.messages.raw import raw_topic, to_line
from notifier.services.edge.diskqueue import DiskQueue
from notifier.services.edge.intake import EdgeIntake, Outcome
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.submissions import a_raw, uri_of
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

TOPIC = raw_topic("raw")


class Moody(MemoryLog):
    """A log in memory that a test makes fail; it remembers the batches that it was asked to append."""

    def __init__(self) -> None:
        super().__init__()
        self.mood: Callable[[Sequence[NewRecord]], None] = lambda messages: None
        self.batches: list[int] = []
        self.creations = 0

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        self.creations += 1
        return super().create(wanted)

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        self.batches.append(len(messages))
        self.mood(messages)
        return super().append(messages, timeout=timeout)

    def values(self) -> list[bytes]:
        reader = self.reader({("raw", 0): 0})
        return [record.value or b"" for record in reader.poll(0, limit=10**6)]


def fail(messages: Sequence[NewRecord]) -> None:
    raise Unavailable("away")


@pytest.fixture
def log() -> Moody:
    log = Moody()
    log.create([TOPIC])
    return log


def submitted(log: Log, folder: Path, values: Sequence[bytes], *, limit: int = 10**6) -> list[Outcome]:
    """What becomes of values that arrive together."""

    async def submit(intake: EdgeIntake) -> list[Outcome]:
        return await asyncio.gather(*map(intake.submit, values))

    with closing(DiskQueue(str(folder), limit)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        with intake.running():
            return asyncio.run(submit(intake))


def values(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_what_arrives_together_is_one_write(tmp_path: Path, log: Moody) -> None:
    assert submitted(log, tmp_path, values(0, 2500)) == [Outcome.TAKEN] * 2500
    assert log.values() == values(0, 2500)
    assert len(log.batches) < 20


def test_while_the_log_is_away_messages_wait_on_disk_and_follow_in_order(tmp_path: Path, log: Moody) -> None:
    log.mood = fail
    assert submitted(log, tmp_path, values(0, 50)) == [Outcome.TAKEN] * 50
    assert log.values() == []
    log.mood = lambda messages: None
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == values(0, 50)


def test_new_messages_do_not_overtake_the_queue(tmp_path: Path, log: Moody) -> None:
    log.mood = fail
    submitted(log, tmp_path, values(0, 5))
    assert submitted(log, tmp_path, values(5, 10)) == [Outcome.TAKEN] * 5
    log.mood = lambda messages: None
    submitted(log, tmp_path, values(10, 15))
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == values(0, 15)


def test_a_document_goes_to_the_partition_of_its_id(tmp_path: Path) -> None:
    log = Moody()
    log.create([replace(TOPIC, partitions=4)])
    values = [to_line(a_raw(uri=uri_of(number))) for number in range(20)]
    submitted(log, tmp_path, values)
    submitted(log, tmp_path, values)
    places = {record.value: record.partition for record in log.records("raw")}
    assert {record.partition for record in log.records("raw")} == set(range(4))
    assert all(record.partition == places[record.value] for record in log.records("raw"))


def test_a_log_that_hangs_delays_only_the_first_batch(tmp_path: Path, log: Moody) -> None:
    async def submit(intake: EdgeIntake) -> None:
        for value in values(0, 20):
            assert await intake.submit(value) is Outcome.TAKEN

    log.mood = fail
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk:
        disk.append([b"first"])
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        with intake.running():
            asyncio.run(submit(intake))
    # Only the drain asked the log, for what was there before.
    assert len(log.batches) < 20


def test_an_append_whose_outcome_is_unknown_may_repeat_and_never_loses(tmp_path: Path, log: Moody) -> None:
    def append_and_fail(messages: Sequence[NewRecord]) -> None:
        MemoryLog.append(log, messages)
        log.mood = lambda messages: None
        raise Unavailable("the answer was lost")

    log.mood = append_and_fail
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        with intake.running():
            assert asyncio.run(intake.submit(b"x")) is Outcome.TAKEN
            eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == [b"x", b"x"]


def refuse_large(messages: Sequence[NewRecord]) -> None:
    if any(len(message.value or b"") > 100 for message in messages):
        raise Rejected("too large for the broker")


def test_a_message_that_the_log_refuses_costs_no_other(tmp_path: Path, log: Moody) -> None:
    log.mood = refuse_large
    outcomes = submitted(log, tmp_path, [b"a", b"x" * 101, b"b"])
    assert outcomes == [Outcome.TAKEN, Outcome.TOO_LARGE, Outcome.TAKEN]
    assert log.values() == [b"a", b"b"]


def test_a_queued_message_that_the_log_refuses_is_set_aside(tmp_path: Path, log: Moody) -> None:
    log.mood = fail
    submitted(log, tmp_path, [b"a", b"x" * 101, b"b"])
    log.mood = refuse_large
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == [b"a", b"b"]
    assert (tmp_path / "rejected.log").exists()


def test_while_a_refused_message_stays_the_others_are_sent_once(
    tmp_path: Path, log: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.mood = fail
    submitted(log, tmp_path, [b"a", b"x" * 101, b"b", b"y" * 101])
    log.mood = refuse_large
    set_aside, failures = DiskQueue.set_aside, [0]

    def fill_disk(queue: DiskQueue, value: bytes) -> None:
        if value.startswith(b"y") and failures[0] < 3:
            failures[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        set_aside(queue, value)

    monkeypatch.setattr(DiskQueue, "set_aside", fill_disk)
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained", timeout=PATIENCE)
    assert failures == [3]
    assert log.values() == [b"a", b"b"]
    assert [line[9:10] for line in (tmp_path / "rejected.log").read_bytes().splitlines()] == [b"x", b"y"]


def test_what_was_set_aside_is_sent_when_it_is_put_back(tmp_path: Path, log: Moody) -> None:
    log.mood = fail
    submitted(log, tmp_path, [b"x" * 101])
    log.mood = refuse_large
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == []
    (tmp_path / "rejected.log").rename(tmp_path / "0000000000.log")
    log.mood = lambda messages: None
    with closing(DiskQueue(str(tmp_path), 10**6)) as disk, EdgeIntake(log, TOPIC, disk, 1.0).running():
        eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == [b"x" * 101]


def test_a_full_queue_says_so_and_takes_what_fits(tmp_path: Path, log: Moody) -> None:
    log.mood = fail
    outcomes = submitted(log, tmp_path, [b"x" * 90] * 12, limit=1000)
    assert outcomes == [Outcome.TAKEN] * 10 + [Outcome.FULL] * 2


def test_a_bug_in_the_log_is_answered_and_does_not_stop_the_writer(tmp_path: Path, log: Moody) -> None:
    def crash(messages: Sequence[NewRecord]) -> None:
        log.mood = lambda messages: None
        raise RuntimeError("a fault of our own")

    log.mood = crash

    async def submit(intake: EdgeIntake) -> list[Outcome]:
        return [await intake.submit(b"a"), await intake.submit(b"b")]

    with closing(DiskQueue(str(tmp_path), 1000)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        with intake.running():
            assert asyncio.run(submit(intake)) == [Outcome.FAILED, Outcome.TAKEN]


def test_a_topic_that_vanished_is_made_again_and_loses_nothing(tmp_path: Path) -> None:
    log = Moody()

    def vanish(messages: Sequence[NewRecord]) -> None:
        log.mood = lambda messages: None
        raise BadConfig("topic raw: not there")

    log.mood = vanish
    with structlog.testing.capture_logs(), closing(DiskQueue(str(tmp_path), 1000)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        intake.prepare()
        with intake.running():
            assert asyncio.run(intake.submit(b"a")) is Outcome.TAKEN
            eventually(lambda: disk.is_empty, "the queue is drained")
    assert log.values() == [b"a"]
    assert log.creations == 2


def test_the_edge_is_able_with_room_on_disk_or_with_the_log(tmp_path: Path, log: Moody) -> None:
    with closing(DiskQueue(str(tmp_path), 1000)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        assert intake.is_able()
        disk.append([b"x" * 990])
        assert disk.room == 0
        assert not intake.is_able()
        disk.read()
        disk.drop()
        assert intake.is_able()


def test_the_edge_is_able_without_its_folder_while_the_log_takes_messages(tmp_path: Path, log: Moody) -> None:
    with closing(DiskQueue(str(tmp_path / "queue"), 10**6)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)
        (tmp_path / "queue").rename(tmp_path / "moved")
        assert intake.is_able()
        log.ends = fail  # type: ignore[assignment, method-assign]
        assert not intake.is_able()


def test_what_arrived_before_the_end_is_taken_though_no_request_waits(tmp_path: Path, log: Moody) -> None:
    goes_on = threading.Event()

    def wait(messages: Sequence[NewRecord]) -> None:
        goes_on.wait(PATIENCE)

    log.mood = wait

    async def submit_and_leave(intake: EdgeIntake) -> None:
        for value in values(0, 10):
            task = asyncio.ensure_future(intake.submit(value))
            while not log.batches:  # the first is under way, and holds up the others
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            task.cancel()

    with closing(DiskQueue(str(tmp_path), 10**6)) as disk:
        intake = EdgeIntake(log, TOPIC, disk, 1.0)

        def run() -> None:
            with intake.running():
                asyncio.run(submit_and_leave(intake))
                threading.Timer(0.05, goes_on.set).start()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert log.values() == values(0, 10)
