# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a mirror's repositories stand on disk.

They are made elsewhere and moved into place whole, and set aside whole, never half.

Everything happens on one file system by renames of the `.hg` folder, so that repositories below a repository's folder stay.
Repositories being made are in `staging`; complete repositories, not released yet or in the way of another, in `waiting`;
deleted or replaced ones in `aside`, there with their folder called `hg`, so that no web server takes them for repositories.

Repositories make room for each other, so a folder can hold another one at any moment. Rule of this file: a `.hg` is moved by
the process that holds its lock (`hold`) and has read, since it holds it, which repository that is. The lock goes with the `.hg`.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterator

from mercurial import error, lock, vfs

from pushlog.store import regular

from ...words.errors import Refused, Rejected

_OWN_FOLDERS = STAGING, WAITING, ASIDE = "staging", "waiting", "aside"
# Attempts to make a folder that another worker removes.
_ATTEMPTS = 20
# RENAME_EXCHANGE and AT_FDCWD of renameat2(2).
_EXCHANGE, _AT_FDCWD = 2, -100


class Busy(Exception):
    """Another process moved something into a folder, or out of it, a moment ago."""


class LockedPlace:
    """A `.hg` that this process has locked: no other one writes into it or moves it."""

    def __init__(self, folder: str, wlock: lock.lock | None) -> None:
        self.folder = folder
        self._name = ".hg"
        self._wlock = wlock

    def carry(self, target: str, name: str = ".hg") -> None:
        """Move the `.hg` into the existing folder `target`.

        Raises Busy or error.LockHeld. A kill leaves the lock of a dead process in the `.hg`, which counts as no lock.
        """
        old, new = os.path.join(self.folder, self._name), os.path.join(target, name)
        with self._lock_store(old) as store:
            with _raising_busy(target):
                os.rename(old, new)
            self._follow_move(target, name, store)

    def exchange(self, made: str) -> None:
        """Put the `.hg` in `made` in place of this one, which is then there, in one step."""
        with self._lock_store(os.path.join(self.folder, self._name)) as store:
            _exchange_names(os.path.join(made, ".hg"), os.path.join(self.folder, self._name))
            self._follow_move(made, ".hg", store)

    def _follow_move(self, folder: str, name: str, store: lock.lock | None) -> None:
        self.folder, self._name = folder, name
        place = os.path.join(folder, name)
        if self._wlock is not None:
            self._wlock.vfs = _open_vfs(place)
        if store is not None:
            store.vfs = _open_vfs(os.path.join(place, "store"))

    @staticmethod
    @contextlib.contextmanager
    def _lock_store(old: str) -> Iterator[lock.lock | None]:
        store = os.path.join(old, "store")
        if not os.path.isdir(store):
            # Damaged: no process can write there.
            yield None
            return
        with lock.lock(_open_vfs(store), b"lock", timeout=0, desc=os.fsencode(old)) as held:
            yield held


@contextlib.contextmanager
def hold(folder: str) -> Iterator[LockedPlace]:
    """Lock the repository in the folder within the block, without waiting.

    Raises LockHeld, or Busy. The caller then reads which repository it is.
    """
    place = os.path.join(folder, ".hg")
    if os.path.lexists(place) and not os.path.isdir(place):
        # Damaged.
        yield LockedPlace(folder, None)
        return
    try:
        held = lock.lock(_open_vfs(place), b"wlock", timeout=0, desc=os.fsencode(folder))
    except error.LockUnavailable as problem:
        if problem.errno == errno.ENOENT:
            raise Busy(f"{folder}: the repository was moved away at the same moment") from problem
        raise
    with held:
        yield LockedPlace(folder, held)


@contextlib.contextmanager
def hold_still(folder: str, patience: int) -> Iterator[None]:
    """Hold both locks of any repository, a master's too, within the block, for a program that reads its files.

    Nothing of it is opened. A process that holds a lock may take `patience` seconds. Raises FileNotFoundError if the repository is
    gone, Refused if it stays locked or this user may not lock it, OSError for a pipe in place of a lock. A kill leaves the lock of
    a dead process, which counts as none.
    """
    regular.install()
    control = os.path.join(folder, ".hg")
    with contextlib.ExitStack() as held:
        for place, name in ((control, b"wlock"), (os.path.join(control, "store"), b"lock")):
            if name == b"lock" and not os.path.isdir(place):  # a share, whose store is elsewhere
                continue
            if os.path.islink(place):
                raise Refused(f"{place}: is a link, and no lock is made where it leads")
            try:
                held.enter_context(lock.lock(_open_vfs(place), name, timeout=patience))
            except MemoryError as problem:  # a lock that no link holds is read whole
                raise Refused(f"{folder}: its {os.fsdecode(name)} is larger than any lock") from problem
            except error.LockError as problem:
                if problem.errno == errno.ENOENT:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder) from problem
                raise Refused(
                    f"{folder}: cannot be locked: {problem.strerror}; run it again, as its owner"
                ) from problem
        yield


@contextlib.contextmanager
def _raising_busy(target: str) -> Iterator[None]:
    """Raise Busy if `target` is taken or removed while something is moved there."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise Busy(
                f"{target}: another repository is being moved there, or was moved away, at the same moment"
            ) from problem
        raise


def _open_vfs(folder: str) -> vfs.vfs:
    return vfs.vfs(os.fsencode(folder))


def check_inside(root: str, folder: str) -> str:
    """Return the folder if it is inside the root, links resolved, or raise Rejected."""
    real = os.path.realpath(root)
    target = os.path.realpath(folder)
    if not target.startswith(real.rstrip("/") + "/"):
        raise Rejected(f"{folder}: leads out of {root}")
    return folder


def is_same(folder: str, other: str) -> bool:
    """Return whether both names lead to one folder; False if one leads to none."""
    try:
        return os.path.samefile(folder, other)
    except OSError:
        return False


def find_obstacle(root: str, folder: str) -> str | None:
    """Find a file at the folder's path or above it that is no folder; None without."""
    while folder.startswith(root.rstrip("/") + "/"):
        if os.path.lexists(folder) and not os.path.isdir(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def staging_of(state: str, repository: str) -> str:
    return os.path.join(state, STAGING, repository)


def waiting_of(state: str, repository: str) -> str:
    """Return the folder in which a repository stands while it has no URL."""
    return os.path.join(state, WAITING, repository)


def empty(place: str) -> str:
    """Make room for a new repository without leftovers; return the place."""
    shutil.rmtree(place, ignore_errors=True)
    _make_folder(os.path.dirname(place))
    return place


def install(made: str, root: str, folder: str) -> None:
    """Move the repository in `made` to `folder`, where none is: whole, or not at all."""
    check_inside(root, folder)
    _make_folder(folder)
    os.rename(os.path.join(made, ".hg"), os.path.join(folder, ".hg"))
    shutil.rmtree(made, ignore_errors=True)


def exchange(made: str, root: str, folder: str, held: LockedPlace | None) -> None:
    """Exchange the repository in `made` with the repository `held`, in one step.

    If none is held, the repository in `made` is moved to `folder`; raises Busy if a repository is there by now.
    """
    check_inside(root, folder)
    if held is not None:
        held.exchange(made)
        return
    _make_folder(folder)
    with _raising_busy(folder):
        os.rename(os.path.join(made, ".hg"), os.path.join(folder, ".hg"))


def move(state: str, root: str, held: LockedPlace, new: str) -> None:
    check_inside(root, new)
    _carry_repository(state, root, held, new)


def hide(state: str, root: str, held: LockedPlace, repository: str) -> None:
    """Take the repository's URL away: it waits for another."""
    _carry_repository(state, root, held, waiting_of(state, repository))


def _carry_repository(state: str, root: str, held: LockedPlace, target: str) -> None:
    old = held.folder
    _make_folder(target)
    held.carry(target)
    prune(state, root, old)


def set_aside(state: str, root: str, held: LockedPlace, name: str) -> None:
    """Keep the repository away from where it is served."""
    old, kept, count = held.folder, os.path.join(state, ASIDE, name), 0
    while os.path.lexists(kept):
        count += 1
        kept = os.path.join(state, ASIDE, f"{name}.{count}")
    os.makedirs(kept)
    held.carry(kept, "hg")
    prune(state, root, old)


def thin_out(state: str, name: str, kept: int) -> None:
    """Keep so many set-aside copies of the name: the oldest, and the newest."""
    # Another worker may remove old copies at the same moment.
    with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(state, ASIDE)) as entries:
        found = [entry for entry in entries if re.fullmatch(re.escape(name) + r"(\.\d+)?", entry.name)]
        found.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in found[1 : 1 - kept]:
            shutil.rmtree(entry.path, ignore_errors=True)


def _exchange_names(new: str, old: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new, None, old)


def prune(state: str, root: str, folder: str) -> None:
    """Remove the empty folder and empty folders above it, except the mirror's own."""
    own = {os.path.realpath(each) for each in (root, state, *(os.path.join(state, name) for name in _OWN_FOLDERS))}
    with contextlib.suppress(OSError):
        while os.path.realpath(folder) not in own:
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def _make_folder(folder: str) -> None:
    """Make the folder, though other workers may remove it as empty, or raise Busy."""
    for _ in range(_ATTEMPTS):
        try:
            os.makedirs(folder, exist_ok=True)
        except FileNotFoundError:
            continue
        return
    raise Busy(f"{folder}: another worker repeatedly removes it as an empty folder")


def remove_old(state: str, now: float, age: float) -> tuple[str, ...]:
    """Remove each copy that was set aside at least `age` seconds before `now`.

    Returns a line for each copy that could not be removed: its path and the error of the system.
    """
    aside, failures = os.path.join(state, ASIDE), list[str]()
    with _collecting_failure(aside, failures), os.scandir(aside) as entries:
        for entry in entries:
            with _collecting_failure(entry.path, failures):
                if entry.stat(follow_symlinks=False).st_mtime <= now - age:
                    shutil.rmtree(entry.path)
    return tuple(failures)


@contextlib.contextmanager
def _collecting_failure(path: str, failures: list[str]) -> Iterator[None]:
    """Add the block's error to `failures`, unless another worker removed it."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        failures.append(f"{error.filename or path}: {error.strerror or error}")
