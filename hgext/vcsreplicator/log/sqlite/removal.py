# SPDX-License-Identifier: GPL-2.0-or-later
"""Removal of records from the embedded log.

Replaced values leave at once, tombstones and expired records in small steps.

Age counts only the time in which the log was in use. Otherwise, after a month in which a machine was off, or a jump of its clock by
a year, the next append would remove records that no reader had a chance to read.
"""

import itertools

from . import statements as sql
from .connection import Connection

# Seconds without a record after which the services or the clock must have stood still: heartbeats of mirrors and aggregator are
# more frequent.
PAUSE = 3600.0

# Seconds by which the noted time of the last record may be too early: a write with each record would cost too much.
EXACT = 60.0


def note_time(connection: Connection, now: float) -> None:
    """Record that the log is in use, and how long it was not."""
    seen = next((time for (time,) in connection.rows(sql.SEEN)), None)
    if seen is not None and now - seen > PAUSE:
        connection.run(sql.ADD_PAUSE, now, now - seen)
    if seen is not None and seen - now > EXACT:
        _correct_pauses(connection, now)
    if seen is None or abs(now - seen) > EXACT:
        connection.run(sql.SET_SEEN, now)


def _correct_pauses(connection: Connection, now: float) -> None:
    """Remove from the pauses the time that a clock ahead of time added."""
    late = [(until, seconds) for until, seconds in connection.rows(sql.PAUSES) if until > now]
    connection.run(sql.DELETE_PAUSES_AFTER, now)
    for until, seconds in late:
        if seconds > until - now:
            connection.run(sql.ADD_PAUSE, now, seconds - (until - now))


def before(connection: Connection, now: float, age: float) -> float:
    """Return the time before which records are `age` seconds old, pauses left out."""
    cutoff = now - age
    for until, seconds in connection.rows(sql.PAUSES):
        if until <= cutoff:
            break
        cutoff -= seconds
    return cutoff


def compact(connection: Connection, stream: int, key: bytes | None, offset: int) -> None:
    """Remove the record that this one replaces."""
    for (older,) in connection.rows(sql.LATEST, stream, key):
        connection.run(sql.DELETE_RECORD, stream, older)
    connection.run(sql.SET_LATEST, stream, key, offset)


def remove_tombstones(connection: Connection, stream: int, before: float, limit: int) -> None:
    for offset, key in connection.rows(sql.OLD_TOMBSTONES, stream, before, limit):
        connection.run(sql.DELETE_RECORD, stream, offset)
        connection.run(sql.DELETE_LATEST, stream, key, offset)


def remove_expired(connection: Connection, stream: int, before: float, limit: int, *, now: float) -> None:
    """Remove expired records, oldest first, up to the first young one.

    A record from the future was written while the clock was ahead; it goes with the next one.
    """
    [(beginning, _)] = connection.rows(sql.STREAM, stream)
    oldest = connection.rows(sql.OLDEST, stream, beginning, now, limit)
    expired = [offset for offset, _ in itertools.takewhile(lambda row: row[1] < before, oldest)]
    if expired:
        connection.run(sql.DELETE_BEFORE, stream, expired[-1] + 1)
        connection.run(sql.SET_BEGINNING, expired[-1] + 1, stream)
