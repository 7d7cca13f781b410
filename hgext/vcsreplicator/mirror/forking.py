# SPDX-License-Identifier: GPL-2.0-or-later
"""What a nursery does: fork processes that are children of its parent.

Separate from `nursery`, its parent's end, because a worker imports this and needs no log lines. The parent sends a descriptor for
each new process, and gets its process id, or the negative number of the error for which there is none. The parent waits for the
new process, which does not depend on the nursery. The parent itself must not fork, because it has threads; forked workers share
the modules, and so need 15 MB instead of 37.
"""

import ctypes
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

# The number of the system call `clone` by machine; on others workers are started one by one.
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
# Constants of clone(2) and prctl(2).
_CLONE_PARENT = 0x00008000
_PR_SET_NAME = 15


def can_fork() -> bool:
    """Return whether this machine has what a nursery needs (Linux 5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.uname().machine in SYS_CLONE


class Forks:
    """A nursery's end of the conversation with its parent.

    The nursery has one thread.
    """

    def __init__(self) -> None:
        """Take the socket that the first argument names; ignore signals to the parent."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the parent blocked it
        self._conversation = socket.socket(fileno=int(sys.argv[1]))
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_NAME, b"nursery")

    def refuse(self, reason: str) -> None:
        """Report to the parent why there will be no processes."""
        self._conversation.send(b"x" + reason.encode())

    def make(self, work: Callable[[int], None], *, says: str = "") -> None:
        """Fork a process for each descriptor, until the parent closes the socket, or is killed.

        Each does its work and exits. The parent reads first what this nursery `says`.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            self._conversation.send(b"r" + says.encode())
            while True:
                message, descriptors, _, _ = socket.recv_fds(self._conversation, 1, 1)
                if not message:
                    return
                child = fork_sibling(self._libc)
                if not child:
                    self._conversation.close()
                    self._libc.prctl(_PR_SET_NAME, b"worker")
                    _run(work, descriptors[0])
                os.close(descriptors[0])
                self._conversation.send(b"%d" % child)


def fork_sibling(libc: ctypes.PyDLL) -> int:
    """Fork as `os.fork`, but make the new process a child of this one's parent.

    Returns the negative number of the error if the system refuses. This process has one thread.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    child = int(libc.syscall(SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if child < 0:
        child = -ctypes.get_errno()
    if child:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child


def _run(work: Callable[[int], None], descriptor: int) -> NoReturn:
    """Work, then exit without cleaning up the modules imported before the fork."""
    os.set_inheritable(descriptor, False)
    code = 1
    try:
        work(descriptor)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
