# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of the stream.

Events are checked and queued, and records that can never work are kept in the topic `errors`.
"""

from base64 import b64encode
from collections.abc import Mapping

import structlog

from ...log import ERRORS, EVENTS, NewRecord, Record
from ...words.errors import Rejected, UnknownEvent
from ...words.records import KEY_KEPT, ErrorRecord, Reason
from ...words.shape import to_json
from ...words.unexpected import UnexpectedError, fault
from ...words.wire import names_of
from .. import metrics
from ..task import ReadEvent
from .backlog import checked_event
from .control import Control
from .departures import Departures
from .detached import Detachments
from .state import State

# Bytes of a rejected record's value that are kept.
VALUE_KEPT = 48 * 1024
logger = structlog.get_logger()


class Intake:
    """Takes the stream reader's records; a record that fails only becomes a reject."""

    def __init__(self, state: State, control: Control, departures: Departures, detachments: Detachments) -> None:
        self._state = state
        self._settings, self._writer, self._clock = state.settings, state.writer, state.clock
        self._table, self._agenda, self._backlog, self._acks = state.table, state.agenda, state.backlog, state.acks
        self._membership = state.membership
        self._control, self._departures, self._detachments = control, departures, detachments

    def take_record(self, record: Record) -> None:
        """Take a record of `events`, `state` or `roster`, or reject it if it never works."""
        try:
            if record.topic == EVENTS:
                self._accept_event(record)
            else:
                self._control.take_record(record.topic, record.key, record.value)
        except Rejected as error:
            self._reject(record, error)
        except Exception as error:
            if (found := fault(error)) is None:
                raise
            names = names_of(record.key if record.topic == EVENTS else None, record.headers)
            place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            logger.exception("unexpected", **names, **place)
            self._reject(record, found)

    def skip(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Go on at these positions.

        Queued events that will be read again are dropped, and every ack is written again. A log that goes back to former positions
        lost records: perhaps the newest acks, too.
        """
        for (_, partition), offset in positions.items():
            for repository in self._backlog.queued_from(partition, offset):
                if (following := self._table.get(repository)) is not None:
                    self._state.carry_out(following, following.drop_events())
            self._backlog.read_to(partition, offset)
        for following in self._table:
            self._acks.send_again(following)

    def _accept_event(self, record: Record) -> None:
        self._backlog.read_to(record.partition, record.offset + 1)
        item = checked_event(record, self._backlog.partitions)
        if item is None or self._departures.is_past(item.event) or not self._is_carried(item):
            return
        event = item.event
        following = self._table.get_or_add(event.repository, event.path)
        if not following.listens() or following.is_at(event):
            return
        self._backlog.add(following.id, item)
        if self._backlog.size(following.id) > self._settings.repository_buffer_bytes:
            self._detachments.detach(following, Reason.SLOW, "events arrive faster than they can be applied")
        else:
            self._agenda.queue(following)

    def _is_carried(self, item: ReadEvent) -> bool:
        """Return whether this mirror carries the event's repository.

        False too if the repository was renamed since to a path that this mirror does not carry.
        """
        event, carries = item.event, self._membership.carries
        known = self._control.state_of(event.repository)
        is_older = known is not None and known.incarnation == event.incarnation and event.seq <= known.seq
        if known is not None and is_older and not carries(known.path):
            return False
        return carries(event.path) or carries((event.detail or {}).get("from", event.path))

    def _reject(self, record: Record, error: Rejected) -> None:
        """Keep the record in `errors`, and detach the repository that lacks an event now."""
        reason = Reason.UNKNOWN_VERSION if isinstance(error, UnknownEvent) else Reason.GAP
        known = self._table.get(record.key)
        key = None if record.key is None else record.key[:KEY_KEPT]
        names = names_of(record.key if record.topic == EVENTS or known else None, record.headers)
        if known is not None:
            names["path"] = known.path
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "key": key}
        logger.error("record rejected", **names, **place, reason=str(error))
        metrics.REJECTED.inc()
        kept = ErrorRecord(
            time=self._clock.now(),
            service=self._settings.group,
            reason=str(error),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=key,
            value=b64encode((record.value or b"")[:VALUE_KEPT]).decode(),
            repository=known.id if known else None,
            traceback=error.traceback if isinstance(error, UnexpectedError) else None,
        )
        self._writer.append(NewRecord(topic=ERRORS, key=key, value=to_json(kept)))
        if record.topic == EVENTS and known is not None and known.listens():
            self._detachments.detach(known, reason, str(error), offset=record.offset)
