# SPDX-License-Identifier: GPL-2.0-or-later
"""The reason why a task on a repository ended early, from its exception."""

import errno
import os

from mercurial import error
from mercurial.utils import stringutil

from ...mirror.task import Trouble
from ...words.errors import Diverged, MalformedEvent, ReplicationError, Unavailable, UnknownEvent
from ...words.levels import Reason
from ..text import text
from .apply import BundleTooLarge
from .local import Halted
from .memory import OUT_OF_MEMORY
from .place import Busy

# What the disk or the machine refuses, and may allow later.
_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
}


def trouble_of(problem: Exception) -> Trouble:
    """Return the reason behind an exception, and whether it may pass soon."""
    note = " ".join(text(stringutil.forcebytestr(problem)).split())[:500] or type(problem).__name__
    match problem:
        case Halted():
            return Trouble(reason=problem.reason, note=note, passing=problem.reason is Reason.LOCKED)
        case Busy():
            return Trouble(reason=Reason.LOCKED, note=note, passing=True)
        case error.LockHeld():
            return Trouble(reason=Reason.LOCKED, note=f"locked by {os.fsdecode(problem.locker or b'?')}", passing=True)
        case Unavailable():
            return Trouble(reason=Reason.BLOB_MISSING, note=note, passing=True)
        case MemoryError():
            return Trouble(reason=Reason.BLOB_MISSING, note=OUT_OF_MEMORY)
        case BundleTooLarge():
            return Trouble(reason=Reason.BLOB_MISSING, note=note)
        case UnknownEvent():
            return Trouble(reason=Reason.UNKNOWN_VERSION, note=note)
        case Diverged():
            return Trouble(reason=Reason.DIVERGED, note=note)
        case OSError() if problem.errno in _DISK:
            return Trouble(reason=Reason.DISK, note=note, passing=True)
        case MalformedEvent() | ReplicationError():
            return Trouble(reason=Reason.CORRUPT, note=note)
    return Trouble(reason=Reason.CORRUPT, note=f"{type(problem).__name__}: {note}")
