# SPDX-License-Identifier: GPL-2.0-or-later
"""Names that a repository cannot have: of twins, and of servers' own files.

Twins have names that are one name to the disks of some clients, such as `PROJ` and `proj`, or two spellings of `é`. hgweb has
files of its own at `static/`, and shows no repository there. So the master refuses such a name at a creation, clone, rename, or
adoption as a copy. Existing ones stay as they are, and `config check` names them.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping

from mercurial import error
from mercurial.ui import ui as Ui

from ...relay.scan import find_repositories
from ...words.path import is_taken_by_pages, twin, wire_path

# Seconds between two attempts to lock a root.
LOCK_PAUSE = 0.05


@contextlib.contextmanager
def reserved(ui: Ui, path: str, folder: str, roots: Mapping[str, str]) -> Iterator[None]:
    """Hold a path within the block, and refuse a twin as `refuse` does.

    No other process passes meanwhile. Raises Abort if another process stays longer than `ui.timeout`.
    """
    with contextlib.ExitStack() as held:
        # One folder can be two roots, by a mount; a process would wait for itself.
        states = {root: os.stat(root) for root in sorted(roots) if os.path.isdir(root)}
        for root in {(state.st_dev, state.st_ino): root for root, state in states.items()}.values():
            # Some file systems do not lock folders: there two processes at the same instant can both pass.
            with contextlib.suppress(OSError):
                descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                _lock(root, descriptor, ui.configint(b"ui", b"timeout"))
        refuse(path, folder, roots)
        yield


def refuse(path: str, folder: str, roots: Mapping[str, str]) -> None:
    """Raise Abort for a path that servers cannot serve, and for another's twin.

    The other is a repository that is not in `folder`.
    """
    if _is_unserved(path, roots):
        raise error.Abort(
            f"repository path {path}: web servers have their own files at static/".encode("utf-8", "surrogateescape"),
            hint=b"choose another name: no client could reach it",
        )
    for other in _find_twins(path, roots):
        if other != os.path.realpath(folder):
            raise error.Abort(
                f"repository path {path}: there is {other}, whose name is the same but for case or Unicode".encode(
                    "utf-8", "surrogateescape"
                ),
                hint=b"choose another name: the disks of some clients take the two for one",
            )


def _lock(root: str, descriptor: int, patience: int) -> None:
    """Wait at most `patience` seconds for the lock on a root, or raise Abort.

    Negative `patience` means no limit, as for Mercurial's own locks.
    """
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if patience >= 0 and end <= time.monotonic():
                raise error.Abort(
                    f"{root}: timed out waiting for the lock of another process, which makes or renames a repository".encode(
                        "utf-8", "surrogateescape"
                    )
                ) from None
        time.sleep(LOCK_PAUSE)


def find_unserved(roots: Mapping[str, str]) -> list[str]:
    """List the folders of repositories at paths that servers cannot serve."""
    folders = {folder for root in roots for folder in find_repositories(root)}
    return sorted(folder for folder in folders if _is_unserved(wire_path(folder, roots) or "", roots))


def _is_unserved(path: str, roots: Mapping[str, str]) -> bool:
    """Return whether servers of a mirror, or of these roots, cannot serve a path."""
    served = (path.removeprefix(prefix.strip("/") + "/") for prefix in roots.values())
    return is_taken_by_pages(path) or any(map(is_taken_by_pages, served))


def find_all(roots: Mapping[str, str]) -> list[list[str]]:
    """List the folders of repositories that are twins, each list for one name."""
    named: dict[str, set[str]] = {}
    for folder in {folder for root in roots for folder in find_repositories(root)}:
        path = wire_path(folder, roots)
        if path is not None:
            named.setdefault(twin(path), set()).add(folder)
    return sorted(sorted(folders) for folders in named.values() if len(folders) > 1)


def _find_twins(path: str, roots: Mapping[str, str]) -> Iterator[str]:
    """Find the repositories at this path or its twins, searching only there."""
    for root, prefix in roots.items():
        before = [part for part in twin(prefix).split("/") if part]
        parts = twin(path).split("/")
        if parts[: len(before)] == before:
            yield from _find_below(root, parts[len(before) :])


def _find_below(folder: str, parts: list[str]) -> Iterator[str]:
    if not parts:
        if os.path.isdir(os.path.join(folder, ".hg")):
            yield folder
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if twin(entry.name) == parts[0])
    except OSError:
        return
    for name in names:
        yield from _find_below(os.path.join(folder, name), parts[1:])
