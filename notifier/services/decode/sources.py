# SPDX-License-Identifier: GPL-2.0-or-later
"""The sources of raw messages: a topic of the log, or a queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from hgext.vcsreplicator.log import Log, NewRecord, Reader
from hgext.vcsreplicator.words.errors import Rejected

from ...clients.amqp.outgoing import OutgoingMessage
from .settings import name_unreadable

if TYPE_CHECKING:
    from ...clients.amqp.consumer import QueueConsumer
    from .queues import OutputQueues


# The group whose positions are the decoder's, for each topic.
GROUP = "decode"

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
    """A topic of the log, for one thread.

    It writes records and stores positions in one transaction. It fences another decoder of the topic. Each new source reads a
    message again until it is acknowledged.
    """

    # The place that keeps messages whole beside the log: none, because the topic still has them.
    kept_in: str | None = None

    def __init__(self, log: Log, topic: str) -> None:
        self._transactor = log.transactor(f"{GROUP}-{topic}", group=GROUP)
        try:
            self._reader: Reader = log.reader(_find_positions(log, topic))
        except BaseException:
            self._transactor.close()
            raise

    def read(self, timeout: float, limit: int) -> list[RawArrival]:
        """Return at most `limit` messages; [] if none came within `timeout` seconds.

        Raises Unavailable or Expired.
        """
        return [
            RawArrival(line=record.value or b"", place=record.topic, partition=record.partition, offset=record.offset)
            for record in self._reader.poll(timeout, limit=limit)
        ]

    def acknowledge(self, records: Sequence[NewRecord], arrivals: Sequence[RawArrival]) -> None:
        """Write these records to the log, and acknowledge messages.

        The messages are the next ones in the order in which they were read. Raises Unavailable (outcome unknown), Fenced, or
        Rejected if the log refuses a record; then nothing is acknowledged, and a queue's log may have some of the records.
        """
        positions = {(arrival.place, arrival.partition): arrival.offset + 1 for arrival in arrivals}
        try:
            self._transactor.commit(records, group=GROUP, positions=positions)
        except Rejected:
            self._transactor.renew()
            raise

    def keep_whole(self, arrivals: Sequence[RawArrival]) -> None:
        """Do nothing: the topic still has these messages."""

    def renew(self) -> None:
        """Store the position again, once all is acknowledged; Unavailable or Fenced."""
        self._transactor.commit((), group=GROUP, positions=self._reader.positions())

    def keep_alive(self) -> None:
        """Do nothing: a log does not wait for heartbeats."""

    def finish(self) -> None:
        """Do nothing: a transaction is durable on return."""

    def close(self) -> None:
        self._reader.close()
        self._transactor.close()


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


def _find_positions(log: Log, topic: str) -> dict[tuple[str, int], int]:
    """Return where to read on in each partition: the beginning if messages are lost."""
    stored, ends, found = log.stored(GROUP, topic), log.ends(topic), {}
    for partition, beginning in log.beginnings(topic).items():
        position = stored.get(partition, beginning)
        if not beginning <= position <= ends[partition]:
            logger.error("raw messages lost", topic=topic, position=position, beginning=beginning, end=ends[partition])
            position = beginning
        found[topic, partition] = position
    return found
