# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's start while the aggregator's states tell nothing: it looks in the log for what each repository sent last.

Outboxes and log are real, Mercurial is not. One relay sends two events of each repository, then others start. The time ends when
such a relay knows that the log has everything. A reading is a reader of `events` that was opened.

`BENCH_RELAY=300,3000` measures these sizes.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hgext.vcsreplicator.log import EVENTS, Log, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import daemon
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words.clock import SystemClock
from testing.bench.measure import Row
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.waiting import eventually

SIZES = tuple(int(size) for size in os.environ.get("BENCH_RELAY", "300,3000").split(","))
STARTS, PATIENCE = 3, 600.0


class Counted:
    """Counts the readers of `events` that a log opens, and what they read, in records and bytes of their values."""

    def __init__(self, log: Log) -> None:
        self.readings = self.records = self.bytes = 0
        self._open = log.reader
        log.reader = self.open  # type: ignore[method-assign]

    def open(self, positions: Mapping[tuple[str, int], int]) -> Any:
        reader = self._open(positions)
        if any(topic == EVENTS for topic, _ in positions):
            self.readings += 1
            poll = reader.poll

            def count(timeout: float, *, limit: int = 500) -> list[Any]:
                records = poll(timeout, limit=limit)
                self.records += len(records)
                self.bytes += sum(len(record.value or b"") for record in records)
                return records

            reader.poll = count  # type: ignore[method-assign]
        return reader


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            yield from _measure("embedded log", f"sqlite://{folder}/{size}.db", size)
    with shared(Kafka) as kafka:
        for size in SIZES:
            yield from _measure("Kafka", f"{kafka.url}?topic-prefix=relay-{time.time_ns()}-{size}.", size)


def _measure(what: str, url: str, size: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="relay-") as name, open_log(url, creates=True) as log:
        log.create(topics())
        folder = Path(name)
        boxes = {str(folder / "r" / str(number)): _make(folder / "r" / str(number)) for number in range(size)}
        _start(folder, log, boxes)
        samples, counted = [], Counted(log)
        for _ in range(STARTS):
            samples.append(_start(folder, log, boxes))
        title = f"{what}, {size:,} repositories"
        yield Row(name=f"{title}: start", unit="s", samples=[wall for wall, _ in samples])
        yield Row(name=f"{title}: start, processor", unit="s", samples=[used for _, used in samples])
        yield Row(name=f"{title}: readings", unit="", samples=[counted.readings / STARTS])
        yield Row(name=f"{title}: records read", unit="", samples=[counted.records / STARTS])
        yield Row(name=f"{title}: bytes read", unit="kB", samples=[counted.bytes / STARTS / 1000])


def _make(repository: Path) -> Outbox:
    store = repository / ".hg" / "store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    box = Outbox(Folder(str(store)))
    box.append(Transaction(), following(before_first_event(repository.name, 1), 2))
    return box


def _start(folder: Path, log: Log, boxes: Mapping[str, Outbox]) -> tuple[float, float]:
    """Run a relay until it knows that the log has everything; return the seconds, and those of the processor."""
    settings = RelaySettings(
        socket=str(folder / "socket"), source="hg://master", roots={str(folder / "r"): ""}, scan=3600.0
    )
    stop, began, used = threading.Event(), time.perf_counter(), time.process_time()
    relay = daemon.Relay(settings, log, PlainPort(), stop, SystemClock())
    try:
        relay.start()
        left = set(boxes)

        def is_done() -> bool:
            left.difference_update([each for each in left if _is_confirmed(relay, each, boxes[each])])
            return not left

        eventually(is_done, timeout=PATIENCE, every=0.1)
        return time.perf_counter() - began, time.process_time() - used
    finally:
        stop.set()
        relay.close()


def _is_confirmed(relay: daemon.Relay, folder: str, box: Outbox) -> bool:
    sent = box.sent()
    return sent is not None and not box.has_unsent() and relay._losses.is_confirmed(folder, sent.id)
