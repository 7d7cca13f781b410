# SPDX-License-Identifier: GPL-2.0-or-later
"""Repositories that are deleted here, or that this mirror no longer carries."""

from dataclasses import replace

import structlog

from ...words.event import Event
from ...words.records import Ack, RepositoryState
from ..checkpoint import Checkpoint, before_first
from ..notes import DeletedRepository, try_to_write
from .catchup import CatchUpReaders
from .life import Deed, Following
from .state import State
from .values import Phase

logger = structlog.get_logger()


class Departures:
    """Sets repositories aside and forgets them.

    It remembers which are deleted here, as long as the log may name them.
    """

    def __init__(self, state: State, readers: CatchUpReaders) -> None:
        self._state, self._table, self._backlog, self._acks = state, state.table, state.backlog, state.acks
        self._membership, self._notes, self._clock = state.membership, state.notes, state.clock
        self._readers = readers
        self._deleted = {deleted.repository: deleted for deleted in state.notes.deleted()}
        # Deleted repositories whose deletion is noticed: nothing waits for their acks any more.
        self._finished: dict[str, RepositoryState] = {}
        # Deleted repositories of which the log has an ack from before the start.
        self._acked: set[str] = set()
        state.deeds |= {Deed.RECORD_DELETION: self._carry_out_deletion, Deed.FORGET: self.abandon}

    def is_deleted(self, repository: str) -> bool:
        return repository in self._deleted

    def has_ended(self, checkpoint: Checkpoint) -> bool:
        """Return whether this is the last state of a repository that has ended.

        It was deleted, or replaced by a later one at its path.
        """
        state = self._finished.get(checkpoint.repository)
        if state is None:
            return False
        is_last = checkpoint.incarnation == state.incarnation and checkpoint.seq >= state.seq
        return checkpoint.deleted or is_last

    def is_past(self, event: Event) -> bool:
        """Return whether the event precedes or is the deletion of a deleted repository.

        The repository is deleted here, or it is not here and its deletion is noticed. The ack of a deletion that is read again is
        repeated: a kill may have prevented it.
        """
        deleted = self._deleted.get(event.repository)
        if deleted is None or deleted.incarnation != event.incarnation or event.seq > deleted.seq:
            return self._is_finished_without(event)
        is_open = event.repository not in self._finished and self._table.get(event.repository) is None
        if event.seq == deleted.seq and is_open:
            self.acknowledge_again(deletion(event, self._clock.now()))
        return True

    def _is_finished_without(self, event: Event) -> bool:
        """Return whether the repository is not here and its deletion is noticed.

        Its events up to the deletion then need no work. False on a backup: it keeps deleted repositories, so it applies these
        events like any other.
        """
        state = self._finished.get(event.repository)
        is_over = state is not None and state.incarnation == event.incarnation and event.seq <= state.seq
        return is_over and not self._membership.is_backup and self._table.get(event.repository) is None

    def remember_ack(self, acked: Ack) -> bool:
        """Remember a deleted repository's ack; False if it is not deleted, or came back."""
        deleted = self._deleted.get(acked.repository)
        if deleted is None or acked.incarnation not in ("", deleted.incarnation):
            return False
        self._acked.add(acked.repository)
        return True

    def record_deletion(self, checkpoint: Checkpoint) -> None:
        """Remember that the repository is deleted here."""
        deleted = DeletedRepository(
            repository=checkpoint.repository,
            path=checkpoint.path,
            incarnation=checkpoint.incarnation,
            seq=checkpoint.seq,
            since=self._clock.now(),
        )
        self._deleted[checkpoint.repository] = deleted
        try_to_write(lambda: self._notes.record_deletion(deleted))  # the set-aside folder on disk says so too

    def let_go(self, following: Following, checkpoint: Checkpoint) -> None:
        """Record that the repository was set aside because of its deletion.

        Its events up to the deletion may be queued, because a restart or a repeat brought them: they would make it again.
        """
        self.record_deletion(checkpoint)
        while (queued := self._backlog.peek(following.id, events=1, size=0)) and self.is_past(queued[0].event):
            self._backlog.finish(following.id, 1)
        self._state.vacate(following)
        following.change(following.end_at(checkpoint, now=self._clock.now()))

    def _carry_out_deletion(self, following: Following) -> None:
        assert following.log.deletion is not None
        self.let_go(following, following.log.deletion)

    def acknowledge_again(self, checkpoint: Checkpoint) -> None:
        """Send the ack of a deletion that may have been prevented by a kill."""
        following = self._table.get_or_add(checkpoint.repository, checkpoint.path)
        following.change(following.end_at(checkpoint, now=self._clock.now()))
        self._acks.send(following)

    def acknowledge_if_awaited(self, state: RepositoryState) -> None:
        """Send the ack of a deletion whose notice waits: the log may never have got it."""
        deleted = self._deleted.get(state.repository)
        if deleted is not None and (deleted.incarnation, deleted.seq) == (state.incarnation, state.seq):
            self.acknowledge_again(deletion(state, self._clock.now()))

    def leave_if_due(self, following: Following) -> bool:
        """Let the repository leave if it must; return whether it leaves."""
        is_carried = self._membership.carries(following.master_path)
        leaving = following.leave(is_carried=is_carried, is_backup=self._membership.is_backup)
        if leaving.todo:
            logger.info("leaves", **following.names, deleted=following.log.deletion is not None)
            self._state.carry_out(following, leaving)
        return following.phase is Phase.LEAVING

    def finish(self, state: RepositoryState) -> None:
        """Record that the repository's deletion is noticed: withdraw its ack."""
        self._finished[state.repository] = state
        following = self._table.get(state.repository)
        if following is None and state.repository in self._acked:
            self._acked.remove(state.repository)
            self._acks.withdraw(state.repository)
        if following is not None and not following.work.is_running:
            self.abandon_if_finished(following)

    def forget_if_finished(self, deleted: DeletedRepository) -> None:
        """Remove the note of a deletion that is noticed: `state` says so from now on."""
        if self._is_noticed(deleted) and self._table.get(deleted.repository) is None:
            try_to_write(lambda: self._notes.forget(deleted.repository))
            del self._deleted[deleted.repository]

    def abandon_if_finished(self, following: Following) -> None:
        """Forget a repository that is deleted here and whose deletion is noticed.

        A repository that came back has another incarnation, and stays. A repository that counted as deleted for want of events
        may go on, and be deleted later.
        """
        deleted, checkpoint = self._deleted.get(following.id), following.checkpoint
        if deleted is None or not self._is_noticed(deleted):
            return
        if checkpoint is None or checkpoint.incarnation == deleted.incarnation:
            self.abandon(following)

    def _is_noticed(self, deleted: DeletedRepository) -> bool:
        state = self._finished.get(deleted.repository)
        return state is not None and state.incarnation == deleted.incarnation and state.seq >= deleted.seq

    def abandon(self, following: Following) -> None:
        """Stop following the repository, and remove its ack."""
        self._readers.stop(following)
        self._backlog.drop(following.id)
        try_to_write(lambda: self._notes.rejoin(following.id))
        self._state.vacate(following)
        self._acks.withdraw(following.id)
        self._table.remove(following)


def deletion(of: Event | RepositoryState, now: float) -> Checkpoint:
    """Return the checkpoint of a repository after the event that deleted it."""
    first = before_first(of.repository, of.incarnation, of.path, of.generation)
    last = of.event if isinstance(of, RepositoryState) else of.id
    return replace(first, seq=of.seq, id=last, digest=of.digest, time=now, deleted=True)
