# SPDX-License-Identifier: GPL-2.0-or-later
"""The memory of one aggregation: the log's present and the next batch. Pure."""

import enum
from collections import Counter
from collections.abc import Callable, Mapping

from ...log import Record
from .outgoing import Outgoing
from .outstanding import Outstanding
from .poison import Poison, blaming, place_of
from .repository import Repository


class RecordOutcome(enum.StrEnum):
    """The outcome of a record, for metrics and log lines.

    Enter an unfinished record again once the batch is written. Enter a record with the outcome `read again` once its partition was
    reread (`rereading`): earlier events may be missing.
    """

    TAKEN = "taken"
    REPEAT = "repeat"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    HELD = "held"
    WAITING = "waiting"
    READ_AGAIN = "read again"
    NOTHING = "nothing"
    UNFINISHED = "unfinished"

    @property
    def is_asked_again(self) -> bool:
        """Whether the record was not taken yet, and must be entered again."""
        return self in (RecordOutcome.UNFINISHED, RecordOutcome.READ_AGAIN)


class Memory:
    """All repositories and positions, and the content of the next batch.

    `touched` are the repositories to be decided next. `lost` counts, by repository, the events that the log has lost.
    """

    def __init__(self, positions: Mapping[tuple[str, int], int], poison: Poison) -> None:
        self.positions, self.poison = dict(positions), poison
        self.repositories: dict[str, Repository] = {}
        self.outstanding = Outstanding(poison)
        self.touched: dict[str, Repository] = {}
        self.lost: Counter[str] = Counter()
        self.output = Outgoing(positions=dict(positions), keeps_values=poison.refused_reject is None)
        # The first record of each partition that waits with its repository: no stored position passes it.
        self._waiting: dict[tuple[str, int], int] = {}
        # The first record of each partition that is not decided yet, which counts in the same way.
        self.unsettled: dict[tuple[str, int], int] = {}

    def repository(self, name: str) -> Repository:
        """Return the repository with this id, which may change; an empty one if it is not known."""
        found = self.repositories.get(name)
        if found is None:
            found = self.repositories[name] = Repository(name, is_refused=name in self.poison.refused)
        self.outstanding.note(found)
        return found

    def batch(self, *, may_defer: bool = False) -> Outgoing:
        """Return all changes since the last batch; with `may_defer`, positions may wait."""
        output, self.output = self.output, Outgoing(keeps_values=self.poison.refused_reject is None)
        output.positions = {
            place: min(at, self._waiting.get(place, at), self.unsettled.get(place, at))
            for place, at in output.positions.items()
        }
        if may_defer and output.may_repeat:
            self.output.positions, output.positions = output.positions, {}
        return output.complete()

    def guarded(
        self,
        take: Callable[[Record, float], RecordOutcome],
        record: Record,
        now: float,
        refuse: Callable[[Record, str, float, str | None], RecordOutcome] | None = None,
    ) -> RecordOutcome:
        """Return the outcome of `take` for the record.

        Refuses the record if it was poisoned before. Raises Poisoned in place of an unexpected exception.
        """
        known = self.poison.faults.get(place_of(record))
        if known is not None:
            return (refuse or self.refuse)(record, known.reason, now, known.traceback)
        with blaming(place_of(record)):
            return take(record, now)

    def refuse(self, record: Record, reason: str, now: float, traceback: str | None = None) -> RecordOutcome:
        """Pass a record that cannot be used, and keep it in `errors`."""
        self.output.reject(record, reason, now, traceback=traceback)
        return RecordOutcome.REJECTED

    def pass_record(self, record: Record, outcome: RecordOutcome) -> RecordOutcome:
        """Move the position past the record, unless the outcome asks for it again.

        That of a waiting record is stored only up to the record, which is thus read again at the next start.
        """
        if outcome is RecordOutcome.WAITING:
            self._waiting.setdefault((record.topic, record.partition), record.offset)
        if not outcome.is_asked_again:
            place = (record.topic, record.partition)
            self.positions[place] = self.output.positions[place] = record.offset + 1
        return outcome
