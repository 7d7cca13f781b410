# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder that takes no change, as on a disk that was mounted read-only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

STRANGER = 65533


@contextmanager
def unwritable(folder: str | bytes) -> Iterator[None]:
    """Work as a user that may not write to the folder; root becomes another user meanwhile."""
    was_root = os.geteuid() == 0
    os.chmod(folder, 0o555)
    if was_root:
        os.seteuid(STRANGER)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        os.chmod(folder, 0o755)
