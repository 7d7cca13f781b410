# SPDX-License-Identifier: GPL-2.0-or-later
"""The way of a message from its request to the log, or to the queue on disk.

The queue takes messages while the log is unavailable. One thread writes: it takes all that arrived while it wrote, makes it
durable in one step, and reports to all requests of the batch. A second thread drains the queue to the log, oldest first. Rules of
this file:

- The queue is empty: a batch goes to the log. If that fails, its outcome is unknown, so the batch goes to the queue too, and may
  be stored twice.
- The queue is not empty: a batch goes to the queue, behind the others, until the drain has emptied it. So a log that hangs delays
  one batch by `log_timeout`, and no other.
- A message leaves the queue only when the log has it: append, then drop.
"""

import asyncio
import contextlib
import enum
import errno
import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence

import structlog

from hgext.vcsreplicator.log import Log, NewRecord, Topic
from hgext.vcsreplicator.words.errors import Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ...messages.raw import choose_partition
from .diskqueue import DiskQueue
from .metrics import BATCH_SECONDS

# The most messages and bytes of a batch, unless a single message is larger.
BATCH_MESSAGES, BATCH_BYTES = 1000, 4 * 1024 * 1024

logger = structlog.get_logger()


class Outcome(enum.Enum):
    """The outcome of a message; only TAKEN is durable."""

    TAKEN = enum.auto()
    TOO_LARGE = enum.auto()
    FULL = enum.auto()
    FAILED = enum.auto()


_WaitingMessage = tuple[bytes, "asyncio.Future[Outcome]"]


class EdgeIntake:
    """The writer and the drain of one edge."""

    def __init__(self, log: Log, topic: Topic, disk: DiskQueue, log_timeout: float) -> None:
        self._log, self._topic, self._disk, self._log_timeout = log, topic, disk, log_timeout
        self._arrived: queue.SimpleQueue[_WaitingMessage | None] = queue.SimpleQueue()
        # The topic's partitions; None before it is known to be there.
        self._partitions: int | None = None
        # The values of the sent messages that the log refused and that must be set aside; None before the messages are sent.
        self._refused: list[bytes] | None = None
        self._stop = threading.Event()
        self._wake_drain = threading.Event()

    def prepare(self) -> None:
        """Create the topic if it is missing and the log available; raises BadConfig."""
        try:
            self._create_topic()
        except Unavailable as error:
            logger.warning("log unavailable, messages are queued on disk", reason=str(error))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run both threads within the block; at its end all messages have their outcome."""
        writer = threading.Thread(target=self._write, name="edge-writer")
        drain = threading.Thread(target=self._drain, name="edge-drain")
        writer.start()
        drain.start()
        try:
            yield
        finally:
            self._arrived.put(None)
            writer.join()
            self._stop.set()
            self._wake_drain.set()
            drain.join()

    async def submit(self, value: bytes) -> Outcome:
        """Wait until the value is durable or was not taken; return the outcome."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._arrived.put((value, future))
        return await future

    def is_able(self) -> bool:
        """Return whether disk has room, or the queue is empty and the log answers."""
        with contextlib.suppress(OSError):
            if self._disk.room > 0:
                return True
        with contextlib.suppress(OSError, ReplicationError):
            return self._disk.is_empty and bool(self._log.ends(self._topic.name))
        return False

    # The writer

    def _write(self) -> None:
        while batch := self._take_batch():
            began = time.perf_counter()
            try:
                outcomes = self._store([value for value, _ in batch])
            except Exception as error:
                logger.error("batch failed", kind=type(error).__name__, exc_info=True)
                outcomes = [Outcome.FAILED] * len(batch)
            BATCH_SECONDS.observe(time.perf_counter() - began)
            _report(batch, outcomes)

    def _take_batch(self) -> list[_WaitingMessage]:
        """Wait for messages; return those there within a batch's limits, none at the end."""
        batch: list[_WaitingMessage] = []
        size = 0
        while len(batch) < BATCH_MESSAGES and size < BATCH_BYTES:
            try:
                waiting = self._arrived.get(block=not batch)
            except queue.Empty:
                break
            if waiting is None:
                if batch:
                    self._arrived.put(None)
                break
            batch.append(waiting)
            size += len(waiting[0])
        return batch

    def _store(self, values: Sequence[bytes]) -> list[Outcome]:
        if self._disk.is_empty:
            try:
                return [Outcome.TAKEN if taken else Outcome.TOO_LARGE for taken in self._append(values)]
            except ReplicationError as error:
                logger.warning("log unavailable, messages are queued on disk", reason=str(error))
        return self._queue_values(values)

    def _queue_values(self, values: Sequence[bytes]) -> list[Outcome]:
        left = Outcome.FULL
        try:
            taken = self._disk.append(values)
        except OSError as error:
            taken = 0
            left = Outcome.FULL if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else Outcome.FAILED
            logger.error("queue cannot be written", reason=error.strerror)
        self._wake_drain.set()
        return [Outcome.TAKEN] * taken + [left] * (len(values) - taken)

    def _append(self, values: Sequence[bytes]) -> list[bool]:
        """Append to the log; return for each value whether the log took it.

        The log takes no value that is too large. Raises Unavailable or BadConfig; then the outcome is unknown.
        """
        partitions = self._partitions or self._create_topic()
        records = [
            NewRecord(topic=self._topic.name, key=None, value=value, partition=choose_partition(value, partitions))
            for value in values
        ]
        try:
            self._log.append(records, timeout=self._log_timeout)
        except Rejected:
            return [False] if len(values) == 1 else [taken for value in values for taken in self._append([value])]
        except ReplicationError:
            self._partitions = None
            raise
        return [True] * len(values)

    def _create_topic(self) -> int:
        """Create the topic if it is missing; return its partitions."""
        if self._log.create([self._topic]):
            logger.info("topic created", topic=self._topic.name)
        partitions = self._partitions = self._log.partitions(self._topic.name)
        return partitions

    # The drain

    def _drain(self) -> None:
        failures = 0
        while not self._stop.is_set():
            if self._disk.is_empty:
                self._wake_drain.wait()
                self._wake_drain.clear()
                continue
            try:
                self._forward()
                failures = 0
            except Exception as error:
                failures += 1
                if not isinstance(error, ReplicationError | OSError):
                    logger.error("drain failed", kind=type(error).__name__, exc_info=True)
                elif failures == 1:
                    logger.warning("queue waits for the log", reason=str(error))
                self._stop.wait(RECONNECT.delay(failures, random.random()))

    def _forward(self) -> None:
        """Send the oldest messages of the queue to the log, then drop them.

        If a message that the log refuses cannot be set aside, the next call goes on with that message, and sends nothing again.
        """
        if self._refused is None:
            values = self._disk.read()
            are_taken = self._append(values)
            self._refused = [value for value, is_taken in zip(values, are_taken, strict=True) if not is_taken]
        while self._refused:
            self._disk.set_aside(self._refused[0])
            del self._refused[0]
        self._disk.drop()
        self._refused = None
        if self._disk.is_empty:
            logger.info("queue drained")


def _report(batch: Sequence[_WaitingMessage], outcomes: Sequence[Outcome]) -> None:
    """Report the outcomes to the requests, in one step of their loop."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: no request waits any more
        batch[0][1].get_loop().call_soon_threadsafe(_resolve, batch, outcomes)


def _resolve(batch: Sequence[_WaitingMessage], outcomes: Sequence[Outcome]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if not future.done():
            future.set_result(outcome)
