# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log brings: events are checked and queued, levels and the roster noted, what can never work is kept in `errors`."""

import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import structlog

from ..log import ERRORS, EVENTS, NewRecord, Record
from ..words.errors import MalformedEvent, Rejected, UnknownEvent
from ..words.event import check_place
from ..words.levels import KEY_KEPT, AggregatorBeat, ErrorRecord, Reason, RepositoryState
from ..words.roster import KEY as ROSTER_KEY
from ..words.roster import Roster
from ..words.rules import refused
from ..words.shape import from_json, to_json
from ..words.unexpected import UnexpectedError, fault
from . import metrics
from .apart import Apart
from .books import deletion
from .task import ReadEvent

FRESH = "fresh"
logger = structlog.get_logger()


class Intake(Apart):
    """What a record means for the books."""

    def _record(self, record: Record) -> None:
        """Whatever a record is, what it does to this mirror is no more than a reject of it."""
        try:
            match record.topic:
                case "state":
                    self._state(record.key, record.value)
                case "roster":
                    if record.key == ROSTER_KEY:
                        self._take_roster(record.value)
                case _:
                    self._event(record)
        except Rejected as error:
            self._reject(record, error)
        except Exception as error:
            if (found := fault(error)) is None:
                raise
            logger.exception("unexpected", topic=record.topic, partition=record.partition, offset=record.offset)
            self._reject(record, UnexpectedError(found))

    def _event(self, record: Record) -> None:
        self._backlog.read(record.partition, record.offset)
        item = self._item(record)
        if item is None or not self._wanted(item):
            return
        event = item.event
        following = self._following(event.repository, event.path)
        if (other := self._twin(following, event)) is not None:
            if following.follows_stream:
                self._backlog.add(event.repository, item)
                self._refuse(following, event, other)
            return
        if not following.follows_stream or self._is_repeat(following, item):
            return
        self._backlog.add(event.repository, item)
        if self._backlog.size(event.repository) > self._settings.repository_buffer_bytes:
            self._detach(following, Reason.SLOW, "events arrive faster than they can be applied")
        else:
            self._queue(following)

    def _wanted(self, item: ReadEvent) -> bool:
        """Whether this mirror carries the repository, and has not let it go."""
        event = item.event
        gone = self._gone.get(event.repository)
        if gone is not None and gone.incarnation == event.incarnation and event.seq <= gone.seq:
            if event.seq == gone.seq and event.repository not in self._over and event.repository not in self._all:
                self._tell_gone(deletion(event, self._clock.now()))
            return False
        known = self._states.get(event.repository)
        newer = known is not None and known.incarnation == event.incarnation and event.seq <= known.seq
        if known is not None and newer and not self._carries(known.path):
            return False  # it was renamed since, out of what this mirror carries
        return self._carries(event.path) or self._carries((event.detail or {}).get("from", event.path))

    def _reject(self, record: Record, error: Rejected) -> None:
        """Kept in `errors`; a repository that it names as its key is followed apart, because its next event is missing."""
        reason = Reason.UNKNOWN_VERSION if isinstance(error, UnknownEvent) else Reason.GAP
        known = self._all.get(record.key or "")
        logger.error(
            "record rejected", topic=record.topic, partition=record.partition, offset=record.offset, reason=str(error)
        )
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
            traceback=error.traceback if isinstance(error, UnexpectedError) else None,
        )
        self.sender.append(NewRecord(topic=ERRORS, key=key, value=to_json(told)))
        if record.topic == EVENTS and known is not None and known.follows_stream:
            self._detach(known, reason, str(error), offset=record.offset)

    def take_state(self, key: str | None, value: bytes | None) -> None:
        """What `state` holds for a key at the start; what cannot be handled is passed over.

        The aggregator's beat there may be of any age: only another one is a sign of life.
        """
        self._pass_over("state", key, lambda: self._state(key, value, is_new=False))

    def _pass_over(self, topic: str, key: str | None, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as error:
            if not isinstance(error, Rejected) and fault(error) is None:
                raise
            logger.error("record not understood", topic=topic, key=key, reason=str(error)[:300])

    def _state(self, key: str | None, value: bytes | None, *, is_new: bool = True) -> None:
        """What the aggregator holds true of a repository, or its sign of life. Raises MalformedEvent."""
        if key is None or value is None:
            return
        if key == "aggregator":
            beat = from_json(AggregatorBeat, value)
            if is_new and beat != self._aggregator_beat:
                self._renew()
            self._aggregator_beat = beat
            return
        state = from_json(RepositoryState, value)
        check_place(state.repository, state.path)
        if state.repository != key:
            raise MalformedEvent(f"state: its key is not the repository {state.repository}")
        self._learn(state)

    def _renew(self) -> None:
        """The file by whose time web servers know when this machine heard the aggregator; clocks of machines are never compared."""
        file, now = Path(self._settings.folder) / FRESH, self._clock.now()
        metrics.AGGREGATOR_BEAT.set(now)
        try:
            file.touch()
            os.utime(file, (now, now))
        except OSError as error:
            logger.error("file not renewed", file=str(file), reason=error.strerror)

    def _learn(self, state: RepositoryState) -> None:
        self._states[state.repository] = state
        is_over = state.deleted and state.noticed >= state.seq
        if is_over:
            del self._states[state.repository]
            self._forget(state)
        following, carries = self._all.get(state.repository), self._carries(state.path)
        gone = self._gone.get(state.repository)
        if following is None and carries and not is_over and state.deleted and gone is not None:
            if (gone.incarnation, gone.seq) == (state.incarnation, state.seq):
                self._tell_gone(
                    deletion(state, self._clock.now())
                )  # its notice may wait for an ack that the log never got
            return
        if following is None and carries and not is_over:
            following = self._following(state.repository, state.path)
        if following is None:
            return
        checkpoint = following.checkpoint
        if checkpoint is None or checkpoint.incarnation != state.incarnation or state.seq >= checkpoint.seq:
            following.there = state.path
        else:
            following.there = checkpoint.path
        following.released, following.incarnation = state.released, state.incarnation
        following.told = state.seq, state.event, state.digest
        following.is_stuck = False
        following.expected = state.seq if carries else 0
        following.deletion = deletion(state, self._clock.now()) if state.deleted else None
        self._leave_if_due(following)
        self._queue(following)

    def take_roster(self, value: bytes | None) -> None:
        """The roster at the start; one that cannot be handled is passed over."""
        self._pass_over("roster", ROSTER_KEY, lambda: self._take_roster(value))

    def _take_roster(self, value: bytes | None) -> None:
        """The roster says what this mirror carries; without one, or not being in it, it carries everything.

        An older one than the last says nothing any more. Raises MalformedEvent, the last one then holds. A rule that cannot be
        evaluated (one of an older release) leaves nothing out, as the aggregator sees it: what it gates is carried, or notices
        would wait for ever.
        """
        roster = None if value is None else from_json(Roster, value)
        if roster is None or roster.version < self._roster.version:
            return
        before, self._roster = self._member, roster
        now = self._member
        if now is None or before == now:
            return
        if before is None or before.rules != now.rules:
            for rule, problem in refused((*now.rules.include, *now.rules.exclude)).items():
                logger.error("rule refused, leaves nothing out", rule=rule[:200], reason=problem)
        if before is None or (before.rules, before.role) != (now.rules, now.role):
            for state in [*self._states.values()]:  # what this mirror shall have now, or not any more
                self._learn(state)
            for following in [*self._all.values()]:
                self._leave_if_due(following)
        if before is not None and (before.state, before.since) != (now.state, now.since):
            for following in self._all.values():  # a mirror that was removed meanwhile has no levels in the log
                following.sent = None
                self._ack(following)
