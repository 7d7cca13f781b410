# SPDX-License-Identifier: GPL-2.0-or-later
"""The messages of the queue by repository, and when each is worked on. Pure: no clock, no I/O, no threads.

A repository's messages are worked on in order, some at once; those of one that fails wait for it, those of others do not. After a
failure they are taken one by one, so that the retries are those of the message that causes it.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hgext.vcsreplicator.words.retry import Backoff

from ..hgpush.message import HgPushMessage
from .database import RepositoryKey

# Messages that are worked on at once.
MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMessage:
    """A message that is not acknowledged; `tag` is its name on the connection."""

    tag: int
    body: bytes
    repository: RepositoryKey
    message: HgPushMessage


Name = tuple[str, int]


@dataclass(slots=True)
class _Lane:
    waiting: deque[TakenMessage] = field(default_factory=deque)
    busy: int = 0
    failures: int = 0
    due: float = 0.0


class Lanes:
    """All messages that are taken; times are on the monotonic clock."""

    def __init__(self, retry: Backoff, retries: int) -> None:
        self._retry, self._retries = retry, retries
        self._lanes: OrderedDict[Name, _Lane] = OrderedDict()

    def take(self, message: TakenMessage) -> None:
        """Add a message behind the others of its repository."""
        self._lanes.setdefault(_name([message]), _Lane()).waiting.append(message)

    def begin(self, now: float) -> list[TakenMessage]:
        """Return the next messages to work on, all of one repository; none if there are none now."""
        for name, lane in self._lanes.items():
            if lane.waiting and not lane.busy and lane.due <= now:
                lane.busy = 1 if lane.failures else min(MOST, len(lane.waiting))
                self._lanes.move_to_end(name)
                return list(lane.waiting)[: lane.busy]
        return []

    def settle(self, messages: Sequence[TakenMessage]) -> bool:
        """Note that these are done; return whether they are still ours to acknowledge."""
        lane = self._lane_of(messages)
        lane.busy, lane.failures, lane.due = 0, 0, 0.0
        is_ours = list(lane.waiting)[: len(messages)] == list(messages)
        if is_ours:
            for _ in messages:
                lane.waiting.popleft()
        if not lane.waiting:
            del self._lanes[_name(messages)]
        return is_ours

    def fail(self, messages: Sequence[TakenMessage], now: float, chance: float) -> bool:
        """Note that these failed; return whether the retries are used up: then the caller keeps it elsewhere and settles it."""
        lane = self._lane_of(messages)
        if len(messages) > 1:
            lane.failures, lane.busy = 1, 0  # which one it was shows when they are taken one by one
            return False
        if lane.failures >= self._retries:
            return True
        lane.failures += 1
        lane.busy, lane.due = 0, now + self._retry.delay(lane.failures, chance)
        return False

    def put_off(self, messages: Sequence[TakenMessage], until: float) -> None:
        """Note that what these need is away until then; no retry is used for it."""
        lane = self._lane_of(messages)
        lane.busy, lane.due = 0, until

    def forget(self) -> None:
        """Drop all messages: the connection is lost, and the broker sends them again. What is worked on ends by itself."""
        for name, lane in list(self._lanes.items()):
            lane.waiting.clear()
            if not (lane.busy or lane.failures):
                del self._lanes[name]

    def _lane_of(self, messages: Sequence[TakenMessage]) -> _Lane:
        return self._lanes[_name(messages)]


def _name(messages: Sequence[TakenMessage]) -> Name:
    repository = messages[0].repository
    return repository.source, repository.number
