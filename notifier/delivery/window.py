# SPDX-License-Identifier: GPL-2.0-or-later
"""The next deliveries of one destination, and the limit of its position.

Pure: no clock, no I/O, no threads.

Rules of this file:

- Per repository one delivery is unconfirmed at a time, and the next begins only when it is settled (confirmed, rejected or
  skipped): first successful deliveries are in order. Repositories do not wait for each other, nor for each other's retries, with
  one exception: a repository waits for its predecessor at the same URL.
- The position is the first record that is not settled, so a restart repeats and never skips.
- `Unavailable` is retried indefinitely. A faulty message is tried `attempts` times; then the caller keeps it as a reject and calls
  `settle`.
- Replays stand in queues of their own and have no position; neither do messages whose records the log lost.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.retry import Backoff
from hgext.vcsreplicator.words.shape import within

from ..messages.message import Message

# With its jitter below five seconds: so soon after the other side is back, the first message goes.
RETRY = Backoff(first=0.2, longest=4.0)

# Bytes of notices whose messages are held, and of those that replays hold beside them: messages take five times as much memory.
HELD_BYTES, REPLAYED_BYTES = 32 * 1024 * 1024, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How much a destination takes at once, and how it tries again.

    At most `in_flight` deliveries are unconfirmed. At most `held` messages, of HELD_BYTES in all, are read and not settled; then
    reading waits. A message that the destination refuses gets `attempts` attempts. Delays are in seconds.
    """

    in_flight: int = 100
    held: int = 10_000
    attempts: int = 5
    retry: Backoff = RETRY

    def __post_init__(self) -> None:
        within(self, in_flight=(1, 1_000_000), held=(1, 1_000_000), attempts=(1, 1_000_000))
        check_retry(self.retry)


def check_retry(retry: Backoff) -> None:
    """Raise ValueError naming the first number of a setting `retry` that is wrong."""
    within(retry, "retry.", first=(0.001, DAY), longest=(retry.first, DAY), factor=(1, 100), jitter=(0, 1))


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The delivery of one message, at one of its attempts.

    `number` names the delivery within the process, `attempt` counts from 1. `has_successor`: another repository has the message's
    URL by now, and one of its messages waits for this delivery.
    """

    number: int
    message: Message
    attempt: int
    has_successor: bool = False


@dataclass(slots=True, kw_only=True)
class _PlacedMessage:
    number: int
    message: Message
    queues: tuple[tuple[str, str | None], ...]
    placed: bool
    attempt: int = 0
    refusals: int = 0
    in_flight: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether an attempt of this process ended and failed."""
        return self.attempt > self.in_flight


@dataclass(slots=True)
class Window:
    """The messages of one destination between log and confirmation."""

    patience: Patience
    paused: bool = False
    # The number of unconfirmed deliveries.
    in_flight: int = 0
    _entries: OrderedDict[int, _PlacedMessage] = field(default_factory=OrderedDict)
    _queues: dict[tuple[str, str | None], deque[_PlacedMessage]] = field(default_factory=dict)
    _ready: deque[_PlacedMessage] = field(default_factory=deque)
    _waiting: list[tuple[float, int]] = field(default_factory=list)
    _open: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _next_offset: int = 0
    _down_until: float = 0.0
    _downs: int = 0
    # Bytes held, of the live stream and of replays.
    _live_size: int = 0
    _replayed_size: int = 0
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def take_record(self, offset: int, messages: Sequence[Message]) -> None:
        """Take a record's messages, perhaps none; records come in order of offset."""
        self._next_offset = max(self._next_offset, offset + 1)
        if messages:
            self._open[offset] = len(messages)
        for message in messages:
            self._enqueue(message, None)

    def go_back(self, offset: int) -> None:
        """Count offsets from this one again, since the log lost the records from there on.

        Their messages in the window are sent all the same.
        """
        for entry in self._entries.values():
            entry.placed = entry.placed and entry.message.offset < offset
        self._open = OrderedDict((at, count) for at, count in self._open.items() if at < offset)
        self._next_offset = offset

    def take_replay(self, message: Message) -> int:
        """Take a message to be sent again; return its number.

        It keeps its order only among the messages of the same replay.
        """
        return self._enqueue(message, message.replay)

    def next(self, now: float) -> list[Delivery]:
        """Return the deliveries to begin now.

        The caller answers each with `confirm`, `settle`, `retry`, `refuse` or `give_back`.
        """
        if self.paused or now < self._down_until:
            return []
        while self._waiting and self._waiting[0][0] <= now:
            entry = self._entries.get(heapq.heappop(self._waiting)[1])
            if entry is not None:  # skipped meanwhile
                self._ready.append(entry)
        begun = []
        while self._ready and self.in_flight < self.patience.in_flight:
            entry = self._ready.popleft()
            if entry.number not in self._entries:
                continue
            entry.attempt += 1
            entry.in_flight = True
            self.in_flight += 1
            begun.append(self.delivery(entry.number))
        return begun

    def settle(self, number: int) -> Message:
        """Remove and return a settled message; the next of its repository may begin."""
        entry = self._entries.pop(number)
        self._count_size(entry.message, -entry.message.size)
        self._end_attempt(entry)
        freed: dict[int, _PlacedMessage] = {}
        for name in entry.queues:
            queue = self._queues[name]
            queue.popleft()
            if queue:
                freed[queue[0].number] = queue[0]
            else:
                del self._queues[name]
        self._ready.extend(each for each in freed.values() if self._is_first(each))
        if entry.placed:
            offset = entry.message.offset
            self._open[offset] -= 1
            if not self._open[offset]:
                del self._open[offset]
        return entry.message

    def confirm(self, number: int) -> Message:
        """Settle and return a confirmed message, since the destination answers."""
        self._downs = 0
        return self.settle(number)

    def retry(self, number: int, now: float, chance: float) -> None:
        """Retry a message after a delay, without a limit on the attempts."""
        entry = self._entries[number]
        self._postpone_entry(entry, now + self.patience.retry.delay(entry.attempt, chance))

    def refuse(self, number: int, now: float, chance: float) -> bool:
        """Retry a refused message; return False after the last of its attempts.

        Then the caller keeps the message as a reject and calls `settle`.
        """
        entry = self._entries[number]
        entry.refusals += 1
        if entry.refusals >= self.patience.attempts:
            return False
        self._postpone_entry(entry, now + self.patience.retry.delay(entry.refusals, chance))
        return True

    def give_back(self, number: int) -> None:
        """Take back a delivery that was not tried; its attempt does not count."""
        entry = self._entries[number]
        entry.attempt -= 1
        self._end_attempt(entry)
        self._ready.appendleft(entry)

    def down(self, now: float, chance: float) -> float:
        """Begin no delivery for a while, because the destination does not answer.

        Returns the delay in seconds.
        """
        self._downs += 1
        delay = self.patience.retry.delay(self._downs, chance)
        self._down_until = now + delay
        return delay

    def failed(self, until: float) -> list[int]:
        """Return the numbers of the deliveries that failed before, oldest first.

        Leaves out messages that were created after this time, in seconds since the epoch.
        """
        return [entry.number for entry in self._entries.values() if entry.has_failed and entry.message.created <= until]

    def with_id(self, message_id: str) -> list[int]:
        """Return the numbers of this message's deliveries: live and of replays."""
        return [entry.number for entry in self._entries.values() if entry.message.id == message_id]

    def is_skippable(self, number: int) -> bool:
        """Return whether the caller may skip this delivery, by settling it.

        It is next in turn, or waits for another attempt.
        """
        entry = self._entries[number]
        return not entry.in_flight and self._is_first(entry)

    def will_be_skippable(self, number: int) -> bool:
        """Return whether this delivery, or an untried one before it, is to end first.

        Then `is_skippable` may soon be true: the delivery is in an attempt, or the delivery before it has not failed yet.
        """
        entry = self._entries[number]
        before = [self._queues[name][0] for name in entry.queues]
        return entry.in_flight or any(first is not entry and not first.has_failed for first in before)

    def delivery(self, number: int) -> Delivery:
        """Return the current or last attempt of a message that is not settled."""
        entry = self._entries[number]
        message = entry.message
        last = self._queues[message.repo_url, entry.queues[0][1]][-1].message
        return Delivery(
            number=number,
            message=message,
            attempt=entry.attempt,
            has_successor=last.repository != message.repository,
        )

    def holds(self, number: int) -> bool:
        """Return whether this delivery is not settled yet."""
        return number in self._entries

    @property
    def position(self) -> int:
        """The first offset that is not settled."""
        return next(iter(self._open)) if self._open else self._next_offset

    @property
    def oldest(self) -> Message | None:
        """The message that has been here longest; None if there is none.

        Repeats of a replay do not count: they are old when they come.
        """
        return next((entry.message for entry in self._entries.values() if entry.message.replay is None), None)

    @property
    def waiting(self) -> int:
        """The number of messages here that are not settled, sent or not."""
        return len(self._entries)

    def idle(self, now: float) -> bool:
        """Return whether there is nothing to send.

        Returns False while the window is paused or waits for the destination.
        """
        return not self._entries and not self.paused and now >= self._down_until

    @property
    def room(self) -> int:
        """The number of messages that may still be read; large ones fill the window sooner."""
        return max(0, self.patience.held - len(self._entries)) if self._live_size < HELD_BYTES else 0

    @property
    def replay_room(self) -> int:
        """The number of messages that replays may still read: a stuck one leaves the room in the window to the live stream."""
        return self.room if self._replayed_size < REPLAYED_BYTES else 0

    @property
    def wakes_at(self) -> float | None:
        """The time at which `next` has something to begin.

        Events may make it earlier. None if only events give `next` something.
        """
        if self.paused or not self._entries or self.in_flight >= self.patience.in_flight:
            return None
        if self._ready:
            return self._down_until
        return max(self._waiting[0][0], self._down_until) if self._waiting else None

    def _enqueue(self, message: Message, replay: str | None) -> int:
        queues = tuple((name, replay) for name in dict.fromkeys(message.orders))
        entry = _PlacedMessage(number=next(self._numbers), message=message, queues=queues, placed=replay is None)
        self._entries[entry.number] = entry
        self._count_size(message, message.size)
        for name in queues:
            self._queues.setdefault(name, deque()).append(entry)
        if self._is_first(entry):
            self._ready.append(entry)
        return entry.number

    def _count_size(self, message: Message, change: int) -> None:
        if message.replay is None:
            self._live_size += change
        else:
            self._replayed_size += change

    def _is_first(self, entry: _PlacedMessage) -> bool:
        """Return whether no message is left that must be sent before this one."""
        return all(self._queues[name][0] is entry for name in entry.queues)

    def _end_attempt(self, entry: _PlacedMessage) -> None:
        if entry.in_flight:
            entry.in_flight = False
            self.in_flight -= 1

    def _postpone_entry(self, entry: _PlacedMessage, due: float) -> None:
        self._end_attempt(entry)
        heapq.heappush(self._waiting, (due, entry.number))
