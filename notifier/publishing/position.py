# SPDX-License-Identifier: GPL-2.0-or-later
"""The stored position of a destination, which only the newest of its notifiers moves.

With it goes what the notifier writes about the destination into the topic `notifier`, by the same transactor.
"""

from collections.abc import Sequence

from hgext.vcsreplicator.log import NOTICES, Log, NewRecord
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.records import DESTINATION_GROUP

# Seconds after which a notifier that stored no position asks whether it is fenced.
CHECK_EVERY = 5.0


# The beginning of a transactor's identity, before the name of its destination.
IDENTITY = "destination-"


def group(name: str) -> str:
    """Return the group whose stored position is the destination's."""
    return f"{DESTINATION_GROUP}{name}"


class StoredPosition:
    """The position of one destination in the log, for one thread.

    Opening it fences every other notifier of the destination, and raises Unavailable if the log does not answer. Once it is fenced
    itself, `store`, `write` and `check` raise Fenced.
    """

    def __init__(self, name: str, log: Log, clock: Clock) -> None:
        self._group, self._log, self._clock = group(name), log, clock
        self._transactor = log.transactor(f"{IDENTITY}{name}", group=self._group)
        self._is_unclear, self._proven_at = False, clock.monotonic()

    def read(self) -> tuple[int | None, str | None]:
        """Return the position and its mark, each None if none is stored."""
        stored = self._log.stored(self._group, NOTICES).get(0)
        return stored, None if stored is None else self._log.metadata(self._group, NOTICES).get(0)

    def store(self, position: int, mark: str | None = None) -> None:
        """Store the position and its mark; raise Unavailable if that may have failed."""
        self._commit({(NOTICES, 0): position}, {} if mark is None else {(NOTICES, 0): mark})

    def write(self, records: Sequence[NewRecord]) -> None:
        """Append all these records, or none: raises Fenced, TooLarge, or Unavailable if that may have failed."""
        self._commit({}, {}, records)

    def check(self) -> None:
        """Raise Fenced if another notifier took over, or Unavailable.

        It asks the log at most every CHECK_EVERY seconds.
        """
        if self._clock.monotonic() - self._proven_at >= CHECK_EVERY:
            self._commit({}, {})

    def _commit(
        self,
        positions: dict[tuple[str, int], int],
        metadata: dict[tuple[str, int], str],
        records: Sequence[NewRecord] = (),
    ) -> None:
        if self._is_unclear:
            self._transactor.renew()
        self._is_unclear = True
        self._transactor.commit(records, group=self._group, positions=positions, metadata=metadata)
        self._is_unclear, self._proven_at = False, self._clock.monotonic()

    def close(self) -> None:
        self._transactor.close()
