# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that forks the workers of a mirror.

The workers share what all of them import, and start within milliseconds.

    python -m hgext.vcsreplicator.hg.replica.nursery DESCRIPTOR

The supervisor sends a pipe's descriptor through the socket for each worker, and gets its process id, or the negative number of the
error for which there is none. A worker is a child of the
supervisor, as if started directly: the supervisor waits for it, and it does not depend on this process. This process has one
thread, does nothing else, and ends when the supervisor closes the socket.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from mercurial.ui import ui as Ui

from ...mirror.forking import SYS_CLONE
from .repository import prepare
from .worker import serve

# Constants of clone(2) and prctl(2).
CLONE_PARENT = 0x00008000
PR_SET_NAME = 15


def main() -> None:
    """Fork a worker for each descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the supervisor blocked it
    conversation = socket.socket(fileno=int(sys.argv[1]))
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, b"nursery")
    ui = prepare()
    gc.collect()
    gc.freeze()
    conversation.send(b"r")
    while True:
        message, descriptors, _, _ = socket.recv_fds(conversation, 1, 1)
        if not message:
            return
        child = fork_sibling(libc)
        if not child:
            conversation.close()
            libc.prctl(PR_SET_NAME, b"worker")
            _run(descriptors[0], ui)
        os.close(descriptors[0])
        conversation.send(b"%d" % child)


def fork_sibling(libc: ctypes.PyDLL) -> int:
    """Fork as `os.fork`, but make the new process a child of this one's parent.

    Returns the negative number of the error if the system refuses. This process has one thread.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    child = int(libc.syscall(SYS_CLONE[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if child < 0:
        child = -ctypes.get_errno()
    if child:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return child


def _run(descriptor: int, ui: Ui) -> NoReturn:
    """Work as a worker, then exit.

    The exit does not clean up the modules imported before the fork.
    """
    os.set_inheritable(descriptor, False)
    code = 1
    try:
        serve(Connection(descriptor), ui)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
