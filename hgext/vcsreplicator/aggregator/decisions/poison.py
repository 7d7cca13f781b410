# SPDX-License-Identifier: GPL-2.0-or-later
"""The records and repositories left out after an unexpected exception. Pure.

A record whose processing failed becomes a reject; a repository whose decisions failed is stalled, and the others go on. Either way
memory may be half changed: the aggregator throws it away and loads it again, this time without the record or repository.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...log import Record
from ...words.unexpected import Fault, fault

# Topic, partition and offset of a record.
RecordPlace = tuple[str, int, int]


class Poisoned(Exception):
    """Work on this record or repository failed; nothing in memory counts any more."""

    def __init__(self, what: RecordPlace | str, fault: Fault) -> None:
        super().__init__(f"{what}: {fault.reason}")
        self.what, self.fault = what, fault


@dataclass(slots=True)
class Poison:
    """The records and repositories left out, with reasons, until the service ends."""

    records: dict[RecordPlace, Fault] = field(default_factory=dict)
    repositories: dict[str, Fault] = field(default_factory=dict)

    def add(self, found: Poisoned) -> bool:
        """Leave it out from now on; return False if it was left out already.

        In that case loading again would not help.
        """
        if isinstance(found.what, str):
            known = self.repositories.setdefault(found.what, found.fault)
        else:
            known = self.records.setdefault(found.what, found.fault)
        return known is found.fault


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
