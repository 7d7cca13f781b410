# SPDX-License-Identifier: GPL-2.0-or-later
"""A journal of SQLite that names another file, which SQLite removes when it rolls back."""

import os
import struct
from pathlib import Path

_MAGIC = bytes.fromhex("d9d505f920a163d7")
_PAGE, _SECTOR, _LOCK = 4096, 512, 0x40000000


def write_foreign_journal(database: Path, named: Path) -> None:
    """Put a journal beside a database, as an account could that may write in its folder."""
    name = os.fsencode(named)
    head = struct.pack(">IIIII", 0, 1, database.stat().st_size // _PAGE, _SECTOR, _PAGE)
    end = struct.pack(">I", _LOCK // _PAGE + 1) + name + struct.pack(">II", len(name), sum(name))
    Path(f"{database}-journal").write_bytes((_MAGIC + head).ljust(_SECTOR, b"\0") + end + _MAGIC)
