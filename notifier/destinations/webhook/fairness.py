# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides which webhook deliveries to begin next. Pure.

Each subscription has one queue of first attempts and one of repeats, first in first out by maturity, fair between subscriptions.

- First attempts and repeats have workers of their own, so retries never delay new deliveries.
- Subscriptions take turns, each with a limit for each of its queues, so a flood for one starves no other. While an endpoint
  fails, its limit is 1. No subscription has more workers than it leaves free, so several slow endpoints leave some for others,
  even with large limits.
- In strict order a delivery waits for those before it of the same repository and of the same URL; with `speed` nothing waits. A
  new delivery is tried at once with `speed`; in strict order the repeat that it waits for is tried early instead.
"""

import enum
import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace


class AttemptLane(enum.Enum):
    """A kind of work with workers of its own, so that no kind waits for another."""

    FIRST = "first attempts"
    REPEAT = "repeats"


NOTHING: Mapping[int, "WaitingDelivery"] = {}


@dataclass(frozen=True, slots=True, order=True)
class WaitingDelivery:
    """A delivery that waits.

    `attempt` counts the attempts before (0: not tried yet, and it begins at once), `mature_at` is in seconds since the epoch.
    `orders` names the chains that it stands in: its repository and its URLs. `planned` is when a hastened repeat would have begun,
    `early_at` when a repeat may be hastened to.
    """

    mature_at: float
    id: int
    subscription: int = field(compare=False)
    orders: tuple[str, ...] = field(compare=False)
    attempt: int = field(compare=False)
    planned: float | None = field(compare=False, default=None)
    early_at: float = field(compare=False, default=0.0)

    @property
    def lane(self) -> AttemptLane:
        return AttemptLane.REPEAT if self.attempt > 0 else AttemptLane.FIRST

    @property
    def begins_at(self) -> float:
        """When it may begin.

        The time of a first attempt is only its place, because the clock may have gone back since.
        """
        return self.mature_at if self.attempt > 0 else 0.0


@dataclass(slots=True)
class Member:
    """A subscription in the queues; the dispatcher changes it in place.

    `queued` counts its deliveries here. `idle_since` is when the newest failure left none, by the monotonic clock; None if it
    left some.
    """

    concurrency: int
    strict: bool
    paused: bool = False
    failing: bool = False
    idle_since: float | None = None
    queued: int = 0
    busy: dict[AttemptLane, int] = field(default_factory=lambda: dict.fromkeys(AttemptLane, 0))

    def has_room(self, lane: AttemptLane) -> bool:
        """Return whether it may begin another delivery."""
        limit = 1 if self.failing else self.concurrency
        return not self.paused and self.busy[lane] < limit


@dataclass(slots=True)
class Queues:
    """The waiting deliveries of all subscriptions; each lane has `workers` workers."""

    workers: int
    members: dict[int, Member] = field(default_factory=dict)
    _waiting: dict[AttemptLane, dict[int, list[WaitingDelivery]]] = field(
        default_factory=lambda: {lane: {} for lane in AttemptLane}
    )
    _turns: dict[AttemptLane, deque[int]] = field(default_factory=lambda: {lane: deque() for lane in AttemptLane})
    _chains: dict[tuple[int, str], deque[WaitingDelivery]] = field(default_factory=dict)
    _busy: dict[AttemptLane, int] = field(default_factory=lambda: dict.fromkeys(AttemptLane, 0))

    def add(self, items: Iterable[WaitingDelivery], under_way: Mapping[int, WaitingDelivery] = NOTHING) -> None:
        """Add waiting deliveries in the order of their messages; `under_way` are begun."""
        for item in under_way.values():
            self._count_busy(item, 1)
        for item in items:
            member = self.members.get(item.subscription)
            if member is None:
                continue
            member.queued += 1
            begun = under_way.get(item.id)
            if member.strict:
                for key in _list_keys(item):
                    self._chains.setdefault(key, deque()).append(begun or item)
                if not self._is_first(item):
                    continue
            if begun is None:
                self._queue_delivery(item)

    def next(self, now: float) -> list[WaitingDelivery]:
        """Return the deliveries to begin now; answer each with `again` or `finished`."""
        return [item for lane in AttemptLane for item in self._begin_delivery(lane, now)]

    def again(self, item: WaitingDelivery, later: WaitingDelivery) -> None:
        """Put a failed delivery into its next queue, as `later`.

        Forgets it if its subscription is paused: the resumption reads it from the table.
        """
        self._count_busy(item, -1)
        member = self.members.get(item.subscription)
        if member is None or member.paused:
            return
        is_first = True
        for key in _list_keys(item):
            chain = self._chains.get(key)
            place = _find_place(chain, item)
            if chain is not None and place is not None:
                chain[place] = later
            is_first = is_first and not place  # in no chain, or at its head
        if is_first:
            self._queue_delivery(later)

    def finished(self, item: WaitingDelivery) -> None:
        """Remove a delivery; the next of its repository or URL may begin."""
        self._count_busy(item, -1)
        if item.subscription in self.members:
            self.members[item.subscription].queued -= 1
        freed: dict[int, WaitingDelivery] = {}
        for key in _list_keys(item):
            chain = self._chains.get(key)
            place = _find_place(chain, item)
            if chain is None or place is None:
                continue
            del chain[place]
            if not chain:
                del self._chains[key]
            elif place == 0:
                freed[chain[0].id] = chain[0]
        for each in freed.values():
            if self._is_first(each):
                self._queue_delivery(each)

    def hasten_before(self, item: WaitingDelivery, now: float) -> None:
        """Make the repeats due that a new delivery waits for, as `hasten` does."""
        chains = [self._chains.get(key) for key in _list_keys(item)]
        self.hasten(item.subscription, now, {chain[0].id for chain in chains if chain})

    def hasten(self, subscription: int, now: float, only: Collection[int] | None = None) -> None:
        """Make the repeats of a subscription due, all or these, since its endpoint answers again or may do so.

        They keep their order. None begins before its `early_at`: it failed a moment ago, or its endpoint asked for a wait.
        """
        items = self._waiting[AttemptLane.REPEAT].get(subscription, [])
        for place, item in enumerate(items):
            is_meant = only is None or item.id in only
            if is_meant and (early := max(now, item.early_at)) < item.mature_at:
                planned = item.mature_at if item.planned is None else item.planned
                items[place] = replace(item, mature_at=early, planned=planned)
        heapq.heapify(items)

    def wakes_at(self) -> float | None:
        """Return when the next delivery matures; None if none waits."""
        times = [
            items[0].begins_at
            for lane in AttemptLane
            for subscription, items in self._waiting[lane].items()
            if items and self._may_begin(subscription, lane)
        ]
        return min(times, default=None)

    @property
    def waiting(self) -> int:
        """The number of queued deliveries, those behind others left out."""
        return sum(len(items) for lane in self._waiting.values() for items in lane.values())

    def _begin_delivery(self, lane: AttemptLane, now: float) -> list[WaitingDelivery]:
        begun: list[WaitingDelivery] = []
        turns, passed = self._turns[lane], 0
        while turns and passed < len(turns):
            subscription = turns[0]
            items = self._waiting[lane].get(subscription)
            if not items:
                turns.popleft()
                self._waiting[lane].pop(subscription, None)
                continue
            turns.rotate(-1)
            if items[0].begins_at > now or not self._may_begin(subscription, lane):
                passed += 1
                continue
            passed = 0
            begun.append(heapq.heappop(items))
            self._count_busy(begun[-1], 1)
        return begun

    def _may_begin(self, subscription: int, lane: AttemptLane) -> bool:
        """Return whether a worker is free, and enough of them for others."""
        member = self.members[subscription]
        return member.has_room(lane) and member.busy[lane] < self.workers - self._busy[lane]

    def _is_first(self, item: WaitingDelivery) -> bool:
        """Return whether no delivery is left that must end before this one."""
        return all(self._chains[key][0].id == item.id for key in _list_keys(item))

    def _queue_delivery(self, item: WaitingDelivery) -> None:
        waiting = self._waiting[item.lane]
        if item.subscription not in waiting:
            waiting[item.subscription] = []
            self._turns[item.lane].append(item.subscription)
        heapq.heappush(waiting[item.subscription], item)

    def _count_busy(self, item: WaitingDelivery, change: int) -> None:
        self._busy[item.lane] += change
        member = self.members.get(item.subscription)
        if member is not None:
            member.busy[item.lane] += change


def _list_keys(item: WaitingDelivery) -> list[tuple[int, str]]:
    return [(item.subscription, name) for name in item.orders]


def _find_place(chain: "deque[WaitingDelivery] | None", item: WaitingDelivery) -> int | None:
    """Return the delivery's place in a chain, nearly always 0; None if it has none."""
    return next((place for place, each in enumerate(chain or ()) if each.id == item.id), None)
