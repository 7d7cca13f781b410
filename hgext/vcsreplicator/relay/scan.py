# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repositories there are below a folder: all of them, whatever their folders are called and whatever they are inside of.

Standard library only, because commands of Mercurial ask too.
"""

import os
from collections.abc import Iterator

_NOT_ENTERED = frozenset({".hg", ".vcsreplicator"})


def find_repositories(root: str) -> Iterator[str]:
    """The folders below `root` that hold a repository with a store of its own (shares have none), `root` itself included."""
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(folder) as entries:
                folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except OSError:
            continue
        if ".hg" in folders and _is_whole(os.path.join(folder, ".hg")):
            yield folder
        stack.extend(os.path.join(folder, name) for name in folders - _NOT_ENTERED)


def _is_whole(control: str) -> bool:
    """Whether Mercurial finished making this repository, and it has a store of its own: killed in `hg init`, it is neither."""
    store = os.path.join(control, "store")
    try:
        with open(os.path.join(control, "requires"), encoding="ascii", errors="replace") as file:
            split = "share-safe" in file.read()  # then the rest is in the store, and is written last
    except OSError:
        return False
    return os.path.exists(os.path.join(store, "requires")) if split else os.path.isdir(store)
