# SPDX-License-Identifier: GPL-2.0-or-later
"""The records and repositories left out for now. Pure.

A record whose processing failed becomes a reject; a repository whose decisions failed is stalled, and the others go on. Either way
memory may be half changed: the aggregator throws it away and loads it again, this time without the record or repository.

So it does if a topic refuses a record for its size. The repository waits: no event of it is taken, and nothing about it is written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...log import ERRORS, NOTICES, PENDING, STATE, LargeRecord, Record
from ...words.event import is_identifier
from ...words.unexpected import UnexpectedError, fault

# Topic, partition and offset of a record.
RecordPlace = tuple[str, int, int]


class Poisoned(Exception):
    """Work on this record or repository failed; nothing in memory counts any more."""

    def __init__(self, what: RecordPlace | str, fault: UnexpectedError) -> None:
        super().__init__(f"{what}: {fault.reason}")
        self.what, self.fault = what, fault


@dataclass(slots=True)
class Poison:
    """The records and repositories that are left out until the service ends.

    `faults` says why each is left out.

    Until `try_again`, `refused` has the repositories that wait for a topic to take their record, and `refused_reject` is a reject
    that `errors` refused: from then on rejects are kept without their values. Both wait since `waits_since` by the monotonic clock,
    also across sessions. `tries` counts the attempts in a row before which no topic's limit had changed.
    """

    faults: dict[RecordPlace | str, UnexpectedError] = field(default_factory=dict)
    refused: dict[str, LargeRecord] = field(default_factory=dict)
    refused_reject: LargeRecord | None = None
    waits_since: float | None = None
    tries: int = 0

    @property
    def refusals(self) -> tuple[LargeRecord, ...]:
        """The records that a topic refused for their size."""
        return (*self.refused.values(), *((self.refused_reject,) if self.refused_reject else ()))

    def refuse(self, record: LargeRecord) -> bool:
        """Leave out the repository of this record, or the value of a reject.

        Returns False if that does not help: the record is about no repository, or its repository waits already.
        """
        if record.topic == ERRORS and self.refused_reject is None:
            self.refused_reject = record
            return True
        name = (record.key or "").partition("/")[0]
        if record.topic not in (NOTICES, PENDING, STATE) or not is_identifier(name):
            return False
        return self.refused.setdefault(name, record) is record

    def try_again(self) -> None:
        """Leave out no repository for its record's size any more."""
        self.refused.clear()
        self.refused_reject = self.waits_since = None

    def add(self, found: Poisoned) -> bool:
        """Leave it out from now on; return False if it was left out already.

        In that case loading again would not help.
        """
        return self.faults.setdefault(found.what, found.fault) is found.fault


def place_of(record: Record) -> RecordPlace:
    """Return where the record stands in the log."""
    return record.topic, record.partition, record.offset


@contextmanager
def blaming(what: RecordPlace | str) -> Iterator[None]:
    """Raise Poisoned in place of an unexpected exception."""
    try:
        yield
    except Poisoned:
        raise
    except Exception as error:
        found = fault(error)
        if found is None:
            raise
        raise Poisoned(what, found) from error
