# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that do not continue the history of their repository, from their arrival to the decision that they are forks. Pure."""

from collections.abc import Iterator

from ..log import Record
from ..words.event import Event
from ..words.levels import RepositoryState


class Forks:
    """Forks that were met while a partition is read again, and the foreign histories that were looked for.

    A fork that is read again counts at the end of its partition, unless an adoption follows it.
    """

    def __init__(self) -> None:
        self._unsettled: dict[str, Record] = {}
        self._foreign: set[tuple[str, str]] = set()

    def is_unsettled(self, repository: str) -> bool:
        """Whether a fork of the repository waits for the end of its partition."""
        return repository in self._unsettled

    def wait(self, repository: str, record: Record) -> None:
        """Have the fork wait for the end of its partition."""
        self._unsettled[repository] = record

    def settle(self, repository: str) -> None:
        """Drop what waits: an adoption followed it."""
        self._unsettled.pop(repository, None)

    def take(self, partition: int) -> Iterator[tuple[str, Record]]:
        """Take out what waited for the end of this partition."""
        for name, record in list(self._unsettled.items()):
            if record.partition == partition:
                yield name, self._unsettled.pop(name)

    def refuse(self, event: Event) -> None:
        """Note that no adoption of this event's history was found."""
        self._foreign.add((event.repository, event.incarnation))

    def may_lack_adoption(self, state: RepositoryState, event: Event) -> bool:
        """Whether the event is of another history, of which the adoption may have been passed unread."""
        return event.incarnation != state.incarnation and (event.repository, event.incarnation) not in self._foreign


def describe_fork(event: Event, state: RepositoryState) -> str:
    """Say which event does not fit, and what to do."""
    return (
        f"{event.path}: event {event.seq} ({event.id}) is a fork: the log continued from {state.seq} ({state.event}); "
        "find out which history is true, then adopt it"
    )
