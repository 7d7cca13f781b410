# SPDX-License-Identifier: GPL-2.0-or-later
"""The levels of mirrors, from `acks`. Pure.

Each level counts, waits until its event is known, or is recorded as an error.
"""

from dataclasses import replace
from functools import partial

from ...log import ACKS, Record
from ...words import shape
from ...words.errors import MalformedEvent, Rejected
from ...words.records import ACK_LIMIT, HEARTBEAT_LIMIT, Ack, MirrorHeartbeat
from .membership import RosterMembership
from .memory import Memory, RecordOutcome
from .standing import Standing

# Characters of a mirror's instance that are kept.
INSTANCE_KEPT = 200


class MirrorLevels:
    """Takes levels and heartbeats.

    `formats` says by mirror which members of an ack it knows. `instances` has by mirror the last two that sent heartbeats, each
    with the offset of its newest.
    """

    def __init__(self, memory: Memory, membership: RosterMembership) -> None:
        self._memory, self._membership = memory, membership
        self.formats: dict[str, int] = {}
        self.instances: dict[str, dict[str, int]] = {}
        # Levels cannot be compared before everything is loaded.
        self.is_loaded = False

    def take(self, record: Record, now: float, serial: int | None = None) -> RecordOutcome:
        """Take a record of `acks`: a level, the end of one, or a heartbeat.

        `serial` is that of a record that its mirror sealed. A record that cannot be read is recorded once.
        """
        return self._memory.guarded(partial(self._take_or_refuse, serial=serial), record, now, self.refuse)

    def doubt(self, mirror: str, name: str, applied: int, now: float) -> None:
        """Set aside a level at an event that the whole log does not have."""
        repository = self._memory.repositories[name]
        text = (
            f"{repository.path}: {mirror} says that it has applied event {applied}, which is not in the log; "
            "its level is ignored until the log has that event"
        )
        value = shape.to_json(repository.acks[mirror])
        self._memory.output.error(f"{mirror}/{name}", text, ACKS, 0, 0, value, now, repository=name)

    def _take_or_refuse(self, record: Record, now: float, *, serial: int | None) -> RecordOutcome:
        mirror, _, repository = (record.key or "").partition("/")
        try:
            if repository:
                reason = self._take_level(mirror, repository, record.value, serial)
                if reason is not None:
                    return self.refuse(record, reason, now)
            elif record.value is not None:
                beat = shape.from_json(MirrorHeartbeat, record.value, limit=HEARTBEAT_LIMIT)
                if beat.mirror != mirror:
                    raise MalformedEvent("key and value name different mirrors")
                self.formats[mirror] = beat.format
                if beat.instance:
                    self._hear(mirror, beat.instance[:INSTANCE_KEPT], record.offset)
        except Rejected as error:
            return self.refuse(record, str(error), now)
        return RecordOutcome.TAKEN

    def _hear(self, mirror: str, instance: str, offset: int) -> None:
        known = self.instances.setdefault(mirror, {})
        known.pop(instance, None)
        known[instance] = offset
        if len(known) > 2:
            del known[next(iter(known))]

    def list_namesakes(self) -> dict[str, dict[str, int]]:
        """Return, by mirror of the roster, its `instances` if there are two."""
        names = [mirror.name for mirror in self._membership.roster.mirrors]
        return {name: known for name in names if len(known := self.instances.get(name, {})) > 1}

    def _take_level(self, mirror: str, name: str, value: bytes | None, serial: int | None) -> str | None:
        """Take a level; return why it is ignored, if that is certain."""
        ack = None if value is None else shape.from_json(Ack, value, limit=ACK_LIMIT)
        if ack is not None and (ack.mirror, ack.repository) != (mirror, name):
            raise MalformedEvent("key and value name different mirrors or repositories")
        mirror = mirror if ack is None else ack.mirror  # one text for all levels of the mirror
        repository = self._memory.repository(name)
        if ack is not None and ack.signature and serial is None:  # nothing says that the mirror itself signed it
            ack = replace(ack, signature=None)
        if serial is not None:
            repository.serials[mirror] = serial
            if _takes_back(ack, repository.acks.get(mirror)):
                # From here on the state says that an older, higher level does not count any more.
                self._memory.output.dirty[name] = repository
        repository.take_level(mirror, ack)
        if repository.queue:
            self._memory.touched[name] = repository
        if not self.is_loaded:
            return None
        self._membership.hear(mirror, repository)
        if ack is None or repository.standing(mirror) is not Standing.FOREIGN:
            return None
        return (
            f"{repository.path}: {mirror} says that it has applied event {ack.applied} ({ack.event[:40]}), which is another "
            "one in the log, or has another digest: this level is ignored"
        )

    def refuse(self, record: Record, reason: str, now: float, traceback: str | None = None) -> RecordOutcome:
        """Pass over a record, which changes no level; it is recorded once."""
        if record.offset >= self._memory.positions.get((ACKS, record.partition), 0):
            self._memory.output.reject(record, reason, now, traceback=traceback)
            self._memory.pass_record(record, RecordOutcome.REJECTED)
        return RecordOutcome.REJECTED


def _takes_back(ack: Ack | None, former: Ack | None) -> bool:
    """Return whether a level takes back what the former one said."""
    if ack is None or former is None:
        return former is not None
    return (
        (ack.incarnation, ack.floor) != (former.incarnation, former.floor)
        or ack.applied < former.applied
        or ack.serving < former.serving
    )
