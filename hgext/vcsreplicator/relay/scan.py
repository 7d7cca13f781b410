# SPDX-License-Identifier: GPL-2.0-or-later
"""All repositories below a folder.

Those in dotted folders and inside other repositories are included. Nothing heavy is imported, because commands of Mercurial use it
too.
"""

import os
import stat
from collections.abc import Callable, Iterator

from ..outbox.folder import open_regular

_NOT_ENTERED = frozenset({".hg", ".vcsreplicator"})


def find_repositories(root: str, on_unreadable: Callable[[OSError], object] = lambda error: None) -> Iterator[str]:
    """Yield the folders that hold a repository with a store of its own.

    Shares have no store of their own. `root` itself is included. `on_unreadable` gets the error of each folder that exists and may
    be a repository, or hold some, but cannot be read, and that of a missing `root`.
    """
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as entries:
                folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except OSError as error:
            if folder == root or not isinstance(error, FileNotFoundError):
                on_unreadable(error)
            continue
        try:
            is_repository = ".hg" in folders and _is_complete(os.path.join(folder, ".hg"))
        except OSError as error:
            on_unreadable(error)
            is_repository = False
        if is_repository:
            yield folder
        stack.extend(os.path.join(folder, name) for name in folders - _NOT_ENTERED)


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
            is_share_safe = "share-safe" in file.read()
        return stat.S_ISDIR(os.stat(store).st_mode) and (
            not is_share_safe or bool(os.stat(os.path.join(store, "requires")))
        )
    except FileNotFoundError:
        return False
