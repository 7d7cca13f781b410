# SPDX-License-Identifier: GPL-2.0-or-later
"""The next releases and notices, until a batch is full. Pure."""

from dataclasses import replace

from ...keys.pairs import KeyPair
from ...keys.signed import sign_notice
from ...log import EVENTS, NOTICES, PENDING, NewRecord
from ...words import shape
from ...words.errors import MalformedEvent, UnknownEvent
from ...words.event import Event, Type
from ...words.records import Ack, Notice
from ...words.streams import streams
from ...words.wire import SIGNED
from .held import HeldEvent
from .membership import RosterMembership
from .memory import Memory
from .poison import blaming
from .repository import Repository
from .standing import make_proof
from .succession import Succession

# Seconds that notices wait for earlier events that the log lost: a relay finds the loss when it starts, or in its next scan.
LOST_PATIENCE = 30.0


class Decisions:
    """Decides about repositories: first the touched ones, then the backlog.

    A batch holds at most about `limit` notices. `signer` signs them, if it is set.
    """

    def __init__(self, memory: Memory, membership: RosterMembership, succession: Succession, limit: int) -> None:
        self.signer: KeyPair | None = None
        self._memory, self._membership, self._succession, self._limit = memory, membership, succession, limit
        self._backlog: dict[str, Repository] = {}
        self._successors: dict[str, Repository] = {}
        # Repositories that wait for lost events, and until when.
        self._patient: dict[str, float] = {}

    @property
    def is_undecided(self) -> bool:
        """Whether there is more to decide than went into the last batch."""
        return bool(self._memory.touched or self._backlog)

    def decide(self, now: float) -> None:
        """Release and announce events until a batch is full.

        New events go first: a long backlog of other repositories delays no release, and no notice by more than a batch.
        """
        self._touch_patient()
        touched, self._memory.touched = {**self._successors, **self._memory.touched}, {}
        self._successors = {}
        for name, repository in touched.items():
            if self._memory.output.is_crowded:
                self._memory.touched[name] = repository
            elif self._decide(repository, now):
                self._backlog.pop(name, None)
            else:
                self._backlog[name] = repository
        for name in list(self._backlog):
            repository = self._backlog.pop(name)
            if not self._decide(repository, now):
                self._backlog[name] = repository
                break

    def retire(self, repository: Repository, adopted: Event, now: float) -> bool:
        """End the old history of a repository that has adopted another one.

        Announces the events that can be announced, and records the rest as overtaken by the adopted history. Returns False if the
        batch was full before the end. The newest event is overtaken first: after a kill in the middle, the rest is announced
        without a hole, or overtaken the next time. Raises UnknownEvent, with nothing changed, if a newer aggregator stored some of
        the old history.
        """
        repository.incomplete_at = float("-inf")  # nothing of the old history comes any more
        for held in repository.queue:
            if held.pending is None and held.is_readable():
                held.opened()
        if not self._advance(repository, now):
            return False
        while repository.queue and not self._memory.output.is_full:
            self._overtake(repository, repository.drop_newest(), adopted, now)
        return not repository.queue

    def end_replaced(self, path: str) -> None:
        """Mark the repositories as deleted that a later one has replaced at the path.

        Call this with the release that shows the later one. Events of theirs that still come are announced, and do not bring them
        back while that one is there.
        """
        for repository in self._succession.find_replaced(path):
            if repository.is_refused:
                continue  # its present state is the one in the log
            assert repository.state is not None
            repository.state = replace(repository.state, deleted=True)
            self._memory.outstanding.note(repository)
            self._memory.output.dirty[repository.id] = repository
            self._membership.compare_joining(repository)

    def _decide(self, repository: Repository, now: float) -> bool:
        if repository.id in self._memory.poison.faults or repository.is_refused:
            return True
        self._memory.outstanding.note(repository)
        with blaming(repository.id):
            return self._advance(repository, now)

    def _advance(self, repository: Repository, now: float) -> bool:
        """Release, then announce, in order; return False if the batch became full."""
        while True:
            try:
                return self._release_and_announce(repository, now)
            except UnknownEvent:  # stored by a newer aggregator: it waits for that one, and all behind it do
                repository.is_stored_newer = True
                return True
            except MalformedEvent:
                if self._memory.output.is_full:
                    return False
                self._set_aside(repository, repository.drop_broken(), now)

    def _release_and_announce(self, repository: Repository, now: float) -> bool:
        output, roster = self._memory.output, self._membership.roster
        gating = repository.gating(roster)
        while True:
            for held in repository.releasable(gating, allow_empty=roster.allow_empty):
                if self._succession.must_wait(repository, held):
                    self._successors[repository.id] = repository
                    break
                repository.release(held, roster.version)
                output.dirty[repository.id] = repository
                output.releases += 1
                self.end_replaced(held.event.path)
            before = output.notices
            for held, acks in repository.announceable(gating, allow_empty=roster.allow_empty):
                if output.notices >= self._limit or output.is_full:
                    return False
                if self._waits_for_lost(repository):
                    return True
                self._announce(repository, held, acks, now)
            if output.notices == before:
                if not repository.queue and repository.lacks_next() and not self._waits_for_lost(repository):
                    repository.pass_newest()
                    output.dirty[repository.id] = repository
                return True

    def _waits_for_lost(self, repository: Repository) -> bool:
        """Return whether the log lost the next event to announce, and the relay may send it again.

        If so, the repository is decided again later.
        """
        until = repository.incomplete_at + LOST_PATIENCE
        if not repository.lacks_next() or self._succession.now >= until:
            return False
        if self._patient.get(repository.id) != until:
            self._patient.pop(repository.id, None)
            self._patient[repository.id] = until  # as the last, so that they end in this order
        return True

    def _touch_patient(self) -> None:
        """Have the repositories decided that have waited for lost events long enough."""
        while self._patient and next(iter(self._patient.values())) <= self._succession.now:
            name = next(iter(self._patient))
            del self._patient[name]
            self._memory.touched[name] = self._memory.repositories[name]

    def _announce(self, repository: Repository, held: HeldEvent, acks: tuple[Ack, ...], now: float) -> None:
        event, state, version = held.event, repository.state, self._membership.roster.version
        assert state is not None
        last = dict(state.streams or {})
        previous = {stream.value: last.get(stream.value) for stream in streams(event)}
        proof = tuple(make_proof(ack) for ack in acks)
        notice = Notice(event=event, time=now, roster=version, acks=proof, previous=previous, base=state.base or None)
        output, headers = self._memory.output, held.headers
        if self.signer is not None:
            headers = {**headers, SIGNED: sign_notice(self.signer, notice, acks)}
        output.add(NewRecord(topic=NOTICES, key=repository.id, value=shape.to_json(notice), headers=headers))
        output.bury(repository, held)
        output.dirty[repository.id] = repository
        repository.announced(held, version, {**last, **dict.fromkeys(previous, event.id)} or None, len(proof))
        output.announced.append(notice)
        if event.type in (Type.RENAMED, Type.DELETED):
            self._memory.touched.update(self._successors)
            self._successors.clear()

    def _overtake(self, repository: Repository, held: HeldEvent, adopted: Event, now: float) -> None:
        if not held.is_readable():
            self._set_aside(repository, held, now)
            return
        text = f"{adopted.path}: event {held.seq} of incarnation {held.event.incarnation} was overtaken by an adopted history"
        output, pending = self._memory.output, held.opened()
        output.bury(repository, held)
        output.error(repository.id, text, EVENTS, pending.partition, pending.offset, held.store(), now)

    def _set_aside(self, repository: Repository, broken: HeldEvent, now: float) -> None:
        key, value, output = f"{repository.id}/{broken.seq}", broken.value or b"", self._memory.output
        output.bury(repository, broken)
        output.error(key, "not a pending record", PENDING, 0, 0, value, now, repository=repository.id)
