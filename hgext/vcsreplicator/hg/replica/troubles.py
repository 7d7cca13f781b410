# SPDX-License-Identifier: GPL-2.0-or-later
"""The reason why a task on a repository ended early, from its exception."""

import errno
import os

from mercurial import error, lock
from mercurial.utils import stringutil

from ...mirror.task import Trouble
from ...words.errors import Diverged, MalformedEvent, Rejected, ReplicationError, Unavailable, UnknownEvent
from ...words.records import Reason
from ..text import text
from .apply import BundleTooLarge
from .local import Halted
from .place import Busy

OUT_OF_MEMORY = "more memory is needed than worker-memory-bytes allows"

# Errors of the disk or the machine that may pass.
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

# The reason behind an exception, and whether it may pass soon; the first that fits counts.
_TROUBLES = (
    (Busy, Reason.LOCKED, True),
    (Unavailable, Reason.BLOB_MISSING, True),
    (BundleTooLarge, Reason.BLOB_MISSING, False),
    (UnknownEvent, Reason.UNKNOWN_VERSION, False),
    (Diverged, Reason.DIVERGED, False),
    (MalformedEvent, Reason.CORRUPT, False),
    (Rejected, Reason.REFUSED, False),
    (ReplicationError, Reason.CORRUPT, False),
)


def trouble_of(problem: Exception) -> Trouble:
    """Return the reason behind an exception, and whether it may pass soon."""
    note = " ".join(text(stringutil.forcebytestr(problem)).split())[:500] or type(problem).__name__
    match problem:
        case Halted():
            return Trouble(reason=problem.reason, note=note, passing=problem.reason is Reason.LOCKED)
        case error.LockHeld():
            return Trouble(reason=Reason.LOCKED, note=_describe_lock(problem.locker or b"?"), passing=True)
        case MemoryError():
            return Trouble(reason=Reason.BLOB_MISSING, note=OUT_OF_MEMORY)
        case OSError() if problem.errno in _DISK:
            return Trouble(reason=Reason.DISK, note=note, passing=True)
        case OSError() if problem.errno == errno.EXDEV:
            return Trouble(reason=Reason.REFUSED, note=_describe_move(problem))
    for kind, reason, passing in _TROUBLES:
        if isinstance(problem, kind):
            return Trouble(reason=reason, note=note, passing=passing)
    return Trouble(reason=Reason.CORRUPT, note=f"{type(problem).__name__}: {note}")


def _describe_lock(locker: bytes) -> str:
    # Needs the prefix that Mercurial gives to locks of this machine and PID namespace; tests/hg/replica/test_troubles.py.
    host, separator, _process = locker.partition(b":")
    is_foreign = separator and host != lock._getlockprefix()
    foreign = "; that is another machine or container, so Mercurial keeps the lock even if the process is gone"
    return f"locked by {os.fsdecode(locker)}{foreign if is_foreign else ''}"


def _describe_move(problem: OSError) -> str:
    places = " and ".join(os.fsdecode(name) for name in (problem.filename, problem.filename2) if name is not None)
    return f"another file system: {places}; the mirror's root, all below it, and its state must be one mount"[:500]
