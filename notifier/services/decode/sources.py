# SPDX-License-Identifier: GPL-2.0-or-later
"""The sources of raw messages: a topic of the log, or a queue."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.log import Log, NewRecord, Reader, Transactor
from hgext.vcsreplicator.words.errors import Rejected
from hgext.vcsreplicator.words.records import DECODE_GROUP

from ...clients.amqp.outgoing import OutgoingMessage
from .settings import name_unreadable

if TYPE_CHECKING:
    from ...clients.amqp.consumer import QueueConsumer
    from .queues import OutputQueues


# The group whose positions are the decoder's, for each topic.
GROUP = DECODE_GROUP

# Seconds between two looks whether there are partitions for a decoder that stands by.
STANDBY = 1.0

PARTITIONS = Gauge("vcsreplicator_decode_partitions", "Partitions of the input that this process has; 0: stands by")

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawArrival:
    """One raw message as it came, and its place.

    The place is a topic with partition and offset, or a queue; `tag` is the queue's delivery tag.
    """

    line: bytes
    place: str
    partition: int = 0
    offset: int = 0
    tag: int = 0


class LogSource:
    """This decoder's share of a topic of the log, for one thread.

    Decoders of one topic divide its partitions. It writes records and stores a partition's position in one transaction, and fences
    the decoder that had the partition before. A message that is not acknowledged is read again, by the next source that has its
    partition. `shares_ids` says that all decoders know the ids of each other's documents, or need not.
    """

    # The place that keeps messages whole beside the log: none, because the topic still has them.
    kept_in: str | None = None

    def __init__(self, log: Log, topic: str, *, shares_ids: bool = True) -> None:
        self._log, self._topic, self._shares_ids = log, topic, shares_ids
        self._member = log.member(f"{GROUP}-{topic}", topic)
        self._transactors: dict[int, Transactor] = {}
        self._reader: Reader | None = None
        try:
            self._follow_share()
        except BaseException:
            self.close()
            raise

    @property
    def share(self) -> Sequence[int]:
        """The partitions of this decoder; none while it stands by."""
        return sorted(self._transactors)

    def read(self, timeout: float, limit: int) -> list[RawArrival]:
        """Return at most `limit` messages, those of a partition together.

        Returns [] if none came within `timeout` seconds, or this decoder stands by. Call it once all that it returned before is
        acknowledged: then the share may change. Raises Unavailable or Expired.
        """
        self._follow_share()
        if self._reader is None:
            time.sleep(STANDBY)
            return []
        return [
            RawArrival(line=record.value or b"", place=record.topic, partition=record.partition, offset=record.offset)
            for record in sorted(self._reader.poll(timeout, limit=limit), key=attrgetter("partition"))
        ]

    def acknowledge(self, records: Sequence[NewRecord], arrivals: Sequence[RawArrival]) -> None:
        """Write these records to the log, and acknowledge messages.

        The messages are the next ones in the order in which they were read, all of one partition. Raises Unavailable (outcome
        unknown), Fenced if the partition is another decoder's now, or Rejected if the log refuses a record; then nothing is
        acknowledged, and a queue's log may have some of the records.
        """
        last = arrivals[-1]
        transactor = self._transactors[last.partition]
        try:
            transactor.commit(records, group=GROUP, positions={(last.place, last.partition): last.offset + 1})
        except Rejected:
            transactor.renew()
            raise

    def keep_whole(self, arrivals: Sequence[RawArrival]) -> None:
        """Do nothing: the topic still has these messages."""

    def renew(self) -> None:
        """Store the positions again, once all is acknowledged; Unavailable or Fenced."""
        for key, position in (self._reader.positions() if self._reader else {}).items():
            self._transactors[key[1]].commit((), group=GROUP, positions={key: position})

    def keep_alive(self) -> None:
        """Do nothing: a log does not wait for heartbeats."""

    def finish(self) -> None:
        """Do nothing: a transaction is durable on return."""

    def close(self) -> None:
        """Free everything; other decoders get the partitions at once."""
        self._close_reader()
        for transactor in self._transactors.values():
            transactor.close()
        self._member.close()
        PARTITIONS.set(0)

    def _follow_share(self) -> None:
        """Take up the partitions that are new here, and give up those of others."""
        share = self._member.share()
        if share == self._transactors.keys():
            return
        self._close_reader()
        for partition in self._transactors.keys() - share:
            self._transactors.pop(partition).close()
        for partition in sorted(share - self._transactors.keys()):
            # No topic has a dot in its name. The first partition's identity is that of releases in which one decoder had the
            # topic, so these are fenced.
            identity = f"{GROUP}-{self._topic}.{partition}" if partition else f"{GROUP}-{self._topic}"
            self._transactors[partition] = self._log.transactor(identity, group=GROUP)
        PARTITIONS.set(len(share))
        if share and not self._shares_ids and len(share) < self._log.partitions(self._topic):
            logger.warning("repeats may pass: other decoders do not know these ids", expected='repeats = "redis"')
        logger.info("share changed", topic=self._topic, partitions=self.share)
        if share:
            self._reader = self._log.reader(_find_positions(self._log, self._topic, share))

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class QueueSource:
    """A queue of the broker, used as a `LogSource` is; several decoders may read one.

    `queues` publishes to the queue `kept_in`: what is acknowledged is gone from this queue.
    """

    def __init__(self, log: Log, consumer: "QueueConsumer", queue: str, queues: "OutputQueues") -> None:
        self._log, self._consumer, self._queue, self._queues = log, consumer, queue, queues
        self.kept_in = name_unreadable(queue)
        # Tags of messages that are kept whole, and not acknowledged yet.
        self._kept: set[int] = set()

    def read(self, timeout: float, limit: int) -> list[RawArrival]:
        from ...clients.amqp.consumer import body_of

        found = self._consumer.receive(timeout, limit)
        return [RawArrival(line=body_of(each), place=f"queue:{self._queue}", tag=each.delivery_tag) for each in found]

    def acknowledge(self, records: Sequence[NewRecord], arrivals: Sequence[RawArrival]) -> None:
        if records:
            self._log.append(records)
        self._kept.difference_update(arrival.tag for arrival in arrivals)
        self._consumer.acknowledge(arrivals[-1].tag, multiple=True)

    def keep_whole(self, arrivals: Sequence[RawArrival]) -> None:
        """Put these messages into the queue `kept_in`, before they are acknowledged.

        Raises Unavailable; then that queue may have some.
        """
        found = [arrival for arrival in arrivals if arrival.tag not in self._kept]
        messages = [
            OutgoingMessage(routing_key=self.kept_in, body=each.line, id=f"{self._queue}-{each.tag}") for each in found
        ]
        self._queues.publish(messages, self._consumer.keep_alive)
        self._kept.update(arrival.tag for arrival in found)

    def renew(self) -> None:
        """Do nothing: a queue has no position."""

    def keep_alive(self) -> None:
        """Send the broker a heartbeat; raises Unavailable."""
        self._consumer.keep_alive()

    def finish(self) -> None:
        """Make sure that the last acknowledgement arrives; raises Unavailable."""
        self._consumer.finish()

    def close(self) -> None:
        self._consumer.close()


RawSource = LogSource | QueueSource


def _find_positions(log: Log, topic: str, share: Collection[int]) -> dict[tuple[str, int], int]:
    """Return where to read on in these partitions: at their beginning if messages are lost."""
    ends, beginnings = log.ends(topic, share), log.beginnings(topic, share)
    # Asked last: partitions may have been added, which these questions find out.
    stored, found = log.stored(GROUP, topic), {}
    for partition, beginning in beginnings.items():
        position = stored.get(partition, beginning)
        if not beginning <= position <= ends[partition]:
            lost = {"position": position, "beginning": beginning, "end": ends[partition]}
            logger.error("raw messages lost", topic=topic, partition=partition, **lost)
            position = beginning
        found[topic, partition] = position
    return found
