# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder's loop: a batch is no larger and takes no longer than log and broker can wait for, and none is acknowledged early."""

import gzip
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.log import ERRORS, LARGEST, Log, NewRecord
from hgext.vcsreplicator.words.clock import DAY, Clock
from hgext.vcsreplicator.words.errors import Fenced, Rejected
from notifier.clients.amqp.outgoing import OutgoingMessage
from notifier.messages.raw import from_line, raw_topic, to_line, to_record
from notifier.services.decode import loop
from notifier.services.decode.decoding import Decoded, Tools
from notifier.services.decode.documents import load_schemas
from notifier.services.decode.loop import DecodeLoop
from notifier.services.decode.rejects import raw_of
from notifier.services.decode.repeats import Repeats, open_repeats
from notifier.services.decode.routing import Outputs
from notifier.services.decode.settings import SHIPPED, DecodeSettings
from notifier.services.decode.sources import GROUP, LogSource, QueueSource, RawArrival, RawSource
from testing.builders.log.memorylog import MemoryLog, TopicPartition
from testing.builders.notifier.decoding import ids, numbered, records, rejects, settings_in, submit
from testing.builders.notifier.notices import with_topics
from testing.builders.notifier.submissions import a_document, a_raw, uri_of
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
        metadata: Mapping[TopicPartition, str],
    ) -> list[tuple[int, int]]:
        written = super().commit(identity, epoch, messages, group, positions, metadata)
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
        self.kept: list[tuple[str, str | bytes]] = []
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

    def publish(self, messages: Sequence[OutgoingMessage], keep_alive: Callable[[], None]) -> None:
        self.kept += [(message.routing_key, message.body) for message in messages]

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


@pytest.fixture
def sixteenth(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a mebibyte, where the largest batch is a sixteenth of the real one too."""
    monkeypatch.setattr(loop, "BATCH_BYTES", loop.BATCH_BYTES // 16)
    return MIB // 16


def work(source: RawSource, tools: Tools, done: threading.Event, clock: Clock | None = None) -> None:
    """Decode until the source says that all is done."""
    clock = clock or HandClock()
    DecodeLoop(source, Outputs(DecodeSettings(), None), Repeats(None, clock), tools, clock).work(done)


def large(number: int, size: int = MIB) -> bytes:
    """A message of some kilobytes whose document has a mebibyte, and three when it is written as ASCII; or another size."""
    document = {**a_document(number), "landingSystem": "é" * (size // 2 - 300)}
    return to_line(a_raw(gzip.compress(json.dumps(document, ensure_ascii=False).encode(), mtime=0), uri=uri_of(number)))


def test_large_documents_go_in_batches_that_a_log_takes_in_time(
    counting: CountingLog, tools: Tools, sixteenth: int
) -> None:
    submit(counting, *(large(number, sixteenth) for number in range(20)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert ids(records(counting, "decoded")) == dict.fromkeys(range(20), 1)
    assert len(counting.sizes) > 1
    assert max(counting.sizes) < 8 * sixteenth


def test_large_rejects_are_delivered_in_batches_that_a_log_takes_in_time(
    counting: CountingLog, tools: Tools, sixteenth: int
) -> None:
    submit(counting, *(a_raw(b"no json" + bytes(sixteenth - 7), uri=uri_of(number)) for number in range(20)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert len(records(counting, ERRORS)) == 20
    assert len(counting.sizes) > 1
    assert max(counting.sizes) < 8 * sixteenth


def test_small_documents_are_delivered_together(counting: CountingLog, tools: Tools) -> None:
    submit(counting, *numbered(range(200)))
    work(LogSource(counting, "raw"), tools, counting.done)
    assert len(counting.sizes) == 1


@pytest.fixture
def decode_slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has what it is given happen at each document, which takes so long."""
    decode = loop.decode
    return lambda act: monkeypatch.setattr(loop, "decode", lambda line, tools: (act(), decode(line, tools))[1])


def test_a_queue_gets_signs_of_life_while_slow_documents_are_decoded(
    decode_slowly: Callable[[Callable[[], object]], None], counting: CountingLog, tools: Tools
) -> None:
    clock = HandClock()
    decode_slowly(lambda: clock.advance(1))
    queue: Any = FakeQueue(clock, [to_line(raw) for raw in numbered(range(75))])
    work(QueueSource(counting, queue, "raw", queue), tools, queue.done, clock)
    assert max(after - before for before, after in zip(queue.alive, queue.alive[1:], strict=False)) < 10
    assert queue.acknowledged[-1] == 75
    assert len(records(counting, "decoded")) == 75


def test_a_stop_ends_after_the_batch_that_is_under_way(
    decode_slowly: Callable[[Callable[[], object]], None], counting: CountingLog, tools: Tools
) -> None:
    clock, stop = HandClock(), threading.Event()
    decode_slowly(lambda: (clock.advance(1), stop.set()))
    submit(counting, *numbered(range(75)))
    work(LogSource(counting, "raw"), tools, stop, clock)
    position = counting.stored(GROUP, "raw")[0]
    assert position == len(records(counting, "decoded")) < 10
    assert [uuid.UUID(record.key).int for record in records(counting, "decoded") if record.key] == list(range(position))


def test_an_idle_decoder_renews_its_position_before_kafka_forgets_it(counting: CountingLog, tools: Tools) -> None:
    clock, stop = HandClock(), threading.Event()
    submit(counting, *numbered([1]))

    class IdleSource(LogSource):
        """A topic without more messages: each wait for one takes ten minutes."""

        def read(self, timeout: float, limit: int) -> list[RawArrival]:
            clock.advance(600)
            if clock.monotonic() > DAY:
                stop.set()
            return super().read(0, limit)

    work(IdleSource(counting, "raw"), tools, stop, clock)
    assert 20 <= len(counting.sizes) <= 30
    assert counting.stored(GROUP, "raw") == counting.ends("raw")
    assert len(records(counting, "decoded")) == 1


# -- partitions that several decoders divide


@pytest.fixture
def divided() -> CountingLog:
    """A log whose raw messages have three partitions."""
    log = CountingLog()
    with_topics(log).create([replace(raw_topic("raw"), partitions=3), raw_topic("decoded")])
    return log


def submit_divided(log: Log, numbers: Sequence[int]) -> None:
    log.append([to_record(raw, "raw", 3) for raw in numbered(numbers)])


def test_a_batch_is_of_one_partition_and_moves_its_position_alone(divided: CountingLog, tools: Tools) -> None:
    submit_divided(divided, range(60))
    work(LogSource(divided, "raw"), tools, divided.done)
    assert ids(records(divided, "decoded")) == dict.fromkeys(range(60), 1)
    assert len(divided.sizes) == 3
    assert divided.stored(GROUP, "raw") == divided.ends("raw")


def test_a_decoder_follows_its_share_and_stands_by_without_one(divided: CountingLog, tools: Tools) -> None:
    submit_divided(divided, range(60))
    divided.shared = frozenset()
    source = LogSource(divided, "raw")
    assert (source.read(0, 500), source.share) == ([], [])
    seen = list[RawArrival]()
    for share in (frozenset({2}), frozenset({0, 2}), frozenset({1})):
        divided.shared = share
        found = source.read(0, 500)
        for partition in {arrival.partition for arrival in found}:
            source.acknowledge([], [arrival for arrival in found if arrival.partition == partition])
        seen += found
        assert set(source.share) == share
    assert [arrival.partition for arrival in seen] == sorted(
        (arrival.partition for arrival in seen), key=[2, 0, 1].index
    )
    assert len({arrival.line for arrival in seen}) == len(seen) == 60


@pytest.mark.parametrize("shares_ids", [True, False])
def test_a_decoder_that_others_help_says_if_they_do_not_know_its_ids(divided: CountingLog, shares_ids: bool) -> None:
    with structlog.testing.capture_logs() as lines:
        source = LogSource(divided, "raw", shares_ids=shares_ids)
        assert [line for line in lines if line["log_level"] == "warning"] == []
        divided.shared = frozenset({1})
        source.read(0, 1)
    assert [line["expected"] for line in lines if line["log_level"] == "warning"] == ['repeats = "redis"'] * (
        not shares_ids
    )


def test_a_batch_whose_partition_moves_meanwhile_is_written_once(divided: CountingLog, tools: Tools) -> None:
    submit_divided(divided, range(60))
    late = LogSource(divided, "raw")
    arrivals = [arrival for arrival in late.read(0, 500) if arrival.partition == 1]
    divided.shared = frozenset({1})
    source = LogSource(divided, "raw")  # another decoder's
    with pytest.raises(Fenced):
        late.acknowledge([NewRecord(topic="decoded", key="late", value=b"", partition=0)], arrivals)
    divided.shared = None
    work(source, tools, divided.done)
    assert ids(records(divided, "decoded")) == dict.fromkeys(range(60), 1)


# -- a log that refuses a record


class RefusingLog(CountingLog):
    """A log whose topics take records of at most so many bytes, as a broker with a smaller `max.message.bytes`."""

    def __init__(self, **largest: int) -> None:
        super().__init__()
        self._largest = largest
        with_topics(self).create([raw_topic("raw"), raw_topic("decoded")])

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        self._check(messages)
        return super().append(messages, timeout=timeout)

    def transactor(self, identity: str, *, group: str | None = None) -> Any:
        return RefusedOnce(super().transactor(identity, group=group), self._check)

    def _check(self, messages: Sequence[NewRecord]) -> None:
        for message in messages:
            if len(message.value or b"") > self._largest.get(message.topic, LARGEST):
                raise Rejected(f"message too large for {message.topic}")


class RefusedOnce:
    """A transactor that must be renewed after a refusal, as one of Kafka."""

    def __init__(self, transactor: Any, check: Callable[[Sequence[NewRecord]], None]) -> None:
        self._transactor, self._check, self._is_unclear = transactor, check, False

    def commit(self, messages: Sequence[NewRecord], **more: Any) -> Any:
        assert not self._is_unclear
        self._is_unclear = True
        self._check(messages)
        self._is_unclear = False
        return self._transactor.commit(messages, **more)

    def renew(self) -> None:
        self._is_unclear = False
        self._transactor.renew()


def kinds(log: MemoryLog) -> list[str]:
    return [(reject.attributes or {})["error_type"] for reject in rejects(log)]


def test_a_document_that_its_topic_refuses_is_a_reject_alone(tools: Tools) -> None:
    log = RefusingLog(decoded=MIB)
    submit(log, *numbered([1, 2]), large(3), *numbered([4, 5]), large(6))
    work(LogSource(log, "raw"), tools, log.done)
    assert ids(records(log, "decoded")) == dict.fromkeys((1, 2, 4, 5), 1)
    assert kinds(log) == ["size", "size"]
    again = raw_of(rejects(log)[0])
    assert again is not None
    assert (again.payload, again.attributes["uri"]) == (from_line(large(3)).payload, uri_of(3))


def test_a_document_of_a_queue_that_its_topic_refuses_is_a_reject(tools: Tools) -> None:
    log = RefusingLog(decoded=MIB)
    lines = [*map(to_line, numbered([1])), large(2), *map(to_line, numbered([3]))]
    queue: Any = FakeQueue(HandClock(), lines)
    work(QueueSource(log, queue, "raw", queue), tools, queue.done)
    assert ids(records(log, "decoded")) == dict.fromkeys((1, 3), 1)
    assert kinds(log) == ["size"]


def test_a_reject_that_its_topic_refuses_is_kept_without_payload(tools: Tools) -> None:
    log = RefusingLog(decoded=MIB, errors=100_000)
    document = {**a_document(2), "landingSystem": "é" * 200_000}
    written = json.dumps(document, ensure_ascii=False).encode()
    submit(log, a_raw(b"no json" + bytes(200_000)), a_raw(written, uri=uri_of(2)), *numbered([3]))
    work(LogSource(log, "raw"), tools, log.done)
    assert ids(records(log, "decoded")) == {3: 1}
    assert kinds(log) == ["json", "size"]
    assert [reject.value for reject in rejects(log)] == ["", ""]
    assert "not kept" in rejects(log)[0].reason


def test_a_queue_keeps_once_whole_what_the_topic_of_rejects_refuses(tools: Tools) -> None:
    log = RefusingLog(errors=100_000)
    unreadable, refused = b"no json", to_line(a_raw(b"no json" + bytes(200_000)))
    queue: Any = FakeQueue(HandClock(), [unreadable, *map(to_line, numbered(range(5))), refused])
    work(QueueSource(log, queue, "raw", queue), tools, queue.done)
    assert queue.kept == [("raw.unreadable", unreadable), ("raw.unreadable", refused)]
    assert ["raw.unreadable has it whole" in reject.reason for reject in rejects(log)] == [True, True]


def test_the_id_of_a_document_that_its_topic_refuses_is_not_remembered(tools: Tools, tmp_path: Path) -> None:
    log, clock = RefusingLog(decoded=MIB), HandClock()
    small = to_line(a_raw(a_document(1), uri=uri_of(1)))
    submit(log, large(1), small)
    with closing(open_repeats(settings_in(tmp_path), clock)) as repeats:
        DecodeLoop(LogSource(log, "raw"), Outputs(DecodeSettings(), None), repeats, tools, clock).work(log.done)
    assert ids(records(log, "decoded")) == {1: 1}
    assert kinds(log) == ["size"]


class EveryOtherToAQueue(Outputs):
    """Outputs of which documents with an even number go to a queue that counts them."""

    def __init__(self) -> None:
        super().__init__(DecodeSettings(), None)
        self.queued = Counter[int]()

    def record_of(self, message: Decoded) -> NewRecord | None:
        return None if uuid.UUID(message.id).int % 2 == 0 else super().record_of(message)

    def deliver(self, messages: Sequence[Decoded], keep_alive: Callable[[], None]) -> None:
        self.queued.update(uuid.UUID(message.id).int for message in messages)


def test_a_document_that_its_topic_refuses_sends_no_queue_others_again(tools: Tools) -> None:
    log, outputs = RefusingLog(decoded=MIB), EveryOtherToAQueue()
    submit(log, *numbered(range(100)), large(101), *numbered(range(102, 200)))
    DecodeLoop(LogSource(log, "raw"), outputs, Repeats(None, HandClock()), tools, HandClock()).work(log.done)
    assert outputs.queued == Counter(range(0, 200, 2)) - Counter([100])
    assert ids(records(log, "decoded")) == Counter(range(1, 200, 2)) - Counter([101])
    assert kinds(log) == ["size"]
