# SPDX-License-Identifier: GPL-2.0-or-later
"""The roster: decides requests, and makes joining mirrors active. Pure.

A joining mirror becomes active once it is caught up everywhere.
"""

from ...log import ACKS, EVENTS, PENDING, ROSTER, NewRecord, Record
from ...words import shape
from ...words.errors import Refused, Rejected
from ...words.roster import KEY, Mirror, MirrorState, Roster, RosterRequest, Verb
from ...words.roster.changes import decide, promoted, remember
from ...words.roster.keys import with_aggregator_keys, with_sealed_from, with_signing_keys
from .memory import Memory, RecordOutcome
from .repository import Repository


class RosterMembership:
    """The present roster, and for each joining mirror the sequences that it lacks."""

    def __init__(self, roster: Roster, memory: Memory) -> None:
        self.roster = roster
        self._memory = memory
        self._behind: dict[str, dict[str, int]] = {}

    def take(self, record: Record, now: float) -> RecordOutcome:
        """Take a request; move the position past it unless the outcome asks for it again."""
        return self._memory.pass_record(record, self._memory.guarded(self._decide_request, record, now))

    def _decide_request(self, record: Record, now: float) -> RecordOutcome:
        """Decide a record of `roster-requests`; a request decided before is a repeat."""
        try:
            request = shape.from_json(RosterRequest, record.value or b"")
        except Rejected as error:
            return self._memory.refuse(record, str(error), now)
        if self.roster.decision(request.id) is not None:
            return RecordOutcome.REPEAT
        points = {partition: at for (topic, partition), at in self._memory.positions.items() if topic == EVENTS}
        try:
            decided = decide(self.roster, request, positions=points, now=now)
        except Refused as error:
            self._set_roster(remember(self.roster, request, now=now, refusal=str(error)))
            return RecordOutcome.REJECTED
        returns = request.verb is Verb.ADD and self.roster.mirror(request.mirror) is not None
        if (returns or request.verb is Verb.REMOVE) and not self._forget(request.mirror or ""):
            return RecordOutcome.UNFINISHED
        self._set_roster(remember(decided, request, now=now))
        return RecordOutcome.TAKEN

    def survey(self) -> None:
        """Compare every joining mirror again with every repository.

        The mirror must serve everything that is released now.
        """
        joining = [mirror.name for mirror in self.roster.mirrors if mirror.state is MirrorState.JOINING]
        self._behind = {name: {} for name in joining}
        for repository in self._memory.repositories.values() if joining else ():
            self.compare_joining(repository)

    def compare_joining(self, repository: Repository) -> None:
        """Compare every joining mirror with a repository that moved, is deleted, or has another history."""
        for name, behind in self._behind.items():
            mirror = self.roster.mirror(name)
            assert mirror is not None
            behind.pop(repository.id, None)
            if (lacking := _find_lacking(mirror, repository)) is not None:
                behind[repository.id] = lacking

    def hear(self, mirror: str, repository: Repository) -> None:
        """Take another level of the mirror for this repository."""
        behind = self._behind.get(mirror)
        if behind and repository.id in behind and repository.is_caught_up(mirror, behind[repository.id]):
            del behind[repository.id]

    def promote(self, now: float) -> None:
        """Make active each joining mirror that lacks nothing."""
        for name in [name for name, behind in self._behind.items() if not behind]:
            self._set_roster(promoted(self.roster, name, now=now))

    def write_again(self) -> None:
        """Write the present version with the next batch, if any was ever decided."""
        if self.roster.version:
            self._set_roster(self.roster)

    def announce_keys(self, keys: tuple[str, ...], signing: tuple[str, ...]) -> None:
        """Let the roster name the aggregator's public keys, the newest first.

        `signing` are those of its signatures, if it signs notices.
        """
        if (announced := with_aggregator_keys(self.roster, keys)) is not self.roster:
            self._set_roster(announced)
        if (announced := with_signing_keys(self.roster, signing)) is not self.roster:
            self._set_roster(announced)

    def note_sealed(self, name: str, offset: int) -> None:
        """Let the roster say that a mirror seals its acks from this offset on."""
        self._set_roster(with_sealed_from(self.roster, name, offset))

    def _set_roster(self, roster: Roster) -> None:
        """Write a version of the roster.

        Each version is a record of its own, because decisions name it.
        """
        changed = roster.version != self.roster.version
        self.roster, self._memory.output.roster = roster, True
        for record in list_records(roster):
            self._memory.output.add(record)
        if changed:
            self._memory.touched.update((name, it) for name, it in self._memory.repositories.items() if it.queue)
            self._memory.outstanding.note_all(self._memory.repositories)
            self.survey()

    def _forget(self, mirror: str) -> bool:
        """Forget a mirror's levels; return False if the batch was full before the end."""
        for repository in self._memory.repositories.values():
            repository.serials.pop(mirror, None)
            if mirror in repository.acks:
                if self._memory.output.is_full:
                    return False
                repository.take_level(mirror, None)
                self._memory.output.add(NewRecord(topic=ACKS, key=f"{mirror}/{repository.id}", value=None))
        return True


def list_records(roster: Roster) -> list[NewRecord]:
    """List the records of a version, which one transaction writes.

    Operators decided what it says, and nothing else has it: so `pending` has a copy, from which a start takes what `roster` lost.
    """
    value = shape.to_json(roster)
    return [NewRecord(topic=topic, key=KEY, value=value) for topic in (ROSTER, PENDING)]


def _find_lacking(mirror: Mirror, repository: Repository) -> int | None:
    """Return the sequence that a joining mirror must serve and does not; None if it lacks none."""
    state = repository.state
    if state is None or state.deleted or repository.id in mirror.deactivated or not mirror.carries(state.path):
        return None
    return None if repository.is_caught_up(mirror.name, state.released) else state.released
