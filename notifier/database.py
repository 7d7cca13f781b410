# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's own SQLite files: made for the right owner, opened, and what their errors mean for an operator.

What only an operator can change (no database, no permission, a read-only place) is BadConfig; what waiting may heal (a full disk, a
lock, a disk that does not answer) is Unavailable.
"""

import errno
import os
import sqlite3
from pathlib import Path

from hgext.vcsreplicator.errors import BadConfig, ReplicationError, Unavailable

PATIENCE = 10.0
"""Seconds to wait for another connection's lock."""

_OPERATORS_TURN = {
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
_HEALS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def open_database(path: str, key: str, schema: str) -> sqlite3.Connection:
    """A connection of this thread to the database at `path`, which is made if it is missing; `key` is its place in the file.

    Raises BadConfig or Unavailable.
    """
    try:
        own(path)
        connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(schema)
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise trouble(error, f"{key}: {path}") from error
    return connection


def own(path: str) -> None:
    """Makes the file if it is missing, for the owner of its folder: an administrator's command may be the first. Raises OSError."""
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return
    try:
        if os.geteuid() == 0:
            owner = folder.stat()
            os.fchown(made, owner.st_uid, owner.st_gid)
    finally:
        os.close(made)


def trouble(error: OSError | sqlite3.Error, where: str) -> ReplicationError:
    """The error as one of ours."""
    if isinstance(error, OSError):
        kind = Unavailable if error.errno in _HEALS else BadConfig
        return kind(f"{where}: cannot be used: {error.strerror or error}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind = BadConfig if code in _OPERATORS_TURN else Unavailable
    return kind(f"{where}: cannot be used: {error}")
