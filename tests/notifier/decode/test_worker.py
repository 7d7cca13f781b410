# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder's loop: a batch is no larger and takes no longer than log and broker can wait for, and none is acknowledged early."""

import gzip
import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hgext.vcsreplicator.log import ERRORS, NewRecord
from hgext.vcsreplicator.words.clock import Clock
from notifier.decode import worker
from notifier.decode.decoding import Tools
from notifier.decode.documents import load_schemas
from notifier.decode.repeats import Repeats
from notifier.decode.routing import Outputs
from notifier.decode.settings import SHIPPED, DecodeSettings
from notifier.decode.sources import GROUP, LogSource, QueueSource, RawSource
from notifier.decode.worker import Worker
from notifier.raw import raw_topic, to_line
from testing.builders.decoding import ids, numbered, records, submit
from testing.builders.memorylog import MemoryLog, TopicPartition
from testing.builders.notices import with_topics
from testing.builders.submissions import a_document, a_raw, uri_of
from testing.clock import HandClock

MIB = 1024 * 1024


class CountingLog(MemoryLog):
    """A log that notes the bytes of each transaction, and sets `done` with the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.done = threading.Event()

    def commit(
        self,
        identity: str,
        epoch: int,
        messages: Sequence[NewRecord],
        group: str | None,
        positions: Mapping[TopicPartition, int],
    ) -> list[tuple[int, int]]:
        written = super().commit(identity, epoch, messages, group, positions)
        self.sizes.append(sum(len(message.value or b"") for message in messages))
        if self.stored(GROUP, "raw") == self.ends("raw"):
            self.done.set()
        return written


class FakeQueue:
    """The consumer of a queue with these messages; notes when it was kept alive, and what was acknowledged."""

    def __init__(self, clock: Clock, lines: Sequence[bytes]) -> None:
        self._clock, self._lines = clock, lines
        self.alive: list[float] = []
        self.acknowledged: list[int] = []
        self.done = threading.Event()

    def receive(self, timeout: float, limit: int) -> list[Any]:
        self.keep_alive()
        return [FakeMessage(line, number) for number, line in enumerate(self._lines, 1)]

    def keep_alive(self) -> None:
        self.alive.append(self._clock.monotonic())

    def acknowledge(self, tag: int, *, multiple: bool) -> None:
        assert multiple
        self.acknowledged.append(tag)
        if tag == len(self._lines):
            self.done.set()

    def finish(self) -> None:
        self.keep_alive()


class FakeMessage:
    def __init__(self, body: bytes, tag: int) -> None:
        self.body, self.delivery_tag = body, tag


@pytest.fixture
def tools() -> Tools:
    return Tools(schemas=load_schemas(SHIPPED))


@pytest.fixture
def counting() -> CountingLog:
    log = CountingLog()
    with_topics(log).create([raw_topic("raw"), raw_topic("decoded")])
    return log


def work(source: RawSource, tools: Tools, done: threading.Event, clock: Clock | None = None) -> None:
    """Decode until the source says that all is done."""
    clock = clock or HandClock()
    Worker(source, Outputs(DecodeSettings(), None), Repeats(None, clock), tools, clock).work(done)


def large(number: int) -> bytes:
    """A message of some kilobytes whose document has a mebibyte, and three when it is written as ASCII."""
    document = {**a_document(number), "landingSystem": "é" * (MIB // 2 - 300)}
    return to_line(a_raw(gzip.compress(json.dumps(document, ensure_ascii=False).encode()), uri=uri_of(number)))


def test_large_documents_are_delivered_in_batches_that_a_log_takes_in_time(counting: CountingLog, tools: Tools) -> None:
    submit(counting, *map(large, range(20)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert ids(records(counting, "decoded")) == dict.fromkeys(range(20), 1)
    assert len(counting.sizes) > 1
    assert max(counting.sizes) < 8 * MIB


def test_large_rejects_are_delivered_in_batches_that_a_log_takes_in_time(counting: CountingLog, tools: Tools) -> None:
    submit(counting, *(a_raw(b"no json" + bytes(MIB - 7), uri=uri_of(number)) for number in range(20)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert len(records(counting, ERRORS)) == 20
    assert len(counting.sizes) > 1
    assert max(counting.sizes) < 8 * MIB


def test_small_documents_are_delivered_together(counting: CountingLog, tools: Tools) -> None:
    submit(counting, *numbered(range(200)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert len(counting.sizes) == 1


def test_a_queue_gets_signs_of_life_while_slow_documents_are_decoded(
    monkeypatch: pytest.MonkeyPatch, counting: CountingLog, tools: Tools
) -> None:
    clock, decode = HandClock(), worker.decode

    def decode_slowly(line: bytes, tools: Tools) -> Any:
        clock.advance(1)
        return decode(line, tools)

    monkeypatch.setattr(worker, "decode", decode_slowly)
    queue: Any = FakeQueue(clock, [to_line(raw) for raw in numbered(range(75))])
    work(QueueSource(counting, queue, "raw"), tools, queue.done, clock)
    assert max(after - before for before, after in zip(queue.alive, queue.alive[1:], strict=False)) < 10
    assert queue.acknowledged[-1] == 75
    assert len(records(counting, "decoded")) == 75


def test_a_stop_ends_after_the_batch_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch, counting: CountingLog, tools: Tools
) -> None:
    clock, decode = HandClock(), worker.decode
    stop = threading.Event()

    def decode_slowly(line: bytes, tools: Tools) -> Any:
        clock.advance(1)
        stop.set()
        return decode(line, tools)

    monkeypatch.setattr(worker, "decode", decode_slowly)
    submit(counting, *numbered(range(75)))
    work(LogSource(counting, "raw"), tools, stop, clock)
    position = counting.stored(GROUP, "raw")[0]
    assert position == len(records(counting, "decoded")) < 10
    assert [uuid.UUID(record.key).int for record in records(counting, "decoded") if record.key] == list(range(position))
