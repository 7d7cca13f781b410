# SPDX-License-Identifier: GPL-2.0-or-later
"""Decoder: messages of 1 kB per second on one core, with validation, places, user agents and remembered ids.

The log is the embedded one, and one process decodes; Redis runs beside it. Seconds are those of the decoder's processor time.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import structlog

from hgext.vcsreplicator.log import Log, NewRecord, Positions
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.clock import SystemClock
from notifier.messages.raw import raw_topic, to_line
from notifier.services.decode import streaming
from notifier.services.decode.decoding import Decoded, Tools, decode
from notifier.services.decode.loop import BATCH
from notifier.services.decode.repeats import open_repeats
from notifier.services.decode.settings import DecodeSettings
from notifier.services.decode.sources import GROUP
from testing.bench.measure import Row
from testing.builders.notifier.submissions import a_document, a_raw, uri_of, write_cities, write_geo
from testing.services.redis import Redis

# Messages of one sample, samples of a row, and ids that are remembered before the second row of a store.
MESSAGES, ROUNDS, REMEMBERED = 5_000, 3, 1_000_000

# Ids that are remembered before a sample of the store alone, and ids of that sample: twice as many as SQLite keeps apart at first.
STORED, ASKED = (0, 100_000, 1_000_000, 3_000_000), 100_000

_CHANCE = random.Random(1)


def rows() -> list[Row]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        with tempfile.TemporaryDirectory() as folder:
            return list(_rows(Path(folder)))
    finally:
        structlog.reset_defaults()


def _rows(folder: Path) -> Iterator[Row]:
    write_geo(folder / "geo.mmdb")
    write_cities(folder / "cities.txt")
    settings = DecodeSettings(
        geoip=str(folder / "geo.mmdb"), cities=str(folder / "cities.txt"), repeats=str(folder / "repeats.db")
    )
    yield Row(name="one message, without the log", unit="messages/s", samples=_pure(streaming.open_tools(settings)))
    yield from _stored(DecodeSettings(repeats=str(folder / "stored.db")))
    with Redis() as redis:
        in_redis = DecodeSettings(
            geoip=settings.geoip, cities=settings.cities, repeats="redis", redis=redis.url, input="log:other"
        )
        for name, each in (("SQLite", settings), ("Redis", in_redis)):
            few = Row(name=f"topic to topic, ids in {name}", unit="messages/s", samples=_streaming(folder, each, 0))
            yield few
            _remember(each)
            many = _streaming(folder, each, ROUNDS)
            note = "baseline: few ids"
            yield Row(
                name=f"… {REMEMBERED:,} ids in {name}", unit="messages/s", samples=many, baseline=few.median, note=note
            )


def make_lines(first: int) -> list[bytes]:
    """Raw messages of 1 kB, each with an id of its own; every tenth has another user agent."""
    agents = [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(10)]
    return [
        to_line(a_raw({**a_document(n), "note": "x" * 650}, uri=uri_of(n), user_agent=agents[n % 10]))
        for n in range(first, first + MESSAGES)
    ]


def _pure(tools: Tools) -> Sequence[float]:
    samples, lines = [], make_lines(0)
    for _ in range(ROUNDS):
        began = time.process_time()
        assert all(isinstance(decode(line, tools), Decoded) for line in lines)
        samples.append(MESSAGES / (time.process_time() - began))
    return samples


def _stored(settings: DecodeSettings) -> Iterator[Row]:
    """Look ids up and remember them, as the decoder does, beside so many that are remembered."""
    fewest, before = None, 0
    with closing(open_repeats(settings, SystemClock())) as repeats:
        for number in STORED:
            for some in _ids(number - before):
                repeats.remember(some)
            spent = 0.0
            for some in _ids(ASKED, BATCH):
                began = time.process_time()
                assert not repeats.known(some)
                repeats.remember(some)
                spent += time.process_time() - began
            before = number + ASKED
            sample = 1e6 * spent / ASKED
            yield Row(name=f"one id in SQLite beside {number:,}", unit="µs", samples=[sample], baseline=fewest)
            fewest = fewest or sample


def _ids(count: int, at_once: int = 5000) -> Iterator[list[bytes]]:
    for _ in range(max(0, count) // at_once):
        yield [_CHANCE.randbytes(16) for _ in range(at_once)]


def _remember(settings: DecodeSettings) -> None:
    with closing(open_repeats(settings, SystemClock())) as repeats:
        for some in _ids(REMEMBERED):
            repeats.remember(some)


def _streaming(folder: Path, settings: DecodeSettings, first: int) -> Sequence[float]:
    """Messages per second of the decoder's processor time, from a backlog until all is acknowledged."""
    samples = []
    topic = settings.input.removeprefix("log:")
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        log.create([raw_topic(topic)])
        for number in range(first, first + ROUNDS):
            lines = make_lines(number * MESSAGES)
            for begin in range(0, MESSAGES, 1000):
                some = [
                    NewRecord(topic=topic, key=None, value=line, partition=0) for line in lines[begin : begin + 1000]
                ]
                log.append(some)
            stop, end = threading.Event(), log.ends(topic)
            thread = threading.Thread(target=_stop_at, args=(log, topic, end, stop))
            thread.start()
            spent = time.process_time()
            streaming.run(settings, log, stop=stop, ready=lambda: None)
            samples.append(MESSAGES / (time.process_time() - spent))
            thread.join()
    return samples


def _stop_at(log: Log, topic: str, end: Positions, stop: threading.Event) -> None:
    """Stop the decoder once all is acknowledged."""
    while log.stored(GROUP, topic) != end:
        time.sleep(0.05)
    stop.set()
