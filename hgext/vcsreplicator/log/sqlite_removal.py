# SPDX-License-Identifier: GPL-2.0-or-later
"""What leaves the embedded log: replaced values at once, tombstones and expired records in small steps."""

import itertools

from . import sqlite_statements as sql
from .sqlite_connection import Connection


def compact(connection: Connection, stream: int, key: bytes | None, offset: int) -> None:
    """Remove the record that this one replaces."""
    for (older,) in connection.rows(sql.LATEST, stream, key):
        connection.run(sql.DELETE_RECORD, stream, older)
    connection.run(sql.SET_LATEST, stream, key, offset)


def remove_tombstones(connection: Connection, stream: int, before: float, limit: int) -> None:
    for offset, key in connection.rows(sql.OLD_TOMBSTONES, stream, before, limit):
        connection.run(sql.DELETE_RECORD, stream, offset)
        connection.run(sql.DELETE_LATEST, stream, key, offset)


def remove_expired(connection: Connection, stream: int, before: float, limit: int) -> None:
    """From the oldest on, and not beyond the first that is young enough."""
    [(beginning, _)] = connection.rows(sql.STREAM, stream)
    oldest = connection.rows(sql.OLDEST, stream, beginning, limit)
    expired = [offset for offset, _ in itertools.takewhile(lambda row: row[1] < before, oldest)]
    if expired:
        connection.run(sql.DELETE_BEFORE, stream, expired[-1] + 1)
        connection.run(sql.SET_BEGINNING, expired[-1] + 1, stream)
