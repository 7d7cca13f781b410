# SPDX-License-Identifier: GPL-2.0-or-later
"""The file that says what a mirror lost in a power cut, or with its disk.

The mirror refuses these repositories until they are back. It syncs nothing of what it applies, so a power cut may take events
that it had acknowledged as served. `ROOT/~vcsreplicator.boot` says in which boot of the machine the mirror's service last
compared its repositories with its acks, and which of them serve less since. It is a JSON object: `boot` ("" if everything is on
disk, because the service synced it at its end), `machine`, and `lacking`, by repository: its folder below the root, and the
incarnation and sequence that it served.

The service writes the file, synced, before it applies anything. A server of clients reads it, so this module imports only the
standard library. A mirror whose root has no such file, of an older release, refuses nothing.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE = "~vcsreplicator.boot"
# A random text of each boot, which containers share with their machine.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Seconds by which another machine's clock, or its file server's, may be ahead.
_SKEW = 30.0
# Bytes of the file, at most: those of some 200,000 repositories that lack something.
_LIMIT = 1 << 25
# A boot that never is: the file is damaged.
_DAMAGED = "damaged"

# The roots that lack nothing in this boot: this process does not read their files again.
_whole: set[str] = set()


class Lacking(NamedTuple):
    """A repository that serves less than `serving`, in this folder below the root."""

    folder: str
    incarnation: str
    serving: int


class BootMark(NamedTuple):
    """What the file says."""

    boot: str
    machine: str
    lacking: Mapping[str, Lacking]
    time: float = 0.0

    def is_of_this_boot(self) -> bool:
        """Return whether no power cut may have followed.

        The service of another machine or container renews the time of the file, so it counts if that is later than this boot. A
        time in the future, beyond _SKEW, says nothing: the clock may not be set yet. If the system does not name the
        boot, a power cut cannot be noticed.
        """
        own = read_boot()
        if not own or self.boot in ("", own):
            return True
        is_foreign = self.machine not in ("", socket.gethostname())
        return is_foreign and -_SKEW <= time.time() - self.time < time.clock_gettime(time.CLOCK_BOOTTIME)


def read_boot() -> str:
    """Return the name of this boot; "" where the system does not say it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def is_behind(*folders: str) -> bool:
    """Return whether one of a mirror's folders, each in the one before it, may lack what the mirror acknowledged as served.

    That is so below a root that was not compared since the machine's start, and for each repository that lacked something then
    and is not served again as far. Folders are absolute paths without links. This looks once at each folder above the last one.
    """
    parents = [str(parent) for parent in Path(folders[-1]).parents]
    if not _whole.isdisjoint(parents):
        return False
    for root in parents:
        found = read(root)
        if found is None:
            continue
        if not found.is_of_this_boot():
            return True
        if not found.lacking:
            _whole.add(root)
        return not {os.path.join(root, each.folder) for each in found.lacking.values()}.isdisjoint(folders)
    return False


def read(root: str) -> BootMark | None:
    """Read the file of a root; None if there is none.

    A damaged one belongs to no boot, so everything is refused until the service writes it again.
    """
    try:
        with open(os.path.join(root, FILE), "rb", opener=_open_at_once) as file:
            content, changed = file.read(_LIMIT + 1), os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    try:
        found = json.loads(content if len(content) <= _LIMIT else b"")
        lacking = {
            name: Lacking(str(folder), str(inc), int(seq)) for name, (folder, inc, seq) in found["lacking"].items()
        }
        return BootMark(str(found["boot"]), str(found["machine"]), lacking, changed)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return BootMark(_DAMAGED, "", {})


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting, and without following a link.

    A master's servers look for the file too, and accounts that may write there may have made a pipe or a link.
    """
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def write(root: str, boot: str, lacking: Mapping[str, Lacking]) -> None:
    """Replace the file of a root, synced; raises OSError, having kept the former one."""
    from ...log.blobs import sync_folder  # no server of clients writes the file

    final = os.path.join(root, FILE)
    content = json.dumps({"boot": boot, "machine": socket.gethostname(), "lacking": lacking})
    with open(f"{final}.new", "w", encoding="ascii") as file:
        file.write(f"{content}\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)  # for the web servers' users, under any umask
        os.fsync(file.fileno())
    os.rename(f"{final}.new", final)
    sync_folder(root)


def sync(root: str) -> None:
    """Bring everything on the file system of a root to disk; raises OSError."""
    import ctypes  # no server of clients needs it

    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", root)
    finally:
        os.close(descriptor)


def renew(root: str) -> None:
    """Show by the time of the file that the service of this boot runs."""
    os.utime(os.path.join(root, FILE))
