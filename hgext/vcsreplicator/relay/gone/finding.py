# SPDX-License-Identifier: GPL-2.0-or-later
"""Which repositories are gone, and which folders may not be mounted."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ...words.records import RepositoryState
from ..scan import is_folder


def find_gone(
    states: Mapping[str, RepositoryState],
    roots: Mapping[str, str],
    known: Collection[str],
    before: Mapping[str, float],
    now: float,
    *,
    source: str,
    unreadable: Collection[str] = (),
) -> dict[str, float]:
    """Return the repositories that are gone from these roots, and since when, by id.

    The log knows them, but no folder of the roots has them any more. `known` are the folders of the last round, `before` is the
    result of the round before. Repositories of a master with another `source` do not count, nor do those that may be in an
    `unreadable` folder.
    """
    there, found = set(known), {}
    for name, state in states.items():
        places = list(find_places(state.path, roots))
        if not places or not there.isdisjoint(places) or state.deleted or state.source not in (None, source):
            continue
        is_hidden = any(f"{place}/".startswith(f"{folder}/") for place in places for folder in unreadable)
        if not is_hidden and not _may_be_deleted(name, roots):
            found[name] = before.get(name, now)
    return found


def find_unmounted(
    states: Mapping[str, RepositoryState], gone: Iterable[str], roots: Mapping[str, str], known: Collection[str]
) -> dict[str, int]:
    """Return the empty folders that may be mount points, and what each had.

    That is the number of its repositories among those that are `gone`. A root is empty if no folder of
    a repository is in it. A folder below a root has no entry at all, and had several repositories.
    """
    empty = [root for root in roots if not any(f"{each}/".startswith(f"{root.rstrip('/')}/") for each in known)]
    counts = Counter[str]()
    for name in gone:
        folders = set()  # a root may be below another one
        for root, prefix in roots.items():
            for place in find_places(states[name].path, {root: prefix}):
                folders.add(root if root in empty else _find_empty(root, os.path.dirname(place)))
        counts.update(folder for folder in folders if folder is not None)
    return {folder: count for folder, count in counts.items() if folder in roots or count > 1}


def _find_empty(root: str, folder: str) -> str | None:
    """Return the folder, or the first one above it that is there, if it is empty."""
    while folder.startswith(f"{root.rstrip('/')}/"):
        try:
            return None if os.listdir(folder) else folder
        except FileNotFoundError:
            folder = os.path.dirname(folder)
        except OSError:
            break
    return None


def describe_unmounted(folder: str, count: int) -> str:
    """Say that a folder is empty which may be a mount point."""
    had = "1 repository was" if count == 1 else f"{count} repositories were"
    return f"{folder}: is empty, {had} there: is its file system mounted?"


def _may_be_deleted(name: str, roots: Iterable[str]) -> bool:
    """Return whether a root has, or may have, the repository among its deleted ones."""
    try:
        return any(is_folder(os.path.join(root, ".vcsreplicator", "deleted", name)) for root in roots)
    except OSError:
        return True


def find_places(path: str, roots: Mapping[str, str]) -> Iterable[str]:
    """Yield the folders that have this wire path."""
    for root, prefix in roots.items():
        above = prefix.strip("/")
        if not above or path.startswith(f"{above}/"):
            yield os.path.join(root, path[len(above) + 1 :] if above else path)
