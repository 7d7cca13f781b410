# SPDX-License-Identifier: GPL-2.0-or-later
"""One repository as the aggregator holds it. Pure.

It has the state, the mirrors' levels, and the events that wait for their notice.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ...log import Record
from ...words.event import Event
from ...words.records import Ack, RepositoryState, measure_lag
from ...words.roster import Mirror, Roster
from .arrival import Arrival, follow, leave_paths
from .held import HeldEvent
from .standing import Standing, compare, gating_at, is_applied, is_served

_get_seq = attrgetter("seq")


@dataclass(slots=True, eq=False)
class Repository:
    """State, levels and queue of one repository.

    `serials` are those of the newest sealed levels, by mirror. `queue` is in order of sequence; its first `released` items are
    released. `newer` are the offsets of the records since the first event of a newer version, which the log keeps as they came.
    `is_incomplete`: events that wait for their notice may be missing in the queue; `incomplete_at` is when that was found last.
    `newest_at` is when its newest event came; 0 if that was before this session. Both are by the monotonic clock.
    """

    id: str
    state: RepositoryState | None = None
    acks: dict[str, Ack] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)
    queue: list[HeldEvent] = field(default_factory=list)
    released: int = 0
    newer: frozenset[int] | set[int] = frozenset()
    newest_at: float = 0.0
    incomplete_at: float = 0.0
    is_stored_newer: bool = False
    is_incomplete: bool = False
    # Whether it waits until a topic takes a record about it; meanwhile its state stays the one in the log.
    is_refused: bool = False
    _newer_from: int = -1
    # For a version of the roster and a path: the mirrors that must apply its events, and the gating mirrors among them.
    _members: tuple[int, str, tuple[Mirror, ...], tuple[Mirror, ...]] = (-1, "", (), ())
    # Of the mirrors whose level did not count when it was compared: one event more in the queue, as `fill` takes, changes none.
    _standings: dict[str, Standing] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path that it has now; its id if no path is known."""
        return self.state.path if self.state else self.id

    @property
    def last(self) -> int:
        """The sequence of its newest known event."""
        return self.state.seq if self.state else 0

    @property
    def stored_state(self) -> RepositoryState | None:
        """The state as the log keeps it, with the serials of its mirrors' levels."""
        if self.state is None or not self.serials:
            return self.state
        return replace(self.state, serials=dict(self.serials))

    def add(self, held: HeldEvent) -> None:
        """Add one more event to the queue.

        While loading, events come in any order; later, the next in sequence comes.
        """
        self.queue.append(held)
        self._standings.clear()

    def end_loading(self) -> None:
        """Sort the stored events.

        Events that the state calls announced need no second notice. A lost state is rebuilt from the queue: then more may be
        announced again, and nothing is forgotten.
        """
        if self.queue and self._is_behind(max(self.queue, key=_get_seq)):
            self.state = self._state_of_queue()
        noticed, released = (self.state.noticed, self.state.released) if self.state else (0, 0)
        self.queue = sorted((held for held in self.queue if held.seq > noticed), key=_get_seq)
        self.released = sum(held.seq <= released for held in self.queue)
        self.is_incomplete = self.state is not None and len(self.queue) < self.state.seq - noticed
        self._standings.clear()

    def _is_behind(self, newest: HeldEvent) -> bool:
        """Return whether the stored state may be older than the newest waiting event.

        That event may belong to an adopted history.
        """
        state = self.state
        if state is None or newest.seq > state.seq:
            return True
        known = (state.incarnation, *state.retired)
        return newest.is_known() and newest.event.incarnation not in known

    def lacks(self, event: Event) -> bool:
        """Return whether the queue lacks this event, which has no notice yet."""
        state = self.state
        if not self.is_incomplete or state is None or event.incarnation != state.incarnation:
            return False
        if not state.noticed < event.seq <= state.seq or self._find_held(event.seq) is not None:
            return False
        after = state.event if event.seq == state.seq else None
        behind = self._find_held(event.seq + 1)
        fits = behind is None or not behind.is_known() or behind.event.previous == event.id
        return fits and after in (None, event.id)

    def lacks_next(self) -> bool:
        """Return whether the queue lacks the next event to be announced."""
        following = self.queue[0].seq if self.queue else self.last + 1
        return self.is_incomplete and self.state is not None and following > self.state.noticed + 1

    def hold_newer(self, record: Record) -> None:
        """Take a record of a newer version, or one behind it."""
        self._newer_from = min(self._newer_from, record.offset) if self.newer else record.offset
        if not isinstance(self.newer, set):
            self.newer = set()
        self.newer.add(record.offset)
        self._standings.clear()

    def is_behind_newer(self, record: Record) -> bool:
        """Return whether the record is the first of a newer version, or stands behind it."""
        return bool(self.newer) and record.offset >= self._newer_from

    def fill(self, held: HeldEvent) -> None:
        """Take an event that `lacks` asked for."""
        at = bisect_left(self.queue, held.seq, key=_get_seq)
        assert self.state is not None
        self.queue.insert(at, held)
        self.released += held.seq <= self.state.released

    def count_lost(self) -> int:
        """Count the events that the queue still lacks.

        They count as released and announced in their turn. If they come again before that, the queue takes them.
        """
        if not self.is_incomplete or self.state is None:
            return 0
        lost = self.state.seq - self.state.noticed - len(self.queue)
        if lost == 0:
            self.is_incomplete = False
        return lost

    def pass_newest(self) -> None:
        """Pass over the newest events, which the queue lacks; nothing else is left in it."""
        self._set_levels(released=self.last, noticed=self.last)

    def _set_levels(self, *, released: int, noticed: int | None = None) -> None:
        """Set the levels; without `noticed` that one stays.

        Where the queue is incomplete, the release passes over the lost events behind it.
        """
        assert self.state is not None
        if self.is_incomplete:
            released = (self.queue[self.released].seq if self.released < len(self.queue) else self.state.seq + 1) - 1
        noticed = self.state.noticed if noticed is None else noticed
        served_by = self.state.served_by if noticed == self.state.noticed else None
        left = leave_paths(self.state, noticed)
        self.state = replace(left, released=released, noticed=noticed, served_by=served_by)

    def _state_of_queue(self) -> RepositoryState | None:
        """Return the state after all stored events of the newest history.

        It follows each of them, because each may have left a path.
        """
        events = [held.event for held in sorted(self.queue, key=_get_seq) if held.is_known()]
        if not events:
            return self.state
        state, newest = self.state, events[-1].incarnation
        history = [event for event in events if event.incarnation == newest]
        if state is None or state.incarnation != newest:
            state = follow(state, history[0], Arrival.FIRST if state is None else Arrival.ADOPTED, 0)
        for event in history:
            if event.seq > state.seq:
                state = follow(state, event, Arrival.NEXT, state.roster)
        return state

    def drop_broken(self) -> HeldEvent:
        """Take out and return the next event to decide about, which cannot be read."""
        ends = (at for at in (self.released, 0) if at < len(self.queue))
        at = next(at for at in ends if not self.queue[at].is_readable())
        held = self.queue[at]
        del self.queue[at]
        self.released -= at < self.released
        return held

    def find_id(self, seq: int) -> str | None:
        """Return the id of the event with this sequence, if it is held or the newest."""
        if self.state is not None and seq == self.state.seq:
            return self.state.event
        held = self._find_held(seq)
        return None if held is None else held.event.id

    def _find_held(self, seq: int) -> HeldEvent | None:
        at = bisect_left(self.queue, seq, key=_get_seq)
        return self.queue[at] if at < len(self.queue) and self.queue[at].seq == seq else None

    def unwritten(self) -> list[HeldEvent]:
        """Return the events that are not in the log yet, the oldest first.

        From now on they count as written.
        """
        found = []
        for held in reversed(self.queue):
            if held.written:
                break
            held.written = True
            found.append(held)
        return found[::-1]

    def drop_newest(self) -> HeldEvent:
        """Take out and return the newest event; levels at it stay as they were compared."""
        held = self.queue.pop()
        self.released = min(self.released, len(self.queue))
        return held

    def gating(self, roster: Roster) -> tuple[Mirror, ...]:
        """Return the mirrors that notices of this repository wait for."""
        return self._find_members(roster)[1]

    def _find_members(self, roster: Roster) -> tuple[tuple[Mirror, ...], tuple[Mirror, ...]]:
        """Return the mirrors that must apply its events, and the gating ones among them.

        The first are not deactivated for it.
        """
        path = self.state.path if self.state else ""
        if self._members[:2] != (roster.version, path):
            carrying = tuple(one for one in roster.mirrors if one.carries(path) and self.id not in one.deactivated)
            gating = tuple(mirror for mirror in carrying if mirror.gates(self.id, None))
            self._members = (roster.version, path, carrying, carrying if gating == carrying else gating)
        return self._members[2:]

    def measure_lags(self, roster: Roster) -> Iterator[tuple[str, int]]:
        """Yield each mirror that must apply its events and lacks some, and how many.

        No mirror must apply those of a deleted repository that it does not have.
        """
        state = self.state
        if state is None:
            return
        for mirror in self._find_members(roster)[0]:
            ack = self.acks.get(mirror.name)
            counting = ack if ack is not None and ack.incarnation == state.incarnation else None
            unapplied = measure_lag(counting, seq=state.seq, released=0).unapplied
            if unapplied and not (ack is None and state.deleted):
                yield mirror.name, unapplied

    def count_unserved(self, mirror: str) -> int:
        """Count the events without a notice that the mirror does not serve.

        If they are not released, those that it has not applied.
        """
        ack = self.ack(mirror)
        applied, serving = (ack.applied, ack.serving) if ack else (0, 0)
        unserved = self.released - bisect_right(self.queue, serving, hi=self.released, key=_get_seq)
        return unserved + len(self.queue) - bisect_right(self.queue, applied, lo=self.released, key=_get_seq)

    def find_ahead(self) -> dict[str, int]:
        """Find the levels at events that are not known, by mirror."""
        levels = ((mirror, ack.applied) for mirror, ack in self.acks.items() if ack.applied)
        return {mirror: applied for mirror, applied in levels if self.standing(mirror) is Standing.AHEAD}

    def take_level(self, mirror: str, ack: Ack | None) -> None:
        """Take the mirror's newest level, or the end of it."""
        self._standings.pop(mirror, None)
        if ack is None:
            self.acks.pop(mirror, None)
        else:
            self.acks[mirror] = ack

    def standing(self, mirror: str) -> Standing | None:
        """Compare the mirror's level with the known events; None if it has none."""
        ack = self.acks.get(mirror)
        if ack is None or mirror in self._standings:
            return self._standings.get(mirror)
        found = compare(ack, self.state, len(self.newer), self._find_held)
        if found is not Standing.COUNTS:
            self._standings[mirror] = found
        return found

    def ack(self, mirror: str) -> Ack | None:
        """Return the mirror's level, if it counts."""
        return self.acks.get(mirror) if self.standing(mirror) is Standing.COUNTS else None

    def is_caught_up(self, mirror: str, released: int) -> bool:
        """Return whether the mirror serves what was released.

        A mirror that was filled beyond it, and serves it with the next release, counts too. A mirror that is ahead of the log must
        serve it now: the log may have lost the events in between, and the next release may never come.
        """
        ack = self.ack(mirror)
        if ack is not None:
            return released <= min(ack.applied, max(ack.serving, ack.applied - 1))
        if self.state is None or self.standing(mirror) is not Standing.AHEAD:
            return released <= 0
        ahead = self.acks[mirror]
        return released <= (ahead.serving if ahead.incarnation == self.state.incarnation else 0)

    def releasable(self, gating: tuple[Mirror, ...], *, allow_empty: bool) -> Iterator[HeldEvent]:
        """Yield the events that can be released now, in order.

        The caller releases each before it asks for the next. An event that changes URL or visibility waits until everything before
        it is announced, because those notices name the present URL. But it does not wait if a mirror cannot serve the events before
        it alone.
        """
        while self.released < len(self.queue):
            held = self.queue[self.released]
            mirrors = gating_at(held, gating)
            if not mirrors and not allow_empty:
                return
            acks = [self.ack(mirror.name) for mirror in mirrors]
            if not all(is_applied(ack, held) for ack in acks):
                return
            if self.released and held.changes_place and not any(ack and ack.floor >= held.seq for ack in acks):
                return
            yield held

    def next_to_release(self) -> HeldEvent | None:
        return self.queue[self.released] if self.released < len(self.queue) else None

    def find_late(self, roster: Roster) -> tuple[str, ...]:
        """Return the names of the mirrors that the oldest event waits for.

        It waits for them to apply it, and once it is released, to serve it.
        """
        if not self.queue:
            return ()
        held = self.queue[0]
        names = (mirror.name for mirror in gating_at(held, self.gating(roster)))
        released = held.seq if self.released else 0
        return tuple(name for name in names if measure_lag(self.ack(name), seq=held.seq, released=released).is_late)

    def occupies(self, path: str, generation: int) -> bool | None:
        """Return whether notices from before that generation at the path are left.

        None means that the repository never left the path, and nothing of it waits.
        """
        state = self.state
        if state is None:
            return False
        if any(stay.path == path and stay.generation < generation for stay in state.stays):
            return True
        if state.path != path or state.generation >= generation:
            return False
        if state.deleted:
            return state.noticed < state.seq
        return True if self.queue or self.newer or self.is_stored_newer or self.is_refused else None

    def has_left(self, path: str) -> bool:
        """Return whether it is not at the path any more, and no notice of that is left."""
        state = self.state
        if state is None or any(stay.path == path for stay in state.stays):
            return False
        return state.path != path or (state.deleted and state.noticed == state.seq)

    def find_generation(self, path: str) -> int:
        """Return the generation with which mirrors may show it at the path, or 0."""
        state = self.state
        if state is None or not state.released:
            return 0
        for stay in state.stays:
            if stay.until > state.released:
                return stay.generation if stay.path == path else 0
        return state.generation if state.path == path and not state.deleted else 0

    def release(self, held: HeldEvent, version: int) -> None:
        """Allow mirrors to serve this event."""
        assert self.state is not None
        self.released += 1
        self.state = replace(self.state, roster=version)
        self._set_levels(released=held.seq)

    def announceable(
        self, gating: tuple[Mirror, ...], *, allow_empty: bool
    ) -> Iterator[tuple[HeldEvent, tuple[Ack, ...]]]:
        """Yield the events that can be announced now with their acks, in order.

        The caller announces each before it asks for the next.
        """
        while self.released:
            held = self.queue[0]
            mirrors = gating_at(held, gating)
            if not mirrors and not allow_empty:
                return
            acks = [ack for mirror in mirrors if (ack := self.ack(mirror.name)) and is_served(ack, held)]
            if len(acks) < len(mirrors):
                return
            yield held, tuple(acks)

    def announced(self, held: HeldEvent, version: int, last: Mapping[str, str] | None, served_by: int) -> None:
        """Pass this event, whose notice is written.

        `last` has the newest event of each public stream, `served_by` is the number of mirrors that the notice waited for.
        """
        assert self.state is not None
        del self.queue[0]
        self.released -= 1
        self.state = replace(self.state, roster=version, streams=last)
        self._set_levels(released=self.state.released, noticed=held.seq)
        self.state = replace(self.state, served_by=served_by)
