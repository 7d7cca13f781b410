# SPDX-License-Identifier: GPL-2.0-or-later
"""The next transaction of the aggregator, gathered until its commit. Pure."""

import base64
from dataclasses import dataclass, field
from typing import Self

from ...log import ERRORS, EVENTS, PENDING, STATE, NewRecord, Record
from ...words import shape, wire
from ...words.records import KEY_KEPT, ErrorRecord, Notice
from .held import HeldEvent
from .repository import Repository

SERVICE = "aggregator"

# Bytes in one transaction after which the next one begins: a log takes so many before its time-out.
BATCH_BYTES = 4 * 1024 * 1024

# States in one transaction after which the next one begins.
BATCH_STATES = 4096

# Bytes that a message counts for beside its value: its key and its part of the work.
MESSAGE_BYTES = 256

# Bytes of a refused record that its ErrorRecord keeps.
VALUE_KEPT = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """The messages of the next transaction, in this order, and its group positions.

    `positions` has the moved positions. They alone are not worth a transaction, and most transactions store none, which on Kafka
    costs half as much. `releases` and `errors` count decisions, `announced` are the notices. `keeps_values` is False if `errors`
    takes no larger records.
    """

    messages: list[NewRecord] = field(default_factory=list)
    dirty: dict[str, Repository] = field(default_factory=dict)
    fresh: dict[str, Repository] = field(default_factory=dict)
    roster: bool = False
    releases: int = 0
    announced: list[Notice] = field(default_factory=list)
    size: int = 0
    errors: int = 0
    kept: int = 0
    keeps_values: bool = True
    positions: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, message: NewRecord) -> None:
        self.messages.append(message)
        self.size += len(message.value or b"") + sum(map(len, message.headers.values())) + MESSAGE_BYTES

    @property
    def notices(self) -> int:
        return len(self.announced)

    @property
    def is_urgent(self) -> bool:
        """Whether mirrors or receivers wait for it."""
        return bool(self.releases or self.notices or self.roster)

    @property
    def is_full(self) -> bool:
        """Whether it is as large as a transaction should be."""
        return self.size >= BATCH_BYTES

    @property
    def is_crowded(self) -> bool:
        """Whether it has states of as many repositories as a transaction should."""
        return len(self.dirty) >= BATCH_STATES

    @property
    def has_output(self) -> bool:
        """Whether it holds anything besides positions."""
        return bool(self.messages or self.dirty or self.fresh or self.roster)

    @property
    def may_repeat(self) -> bool:
        """Whether the records that it passed may be read again after a crash.

        Events whose other output is written are recognized as repeats. But a record that was set aside would be set aside again,
        and a request decided again. Where a record is kept for a newer aggregator, events before it would be taken for later ones
        and kept, too.
        """
        return not (self.errors or self.kept) and all(topic == EVENTS for topic, _ in self.positions)

    def complete(self) -> Self:
        """Add the messages about what changed, and return all of it."""
        for repository in self.fresh.values():
            self.messages += [
                NewRecord(topic=PENDING, key=f"{repository.id}/{held.seq}", value=held.store(), headers=held.headers)
                for held in repository.unwritten()
            ]
        for repository in self.dirty.values():
            if (state := repository.stored_state) is not None:
                self.messages.append(NewRecord(topic=STATE, key=repository.id, value=shape.to_json(state)))
        return self

    def bury(self, repository: Repository, held: HeldEvent) -> None:
        """Remove the pending record; if it was never written, it needs no tombstone."""
        if held.written:
            self.add(NewRecord(topic=PENDING, key=f"{repository.id}/{held.seq}", value=None))

    def keep(self, record: Record) -> None:
        """Keep the record of `events` as it came, for an aggregator that understands it."""
        self.kept += 1
        self.add(
            NewRecord(topic=PENDING, key=key_kept(record), value=record.value, headers=wire.carried(record.headers))
        )

    def give_up(self, record: Record) -> None:
        """Keep the record no longer."""
        self.add(NewRecord(topic=PENDING, key=key_kept(record), value=None))

    def reject(
        self, record: Record, reason: str, now: float, *, repository: str | None = None, traceback: str | None = None
    ) -> None:
        """Keep a record that is passed in `errors`, with the reason."""
        place = (record.topic, record.partition, record.offset)
        self.error(record.key, reason, *place, record.value or b"", now, repository=repository, traceback=traceback)

    def fail(self, repository: str, reason: str, traceback: str | None, now: float) -> None:
        """Keep in `errors` an error of a whole repository, not of one record."""
        self.error(repository, reason, STATE, 0, 0, b"", now, repository=repository, traceback=traceback)

    def error(
        self,
        key: str | None,
        reason: str,
        topic: str,
        partition: int,
        offset: int,
        value: bytes,
        now: float,
        *,
        repository: str | None = None,
        traceback: str | None = None,
    ) -> None:
        key = None if key is None else key[:KEY_KEPT]
        error = ErrorRecord(
            time=now,
            service=SERVICE,
            reason=reason,
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=base64.b64encode(value[: VALUE_KEPT if self.keeps_values else 0]).decode("ascii"),
            repository=repository,
            traceback=traceback if self.keeps_values else None,
        )
        self.add(NewRecord(topic=ERRORS, key=key, value=shape.to_json(error)))
        self.errors += 1


def key_kept(record: Record) -> str:
    """Return the key in `pending` of a record that is kept as it came."""
    return f"{record.key}/{record.partition}:{record.offset}"
