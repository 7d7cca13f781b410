# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log brings: events are checked and queued, levels and the roster noted, what can never work is kept in `errors`."""

from base64 import b64encode

import structlog

from ..errors import MalformedEvent, Rejected, UnknownEvent
from ..levels import KEY_KEPT, AggregatorBeat, ErrorRecord, Reason, State
from ..log import ERRORS, Message, Record
from ..roster import KEY as ROSTER_KEY
from ..roster import Roster
from ..shape import from_json, to_json
from . import metrics
from .apart import Apart
from .books import deletion
from .task import Item

log = structlog.get_logger()


class Intake(Apart):
    """What a record means for the books."""

    def _record(self, record: Record) -> None:
        match record.topic:
            case "state":
                self._state(record)
            case "roster":
                if record.key == ROSTER_KEY:
                    self.take_roster(record.value)
            case _:
                self._event(record)

    def _event(self, record: Record) -> None:
        self._backlog.read(record.partition, record.offset)
        try:
            item = self._item(record)
        except Rejected as error:
            self._reject(record, error)
            return
        if item is None or not self._wanted(item):
            return
        event = item.event
        following = self._following(event.repository, event.path)
        if (twins := self._twin(event.repository, event.path)) is not None:
            if following.follows_stream:
                self._backlog.add(event.repository, item)
                self._detach(following, Reason.REFUSED, f"path {event.path!r} is taken by its twin {twins!r}")
            return
        if not following.follows_stream or self._is_repeat(following, item):
            return
        self._backlog.add(event.repository, item)
        if self._backlog.size(event.repository) > self._settings.repository_buffer_bytes:
            self._detach(following, Reason.SLOW, "events arrive faster than they can be applied")
        else:
            self._queue(following)

    def _wanted(self, item: Item) -> bool:
        """Whether this mirror carries the repository, and has not let it go."""
        event = item.event
        gone = self._gone.get(event.repository)
        if gone is not None and gone.incarnation == event.incarnation and event.seq <= gone.seq:
            if event.seq == gone.seq and event.repository not in self._over and event.repository not in self._all:
                self._tell_gone(deletion(event, self._clock.now()))
            return False
        return self._carries(event.path) or self._carries((event.detail or {}).get("from", event.path))

    def _reject(self, record: Record, error: Rejected) -> None:
        """Kept in `errors`; a repository that it names as its key is followed apart, because its next event is missing."""
        reason = Reason.UNKNOWN_VERSION if isinstance(error, UnknownEvent) else Reason.GAP
        known = self._all.get(record.key or "")
        log.error("record rejected", partition=record.partition, offset=record.offset, reason=str(error))
        metrics.REJECTED.inc()
        key = None if record.key is None else record.key[:KEY_KEPT]
        told = ErrorRecord(
            time=self._clock.now(),
            service=self._settings.group,
            reason=str(error),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=key,
            value=b64encode((record.value or b"")[: 48 * 1024]).decode(),
            repository=known.id if known else None,
        )
        self.sender.append(Message(topic=ERRORS, key=key, value=to_json(told)))
        if known is not None and known.follows_stream:
            self._detach(known, reason, str(error), offset=record.offset)

    def _state(self, record: Record) -> None:
        if record.key == "aggregator" or record.key is None or record.value is None:
            return self._aggregator_beat(record)
        try:
            state = from_json(State, record.value)
        except MalformedEvent as error:
            log.error("state not understood", reason=str(error), key=record.key)
            return None
        following = self._all.get(state.repository)
        carries = self._carries(state.path)
        self._elsewhere.pop(state.repository, None)
        if not carries and not state.deleted:
            self._elsewhere[state.repository] = record
        if state.deleted and state.noticed >= state.seq:
            self._forget(state)
        if following is None and not state.deleted and carries:
            following = self._following(state.repository, state.path)
        if following is not None:
            following.there = state.path
            following.released, following.incarnation = state.released, state.incarnation
            following.expected = state.seq if carries and not state.deleted else 0
            self._queue(following)
        return None

    def _aggregator_beat(self, record: Record) -> None:
        if record.value is not None and record.key == "aggregator":
            try:
                metrics.AGGREGATOR_BEAT.set(from_json(AggregatorBeat, record.value).time)
            except MalformedEvent as error:
                log.error("beat not understood", reason=str(error))

    def take_roster(self, value: bytes | None) -> None:
        """The roster says what this mirror carries; without one, or not being in it, it carries everything."""
        if value is not None:
            try:
                self._roster = from_json(Roster, value)
            except MalformedEvent as error:
                log.error("roster not understood", reason=str(error))
            for record in [*self._elsewhere.values()]:  # of which some may be carried now
                self._state(record)
