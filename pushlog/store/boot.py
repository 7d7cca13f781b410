# SPDX-License-Identifier: GPL-2.0-or-later
"""The boot of the machine that last wrote ``.hg/pushlog2.db``.

A power cut may leave some pages of what was written without a sync and lose others, without a sign. So each
commit notes in the database whether it was synced, or in which boot it was not: as SQLite's ``user_version``, a number in the
header, which other programs and older releases leave alone. After a power cut it is not the number of the present boot, with
any pages: `restart` then compares the tables with the file.

The first commit without a sync to a database that was on disk as a whole is synced, too (`connections`): else a power cut could
lose the number alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import _sqlite3 as sqlite3

# A random number of each boot, which containers share with their machine.
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# What the header has before the first commit, and of an older release.
UNKNOWN = 0
# Every commit was synced.
ON_DISK = 1


@functools.cache
def number() -> int:
    """Return the number of this boot; `UNKNOWN` on a system that does not tell it."""
    try:
        with open(BOOT_ID, "rb") as file:
            return 1 << 30 | int(file.read(8), 16) >> 2
    except (OSError, ValueError):
        return UNKNOWN


def noted(connection: sqlite3.Connection) -> int:
    """Return the boot that the database notes."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def note(connection: sqlite3.Connection, *, is_synced: bool) -> None:
    """Note how the running transaction is committed."""
    present = ON_DISK if is_synced else number()
    if noted(connection) != present:
        connection.execute(f"PRAGMA user_version = {present}")


def is_suspect(connection: sqlite3.Connection) -> bool:
    """Return whether a power cut may have lost a part of the database."""
    return number() != UNKNOWN and noted(connection) not in (ON_DISK, number())
