# SPDX-License-Identifier: GPL-2.0-or-later
"""The log in memory, for tests that need thousands of crashes: the contract of `hgext.vcsreplicator.log`, one process, no waiting.

Beyond the contract, for tests: `fail_commits` makes the next transactions raise Unavailable, before or after they took effect;
`copied` and `restore` put a topic back to what it was; `lose` takes its newest records, and `expire` its oldest ones; partitions
in `leaderless` do not answer, and in topics of `undecided` a transaction of an unknown process is open; `before` has callbacks
that run before its calls.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from hgext.vcsreplicator.log import Log, NewRecord, Positions, Record, Topic, TopicComparison, partition_of
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Fenced, Rewound, Unavailable

TopicPartition = tuple[str, int]
MemoryCopy = tuple[
    dict[TopicPartition, dict[int, Record]], dict[TopicPartition, int], dict[tuple[str, int, str | None], int]
]


class MemoryLog(Log):
    """One lock around everything; records of a compacted topic disappear when a newer one of their key is appended."""

    def __init__(self, clock: Clock | None = None) -> None:
        # For each of the next transactions that shall fail: whether it takes effect all the same.
        self.fail_commits: list[bool] = []
        # Partitions without a leader: they take no record, a question to them fails, and readers read nothing of them.
        self.leaderless: set[TopicPartition] = set()
        self.undecided: set[str] = set()
        # Callbacks before the calls of these names; they get the calls' positional arguments.
        self.before: dict[str, Callable[..., object]] = {}
        # The partitions that every member has, if not all.
        self.shared: frozenset[int] | None = None
        self.clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._topics: dict[str, Topic] = {}
        self._records: dict[TopicPartition, dict[int, Record]] = {}
        self._newest: dict[tuple[str, int, str | None], int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._beginnings: dict[TopicPartition, int] = {}
        self._stored: dict[tuple[str, str], dict[int, int]] = {}
        self._metadata: dict[tuple[str, str], dict[int, str]] = {}
        self._epochs: dict[str, int] = {}

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        with self._changed:
            missing = [topic for topic in wanted if topic.name not in self._topics]
            for topic in wanted:
                if not topic.is_made_with(self._topics.setdefault(topic.name, topic).partitions):
                    raise BadConfig(f"topic {topic.name}: has other partitions")
            for topic in missing:
                for partition in range(topic.partitions):
                    self._records[topic.name, partition] = {}
                    self._ends[topic.name, partition] = 0
            return [topic.name for topic in missing]

    def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
        return [TopicComparison(name=topic.name, found=self._topics.get(topic.name)) for topic in wanted]

    def partitions(self, topic: str) -> int:
        if topic not in self._topics:
            raise BadConfig(f"topic {topic}: does not exist")
        return self._topics[topic].partitions

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        self._begin("append", messages)
        with self._changed:
            places = [self.put(message) for message in messages]
            self._changed.notify_all()
            return places

    def reader(self, positions: Mapping[TopicPartition, int]) -> "MemoryReader":
        self._begin("reader", positions)
        return MemoryReader(self, positions)

    def transactor(self, identity: str, *, group: str | None = None) -> "MemoryTransactor":
        self._begin("transactor", identity)
        with self._changed:
            self._epochs[identity] = self._epochs.get(identity, 0) + 1
            return MemoryTransactor(self, identity, self._epochs[identity])

    def wait_for_transactions(self, topic: str) -> None:
        if topic in self.undecided:
            raise Unavailable(f"topic {topic}: a transaction of another process is open")

    def member(self, group: str, topic: str) -> "MemoryMember":
        return MemoryMember(self, topic)

    def acknowledge(
        self, group: str, topic: str, positions: Positions, *, metadata: Mapping[int, str] | None = None
    ) -> None:
        with self._changed:
            self._stored.setdefault((group, topic), {}).update(positions)
            self._metadata.setdefault((group, topic), {}).update(dict.fromkeys(positions, "") | dict(metadata or {}))

    def metadata(self, group: str, topic: str) -> dict[int, str]:
        with self._changed:
            return {partition: text for partition, text in self._metadata.get((group, topic), {}).items() if text}

    def stored(self, group: str, topic: str) -> dict[int, int]:
        with self._changed:
            return dict(self._stored.get((group, topic), {}))

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        with self._changed:
            return {group: dict(positions) for (group, name), positions in self._stored.items() if name == topic}

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self._begin("beginnings", topic, partitions)
        with self._changed:
            return {
                number: self._beginnings.get((topic, number), 0) for number in self._find_leaders(topic, partitions)
            }

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self._begin("ends", topic, partitions)
        with self._changed:
            return {partition: self._ends[topic, partition] for partition in self._find_leaders(topic, partitions)}

    def close(self) -> None:
        pass

    def records(self, topic: str) -> list[Record]:
        """Everything a topic holds, for tests."""
        with self._changed:
            places = [place for place in self._records if place[0] == topic]
            return [record for place in places for record in self._records[place].values()]

    def copied(self, topic: str) -> MemoryCopy:
        """What the topic holds now."""
        with self._changed:
            places = [(topic, partition) for partition in range(self.partitions(topic))]
            newest = {key: at for key, at in self._newest.items() if key[0] == topic}
            return {place: dict(self._records[place]) for place in places}, {p: self._ends[p] for p in places}, newest

    def restore(self, topic: str, copy: MemoryCopy) -> None:
        """The topic is as it was when this was copied; what was stored elsewhere stays."""
        records, ends, newest = copy
        with self._changed:
            for place, found in records.items():
                self._records[place] = dict(found)
            self._ends.update(ends)
            self._newest = {key: at for key, at in self._newest.items() if key[0] != topic} | newest
            self._changed.notify_all()

    def forget(self, group: str, topic: str) -> None:
        """The stored positions of a group are gone."""
        with self._changed:
            self._stored.pop((group, topic), None)
            self._metadata.pop((group, topic), None)

    def lose(self, topic: str, partition: int, count: int) -> None:
        """The newest records of a partition of a topic that is not compacted are gone."""
        place = (topic, partition)
        with self._changed:
            self._ends[place] = max(0, self._ends[place] - count)
            self._records[place] = {at: found for at, found in self._records[place].items() if at < self._ends[place]}
            self._changed.notify_all()

    def expire(self, topic: str, partition: int) -> None:
        """Retention removes all records that a partition has now."""
        place = (topic, partition)
        with self._changed:
            self._beginnings[place], self._records[place] = self._ends[place], {}
            self._changed.notify_all()

    def commit(
        self,
        identity: str,
        epoch: int,
        messages: Sequence[NewRecord],
        group: str | None,
        positions: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str],
    ) -> list[tuple[int, int]]:
        self._begin("commit", messages)
        with self._changed:
            self.check(identity, epoch)
            fails = bool(self.fail_commits)
            if fails and not self.fail_commits.pop(0):
                raise Unavailable("not committed")
            written = [self.put(message) for message in messages]
            for (topic, partition), position in positions.items():
                self._stored.setdefault((group or "", topic), {})[partition] = position
                self._metadata.setdefault((group or "", topic), {})[partition] = metadata.get((topic, partition), "")
            self._changed.notify_all()
            if fails:
                raise Unavailable("committed, without an answer")
            return written

    def check_newest(self, messages: Sequence[NewRecord], newest: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            for place, offset in newest.items():
                if any(message.topic == place[0] for message in messages) and self._ends[place] <= offset:
                    raise Unavailable(f"{place}: lost its records from {self._ends[place]} on")

    def check(self, identity: str, epoch: int) -> None:
        if self._epochs[identity] != epoch:
            raise Fenced(f"{identity}: a newer instance took over")

    def collect(
        self, positions: dict[TopicPartition, int], active: Sequence[TopicPartition], limit: int
    ) -> list[Record]:
        found: list[Record] = []
        with self._changed:
            for place in self._find_led(active):
                position, end = positions[place], self._ends[place]
                if not self._beginnings.get(place, 0) <= position <= end:
                    raise (Rewound if position > end else Expired)(f"{place}: position {position} is gone")
                for offset in range(position, end):
                    if len(found) >= limit:
                        return found
                    positions[place] = offset + 1
                    if record := self._records[place].get(offset):
                        found.append(record)
        return found

    def wait(self, reader: "MemoryReader", timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reader.woken or reader.anything(self._ends), timeout)

    def wake(self, reader: "MemoryReader") -> None:
        with self._changed:
            reader.woken = True
            self._changed.notify_all()

    def _find_leaders(self, topic: str, partitions: Collection[int] | None) -> Collection[int]:
        """The partitions that are asked for; raises Unavailable if one of them has no leader."""
        numbers = range(self.partitions(topic)) if partitions is None else partitions
        if not self.leaderless.isdisjoint((topic, number) for number in numbers):
            raise Unavailable(f"topic {topic}: a partition has no leader")
        return numbers

    def _find_led(self, places: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        return [place for place in places if place not in self.leaderless] if self.leaderless else places

    def _begin(self, call: str, *arguments: object) -> None:
        if call in self.before:
            self.before[call](*arguments)

    def put(self, message: NewRecord) -> tuple[int, int]:
        count = self.partitions(message.topic)
        partition = message.partition if message.partition is not None else partition_of(message.key or "", count)
        place = (message.topic, partition)
        self._find_leaders(message.topic, [partition])
        offset = self._ends[place]
        self._ends[place] = offset + 1
        self._records[place][offset] = Record(
            topic=message.topic,
            partition=partition,
            offset=offset,
            key=message.key,
            value=message.value,
            headers=message.headers,
            time=self.clock.now(),
        )
        if self._topics[message.topic].compacted:
            older = self._newest.get((*place, message.key))
            if older is not None:
                self._records[place].pop(older, None)
            self._newest[(*place, message.key)] = offset
        return partition, offset


class MemoryTransactor:
    """Fenced by its epoch; after a commit that failed it must be renewed, as on Kafka."""

    def __init__(self, log: MemoryLog, identity: str, epoch: int) -> None:
        self._log, self._identity, self.epoch = log, identity, epoch
        self._has_failed = False

    def commit(
        self,
        messages: Sequence[NewRecord],
        *,
        group: str | None = None,
        positions: Mapping[TopicPartition, int] | None = None,
        metadata: Mapping[TopicPartition, str] | None = None,
        newest: Mapping[TopicPartition, int] | None = None,
    ) -> list[tuple[int, int]]:
        if self._has_failed:
            self._log.check(self._identity, self.epoch)
            raise Unavailable(f"{self._identity}: its last transaction is unclear; renew it")
        self._has_failed = True
        self._log.check_newest(messages, newest or {})
        written = self._log.commit(self._identity, self.epoch, messages, group, positions or {}, metadata or {})
        self._has_failed = False
        return written

    def expect(self, topics: Sequence[str]) -> None:
        pass

    def renew(self) -> None:
        self._log._begin("renew")
        self._log.check(self._identity, self.epoch)
        self._has_failed = False

    def close(self) -> None:
        pass


class MemoryMember:
    """Has all partitions, or those that a test chose for the log."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        self._log, self._topic = log, topic

    def share(self) -> frozenset[int]:
        return frozenset(range(self._log.partitions(self._topic))) if self._log.shared is None else self._log.shared

    def close(self) -> None:
        pass


class MemoryReader:
    """Reads what is there; waits only if there is nothing."""

    def __init__(self, log: MemoryLog, positions: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._positions = dict(positions)
        self._paused: set[TopicPartition] = set()
        self.woken = False

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        if timeout > 0:
            self._log.wait(self, timeout)
        self.woken = False
        return self._log.collect(self._positions, self._active(), limit)

    def anything(self, ends: Mapping[TopicPartition, int]) -> bool:
        return any(self._positions[place] != ends[place] for place in self._log._find_led(self._active()))

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def wake(self) -> None:
        self._log.wake(self)

    def close(self) -> None:
        pass

    def _active(self) -> list[TopicPartition]:
        return [place for place in self._positions if place not in self._paused]
