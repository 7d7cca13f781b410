# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's locks of a clone that an `hg` of an earlier worker left."""

import os
import socket
import time
from pathlib import Path

import structlog

from hgext.vcsreplicator.words.clock import DAY

logger = structlog.get_logger()


def remove_stale_locks(clone: Path) -> None:
    """Remove locks of a Mercurial that is gone.

    This process holds our own lock of the clone. So a lock made here belongs to an operator, or to an `hg` of a worker that is
    gone. A lock from elsewhere may belong to an operator outside of our container, whose processes we do not see.
    """
    mine = f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino:x}:"
    for path in (clone / ".hg" / "store" / "lock", clone / ".hg" / "wlock"):
        try:
            holder, made = os.readlink(path), path.lstat().st_mtime
        except OSError:
            continue
        pid = holder.removeprefix(mine)
        is_stale = _is_another(pid, made) if holder.startswith(mine) else time.time() - made > DAY
        if is_stale:
            logger.warning("lock of a Mercurial that is gone removed", lock=str(path), holder=holder)
            path.unlink(missing_ok=True)


def _is_another(pid: str, made: float) -> bool:
    """Return whether a process cannot have made a lock at that time.

    It is a thread, this process, a child of it, or younger than the lock. Mercurial itself removes locks of a process that it does
    not find.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        # Behind the name of the program, which may have blanks.
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return False
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = booted + int(ticks) / os.sysconf("SC_CLK_TCK")
    mine = str(os.getpid())
    return fields["Tgid"] != pid or mine in (fields["Tgid"], fields["PPid"]) or started > made + 1.0
