# SPDX-License-Identifier: GPL-2.0-or-later
"""The numbers of repositories in messages of hg-push, kept in the log.

The topic `notifier` has each under `number/SOURCE/REPOSITORY`. Rules of this file: a number is given only by the transactor that
was opened last, after it has read all that earlier ones wrote. So no two repositories get one number, even if two destinations or
two notifiers give numbers at once. What a number is never changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import structlog

from hgext.vcsreplicator.log import NOTIFIER, Log, NewRecord, Transactor
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, MalformedEvent, Unavailable
from hgext.vcsreplicator.words.shape import NumberRange, extensible, from_json, to_json

from ...messages.pushes import LARGEST_NUMBER, find_free_number

# The transactor that gives numbers.
IDENTITY = "notifier-numbers"

logger = structlog.get_logger()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryNumber:
    """The number of a repository. Topic `notifier`, key `number/SOURCE/REPOSITORY`."""

    number: Annotated[int, NumberRange(1, LARGEST_NUMBER)]


class RepositoryNumbers:
    """The numbers that one source has given; used by one thread.

    `former` are those of the notifier's file, where releases kept them before the log did. Raises BadConfig if they contradict the
    log or the topic is missing, Unavailable if the log does not answer.
    """

    def __init__(self, source: str, log: Log, former: Mapping[str, int]) -> None:
        self._prefix, self._log = f"number/{source}/", log
        self._transactor: Transactor | None = None
        self._numbers, self._unreadable = self._read()
        if former.keys() - self._numbers.keys():
            self._write(lambda: self._find_new(former))
            logger.info("numbers of repositories are kept in the log from now on", count=len(former))
        self._find_new(former)

    def number_of(self, repository: str) -> int:
        """Return the number of a repository, which the log has on return.

        The repository gets it at the first call; no other repository ever gets it. Raises Unavailable, also for a number in the log
        that cannot be read: another one in its place would be a second one.
        """
        if repository in self._unreadable:
            raise Unavailable(f"topic {NOTIFIER}, key {self._prefix}{repository}: {self._unreadable[repository]}")
        if repository not in self._numbers:
            self._write(lambda: {} if repository in self._numbers else {repository: self._find_free()})
        return self._numbers[repository]

    def close(self) -> None:
        if self._transactor is not None:
            self._transactor.close()
            self._transactor = None

    def _write(self, find: Callable[[], Mapping[str, int]]) -> None:
        """Write what `find` returns once all numbers of the log are known."""
        try:
            if self._transactor is None:
                self._transactor = self._log.transactor(IDENTITY)
                self._log.wait_for_transactions(NOTIFIER)
                self._numbers, self._unreadable = self._read()
            if new := find():
                self._transactor.commit([self._to_record(*each) for each in new.items()])
                self._numbers.update(new)
        except Fenced as error:
            self.close()
            raise Unavailable(
                "another destination gives numbers at the same time; this one reads them again"
            ) from error
        except Unavailable:
            self.close()  # whether the log took them is not clear: the next attempt reads them
            raise

    def _read(self) -> tuple[dict[str, int], dict[str, str]]:
        """Return the numbers in the log by repository, and what is wrong with the others."""
        found, unreadable = dict[str, int](), dict[str, str]()
        for (_, key), record in read_table(self._log, NOTIFIER).records.items():
            if not key.startswith(self._prefix):
                continue
            repository = key.removeprefix(self._prefix)
            try:
                found[repository] = from_json(RepositoryNumber, record.value or b"").number
            except MalformedEvent as error:
                unreadable[repository] = str(error)
        return found, unreadable

    def _find_free(self) -> int:
        return find_free_number(self._numbers.values())

    def _find_new(self, former: Mapping[str, int]) -> dict[str, int]:
        """Return the former numbers that the log lacks; raise BadConfig if any contradicts it."""
        taken = {number: repository for repository, number in self._numbers.items()}
        for repository, number in former.items():
            known, owner = self._numbers.get(repository, number), taken.get(number, repository)
            if (known, owner) != (number, repository):
                raise BadConfig(
                    f"repository {repository} has the number {number} in notifier.state, which contradicts the log: "
                    "another notifier has given numbers as the same source; set another `source` for this destination"
                )
        return {repository: number for repository, number in former.items() if repository not in self._numbers}

    def _to_record(self, repository: str, number: int) -> NewRecord:
        return NewRecord(
            topic=NOTIFIER, key=f"{self._prefix}{repository}", value=to_json(RepositoryNumber(number=number))
        )
