# SPDX-License-Identifier: GPL-2.0-or-later
"""The deliveries of a channel that the broker has not confirmed yet. Pure.

A *tag* counts the messages of a channel. The broker returns a message that no queue would get before it confirms it, and names
the message by its id alone. It may confirm all tags up to one at once.
"""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    number: int
    message_id: str
    since: float


@dataclass(slots=True)
class Confirms:
    """The deliveries of one channel; times are on the monotonic clock."""

    _tag: int = 0
    _unconfirmed: OrderedDict[int, _Sent] = field(default_factory=OrderedDict)
    _returned: set[str] = field(default_factory=set)
    _nacked: dict[int, float] = field(default_factory=dict)

    def send(self, number: int, message_id: str, now: float) -> None:
        """Record that the delivery `number` is sent with the next tag."""
        self._tag += 1
        self._unconfirmed[self._tag] = _Sent(number=number, message_id=message_id, since=now)

    def mark_returned(self, message_id: str) -> None:
        """Record a returned message; its confirmation comes after this.

        A message that waits for no confirmation is ignored: a broker could return any number of them.
        """
        if any(sent.message_id == message_id for sent in self._unconfirmed.values()):
            self._returned.add(message_id)

    def confirm(self, tag: int, *, multiple: bool) -> list[tuple[int, bool]]:
        """Remove the confirmed deliveries; return each, and whether it was returned.

        With `multiple`, these are all up to the tag.
        """
        tags = [each for each in self._unconfirmed if each <= tag] if multiple else [tag]
        confirmed = [self._unconfirmed.pop(each) for each in tags if each in self._unconfirmed]
        found = []
        for sent in confirmed:
            found.append((sent.number, sent.message_id in self._returned))
            self._returned.discard(sent.message_id)  # the next attempt may find a queue
        return found

    def hold_nacked(self, number: int, now: float) -> None:
        """Keep a nacked delivery until the broker has shown that it is well."""
        self._nacked[number] = now

    def nacked_before(self, time: float) -> list[int]:
        """Return the nacked deliveries that are held since before this time."""
        return [number for number, since in self._nacked.items() if since <= time]

    def release_nacked(self, numbers: list[int]) -> None:
        """Hold these nacked deliveries no longer."""
        for number in numbers:
            del self._nacked[number]

    def oldest_since(self) -> float | None:
        """Return since when the oldest delivery is unconfirmed; None if there is none."""
        return next(iter(self._unconfirmed.values())).since if self._unconfirmed else None

    def restart_waits(self, now: float) -> None:
        """Count the waits from now: until now the broker took nothing."""
        for tag, sent in self._unconfirmed.items():
            self._unconfirmed[tag] = _Sent(number=sent.number, message_id=sent.message_id, since=now)

    def unknown(self) -> list[int]:
        """Return all deliveries without an outcome."""
        return [*(sent.number for sent in self._unconfirmed.values()), *self._nacked]
