# SPDX-License-Identifier: GPL-2.0-or-later
"""What is outstanding: events without a notice, and levels that lag or lead. Pure.

Nearly all repositories are at rest. Only repositories that changed are looked at again, so a heartbeat costs what changed and what
waits, not what exists.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from ...words.roster import Roster
from .poison import Poison
from .repository import Repository

# Most repositories that one `update` looks at: with ten mirrors some 5 ms of work, for which notices wait.
LOOKED_AT = 500


class Outstanding:
    """The figures of what is outstanding, as of the last `update`; used by one thread.

    By mirror: `lags` counts the events that it has not applied, in all repositories that it carries and is not deactivated for;
    `unserved` counts the notices of events that it gates and does not serve yet.

    By repository id, and only where there is any: `held` counts the events without a notice, `firsts` has the incarnation and the
    sequence of the first of them. `alone` counts the notices that no mirror gates, `newer` the events that wait for a newer
    aggregator, `broken` those that are stalled because decisions about them failed. `forked` has the paths of forked repositories,
    and `ahead` the levels at events that are not known, by mirror.
    """

    def __init__(self, poison: Poison) -> None:
        self.lags, self.unserved = Counter[str](), Counter[str]()
        self.held: dict[str, int] = {}
        self.firsts: dict[str, tuple[str | None, int]] = {}
        self.alone: dict[str, int] = {}
        self.newer: dict[str, int] = {}
        self.broken: dict[str, int] = {}
        self.forked: dict[str, str] = {}
        self.ahead: dict[str, Mapping[str, int]] = {}
        self._poison = poison
        self._lags: dict[str, dict[str, int]] = {}
        self._unserved: dict[str, dict[str, int]] = {}
        self._changed: dict[str, Repository] = {}

    def note(self, repository: Repository) -> None:
        """Look at the repository with the next update: it changes now."""
        self._changed[repository.id] = repository

    def note_all(self, repositories: Mapping[str, Repository]) -> None:
        """Look at all of these: the roster changed, or they were loaded."""
        self._changed.update(repositories)

    @property
    def is_behind(self) -> bool:
        """Whether more repositories changed than one update looks at."""
        return len(self._changed) > LOOKED_AT

    def update(self, roster: Roster) -> None:
        """Look at the repositories that changed, at LOOKED_AT of them at most."""
        for name in list(islice(self._changed, LOOKED_AT)):
            self._forget(name)
            self._look_at(self._changed.pop(name), roster)

    def _forget(self, name: str) -> None:
        self.lags.subtract(self._lags.pop(name, {}))
        self.unserved.subtract(self._unserved.pop(name, {}))
        for figures in (self.held, self.firsts, self.alone, self.newer, self.broken, self.forked, self.ahead):
            figures.pop(name, None)

    def _look_at(self, repository: Repository, roster: Roster) -> None:
        name, state, waiting = repository.id, repository.state, len(repository.queue)
        if state and state.fork and not state.deleted:
            self.forked[name] = state.path
        if waiting or repository.newer:
            self.held[name] = waiting + len(repository.newer)
        if waiting:
            self.firsts[name] = state.incarnation if state else None, repository.queue[0].seq
        if repository.newer or repository.is_stored_newer:
            self.newer[name] = len(repository.newer) + (waiting if repository.is_stored_newer else 0)
        if lags := dict(repository.measure_lags(roster)):
            self._lags[name] = lags
            self.lags.update(lags)
        if not repository.is_refused and (ahead := repository.find_ahead()):
            self.ahead[name] = ahead
        if name in self._poison.faults:
            self.broken[name] = waiting + len(repository.newer)
        elif waiting and not repository.is_refused:
            gating = repository.gating(roster)
            if not gating and not roster.allow_empty:
                self.alone[name] = waiting
            self._unserved[name] = {mirror.name: repository.count_unserved(mirror.name) for mirror in gating}
            self.unserved.update(self._unserved[name])
