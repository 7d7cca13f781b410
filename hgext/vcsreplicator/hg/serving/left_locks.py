# SPDX-License-Identifier: GPL-2.0-or-later
"""A lock that its process could not remove, since the disk took no writes, is removed once it does.

Mercurial ignores that failure. Others wait while the process is alive whose number the lock has: in vain, if that is a server.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import Any

from pushlog.seams import wrap

# Seconds between two attempts.
PAUSE = 1.0


@functools.cache
def install() -> None:
    """Have this process remove such locks; whatever it takes meanwhile is left alone."""
    wrap("mercurial.lock", "lock.release", _release)


def _release(orig: Any, held: Any, *rest: Any, **named: Any) -> None:
    path, before = held.vfs.join(held.f), None
    if held.held == 1:
        with contextlib.suppress(OSError):
            before = _identify(path)
    try:
        orig(held, *rest, **named)
    finally:
        with contextlib.suppress(OSError):
            # Not one of the process that this one was forked from.
            if before is not None and before[0].endswith(b":%d" % os.getpid()) and _identify(path) == before:
                import threading

                threading.Thread(target=_remove_later, args=(path, before), name="lock", daemon=True).start()


def _identify(path: bytes) -> tuple[bytes, int, int]:
    """Return what tells this lock from a later one of this process, and who holds it; raise OSError if there is none."""
    known = os.lstat(path)
    return os.readlink(path), known.st_ino, known.st_ctime_ns


def _remove_later(path: bytes, left: tuple[bytes, int, int]) -> None:
    while True:
        time.sleep(PAUSE)
        try:
            if _identify(path) == left:
                os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            continue
