# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that survive a power cut.

Their content and their names are on disk before a function returns.
"""

from __future__ import annotations

import os
from typing import IO

from mercurial.transaction import transaction as Transaction
from mercurial.vfs import abstractvfs

# The attribute of a transaction whose writes are synced.
_SYNCED = "_pushlog_synced"


def replace(opener: abstractvfs, name: bytes, content: bytes) -> IO[bytes]:
    """Give a file new content, and return it open at its end.

    After a kill, the file has the new content or the old.
    """
    new = name + b".new"
    file = opener(new, b"w+")
    try:
        file.write(content)
        file.flush()
        os.fdatasync(file.fileno())
        opener.rename(new, name)
        sync_folder(opener.join(b""))
    except BaseException:
        file.close()
        opener.tryunlink(new)
        raise
    return file


def sync_folder(path: bytes) -> None:
    """Return once changes of names in the folder would survive a power cut."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def request_sync(tr: Transaction) -> None:
    """Have ``pushlog2.db`` synced, too, when it takes what this transaction records.

    Call it before anything is recorded.
    """
    setattr(tr, _SYNCED, True)


def is_to_sync(tr: Transaction) -> bool:
    """Return whether `request_sync` was called for this transaction."""
    return getattr(tr, _SYNCED, False)
