# SPDX-License-Identifier: GPL-2.0-or-later
"""Decoders that divide a topic of Kafka: messages of 1 kB per second, by one process and by two.

Broker and decoders share the machine's cores; the ratio says what a second decoder adds. A backlog is written while the decoders,
which have their partitions, are stopped. Places and repeats are left out: ids would be in Redis, which shares the cores too.

In two rows each decoder has at most half a core, so that the broker has the rest of two cores. One decoder and two take turns.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from kafka import KafkaAdminClient

from hgext.vcsreplicator.log import Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from notifier.messages.raw import from_line, raw_topic, to_record
from notifier.services.decode.settings import DecodeSettings
from notifier.services.decode.sources import GROUP
from testing.bench.decode import MESSAGES, make_lines
from testing.bench.edge import processor_seconds
from testing.bench.measure import Row
from testing.builders.notifier.decoding import count_members, decoder
from testing.services.kafka import Kafka
from testing.waiting import eventually

# Partitions of the topic, samples of a row, and backlogs of `MESSAGES` in a sample.
PARTITIONS, ROUNDS, BACKLOGS = 8, 3, 4
# The share of a core that a decoder has in those two rows, and the seconds in which it is stopped once.
SHARE, PERIOD = 0.5, 0.02


def rows() -> list[Row]:
    with Kafka() as kafka:
        return list(_rows(kafka))


def _rows(kafka: Kafka) -> Iterator[Row]:
    rates = {count: _measure(kafka, count) for count in (1, 2)}
    alone = Row(name="one decoder", unit="messages/s", samples=[rate for rate, _ in rates[1]])
    yield alone
    yield Row(
        name="two decoders",
        unit="messages/s",
        samples=[rate for rate, _ in rates[2]],
        baseline=alone.median,
        note="≥ 1.7",
    )
    pairs = [
        (_measure(kafka, 1, f"half{number}.", SHARE), _measure(kafka, 2, f"half{number}.", SHARE)) for number in (1, 2)
    ]
    alone = Row(name="one with half a core", unit="messages/s", samples=[rate for one, _ in pairs for rate, _ in one])
    yield alone
    both = [rate for _, two in pairs for rate, _ in two]
    yield Row(name="two with half a core each", unit="messages/s", samples=both, baseline=alone.median, note="≥ 1.7")
    for count, found in rates.items():
        samples = [spent for _, spent in found]
        yield Row(name=f"{count} at work: 1,000 messages", unit="processor seconds", samples=samples)


def _measure(kafka: Kafka, count: int, name: str = "bench", share: float = 1.0) -> list[tuple[float, float]]:
    """Return messages per second, and processor seconds of all decoders for 1,000 messages, of each round."""
    prefix, found = f"{name}{count}.", list[tuple[float, float]]()
    url = f"{kafka.url}?topic-prefix={prefix}"
    with (
        open_log(url, creates=True) as log,
        closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin,
        ExitStack() as opened,
    ):
        log.create([*topics(), replace(raw_topic("raw"), partitions=PARTITIONS), raw_topic("decoded")])
        processes = [opened.enter_context(decoder(url, DecodeSettings(repeats="none"))) for _ in range(count)]
        eventually(lambda: count_members(admin, f"{prefix}{GROUP}-raw") == count, "each decoder has a share")
        for number in range(ROUNDS):
            found.append(_decode_backlog(log, [process.pid for process in processes], _make_records(number), share))
    return found


@contextmanager
def _holding(pids: Sequence[int], share: float) -> Iterator[None]:
    """Stop these processes for the rest of each period, so that each has at most this share of a core."""
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.wait(PERIOD * share):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(PERIOD * (1 - share))
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    if share < 1:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if share < 1:
            thread.join()


def _make_records(number: int) -> list[NewRecord]:
    first = number * BACKLOGS * MESSAGES
    lines = (line for begin in range(BACKLOGS) for line in make_lines(first + begin * MESSAGES))
    return [to_record(from_line(line), "raw", PARTITIONS) for line in lines]


def _decode_backlog(log: Log, pids: list[int], records: list[NewRecord], share: float) -> tuple[float, float]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for begin in range(0, len(records), 1000):
        log.append(records[begin : begin + 1000])
    end, before, began = log.ends("raw"), sum(map(processor_seconds, pids)), time.perf_counter()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    with _holding(pids, share):
        eventually(lambda: log.stored(GROUP, "raw") == end, "all is decoded", timeout=600, every=0.1)
    seconds, spent = time.perf_counter() - began, sum(map(processor_seconds, pids)) - before
    return len(records) / seconds, 1000 * spent / len(records)
