# SPDX-License-Identifier: GPL-2.0-or-later
"""What an aggregator needs around it in tests and benchmarks: its process, mirrors that ack at once, and a master that pushes.

The mirrors are played by threads of the test, without repositories: they read `events` and `state` and write `acks`, as many in one
go as there are.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hgext.vcsreplicator.aggregator.alarms import SILENT
from hgext.vcsreplicator.demo.supervisor import leashed
from hgext.vcsreplicator.log import ACKS, EVENTS, PENDING, ROSTER_REQUESTS, STATE, Log, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.records import Ack, Pending, RepositoryState
from hgext.vcsreplicator.words.roster import RosterRequest, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain
from testing.waiting import eventually
from testing.warm import warm_starts

from .states import state_of

T = TypeVar("T")

_numbers = itertools.count()


def ask(log: Log, verb: Verb, mirror: str | None = None, **members: Any) -> None:
    """Writes a request about the roster."""
    request = RosterRequest(
        id=f"test-{next(_numbers)}", verb=verb, mirror=mirror, who="dana", time=1.0, reason="", **members
    )
    log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])


def list_silent(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The mirrors that are silent by these log lines of alarms."""
    found = dict[str, None]()
    for line in lines:
        if line["event"] == SILENT:
            found[line["mirror"]] = None
        elif line["event"] == "alarm over" and line["alarm"] == SILENT:
            del found[line["mirror"]]
    return list(found)


def list_rereadings(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """The partitions of `events` that an aggregator began to read again, by its log lines."""
    return [line["partition"] for line in lines if line["event"] == "events are read again"]


def patiently(action: Callable[[], T]) -> T:
    """Does it again until the log is there: what every service does."""
    while True:
        try:
            return action()
        except Unavailable:
            time.sleep(0.05)


def send(log: Log, events: list[Event]) -> None:
    """Writes events as the relay does: again, until the log has them."""
    messages = [NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event)) for event in events]
    patiently(lambda: log.append(messages))


class Aggregator:
    """`vcsreplicator aggregator` as a process of its own; killed at the end of the block if it still runs.

    `warm` is a fork of a Python that has imported everything; a benchmark of the start wants a cold one.
    """

    def __init__(self, log_url: str, folder: Path, *, warm: bool = True, beat: float = 1.0) -> None:
        self._start = warm_starts if warm else contextlib.nullcontext
        self._number = next(_numbers)
        self._config = folder / f"aggregator-{self._number}.toml"
        self._config.write_text(
            f"log = {json.dumps(log_url)}\n[aggregator]\nbeat = {beat}\ntakeover-after = {2 * beat}\n"
        )
        self._output = folder / f"aggregator-{self._number}.log"

    def __enter__(self) -> Self:
        with self._output.open("wb") as output, self._start():
            self.process = subprocess.Popen(
                leashed(
                    [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "aggregator", "--config", str(self._config)]
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def lines(self) -> list[dict[str, Any]]:
        """Its log lines so far."""
        whole = self._output.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def ready(self, timeout: float = 60.0) -> Self:
        """Waits until it says so."""
        eventually(lambda: self.said("ready"), str(self._output), timeout=timeout)
        return self

    def kill(self) -> None:
        """SIGKILL, and waits."""
        self.process.kill()
        self.process.wait()

    def said(self, word: str) -> bool:
        if self.process.poll() is not None and self.process.returncode > 0:
            raise AssertionError(
                f"the aggregator ended with {self.process.returncode}: {self._output.read_text()[-2000:]}"
            )
        return any(line["event"] == word for line in self.lines())


class SimulatedMirror(threading.Thread):
    """Applies everything at once and serves what is released; `hold` makes it stop doing either."""

    def __init__(self, name: str, log_url: str) -> None:
        super().__init__(name=name, daemon=True)
        self.hold = threading.Event()
        self._log_url = log_url
        self._done = threading.Event()
        self._applied: dict[str, Event] = {}
        self._released: dict[str, int] = {}
        self._told: dict[str, tuple[int, int]] = {}

    def stop(self) -> None:
        """Ends the thread, and waits."""
        self._done.set()
        self.join(60)
        assert not self.is_alive()

    def run(self) -> None:
        with open_log(self._log_url, creates=True) as log:
            starts = {(topic, part): at for topic in (EVENTS, STATE) for part, at in log.beginnings(topic).items()}
            reader = log.reader(starts)
            try:
                while not self._done.is_set():
                    if self.hold.wait(0) and not self._done.wait(0.05):
                        continue
                    records = patiently(lambda: reader.poll(0.1, limit=5000))
                    touched = dict.fromkeys(filter(None, map(self._take, records)))
                    acks = [ack for repository in touched if (ack := self._ack(repository))]
                    messages = [
                        NewRecord(topic=ACKS, key=f"{self.name}/{ack.repository}", value=to_json(ack)) for ack in acks
                    ]
                    patiently(lambda: log.append(messages))  # noqa: B023
            finally:
                reader.close()

    def _take(self, record: Any) -> str | None:
        """The repository that the record is about."""
        if record.topic == EVENTS:
            event = wire.decode(record.value).header.event
            known = event and self._applied.get(event.repository)
            if event and (known is None or event.seq == known.seq + 1):
                self._applied[event.repository] = event
            return event.repository if event else None
        if record.key == "aggregator" or record.value is None:
            return None
        state = from_json(RepositoryState, record.value)
        self._released[state.repository] = state.released
        return state.repository

    def _ack(self, repository: str) -> Ack | None:
        event = self._applied.get(repository)
        level = (event.seq, min(event.seq, self._released.get(repository, 0))) if event else (0, 0)
        if event is None or self._told.get(repository) == level:
            return None
        self._told[repository] = level
        now = time.time()
        return Ack(
            mirror=self.name,
            repository=repository,
            incarnation=event.incarnation,
            applied=level[0],
            serving=level[1],
            event=event.id,
            digest=event.digest,
            applied_at=now,
            served_at=now,
        )


@contextmanager
def mirrors(log_url: str, *names: str) -> Iterator[list[SimulatedMirror]]:
    """Runs mirrors during the block."""
    running = [SimulatedMirror(name, log_url) for name in names]
    for mirror in running:
        mirror.start()
    try:
        yield running
    finally:
        for mirror in running:
            mirror.stop()


def push_everywhere(log: Log, chains: list[Chain], rounds: int) -> int:
    """One push in each repository, `rounds` times; how many events that were."""
    for _ in range(rounds):
        send(log, [chain.next() for chain in chains])
    return rounds * len(chains)


def all_noticed(log: Log, chains: list[Chain]) -> bool:
    """Whether `state` says that the newest event of each repository is announced."""
    reader = log.reader({(STATE, part): at for part, at in log.beginnings(STATE).items()})
    newest: dict[str, int] = {}
    try:
        while any(reader.positions()[STATE, part] < end for part, end in log.ends(STATE).items()):
            for record in reader.poll(0.2, limit=5000):
                if record.value and record.key and record.key != "aggregator":
                    newest[record.key] = from_json(RepositoryState, record.value).noticed
    finally:
        reader.close()
    return all(newest.get(chain.repository, 0) == len(chain.events) for chain in chains)


def fill(log: Log, chains: list[Chain], each: int) -> None:
    """Writes what an aggregator leaves behind that has seen `each` events of every repository and announced none."""
    for first in range(0, len(chains), 50):
        log.append([message for chain in chains[first : first + 50] for message in _left_behind(chain, each)])


def fill_settled(log: Log, chains: list[Chain], mirrors: Sequence[str], each: int = 1) -> None:
    """Write repositories at rest: `each` events of all are announced, and every mirror serves them."""
    for first in range(0, len(chains), 50):
        log.append([message for chain in chains[first : first + 50] for message in _settle(chain, mirrors, each)])


def _settle(chain: Chain, mirrors: Sequence[str], count: int) -> Iterator[NewRecord]:
    newest = chain.take(count)[-1]
    state = state_of(newest, released=count, noticed=count, served_by=len(mirrors))
    yield NewRecord(topic=STATE, key=chain.repository, value=to_json(state))
    for name in mirrors:
        yield NewRecord(topic=ACKS, key=f"{name}/{chain.repository}", value=to_json(chain.ack(name, count)))


def _left_behind(chain: Chain, count: int) -> Iterator[NewRecord]:
    for event in chain.take(count):
        waiting = Pending(event=event, partition=0, offset=0, arrived=1.0)
        yield NewRecord(topic=PENDING, key=f"{chain.repository}/{event.seq}", value=to_json(waiting))
    newest = chain.events[-1]
    state = state_of(newest, roster=0)
    yield NewRecord(topic=STATE, key=chain.repository, value=to_json(state))
