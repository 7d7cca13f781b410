# SPDX-License-Identifier: GPL-2.0-or-later
"""An event that waits for its notice. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...log import Record
from ...words import shape, wire
from ...words.errors import MalformedEvent, UnknownEvent
from ...words.event import Event, Type
from ...words.records import Pending


@dataclass(slots=True, kw_only=True)
class HeldEvent:
    """An event that waits for its notice.

    A stored one is bytes until it is needed: 100,000 may wait at a restart. `headers` are those of its record that go along with
    it, see `words.wire`. `taken_at` is when it arrived by the monotonic clock; 0 if that was before this session.
    """

    seq: int
    written: bool
    value: bytes | None = None
    pending: Pending | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: wire.NO_HEADERS)
    taken_at: float = 0.0

    @classmethod
    def stored(cls, seq: int, value: bytes, headers: Mapping[str, str]) -> "HeldEvent":
        """Hold a record of the topic `pending`."""
        return cls(seq=seq, written=True, value=value, headers=wire.carried(headers))

    @classmethod
    def arrived(cls, event: Event, record: Record, now: float, taken_at: float) -> "HeldEvent":
        """Hold an event of the topic `events`, which arrived `now` by the time of day."""
        pending = Pending(event=event, partition=record.partition, offset=record.offset, arrived=now)
        headers = wire.carried(record.headers)
        return cls(seq=event.seq, written=False, pending=pending, headers=headers, taken_at=taken_at)

    def opened(self) -> Pending:
        """Return the pending record.

        Raises MalformedEvent if the stored value is no pending record, UnknownEvent if a newer aggregator stored it.
        """
        if self.pending is None:
            data = shape.parse(self.value or b"", "Pending")
            wire.check_known(data)
            self.pending = shape.read(Pending, data)
            self.value = None
        return self.pending

    def is_readable(self) -> bool:
        """Return whether the value is a pending record, of this version or a newer one."""
        try:
            self.opened()
        except MalformedEvent:
            return False
        except UnknownEvent:
            return True
        return True

    def is_known(self) -> bool:
        """Return whether the value is a pending record of this version."""
        return self.is_readable() and self.pending is not None

    @property
    def event(self) -> Event:
        return self.opened().event

    @property
    def since(self) -> float:
        """The time of its arrival, seconds since the epoch."""
        return self.opened().arrived

    def store(self) -> bytes:
        """Return the value for the topic `pending`."""
        return shape.to_json(self.opened())

    @property
    def changes_place(self) -> bool:
        """Whether its release may change the repository's URL or who sees it.

        The release of an event that this version cannot read may do so.
        """
        if not self.is_known():
            return True
        event = self.event
        return event.type in (Type.RENAMED, Type.DELETED) or event.hgrc is not None
