# SPDX-License-Identifier: GPL-2.0-or-later
"""All repositories below a folder.

Those in dotted folders and inside other repositories are included. Nothing heavy is imported, because commands of Mercurial use it
too.

A caller that searches again and again keeps what it saw: a folder is not read again while its inode and the time of its last change
are the same, and those of its `.hg`. A time that is not settled yet says nothing, because a later change may have the same.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..outbox.folder import FILE_LIMIT, open_regular

_NOT_ENTERED = frozenset({".hg", ".vcsreplicator"})
# Seconds after which no other change can have the same time: file systems may count in whole seconds.
SETTLED = 2.5

# Device, inode and the time of the last change, of content or rights.
FolderTime = tuple[int, int, int]


class SeenFolder(NamedTuple):
    """What a search saw of a folder that was readable and is no half-made repository.

    `control` is the time of its `.hg`, None if it is no repository.
    """

    changed: FolderTime
    subfolders: tuple[str, ...]
    control: FolderTime | None

    def is_unchanged(self, folder: str) -> bool:
        """Return whether the folder, and its `.hg` if it is a repository, are as they were."""
        return has_time(folder, self.changed) and (self.control is None or has_time(f"{folder}/.hg", self.control))


def find_repositories(
    root: str,
    on_unreadable: Callable[[OSError], object] = lambda error: None,
    *,
    seen: Mapping[str, SeenFolder] = MappingProxyType({}),
    on_seen: Callable[[str, SeenFolder], object] = lambda folder, seen: None,
) -> Iterator[str]:
    """Yield the folders that hold a repository with a store of its own.

    Shares have no store of their own. `root` itself is included. `on_unreadable` gets the error of each folder that exists and may
    be a repository, or hold some, but cannot be read, and that of a missing `root`. `seen` are the folders that need not be read
    again if they are unchanged, and `on_seen` gets those that the next search may take so.
    """
    stack = [root]
    while stack:
        folder = stack.pop()
        if (last := seen.get(folder)) is not None and last.is_unchanged(folder):
            on_seen(folder, last)
            if last.control is not None:
                yield folder
            stack.extend(last.subfolders)
            continue
        changed = read_time(folder)
        try:
            with os.scandir(folder) as entries:
                folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except OSError as error:
            if folder == root or not isinstance(error, FileNotFoundError):
                on_unreadable(error)
            continue
        control = read_time(os.path.join(folder, ".hg")) if ".hg" in folders else None
        try:
            is_repository = ".hg" in folders and _is_complete(os.path.join(folder, ".hg"))
        except OSError as error:
            on_unreadable(error)
            is_repository = False
        subfolders = tuple(os.path.join(folder, name) for name in folders - _NOT_ENTERED)
        if changed is not None and (".hg" in folders) == is_repository == (control is not None):
            on_seen(folder, SeenFolder(changed, subfolders, control))
        if is_repository:
            yield folder
        stack.extend(subfolders)


def read_time(folder: str) -> FolderTime | None:
    """Read when a folder or file was changed; None if it cannot be seen, or was just now."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    # A time from before the clock was set back is settled, too: the next change has an earlier one.
    is_settled = abs(time.time() - found.st_ctime) > SETTLED
    return (found.st_dev, found.st_ino, found.st_ctime_ns) if is_settled else None


def has_time(folder: str, known: FolderTime) -> bool:
    """Return whether a folder or file still has the time that `read_time` returned."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return (found.st_dev, found.st_ino, found.st_ctime_ns) == known


def may_hold_repositories(error: OSError) -> bool:
    """Return whether the folder of this error must be reported.

    Folders of `fsck` or of a file system's snapshots need not, nor one in which a repository is being moved.
    """
    name = os.path.basename(str(error.filename))
    return "/.hg" in str(error.filename) or not (name == "lost+found" or name.startswith("."))


def is_folder(path: str) -> bool:
    """Return whether a folder is there; raise OSError if that cannot be seen.

    `os.path.isdir` takes a folder for missing when its disk fails.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_complete(control: str) -> bool:
    """Return whether Mercurial finished making this repository with its own store.

    A killed `hg init` did not finish it. Raises OSError if that cannot be seen.
    """
    store = os.path.join(control, "store")
    try:
        with open(os.path.join(control, "requires"), encoding="ascii", errors="replace", opener=open_regular) as file:
            # Then the rest is in the store, and is written last.
            is_share_safe = "share-safe" in file.read(FILE_LIMIT)
        return stat.S_ISDIR(os.stat(store).st_mode) and (
            not is_share_safe or bool(os.stat(os.path.join(store, "requires")))
        )
    except FileNotFoundError:
        return False
