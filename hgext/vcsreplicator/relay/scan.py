# SPDX-License-Identifier: GPL-2.0-or-later
"""The repositories below a folder: all of them, dotted folders and repositories inside repositories included.

Standard library only, because commands of Mercurial use it too.
"""

import os
from collections.abc import Iterator

_NOT_ENTERED = frozenset({".hg", ".vcsreplicator"})


def find_repositories(root: str) -> Iterator[str]:
    """Give the folders that hold a repository with a store of its own (shares have none), `root` itself included."""
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
    """Whether Mercurial finished making this repository, which a killed `hg init` did not, and it has its own store."""
    store = os.path.join(control, "store")
    try:
        with open(os.path.join(control, "requires"), encoding="ascii", errors="replace") as file:
            # Then the rest is in the store, and is written last.
            is_share_safe = "share-safe" in file.read()
    except OSError:
        return False
    return os.path.exists(os.path.join(store, "requires")) if is_share_safe else os.path.isdir(store)
