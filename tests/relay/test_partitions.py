# SPDX-License-Identifier: GPL-2.0-or-later
"""One broker of three is away, and with it the only copy of some partitions: repositories of the others are sent."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.log import EVENTS, Log, NewRecord, partition_of, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import daemon
from hgext.vcsreplicator.relay.jobs import Job
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.words.clock import SystemClock
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 6
# Repositories in each partition of which the only copy is away.
MANY = 50


class Relay:
    """A relay over some repositories for each partition, and pushes to them.

    `counts` are the numbers of repositories, `boxes` the outboxes of each partition by folder.
    """

    def __init__(self, folder: Path, log: Log, counts: Mapping[int, int]) -> None:
        self.root = folder / "repositories"
        self.boxes: dict[int, dict[str, Outbox]] = {partition: {} for partition in counts}
        while any(len(self.boxes[partition]) < count for partition, count in counts.items()):
            entries = following(before_first_event("x", 1), 1)
            partition = partition_of(entries[0].event.repository, COUNT)
            boxes = self.boxes[partition]
            if len(boxes) < counts[partition]:
                repository = self.root / f"{partition}-{len(boxes)}"
                store = repository / ".hg" / "store"
                store.mkdir(parents=True)
                (store.parent / "requires").write_text("store\n")
                boxes[str(repository)] = box = Outbox(Folder(str(store)))
                box.append(Transaction(), entries)
        settings = RelaySettings(
            socket=str(folder / "socket"), source="hg://master", roots={str(self.root): ""}, scan=3600.0
        )
        self._stop = threading.Event()
        self._relay = daemon.Relay(settings, log, PlainPort(), self._stop, SystemClock())
        self._relay.start()

    def push(self, partition: int) -> None:
        """Push to each repository of a partition."""
        for folder, box in self.boxes[partition].items():
            box.append(Transaction(), following(box.newest(), 1))  # type: ignore[arg-type]
            self._relay._work.add(folder, Job.SEND, now=True)

    def close(self) -> None:
        self._stop.set()
        self._relay.close()

    def wait(self, *partitions: int) -> float:
        """Waits until all events of these are sent; the seconds."""
        start = time.monotonic()
        eventually(lambda: not any(box.has_unsent() for box in self._list_boxes(partitions)), timeout=120)
        return time.monotonic() - start

    def are_unsent(self, *partitions: int) -> bool:
        """Return whether all repositories of these have events that are not sent."""
        return all(box.has_unsent() for box in self._list_boxes(partitions))

    def _list_boxes(self, partitions: Iterable[int]) -> list[Outbox]:
        return [box for partition in partitions for box in self.boxes[partition].values()]


class Waiting:
    """The threads that wait for the log to answer about partitions; `most` is how many did at once, by partition."""

    def __init__(self, log: Log) -> None:
        self.most = Counter[int]()
        self._now, self._lock = Counter[int](), threading.Lock()
        ends, append = log.ends, log.append

        def ask(topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
            with self._counting(partitions or () if topic == EVENTS else ()):
                return ends(topic, partitions)

        def send(messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
            keys = {each.key for each in messages if each.topic == EVENTS and each.key is not None}
            with self._counting({partition_of(key, COUNT) for key in keys}):
                return append(messages, timeout=timeout)

        log.ends, log.append = ask, send  # type: ignore[method-assign]

    @contextmanager
    def _counting(self, partitions: Collection[int]) -> Iterator[None]:
        named = list(partitions)  # not a mapping, of which `Counter` would add the values
        with self._lock:
            self._now.update(named)
            self.most |= self._now
        try:
            yield
        finally:
            with self._lock:
                self._now.subtract(named)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_other_partitions_are_sent_while_one_broker_of_three_is_away(
    tmp_path: Path, told: Callable[[object], None], fault: str
) -> None:
    with KafkaCluster() as cluster:
        url = cluster.url.replace("replication-factor=3&min-insync-replicas=2", "replication-factor=1")
        with open_log(url, creates=True) as log, ExitStack() as opened:
            eventually(lambda: log.create(topics(partitions=COUNT)) or True, timeout=60)
            leaders = {partition: cluster.leader(EVENTS, partition) for partition in range(COUNT)}
            away = leaders[0]
            relay = Relay(
                tmp_path, log, {partition: MANY if leader == away else 1 for partition, leader in leaders.items()}
            )
            opened.callback(relay.close)
            relay.wait(*leaders)
            others = [partition for partition, leader in leaders.items() if leader != away]
            (cluster.brokers[away].kill if fault == "kill" else cluster.brokers[away].pause)()
            took, waiting = [], Waiting(log)
            with capture_logs() as lines:
                for _ in range(5):
                    for partition in leaders:
                        relay.push(partition)
                    took.append(relay.wait(*others))
                    time.sleep(1.5)
                told(f"{fault}: sent after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
                assert relay.are_unsent(*leaders.keys() - set(others))
                held = {partition: waiting.most[partition] for partition in leaders.keys() - set(others)}
                (cluster.brokers[away].start if fault == "kill" else cluster.brokers[away].resume)()
                relay.wait(*leaders)
            told(f"{fault}: threads that waited for a partition: {held}")
            assert set(held.values()) == {1}, "one asks a partition that is away; all other workers are free"
            written = Counter((line["event"], line.get("partition")) for line in lines if line["log_level"] != "debug")
            told(f"{fault}: {sum(written.values())} lines of {len(lines)}: {dict(written)}")
            assert sum(written.values()) < MANY, "fewer lines than repositories of one partition that wait"
