# SPDX-License-Identifier: GPL-2.0-or-later
"""The start of a mirror, from repositories on disk, notes and former acks."""

from collections.abc import Container, Iterable, Iterator, Mapping

import structlog

from ...words.records import Ack
from ..checkpoint import Checkpoint
from ..copies import choose
from ..task import FoundRepository
from .departures import Departures
from .life import Following
from .maintenance import Maintenance
from .state import State

logger = structlog.get_logger()


class Startup:
    """Adopts the repositories on disk, and reconciles them with notes and acks."""

    def __init__(self, state: State, departures: Departures, maintenance: Maintenance) -> None:
        self._state = state
        self._settings, self._notes, self._acks, self._clock = state.settings, state.notes, state.acks, state.clock
        self._table, self._agenda = state.table, state.agenda
        self._departures, self._maintenance = departures, maintenance
        # The checkpoints of deleted repositories that are still kept on the disk.
        self._moved_aside: dict[str, Checkpoint] = {}

    def adopt_all(self, found: Iterable[FoundRepository], acks: Mapping[str, Ack]) -> None:
        """Take all repositories on disk, and reconcile them with the last acks."""
        for each in self._choose(found):
            self.adopt(each, acks.get(each.checkpoint.repository) if each.checkpoint else None)
        self.settle(acks)

    def adopt(self, found: FoundRepository, acked: Ack | None) -> None:
        """Take a repository that was found on the disk, and the last ack of it."""
        checkpoint = found.checkpoint
        if checkpoint is None:
            logger.error("repository damaged", folder=found.folder, reason=found.problem)
            return
        if checkpoint.deleted and found.is_aside:
            if not self._departures.is_deleted(checkpoint.repository):
                self._departures.record_deletion(checkpoint)
            self._moved_aside[checkpoint.repository] = checkpoint
            return
        following = self._table.get_or_add(checkpoint.repository, checkpoint.path)
        following.change(following.find(found, acked, now=self._clock.now()))
        if found.is_locked not in (None, self._settings.lock):
            self._maintenance.mark_cold(following, relock=True)

    def settle(self, acks: Mapping[str, Ack]) -> None:
        """Reconcile the repositories found with the notes and the last acks.

        Detaches the repositories that have a note, and repositories that have less than they had. Then acknowledges and
        queues everything.
        """
        for repository, last in self._moved_aside.items():
            if self._lacks_deletion(acks.get(repository), last):
                self._departures.acknowledge_again(last)
        for note in self._notes.detached():
            if note.repository in self._moved_aside:
                self._notes.rejoin(note.repository)
                continue
            following = self._table.get_or_add(note.repository, note.path)
            self._state.send(following, Following.find_note, note)
        for repository, acked in acks.items():
            if not self._departures.remember_ack(acked) and acked.applied > 0:
                following = self._table.get_or_add(repository, "")
                self._state.send(following, Following.find_ack, acked)
        for following in self._table:
            self._acks.send(following)
            self._agenda.queue(following)

    def prune_deletions(self, acks: Container[str]) -> None:
        """Remove the notes of noticed deletions that neither acks nor the disk names."""
        for deleted in self._notes.deleted():
            if deleted.repository not in acks and deleted.repository not in self._moved_aside:
                self._departures.forget_if_finished(deleted)

    def _choose(self, found: Iterable[FoundRepository]) -> Iterator[FoundRepository]:
        """Leave out all but one of the folders with one repository; an error names each."""
        first: dict[str, FoundRepository] = {}
        copies: dict[str, list[FoundRepository]] = {}
        for each in found:
            if each.checkpoint is None or each.is_aside:
                yield each
            elif (other := first.setdefault(each.checkpoint.repository, each)) is not each:
                copies.setdefault(each.checkpoint.repository, [other]).append(each)
        while first:  # what is taken over makes room
            repository, chosen = first.popitem()
            folders = copies.get(repository, [chosen])
            chosen = choose(folders, self._settings)
            for other in folders:
                if other is not chosen:
                    logger.error(
                        "repository found twice", repository=repository, folder=chosen.folder, other=other.folder
                    )
            yield chosen

    @staticmethod
    def _lacks_deletion(acked: Ack | None, last: Checkpoint) -> bool:
        """Return whether a kill prevented the ack of the repository's deletion.

        False if the last ack is of another incarnation, or if there is none.
        """
        if acked is None or acked.incarnation not in ("", last.incarnation):
            return False
        return min(acked.applied, acked.serving) < last.seq or acked.detached is not None
