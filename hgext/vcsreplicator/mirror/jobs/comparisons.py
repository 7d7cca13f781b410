# SPDX-License-Identifier: GPL-2.0-or-later
"""The last comparison of each of a mirror's repositories with the master.

They let a restart continue the round. They are in a small database in the mirror's folder, which only `verify --continuous` uses;
without it, all comparisons begin anew.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import structlog

from ...log.ownership import make_file, refuse_foreign_journal
from ...words.errors import BadConfig
from ...words.records import RepositoryState, RoundProgress, ServiceTrouble

# The name of the database in the mirror's folder.
FILE = "verify.db"
# Most repositories that are chosen at a time, seconds after which one in trouble is tried again, and most of these at a time.
BATCH, AGAIN, IN_TROUBLE = 5000, 3600.0, 100

_SCHEMA = """
CREATE TABLE IF NOT EXISTS compared (
    repository TEXT PRIMARY KEY, tried REAL NOT NULL, compared REAL NOT NULL, trouble TEXT NOT NULL, failure TEXT NOT NULL,
    since REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS round (id INTEGER PRIMARY KEY CHECK (id = 1), began REAL NOT NULL) STRICT;
"""
_READ = "SELECT repository, tried, compared, trouble, failure, since FROM compared"
_PUT = "INSERT OR REPLACE INTO compared VALUES (?, ?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM compared WHERE repository = ?"
_READ_ROUND = "SELECT began FROM round"
_PUT_ROUND = "INSERT OR REPLACE INTO round VALUES (1, ?)"

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownComparison:
    """What is known of one repository; times are seconds since the epoch, 0 for never.

    `tried` is when it was last tried, `compared` when that last succeeded. `trouble` says what an operator must do, until the
    repository is found equal. `failure` says why it could not be compared at the last try. `since` is when the trouble or failure
    began.
    """

    repository: str
    tried: float = 0.0
    compared: float = 0.0
    trouble: str = ""
    failure: str = ""
    since: float = 0.0


class Comparisons:
    """The last comparisons, and when the present round `began`; used by one thread.

    If `file` cannot be written, they are kept in memory alone. Times later than `now` are from before the clock was set back, and
    do not count.
    """

    def __init__(self, file: Path, now: float) -> None:
        self._database = _open(file)
        rows = (KnownComparison(**row) for row in self._database.execute(_READ))
        self._known = {row.repository: row for row in rows if row.tried <= now}
        found = self._database.execute(_READ_ROUND).fetchone()
        self.total, self.has_more = 0, False
        self.began = found["began"] if found else now
        if not found or self.began > now:
            self.begin_round(now)

    def close(self) -> None:
        self._database.close()

    def begin_round(self, now: float) -> None:
        """Let all repositories be compared again."""
        self.began = now
        self._write(_PUT_ROUND, (now,))

    def choose(self, carried: Sequence[RepositoryState], now: float) -> list[RepositoryState]:
        """Return the next repositories to compare, the longest untried first.

        They are the first carried repositories that this round has not tried yet. Before them come some that differed or
        could not be compared an hour ago: they may have been healed. If the round `has_more`, choose again. Forgets all
        that are not carried any more.
        """
        self.total = len(carried)
        for gone in self._known.keys() - {state.repository for state in carried}:
            del self._known[gone]
            self._write(_FORGET, (gone,))
        known = [(self.find(state.repository), state) for state in carried]
        known.sort(key=lambda each: each[0].tried)
        left = [state for one, state in known if one.tried < self.began]
        again = [
            state for one, state in known if (one.trouble or one.failure) and self.began <= one.tried <= now - AGAIN
        ]
        self.has_more = len(left) > BATCH
        return [*again[:IN_TROUBLE], *left[:BATCH]]

    def find(self, repository: str) -> KnownComparison:
        return self._known.get(repository) or KnownComparison(repository=repository)

    def note(self, repository: str, now: float, *, trouble: str = "", failure: str = "") -> None:
        """Note what a try at `now` found; without `trouble` and `failure` the repository is equal.

        A failure leaves an earlier trouble as it is.
        """
        before = self.find(repository)
        since = before.since if (failure and before.failure) or (trouble and before.trouble) else now
        if failure:
            found = replace(before, tried=now, failure=failure, since=before.since if before.trouble else since)
        else:
            found = KnownComparison(repository=repository, tried=now, compared=now, trouble=trouble, since=since)
        self._known[repository] = found
        self._write(_PUT, astuple(found))

    def measure(self) -> RoundProgress:
        """Return how far the round is, and what its comparisons found."""
        known = self._known.values()
        times = [each.compared for each in known]
        is_whole = self.total > 0 and len(times) >= self.total and min(times) > 0
        return RoundProgress(
            done=sum(each.tried >= self.began for each in known),
            total=self.total,
            oldest=min(times) if is_whole else None,
            differing=sum(bool(each.trouble) for each in known),
            failing=sum(bool(each.failure) for each in known),
        )

    def list_troubles(self, now: float) -> Iterator[ServiceTrouble]:
        """Yield a trouble for each repository that needs an operator.

        Another one names all repositories that could not be compared. It is permanent, so that `check` warns of it, once one of
        them could not be compared twice.
        """
        for each in self._known.values():
            if each.trouble:
                yield ServiceTrouble(text=each.trouble, since=each.since, is_urgent=True)
        if failing := [each for each in self._known.values() if each.failure]:
            first, is_permanent = min(failing, key=lambda each: each.since), any(e.since < e.tried for e in failing)
            count = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
            text = f"{first.failure}{count}: not compared with the master"
            yield ServiceTrouble(text=text, since=now, is_permanent=is_permanent)

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            logger.warning("comparison not kept", reason=str(error))


def _open(file: Path) -> sqlite3.Connection:
    """Open the database, or a new one if it is damaged, or one in memory if that fails."""
    try:
        make_file(file)
        refuse_foreign_journal(file)
        try:
            return _connect(file)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:  # torn by a power cut
            file.unlink()
            make_file(file)
            return _connect(file)
    except (OSError, sqlite3.Error, BadConfig) as error:
        logger.warning("comparisons not kept", file=str(file), reason=str(error))
        return _connect(":memory:")


def _connect(file: Path | str) -> sqlite3.Connection:
    database = sqlite3.connect(file, isolation_level=None, timeout=30)
    try:
        database.row_factory = sqlite3.Row
        # A power cut may lose it; a kill does not.
        database.execute("PRAGMA synchronous = OFF")
        database.executescript(_SCHEMA)
        for statement in (_READ, _READ_ROUND):
            database.execute(statement).fetchall()
    except BaseException:
        database.close()
        raise
    return database
