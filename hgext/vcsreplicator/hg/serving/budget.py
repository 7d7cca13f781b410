# SPDX-License-Identifier: GPL-2.0-or-later
"""What one request may use of the machine; the kernel sees to it.

A worker that exceeds its processor time is ended by SIGXCPU, even in a loop of C. Memory beyond its budget is refused to it. It
ends with its server. Once a request opens a transaction, which only a permitted push does, none of this holds: half a push is worse
than a long one.
"""

import contextlib
import ctypes
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pushlog import seams

# Bytes of memory that a worker may have used; with more it is replaced after its request.
_GROWN = 512 * 1024**2
# Constant of prctl(2).
_PR_SET_PDEATHSIG = 1


class Budget:
    """The budget of this process, which answers one request at a time."""

    def __init__(self, seconds: int, size: int, on_write: Callable[[], None]) -> None:
        """Limit requests to processor seconds, also of each MiB, and bytes of memory.

        Calls `on_write` when a request opens a transaction.
        """
        self._seconds, self._size, self._on_write = seconds, size, on_write
        self._has_transaction = False
        self._libc = ctypes.CDLL(None)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # SIGXCPU would write one
        with contextlib.suppress(OSError):
            # If the machine's memory ends, the kernel ends a worker before other services.
            Path("/proc/self/oom_score_adj").write_text("500")
        seams.wrap("mercurial.localrepo", "localrepository.transaction", self._open_transaction)

    def begin(self) -> None:
        """Begin a request."""
        self._has_transaction = False
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _set_limit(resource.RLIMIT_DATA, self._size)
        self.renew()

    def renew(self) -> bool:
        """Give the processor seconds again; return whether this process has stayed small."""
        if not self._has_transaction:
            _set_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + self._seconds)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < _GROWN

    def _open_transaction(self, orig: Any, repo: Any, *arguments: Any, **keywords: Any) -> Any:
        if not self._has_transaction:
            self._on_write()
        self._has_transaction = True
        self._libc.prctl(_PR_SET_PDEATHSIG, 0)
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            _set_limit(kind, resource.RLIM_INFINITY)
        return orig(repo, *arguments, **keywords)


def _set_limit(kind: int, amount: int) -> None:
    """Set a soft limit, at most to the hard one."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY and (amount == resource.RLIM_INFINITY or amount > hard):
        amount = hard
    resource.setrlimit(kind, (amount, hard))
