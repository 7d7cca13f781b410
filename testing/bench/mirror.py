# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror: a backlog, pushes spread over many repositories, and a small push behind a large one.

The log is the embedded one and the events are written before the clock starts, so the figures are the mirror's alone. Latency goes
from the append of an event to the mirror's ack in the log.
"""

import random
import struct
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path

from hgext.vcsreplicator.log import STATE, NewRecord
from hgext.vcsreplicator.log.blobs import open_blobs
from hgext.vcsreplicator.mirror.checkpoint import MAGIC, Checkpoint
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.shape import to_json
from testing.bench.measure import Row
from testing.builders.aggregator.states import state_of
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import Bench

BACKLOG = 2000
ROUNDS = 40
REPOSITORIES = 10_000
LARGE = 64 * 1024 * 1024
WANTED_MANY, WANTED_ONE = 150, 100
# Repositories that are pushed to in turn, more than a worker keeps open, and how many pushes a second are wanted.
SPREAD = 300
WANTED_SPREAD, WANTED_SPREAD_OF_TWO = 83, 120


def rows() -> list[Row]:
    spread = [_spread(1, WANTED_SPREAD), _spread(2, WANTED_SPREAD_OF_TWO)]
    return [_drain(100, WANTED_MANY), _drain(1, WANTED_ONE), *spread, *_latency(), *_behind_a_large_push(), _start()]


def _drain(repositories: int, wanted: int) -> Row:
    """Events a second while everything waits in the log."""
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), partitions=16) as bench:
        authors = [bench.author(f"project/{number}") for number in range(repositories)]
        for _ in range(BACKLOG // repositories):
            for author in authors:
                author.push()
        bench.send(*authors)
        with bench.mirror():
            started = time.monotonic()
            bench.wait_applied(*authors)
            seconds = time.monotonic() - started
    what = "repository" if repositories == 1 else "repositories"
    return Row(
        name=f"drain {BACKLOG} small pushes to {repositories} {what}",
        unit="1/s",
        samples=[BACKLOG / seconds],
        note=f"wanted: at least {wanted}",
    )


def _spread(workers: int, wanted: int) -> Row:
    """Events a second while each is of another repository than those before it."""
    samples = []
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), partitions=16) as bench:
        authors = [bench.author(f"project/{number}") for number in range(SPREAD)]
        bench.send(*authors)
        with bench.mirror(workers=workers):
            bench.wait_applied(*authors)
        with bench.mirror(workers=workers):  # it made none of them
            for _ in range(5):
                for author in authors:
                    author.push()
                started = time.monotonic()
                bench.send(*authors)
                bench.wait_applied(*authors)
                samples.append(SPREAD / (time.monotonic() - started))
    what = "1 worker" if workers == 1 else f"{workers} workers"
    return Row(
        name=f"pushes spread over {SPREAD} repositories, {what}",
        unit="1/s",
        samples=samples,
        note=f"wanted: at least {wanted}",
    )


def _push_and_wait(bench: Bench, author: Author) -> float:
    """Milliseconds from the append to the ack."""
    author.push()
    started = time.monotonic()
    bench.send(author)
    bench.wait_applied(author)
    return 1000 * (time.monotonic() - started)


def _latency() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), partitions=16) as bench:
        authors = [bench.author(f"project/{number}") for number in range(10)]
        bench.send(*authors)
        with bench.mirror():
            bench.wait_applied(*authors)
            applied = [_push_and_wait(bench, authors[number % 10]) for number in range(ROUNDS)]
            served = []
            for number in range(ROUNDS):
                author = authors[number % 10]
                started = time.monotonic()
                bench.release(author)
                bench.wait_served(author)
                served.append(1000 * (time.monotonic() - started))
                author.push()
                bench.send(author)
                bench.wait_applied(author)
    return [
        Row(name="event appended → applied and acknowledged", unit="ms", samples=applied),
        Row(name="release appended → served and acknowledged", unit="ms", samples=served),
    ]


def _behind_a_large_push() -> list[Row]:
    """A small push right after a large one to another repository of the same partition."""
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), partitions=1) as bench:
        blobs = f"file://{folder}/blobs"
        large, small = bench.author("large", blobs=open_blobs(blobs)), bench.author("small")
        bench.send(large, small)
        large.push(files={"large": random.Random(0).randbytes(LARGE)})
        with bench.mirror(blobs=blobs):
            bench.wait_applied(small)
            alone = [_push_and_wait(bench, small) for _ in range(ROUNDS)]
            bench.send(large)
            behind = []
            started = time.monotonic()
            while (ack := bench.ack(large)) is None or ack.digest != large.digest:
                behind.append(_push_and_wait(bench, small))
            seconds = time.monotonic() - started
    baseline = sorted(alone)[len(alone) // 2]
    return [
        Row(name="small push, alone in its partition", unit="ms", samples=alone),
        Row(
            name="small push, while one of 64 MiB is applied",
            unit="ms",
            samples=behind,
            baseline=baseline,
            note="wanted: at most 2",
        ),
        Row(name="push of 64 MiB, random bytes", unit="s", samples=[seconds]),
    ]


def _start() -> Row:
    """Until a mirror of 10,000 repositories is ready."""
    with tempfile.TemporaryDirectory() as folder, Bench(Path(folder), partitions=16) as bench:
        author = bench.author("one")
        bench.send(author)
        with bench.mirror():
            bench.wait_applied(author)
        level = bench.found()[author.repository].checkpoint
        assert level is not None
        states = []
        for number in range(REPOSITORIES):
            path = f"group{number % 100}/repository{number}"
            there = replace(level, repository=f"{number:032x}", path=path)
            write_level(bench.root / path, there)
            states.append(NewRecord(topic=STATE, key=there.repository, value=to_json(_released(there))))
        for start in range(0, REPOSITORIES, 1000):
            bench.log.append(states[start : start + 1000])
        with bench.mirror():
            bench.wait(lambda acks: len(acks) > REPOSITORIES, "all acks")
        started = time.monotonic()
        with bench.mirror():
            seconds = time.monotonic() - started
    return Row(name=f"start with {REPOSITORIES} repositories", unit="s", samples=[seconds], note="wanted: below 10")


def _released(level: Checkpoint) -> RepositoryState:
    return state_of(level, released=level.seq, noticed=level.seq)


def write_level(folder: Path, level: Checkpoint) -> None:
    """Write as much of a repository as a mirror's start looks at."""
    store = folder / ".hg" / "store"
    store.mkdir(parents=True)
    payload = to_json(level)
    size = struct.pack(">I", len(payload))
    crc = struct.pack(">I", zlib.crc32(payload, zlib.crc32(size)))
    (store / "replicated.log").write_bytes(b"".join((MAGIC, size, crc, payload, size)))
    (folder / ".hg/replicated-watermark").write_text(f"1 {level.seq} {level.length} {level.tip} -\n")
