# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator: notices per second, one alone, and a restart with 10,000 repositories and 100,000 notices that wait.

The aggregator is a process of its own; two mirrors that do nothing but ack run in another one. "Alone" is from the appending of an
event until its notice can be read, with the mirrors' answers in between. "Released" and "announced" are the aggregator's part of
that: from the last mirror's ack until it can be read what it led to.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event as Signal
from pathlib import Path

from hgext.vcsreplicator.log import ACKS, NOTICES, STATE, Log, NewRecord, Reader, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import to_json
from testing.bench.measure import Row
from testing.builders.aggregator.aggregating import Aggregator, ask, fill, mirrors, send
from testing.builders.aggregator.chains import Chain
from testing.services.existing import shared
from testing.services.kafka import Kafka

REPOSITORIES = 200
NOTICES_AT_ONCE = 10_000
ALONE = 100
LARGE = (10_000, 10)
PATIENCE = 60.0


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        measured = _measure("embedded log", f"sqlite://{folder}/log.db", Path(folder))
        measured.append(_restart("embedded log", f"sqlite://{folder}/large.db", Path(folder)))
        with shared(Kafka) as kafka:
            url = f"{kafka.url}?topic-prefix=bench-{time.time_ns()}."
            measured += _measure("Kafka", url, Path(folder))
            measured.append(_restart("Kafka", f"{kafka.url}?topic-prefix=large-{time.time_ns()}.", Path(folder)))
    return measured


def _measure(name: str, url: str, folder: Path) -> list[Row]:
    with open_log(url, creates=True) as log:
        log.create(topics())
        ask(log, Verb.ADD, "alpha")
        ask(log, Verb.ADD, "beta")
        chains = [Chain(f"group/{number}") for number in range(REPOSITORIES)]
        with _mirrors(url), Aggregator(url, folder, warm=False) as aggregator:
            aggregator.ready()
            alone = [_alone(log, chain) for chain in chains[:ALONE]]
            many = [_many(log, chains)]
        with Aggregator(url, folder, warm=False) as aggregator:
            aggregator.ready()
            decided = [_decided(log, number) for number in range(ALONE)]
    return [
        Row(name=f"{name}: one alone, event to notice", unit="ms", samples=[1000 * seconds for seconds in alone]),
        Row(name=f"{name}: ack to release", unit="ms", samples=[1000 * seconds for seconds, _ in decided]),
        Row(name=f"{name}: ack to notice", unit="ms", samples=[1000 * seconds for _, seconds in decided]),
        Row(
            name=f"{name}: notices", unit="1/s", samples=many, note=f"{NOTICES_AT_ONCE} in {REPOSITORIES} repositories"
        ),
    ]


def _alone(log: Log, chain: Chain) -> float:
    reader = log.reader({(NOTICES, 0): log.ends(NOTICES)[0]})
    reader.poll(0.2)  # connects
    began = time.perf_counter()
    try:
        send(log, [chain.next()])
        _wait(reader, NOTICES, chain)
        return time.perf_counter() - began
    finally:
        reader.close()


def _decided(log: Log, number: int) -> tuple[float, float]:
    """Seconds from an ack to the release, and from the next to the notice."""
    chain = Chain(f"alone/{number}")
    reader = log.reader({(NOTICES, 0): log.ends(NOTICES)[0], (STATE, 0): log.ends(STATE)[0]})

    def seconds(applied: int, serving: int, topic: str) -> float:
        acks = [chain.ack(mirror, applied, serving, time=time.time()) for mirror in ("alpha", "beta")]
        messages = [NewRecord(topic=ACKS, key=f"{ack.mirror}/{ack.repository}", value=to_json(ack)) for ack in acks]
        began = time.perf_counter()
        log.append(messages)
        _wait(reader, topic, chain)
        return time.perf_counter() - began

    try:
        send(log, [chain.next()])
        _wait(reader, STATE, chain)
        return seconds(1, 0, STATE), seconds(1, 1, NOTICES)
    finally:
        reader.close()


def _wait(reader: Reader, topic: str, chain: Chain) -> None:
    """Until a record about this repository can be read."""
    end = time.monotonic() + PATIENCE
    while not any(record.topic == topic and record.key == chain.repository for record in reader.poll(1.0)):
        assert time.monotonic() < end, f"nothing about {chain.path} in {topic}"


def _many(log: Log, chains: list[Chain]) -> float:
    """Notices per second from the first event to the last notice, everything sent as fast as the log takes it."""
    reader = log.reader({(NOTICES, 0): log.ends(NOTICES)[0]})
    rounds = [[chain.next() for chain in chains] for _ in range(NOTICES_AT_ONCE // len(chains))]
    seen, began = 0, time.perf_counter()
    end = time.monotonic() + 5 * PATIENCE
    try:
        for events in rounds:
            send(log, events)
        while seen < NOTICES_AT_ONCE:
            seen += len(reader.poll(1.0, limit=5000))
            assert time.monotonic() < end, f"{seen} of {NOTICES_AT_ONCE} notices"
        return NOTICES_AT_ONCE / (time.perf_counter() - began)
    finally:
        reader.close()


def _restart(name: str, url: str, folder: Path) -> Row:
    """Seconds until the aggregator is ready, the start of Python included."""
    repositories, each = LARGE
    chains = [Chain(f"group/{number}") for number in range(repositories)]
    samples = []
    with open_log(url, creates=True) as log:
        log.create(topics())
        fill(log, chains, each)
        for _ in range(3):
            began = time.perf_counter()
            with Aggregator(url, folder, warm=False) as aggregator:
                aggregator.ready()
                samples.append(time.perf_counter() - began)
    return Row(
        name=f"{name}: restart",
        unit="s",
        samples=samples,
        note=f"{repositories} repositories, {repositories * each} wait",
    )


@contextmanager
def _mirrors(url: str) -> Iterator[None]:
    """Two mirrors in a process of their own."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_run_mirrors, args=(url, stop), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(30)


def _run_mirrors(url: str, stop: Signal) -> None:
    with mirrors(url, "alpha", "beta"):
        stop.wait()
