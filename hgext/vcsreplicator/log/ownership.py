# SPDX-License-Identifier: GPL-2.0-or-later
"""The owner of what an administrator may be the first to make.

Root may run any verb, and what it makes must stay usable for the services, which run as other users: it belongs to the owner of
its folder. That owner could put a link in the place of what root has just made, so no link is followed.
"""

import os
from pathlib import Path


def give_to_owner(made: int, folder: str | Path) -> None:
    """If this process is root's, give an open file to the owner of `folder`.

    It was just made there. What a process of another user makes is its own. Raises OSError.
    """
    if os.geteuid() == 0:
        owner = os.stat(folder)
        os.fchown(made, owner.st_uid, owner.st_gid)


def make_folder(path: str | Path) -> None:
    """Make a folder, for the owner of the one that it is in.

    Raises OSError, FileExistsError if it is there.
    """
    os.mkdir(path)
    made = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_to_owner(made, os.path.dirname(path))
    finally:
        os.close(made)
