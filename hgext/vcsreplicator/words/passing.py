# SPDX-License-Identifier: GPL-2.0-or-later
"""The errors that may pass while a service waits.

They are shortages (memory, disk space, quota, file descriptors), a failing disk, a stale file handle, a mount or machine that does
not answer, a mount whose process died, a network that is down or has no route, an interrupted call, a locked database, a port in
use, an address that is not available, a name server that does not answer, and a missing topic. All others do not pass.
"""

import errno
import os
import socket
import sqlite3
import stat

from .errors import TopicMissing

_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EINTR}
_ERRNO |= {errno.ENOTCONN, errno.ECONNABORTED, errno.ETIMEDOUT}
_ERRNO |= {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}
_ERRNO |= {errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN}
_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
}
_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def is_passing(error: BaseException | None) -> bool:
    """Return whether the cause of the error may be gone at the next attempt."""
    while error is not None:
        if isinstance(error, TopicMissing):
            return True
        if isinstance(error, OSError) and error.errno in _ERRNO:
            return True
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE:
            return True
        error = error.__cause__
    return False


def is_passing_for(path: str, error: OSError | sqlite3.Error) -> bool:
    """Return whether the cause of an error of the database at `path` may pass.

    SQLite does not say why it cannot open a file: if no obstacle is found, it was short of file descriptors.
    """
    if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_CANTOPEN:
        return is_passing(error)
    obstacle = _find_obstacle(path)
    return obstacle is None or is_passing(obstacle)


def _find_obstacle(path: str) -> OSError | None:
    """Return the trouble of the database's files, None if none is found.

    It opens none of them: closing a file gives up the locks that other connections of the process have on it.
    """
    for file in (path + name for name in _SQLITE_SUFFIXES):
        try:
            if not stat.S_ISREG(os.stat(file).st_mode):
                return OSError(errno.EINVAL, "not a file", file)
            if not os.access(file, os.R_OK | os.W_OK):
                return PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        except FileNotFoundError:
            if not os.access(os.path.dirname(path) or ".", os.W_OK | os.X_OK):
                return PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        except OSError as error:
            return error
    return None
