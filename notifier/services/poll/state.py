# SPDX-License-Identifier: GPL-2.0-or-later
"""How far each repository was followed. Topic `watches`, key `poll/SOURCE/URL`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from hgext.vcsreplicator.log import WATCHES, Log
from hgext.vcsreplicator.log.owned import OwnedRecords
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.shape import from_json, to_json

from ...clients.database import Database, is_there
from ...messages.pushes import find_free_number
from .following import Followed
from .settings import PollSettings

_FORMER = "SELECT number, url, last, tip FROM repositories"

logger = structlog.get_logger()


def open_state(settings: PollSettings, log: Log, clock: Clock) -> "PollState":
    """Fence every other poller of this source, and return how far they followed.

    If the log knows nothing yet, it gets what the file of an earlier release has. Raises Unavailable or BadConfig.
    """
    source = settings.source
    records = OwnedRecords(log, WATCHES, f"poll/{source}/", f"poll-{source}", clock)
    try:
        state = PollState(records)
        if not records.values and is_there(settings.state):
            state.take_former(settings.state)
        return state
    except BaseException:
        records.close()
        raise


class PollState:
    """The positions and numbers of all repositories of one source; for one thread at a time.

    Methods raise Fenced once another poller works, and Unavailable: call again then.
    """

    def __init__(self, records: OwnedRecords) -> None:
        self._records = records
        self._known: dict[str, Followed] = {}
        for url, value in records.values.items():
            try:
                self._known[url] = replace(from_json(Followed, value), url=url)
            except MalformedEvent as error:
                logger.error("record in the log not readable", repository=url, reason=str(error))

    def take_former(self, path: str) -> None:
        """Write to the log what the file of an earlier release has, all or nothing."""
        file = Database(path, "poll.state", "")
        try:
            rows = file.rows(_FORMER)
        finally:
            file.close()
        self.advance(Followed(number=number, url=url, last=last, tip=tip) for number, url, last, tip in rows)
        logger.info("positions of repositories are kept in the log from now on", count=len(rows), former=path)

    def add(self, urls: Sequence[str], last: int) -> list[Followed]:
        """Give each new repository a number and this position; return all of `urls`.

        Leaves out a repository whose record cannot be read: another number would make it another repository.
        """
        readable = [url for url in urls if url in self._known or url not in self._records.values]
        new = [url for url in readable if url not in self._known]
        self.advance(Followed(number=number, url=url, last=last) for number, url in enumerate(new, self._find_free()))
        return [self._known[url] for url in readable]

    def advance(self, positions: Iterable[Followed]) -> None:
        """Store these positions; durable on return."""
        moved = {each.url: each for each in positions}
        if moved:
            self._known |= moved
            self._records.write({url: to_json(each) for url, each in moved.items()})

    def begin_anew(self, followed: Followed) -> Followed:
        """Give the repository at this URL a new number, with nothing sent."""
        found = Followed(number=self._find_free(), url=followed.url)
        self.advance([found])
        return found

    def check(self) -> None:
        """Raise Fenced if another poller took over, or Unavailable."""
        self._records.check()

    def close(self) -> None:
        self._records.close()

    def _find_free(self) -> int:
        """Return a number that no repository ever had: none of the records ever ends."""
        return find_free_number([each.number for each in self._known.values()])
