# SPDX-License-Identifier: GPL-2.0-or-later
"""The repositories below a mirror's root with the checkpoint of each.

They are read without opening them: 10,000 take about a second.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from pushlog.store.appendfile import TornRecord, open_regular

from ...mirror.copies import choose
from ...mirror.settings import MirrorSettings
from ...mirror.task import FoundRepository
from ...outbox.folder import Store
from ...words.errors import MalformedEvent
from ..requirement import LOCK
from ..serving.watermark import read_watermark
from .place import ASIDE, WAITING, is_same
from .replicated import read_backwards


def scan(root: str, state: str) -> Iterator[FoundRepository]:
    """Find every repository that is or was this mirror's, in no order."""
    for found in _inspect_all(os.path.join(state, ASIDE), "hg"):
        if found.checkpoint is not None and found.checkpoint.deleted:
            yield replace(found, is_aside=True)
    yield from _inspect_all(os.path.join(state, WAITING), ".hg")
    left, inode = [root], _inode_of(state)
    while left:
        folder = left.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        left.extend(_list_subfolders(entries, state, inode))
        if any(entry.name == ".hg" for entry in entries) and (seen := inspect_anyway(folder)) is not None:
            yield _with_served_path(seen)


def is_locked(folder: str) -> bool:
    """Return whether the repository keeps out a Mercurial without the extension."""
    for name in ("requires", "store/requires"):
        path = os.path.join(folder, ".hg", name)
        with contextlib.suppress(OSError), open(path, "rb", opener=open_regular) as file:
            if LOCK in file.read().split():
                return True
    return False


def _inspect_all(folder: str, name: str) -> Iterator[FoundRepository]:
    """Inspect each subfolder of one of the mirror's own folders."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if (found := inspect_anyway(entry.path, name)) is not None:
                yield found


def inspect_anyway(folder: str, name: str = ".hg") -> FoundRepository | None:
    """Inspect a folder; a repository that this user may not read counts as damaged."""
    try:
        return inspect(folder, name)
    except PermissionError as problem:
        return FoundRepository(folder=folder, checkpoint=None, serving=0, problem=str(problem))


def find(settings: MirrorSettings, repository: str) -> FoundRepository | None:
    """Search the whole root for the repository of this id."""
    found = [each for each in scan(settings.root, settings.folder) if each.is_of(repository) and not each.is_aside]
    return choose(found, settings) if found else None


def inspect(folder: str, name: str = ".hg") -> FoundRepository | None:
    """Inspect a folder; None if it has no repository of a mirror.

    Raises PermissionError if this user may not read it: it may be sound, and a copy must not take its place.
    """
    store = Store(os.path.join(folder, name, "store"))
    try:
        checkpoint = next(read_backwards(store), None)
    except PermissionError:
        raise
    except (TornRecord, MalformedEvent, OSError) as problem:
        return FoundRepository(folder=folder, checkpoint=None, serving=0, problem=str(problem))
    if checkpoint is None:
        return None
    shown = read_watermark(Store(os.path.join(folder, ".hg")))
    # A power cut may leave a watermark that is ahead of the store, or a store that is torn. Clients may see nothing then: the
    # release is repeated, and finds what is torn.
    serving = shown.seq if shown is not None and shown.seq <= checkpoint.seq and shown.fits_store(store) else 0
    return FoundRepository(folder=folder, checkpoint=checkpoint, serving=serving)


def _with_served_path(found: FoundRepository) -> FoundRepository:
    """Read the path at which a repository is served, if newer events are applied.

    Reads one record per event that waits for its release; `inspect` reads one in all.
    """
    if found.checkpoint is None or not 0 < found.serving < found.checkpoint.seq:
        return found
    with contextlib.suppress(TornRecord, MalformedEvent, OSError):
        for checkpoint in read_backwards(Store(os.path.join(found.folder, ".hg", "store"))):
            if checkpoint.seq <= found.serving:
                return replace(found, served_path=checkpoint.path)
    return found


def _inode_of(folder: str) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(folder).st_ino
    return None


def _list_subfolders(entries: list[os.DirEntry[str]], state: str, inode: int | None) -> Iterator[str]:
    """List all subfolders except the mirror's own, by any spelling of its path."""
    for entry in entries:
        is_own = entry.path == state or (entry.inode() == inode and is_same(entry.path, state))
        if entry.name != ".hg" and not is_own and entry.is_dir(follow_symlinks=False):
            yield entry.path
