# SPDX-License-Identifier: GPL-2.0-or-later
"""Events of a newer version, and later ones of their repositories. Pure.

They are kept in `pending` as they came. Their order and their chain depend on what this aggregator does not understand, so it
judges none of them. A newer aggregator takes them first when it starts. Their key has a form of its own,
`REPOSITORY/PARTITION:OFFSET`.
"""

from collections.abc import Mapping

from ...log import EVENTS, Record
from .outgoing import Outgoing, key_kept
from .repository import Repository


class NewerEvents:
    """The kept records, by their keys in `pending`: repository and place.

    The place alone is not enough: after a loss, the log has other records at the same offsets.
    """

    def __init__(self) -> None:
        self._stored: list[Record] = []
        self._keys: set[str] = set()

    def load(self, repository: str, partition: int, offset: int, value: bytes, headers: Mapping[str, str]) -> None:
        """Take a record of `pending`, in any order."""
        record = Record(
            topic=EVENTS, partition=partition, offset=offset, key=repository, value=value, headers=headers, time=0.0
        )
        self._stored.append(record)
        self._keys.add(key_kept(record))

    def sort(self) -> None:
        """Sort the loaded records in the order of their arrival, once all are loaded."""
        self._stored.sort(key=lambda record: record.offset, reverse=True)

    @property
    def next(self) -> Record | None:
        """The oldest loaded record that was not taken yet."""
        return self._stored[-1] if self._stored else None

    def pass_next(self) -> None:
        """Go on to the record after `next`."""
        self._stored.pop()

    def keep(self, repository: Repository, record: Record, output: Outgoing, *, is_again: bool = False) -> None:
        """Keep one more record for a newer aggregator.

        A record that is read again is written only if it is not stored already.
        """
        repository.hold_newer(record)
        if not is_again or key_kept(record) not in self._keys:
            self._keys.add(key_kept(record))
            output.keep(record)

    def give_up(self, record: Record, output: Outgoing) -> None:
        """Keep the record no longer, because it was taken."""
        self._keys.discard(key_kept(record))
        output.give_up(record)
