# SPDX-License-Identifier: GPL-2.0-or-later
"""The log: the port between all services, with two adapters.

The adapters `log.sqlite` and `log.kafka` pass one contract suite.

**Offset**: the number of a record in its partition; grows, may have holes, never reused. **Position**: the *next* record to read.
**End**: the position after the last record a reader can see (committed records only). **Acknowledge**: store a position for a
group, after the work on everything before it is durable.

Guarantees of every adapter:

- `append` returns only once all messages are durable. If it raises Unavailable the outcome is unknown: the caller appends the same
  messages again, so a record may occur twice, but *first appearances are in order* within a partition.
- `Transactor.commit` appends all messages and stores all positions, or none; readers never see part of it. Only messages to topics
  of `OPEN` may be there before the others, and twice. When it raises Unavailable the outcome is unknown: `renew` the transactor,
  read the stored positions, and go on from there.
- A new transactor fences every older one of the same identity: those raise Fenced from then on and can write nothing. Once it is
  open, or was renewed, readers and `ends` see all that it and the older ones committed, unless other identities write to the topic
  too: see `wait_for_transactions`.
- A reader sees committed records only, of each partition in offset order, each once. It never skips: a position before the
  beginning raises Expired, one beyond the end, of a log that lost records, Rewound.
- A log that lost records under a running reader (restored from a copy, a topic re-created) makes `poll` raise Rewound, a kind of
  Expired. It does so within seconds, even if nothing new comes or the end has passed the reader's position again, and from then on
  always: the reader's owner opens another. One case stays unnoticed: a *compacted* topic was restored and grew past the position
  before the reader looked again, and the last record that the reader read is gone.
- In a compacted topic the newest value of a key is kept; a value of None (tombstone) removes the key. Every record needs a key.
- Readers and `ends` see a commit soon after it (milliseconds, on Kafka), `stored` and `groups` at once.
- A topic or partition that is not there raises BadConfig; a message no adapter can take raises Rejected, and nothing is written.
"""

import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from ..words.clock import DAY
from ..words.errors import SHOWN, Rejected, Unavailable

# A topic, and the number of one of its partitions.
PartitionKey = tuple[str, int]

# Partition → offset.
Positions = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of the log.

    `partitions` is fixed for life, `retention` in seconds (None: kept indefinitely), compacted by key if set. With `is_divisible`
    an administrator may choose another number of partitions, or add some.
    """

    name: str
    partitions: int = 1
    compacted: bool = False
    retention: float | None = None
    is_divisible: bool = False

    def is_made_with(self, partitions: int) -> bool:
        """Return whether a topic with so many partitions can be used as this one."""
        return self.is_divisible or partitions == self.partitions


EVENTS, ACKS, PENDING, STATE, SERVICES, ROSTER, ROSTER_REQUESTS, NOTICES, NOTIFIER, WATCHES, ERRORS = TOPIC_NAMES = (
    "events",
    "acks",
    "pending",
    "state",
    "services",
    "roster",
    "roster-requests",
    "notices",
    "notifier",
    "watches",
    "errors",
)

# The topics that mirrors may write: on Kafka no record of ours there bears a producer's number, which another writer could forge.
OPEN = frozenset({ACKS, ERRORS})

# Seconds after which a position that did not move is stored again: Kafka forgets a position that is not stored for a week.
RENEW_EVERY = 3600.0

# The topics of which only partition 0 is used, however many an administrator has added.
SINGLE = frozenset(TOPIC_NAMES) - {EVENTS}
# What to do about the others.
UNUSED = "only partition 0 is used, so the others do no harm; Kafka cannot remove them"


def topics(*, partitions: int = 16, retention: float = 30 * DAY) -> tuple[Topic, ...]:
    """Return all topics of an installation; only `events` is partitioned."""
    compacted = {ACKS, PENDING, STATE, SERVICES, ROSTER, NOTIFIER, WATCHES}
    return tuple(
        Topic(
            name=name,
            partitions=partitions if name == EVENTS else 1,
            compacted=name in compacted,
            retention=None if name in compacted else retention,
        )
        for name in TOPIC_NAMES
    )


# Days for which a topic that is not kept by key keeps records, at least: less is a mistake, or was meant to empty it once.
SHORTEST = 0.01

# The settings, of Kafka and of the embedded log, that decide whether records are kept by key.
POLICIES = frozenset({"cleanup.policy", "compacted"})
# Other settings that can lose or delay records, and how.
RISKS = {
    "message.timestamp.type": "the clock of a client decides when records are removed and which service seems silent",
    "max.message.bytes": "a repository that needs a larger record waits, and large pushes lose their bundle",
    "unclean.leader.election.enable": "a broker that lacks records may become the leader, and these records are lost",
    "min.insync.replicas": "records that too few brokers have count as durable, and may be lost with those brokers",
    "replicas": "the loss of fewer brokers than intended may lose records",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDifference:
    """A setting of a topic that is not as needed.

    `is_must` says that records or promises are at risk, not only space or time.
    """

    setting: str
    found: str
    needed: str
    is_must: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicComparison:
    """A topic, and its differences from the needed one.

    `found` is None for a missing topic, `replicas` where a log has none. `remedies` are commands for a shell, or comments where no
    command helps. `is_shown` is False if this user may not see the topic, or its settings: then only what is seen was
    compared.
    """

    name: str
    found: Topic | None = None
    replicas: int | None = None
    differences: tuple[TopicDifference, ...] = ()
    remedies: tuple[str, ...] = ()
    is_shown: bool = True

    def describe_loss(self) -> str | None:
        """Say why records expire that are needed, and what fixes it; None if none do."""
        wrong = [each for each in self.differences if each.setting in POLICIES]
        kept = self.found.retention if self.found else None
        if not wrong and (kept is None or kept >= SHORTEST * DAY):
            return None
        problem = ", ".join(f"{each.setting} is {each.found}, must be {each.needed}" for each in wrong)
        problem, setting = problem or f"keeps records for {kept:g} s", wrong[0].setting if wrong else "retention"
        named = (remedy for remedy in self.remedies if setting in remedy)
        remedy = next(named, "see: vcsreplicator topics check")
        return f"topic {self.name}: {problem}, so the log removes records that are needed; fix it: {remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append.

    Without `partition` the key decides (see `partition_of`); a value of None is a tombstone.
    """

    topic: str
    key: str | None
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None


# Bytes of key, headers and value together that a message may have in any adapter.
LARGEST = 8 * 1024 * 1024 - 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRecord:
    """A message that its topic refuses.

    It has `size` bytes; the topic takes at most `limit`, if that is known.
    """

    topic: str
    key: str | None
    size: int
    limit: int | None

    def __str__(self) -> str:
        limit = "less" if self.limit is None else f"at most {self.limit}"
        name = None if self.key is None else self.key[:SHOWN]
        return f"topic {self.topic}, key {name}: message of {self.size} bytes, expected {limit}"


class TooLarge(Rejected):
    """Nothing of these records is written, because a topic does not take that much.

    It may take them later, once an operator has corrected its settings. `records` names at least one record that it refuses.
    """

    def __init__(self, records: tuple[LargeRecord, ...], advice: str = "") -> None:
        super().__init__(f"{'; '.join(map(str, records[:3]))}{advice}")
        self.records = records


def check_message(message: NewRecord) -> None:
    """Raise Rejected if no adapter can ever take this message, TooLarge for its size."""
    if message.key is None and message.value is None:
        raise Rejected(f"topic {message.topic}: expected a key or a value")
    size = measure_message(message)
    if size > LARGEST:
        raise TooLarge((LargeRecord(topic=message.topic, key=message.key, size=size, limit=LARGEST),))


def measure_message(message: NewRecord) -> int:
    """Return the bytes of key, headers and value together."""
    size = len(message.value or b"") + len((message.key or "").encode("utf-8", "surrogateescape"))
    return size + sum(
        len(name) + len(text.encode("utf-8", "surrogateescape")) for name, text in message.headers.items()
    )


def check_places(
    messages: Sequence[NewRecord], places: Sequence[tuple[int, int]], newest: Mapping[PartitionKey, int]
) -> None:
    """Raise Unavailable if a message got a place that the partition's newest record has, or an earlier one."""
    for message, (partition, offset) in zip(messages, places, strict=True):
        if offset <= newest.get((message.topic, partition), -1):
            raise Unavailable(f"topic {message.topic}, partition {partition}: lost its records from {offset} on")


# Seconds within which an expected commit must follow: well before a broker aborts a transaction.
EXPECTED_WITHIN = 5.0

# The last second of the year 9999: no record has a later `time`, beyond which dates fail, or one before the epoch.
LATEST = 253402300799.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record that was read from the log.

    `time` is when the log took it, seconds since the epoch. The rest is untrusted. A record that an adapter cannot unpack has no
    key, and a value that says what was wrong and that every service rejects.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    headers: Mapping[str, str]
    time: float


class Reader(Protocol):
    """A reader of partitions from positions on; for one thread, except for `wake`."""

    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        """Return at most `limit` records; [] if none came within `timeout` seconds.

        Raises Expired, Rewound, or Unavailable after which the reader may be polled again.
        """

    def positions(self) -> dict[PartitionKey, int]:
        """Return (topic, partition) → the next offset this reader will return."""

    def pause(self, partitions: Sequence[PartitionKey]) -> None:
        """Return no records of these partitions until `resume`; the others go on."""

    def resume(self, partitions: Sequence[PartitionKey]) -> None:
        """Go on with these partitions where `pause` left off."""

    def wake(self) -> None:
        """Make a running or the next `poll` return at once; any thread may call it."""

    def close(self) -> None:
        """Free everything; further use is an error."""


class Transactor(Protocol):
    """Appends and acknowledges in one step; used by one thread."""

    def commit(
        self,
        messages: Sequence[NewRecord],
        *,
        group: str | None = None,
        positions: Mapping[PartitionKey, int] | None = None,
        metadata: Mapping[PartitionKey, str] | None = None,
        newest: Mapping[PartitionKey, int] | None = None,
    ) -> list[tuple[int, int]]:
        """Write all messages and store all positions of `group`, or none of them.

        Messages to topics of `OPEN` may be written first, and stay if the rest fails.
        `metadata` is stored with positions, as by `Log.acknowledge`. `newest` has offsets of records in partitions: a partition
        that would take a message there or before has lost records, which raises Unavailable, and nothing is written. A commit of
        nothing writes nothing, and only raises Fenced if this transactor is. Returns (partition, offset) of each message. Raises
        Unavailable (outcome unknown), Fenced, or TooLarge, after which nothing is written; the transactor must be renewed after
        each.
        """

    def expect(self, topics: Sequence[str]) -> None:
        """Prepare a commit to these topics that follows within `EXPECTED_WITHIN`.

        Each topic has one partition. The call spares that commit a round trip where it costs one, writes nothing, and does not
        wait. The commit raises all errors, and may also write to other topics. Without a commit in time the next one raises
        Unavailable.
        """

    def renew(self) -> None:
        """Begin again after Unavailable: the unclear transaction has ended.

        Raises Fenced if a newer transactor came. Nothing that was committed is taken back.
        """

    def close(self) -> None:
        """Free everything."""


class GroupMember(Protocol):
    """One of the processes that divide a topic's partitions among themselves; for one thread.

    A share decides who works, never who writes: that takes a transactor for each partition. Two members may for a moment believe
    that a partition is theirs.
    """

    def share(self) -> frozenset[int]:
        """Return the partitions that are this process's now; none if it stands by.

        Call it often: a member that does not is taken for dead. It waits a second at most, and raises Unavailable.
        """

    def close(self) -> None:
        """Leave at once, so that others get the share."""


class Log(Protocol):
    """An open log; its methods may be called from any thread."""

    def create(self, wanted: Sequence[Topic]) -> list[str]:
        """Create the missing topics and return their names.

        Raises BadConfig if a topic exists with another number of partitions in use.
        """

    def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
        """Compare the topics with what `create` would make of these; change nothing."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions in use; raise BadConfig for an unknown topic.

        It is 1 for a topic of `SINGLE`.
        """

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        """Append durably and return (partition, offset) of each message.

        Raises Unavailable, and TooLarge if a topic refuses a message; then none behind it in its partition is written.
        """

    def largest(self, topic: str) -> int | None:
        """Return the bytes of the largest message that a topic takes now.

        None means that the log does not say it to this user. Raises Unavailable.
        """
        return LARGEST

    def reader(self, positions: Mapping[PartitionKey, int]) -> Reader:
        """Open a reader at these positions, (topic, partition) → offset."""

    def transactor(self, identity: str, *, group: str | None = None) -> Transactor:
        """Open a transactor that fences all earlier ones of this identity.

        It stores positions of `group`, which has the name of the identity unless another is given.
        """

    def member(self, group: str, topic: str) -> GroupMember:
        """Join the processes of this group that divide the topic's partitions.

        A group has one topic. Its positions are stored by transactors alone. In a log for one machine one member has all
        partitions, and the others stand by until it ends.
        """

    def shares(self, beginning: str) -> dict[str, list[PartitionKey]]:
        """Return each member's partitions, none for a standby, by its host and process.

        The names of the members' groups have this beginning. A log for one machine does not know its members, and returns none.
        """
        return {}

    def acknowledge(
        self, group: str, topic: str, positions: Positions, *, metadata: Mapping[int, str] | None = None
    ) -> None:
        """Store positions of a group, which may go back.

        `metadata` is stored with them, one text for a partition, of at most 1,000 characters each.
        """

    def metadata(self, group: str, topic: str) -> dict[int, str]:
        """Return the metadata that was stored with a group's positions.

        An adapter whose positions cannot outlive the records keeps no metadata, and returns none.
        """

    def stored(self, group: str, topic: str) -> dict[int, int]:
        """Return the stored positions of a group, without partitions that have none."""

    def groups(self, topic: str) -> dict[str, dict[int, int]]:
        """Return the stored positions of all groups that have any on this topic."""

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        """Return per partition the first position that can be read.

        It asks for these `partitions` only, or for all. Each may be at another broker, and it raises Unavailable if one of them
        does not answer: so ask for no others than those you depend on.
        """

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        """Return per partition the position after the last committed record.

        `partitions` are as for `beginnings`.
        """

    def undone(self, topic: str, position: int, *, stop: threading.Event | None = None) -> list[Record]:
        """Return the records of a topic of `SINGLE`, from this position on, whose transactions were aborted.

        No reader sees them. A log that writes nothing before a commit has none. Raises Unavailable, Expired and ReadStopped.
        """
        return []

    def wait_for_transactions(self, topic: str) -> None:
        """Return once readers see all of a topic that was committed before this call.

        What was committed behind an open transaction of another identity is seen only once that one has ended. Raises HeldUp if
        that takes long: the process that began it may be dead. The broker ends it then, after the transaction's time-out.
        """
        return

    def close(self) -> None:
        """Free everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key.

    It is the same in every adapter and release: CRC-32 of the key's UTF-8 modulo the number of partitions.
    """
    return zlib.crc32(key.encode("utf-8", "surrogateescape")) % partitions
