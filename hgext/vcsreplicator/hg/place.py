# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a mirror's repositories stand on disk: made elsewhere and moved into place whole, set aside whole, never half.

Everything happens on one file system by renames of the `.hg` folder, so that repositories below a repository's folder stay. What
is being made is in `staging`, what is whole and not released yet, or in the way of another, is in `waiting`, what was deleted or
replaced is in `aside`, there with its folder called `hg`: no web server takes it for a repository.
"""

import contextlib
import ctypes
import os
import shutil

from ..errors import Rejected

STAGING, WAITING, ASIDE = "staging", "waiting", "aside"
_EXCHANGE = 2
_AT_FDCWD = -100


def check_inside(root: str, folder: str) -> str:
    """The folder itself if creating it stays inside the root, links resolved; raises Rejected."""
    real = os.path.realpath(root)
    target = os.path.realpath(folder)
    if not target.startswith(real.rstrip("/") + "/"):
        raise Rejected(f"{folder}: leads out of {root}")
    return folder


def in_the_way(root: str, folder: str) -> str | None:
    """What stands at the folder, or above it up to the root, and is no folder; None if nothing does."""
    while folder.startswith(root.rstrip("/") + "/"):
        if os.path.lexists(folder) and not os.path.isdir(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def staging_of(state: str, repository: str) -> str:
    """Where a repository is made."""
    return os.path.join(state, STAGING, repository)


def waiting_of(state: str, repository: str) -> str:
    """Where a repository stands while it has no URL."""
    return os.path.join(state, WAITING, repository)


def empty(place: str) -> str:
    """The place itself, free for a new repository: what a killed process left there is removed."""
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return place


def install(made: str, root: str, folder: str) -> None:
    """Moves the repository made in `made` to `folder`, where there is none; afterwards it is there whole, or not at all."""
    check_inside(root, folder)
    os.makedirs(folder, exist_ok=True)
    os.rename(os.path.join(made, ".hg"), os.path.join(folder, ".hg"))
    shutil.rmtree(made, ignore_errors=True)


def exchange(made: str, root: str, folder: str) -> None:
    """Puts the repository made in `made` in the place of the one in `folder`, in one step; the old one is then in `made`."""
    check_inside(root, folder)
    new, old = os.path.join(made, ".hg"), os.path.join(folder, ".hg")
    if not os.path.lexists(old):
        os.makedirs(folder, exist_ok=True)
        os.rename(new, old)
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)


def move(root: str, old: str, new: str) -> None:
    """Moves the repository from one folder to another inside the root."""
    check_inside(root, new)
    os.makedirs(new, exist_ok=True)
    os.rename(os.path.join(old, ".hg"), os.path.join(new, ".hg"))
    prune(root, old)


def hide(state: str, root: str, folder: str, repository: str) -> str:
    """Takes the repository's URL for the moment; where it waits for another."""
    waiting = waiting_of(state, repository)
    os.makedirs(waiting, exist_ok=True)
    os.rename(os.path.join(folder, ".hg"), os.path.join(waiting, ".hg"))
    prune(root, folder)
    return waiting


def set_aside(state: str, root: str, folder: str, name: str) -> str:
    """Takes the repository away from where it is served, and returns where it is kept."""
    place = os.path.join(state, ASIDE, name)
    count = 0
    while os.path.lexists(kept := place if not count else f"{place}.{count}"):
        count += 1
    os.makedirs(kept)
    os.rename(os.path.join(folder, ".hg"), os.path.join(kept, "hg"))
    prune(root, folder)
    return kept


def prune(root: str, folder: str) -> None:
    """Removes the folder and those above it, up to the root, as far as they are empty."""
    with contextlib.suppress(OSError):
        while os.path.realpath(folder) != os.path.realpath(root):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def remove_old(state: str, before: float) -> list[str]:
    """Removes for good what was set aside before that time; returns the names."""
    folder = os.path.join(state, ASIDE)
    removed = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.stat(follow_symlinks=False).st_mtime < before:
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.name)
    return removed
