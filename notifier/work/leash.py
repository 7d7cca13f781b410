# SPDX-License-Identifier: GPL-2.0-or-later
"""An extension that ends the worker's Mercurial with the worker.

Without it a pull would survive a worker that is killed, and keep the lock of a clone that the next worker needs. The command server
loads this file by its path; no module imports it.
"""

import ctypes
import signal
from typing import Any

testedwith = b"6.3 6.9 7.0 7.1 7.2"

# Of prctl: the signal that a process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1


def extsetup(ui: Any) -> None:
    """Ask the kernel to kill this process when the worker is gone.

    The worker sends the first command after this, so no command begins without a worker.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
