# SPDX-License-Identifier: GPL-2.0-or-later
"""Forks of this process, for what would change it until its end: another user, a hook that stays, a death."""

import os
import traceback
from collections.abc import Callable


def begin_fork(act: Callable[[], object]) -> int:
    """Return the number of a new process, which does this and ends; with 1, and the error on its standard error, if it fails."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def await_fork(child: int) -> int:
    """Wait for the end of a fork; return its exit code, or the negative number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
