# SPDX-License-Identifier: GPL-2.0-or-later
"""All repositories below a folder.

Those in dotted folders and inside other repositories are included. Standard library only, because commands of Mercurial use it
too.
"""

import os
from collections.abc import Iterator

_NOT_ENTERED = frozenset({".hg", ".vcsreplicator"})


def find_repositories(root: str) -> Iterator[str]:
    """Yield the folders that hold a repository with a store of its own.

    Shares have no store of their own. `root` itself is included.
    """
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as entries:
                folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except OSError:
            continue
        if ".hg" in folders and _is_complete(os.path.join(folder, ".hg")):
            yield folder
        stack.extend(os.path.join(folder, name) for name in folders - _NOT_ENTERED)


def _is_complete(control: str) -> bool:
    """Return whether Mercurial finished making this repository with its own store.

    A killed `hg init` did not finish it.
    """
    store = os.path.join(control, "store")
    try:
        with open(os.path.join(control, "requires"), encoding="ascii", errors="replace") as file:
            # Then the rest is in the store, and is written last.
            is_share_safe = "share-safe" in file.read()
    except OSError:
        return False
    return os.path.exists(os.path.join(store, "requires")) if is_share_safe else os.path.isdir(store)
