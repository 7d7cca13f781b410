# SPDX-License-Identifier: GPL-2.0-or-later
"""Levels of mirrors at events that the aggregator does not know.

It has read the whole log and does not know them. So it passed events unread, for example because a position was moved by hand, or
the log lost the events, or the mirror invented them.
"""

from ..log import EVENTS, Log, partition_of
from ..log.table import find_answered_ends
from .decisions.aggregation import Aggregation
from .decisions.standing import Standing
from .rereading import Rereading

# The names of a mirror and of a repository.
MirrorRepository = tuple[str, str]


class AheadLevels:
    """Finds levels at events that are not known; used by one thread.

    It has the partition reread for any mirror's level, because the log may have lost events and filled their places. Then it sets
    aside the levels of gating mirrors that are still ahead.
    """

    def __init__(self, aggregation: Aggregation, log: Log, rereading: Rereading) -> None:
        self._aggregation, self._log, self._rereading = aggregation, log, rereading
        self._count = log.partitions(EVENTS)
        self._seen: dict[MirrorRepository, int] = {}
        self._ends: dict[int, int] = {}
        self._doubted: dict[MirrorRepository, int] = {}

    def check(self, now: float) -> None:
        """Decide about the levels that were ahead at the last check; then look again.

        It decides once everything is read that the repository's partition had at the last check. A partition that does not answer
        is left to the next check.
        """
        if self._rereading:
            return
        seen = {pair: applied for pair, applied in self._seen.items() if self._has_read(pair)}
        if seen:
            proven = {pair: applied for pair, applied in seen.items() if self._is_ahead(pair, applied)}
            if self._read_again(proven.keys() - self._doubted.keys()):
                return
            for pair, applied in proven.items():
                if self._aggregation.output.is_full:
                    break  # the next check goes on: no log takes any number in one transaction
                if self._may_gate(pair):
                    self._aggregation.levels.doubt(*pair, applied, now)
                self._doubted[pair] = applied
        ahead = self._aggregation.find_outstanding().ahead.items()
        pairs = {(mirror, name): applied for name, levels in ahead for mirror, applied in levels.items()}
        self._seen = {pair: applied for pair, applied in pairs.items() if self._doubted.get(pair) != applied}
        self._ends = find_answered_ends(self._log, EVENTS, {self._find_partition(pair) for pair in self._seen})

    def count_missing(self) -> dict[str, int]:
        """Count the events that the log lacks, by the doubted levels still ahead."""
        found: dict[str, int] = {}
        for pair, applied in self._doubted.items():
            if self._may_gate(pair) and self._is_ahead(pair, applied):
                repository = self._aggregation.repositories[pair[1]]
                known = repository.last if self._is_present(pair) else 0
                found[repository.id] = max(found.get(repository.id, 0), applied - known)
        return found

    def _read_again(self, pairs: set[MirrorRepository]) -> bool:
        """Begin to reread partitions not reread since the last check; return whether any."""
        for partition in sorted({self._find_partition(pair) for pair in pairs}):
            if self._rereading.whole.get(partition, -1) < self._ends[partition]:
                self._rereading.begin(partition)
        return bool(self._rereading)

    def _find_partition(self, pair: MirrorRepository) -> int:
        return partition_of(pair[1], self._count)

    def _has_read(self, pair: MirrorRepository) -> bool:
        """Return whether all events are read that the repository's partition had."""
        partition = self._find_partition(pair)
        end = self._ends.get(partition)
        return end is not None and self._aggregation.positions.get((EVENTS, partition), -1) >= end

    def _is_ahead(self, pair: MirrorRepository, applied: int) -> bool:
        """Return whether the event that the mirror claims to have is still not known."""
        repository = self._aggregation.repositories[pair[1]]
        is_ahead = repository.standing(pair[0]) is Standing.AHEAD
        return is_ahead and (applied > repository.last or not self._is_present(pair))

    def _is_present(self, pair: MirrorRepository) -> bool:
        """Return whether the level belongs to the present history of the repository."""
        mirror, name = pair
        repository = self._aggregation.repositories[name]
        return repository.state is None or repository.acks[mirror].incarnation == repository.state.incarnation

    def _may_gate(self, pair: MirrorRepository) -> bool:
        """Return whether notices of the repository wait for this mirror, or could."""
        name, roster, repository = pair[0], self._aggregation.roster, self._aggregation.repositories[pair[1]]
        if repository.state is not None:
            return any(mirror.name == name for mirror in repository.gating(roster))
        mirror = roster.mirror(name)
        return mirror is not None and mirror.gates(repository.id, None)
