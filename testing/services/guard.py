# SPDX-License-Identifier: GPL-2.0-or-later
"""Run one command, and end it with everything it started as soon as the process that asked for it is gone.

    python guard.py PARENT_PID FOLDER COMMAND...

The guard adopts daemons that the command leaves behind (`epmd` is one), so nothing escapes. On SIGTERM it asks the command to
stop, waits ten seconds, then kills what is left. If the parent died, it kills at once and removes FOLDER.
Its exit status is the command's. It runs without this project on its path: standard library only.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PATIENCE = 10.0
PR_SET_CHILD_SUBREAPER = 36


def descendants(ancestor: int) -> list[int]:
    """Process ids below `ancestor`, parents first; zombies are left out."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # ended while we looked
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(status.parent.name))
    found = list(children.get(ancestor, []))
    for process in found:
        found.extend(children.get(process, []))
    return found


def signal_all(ancestor: int, number: int) -> None:
    """Send a signal to every descendant of `ancestor`, not to itself."""
    for process in descendants(ancestor):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def stand_still(ancestor: int) -> bool:
    """Whether every thread of every descendant is stopped, which SIGSTOP brings about a moment later."""
    states = (
        status.read_text().rpartition(")")[2].split()[0]
        for process in descendants(ancestor)
        for status in Path(f"/proc/{process}/task").glob("*/stat")
    )
    try:
        return all(state in "TtZX" for state in states)
    except OSError:  # ended while we looked
        return False


def kill_all() -> None:
    """Kill every descendant, and those it started meanwhile; returns once none is left."""
    while descendants(os.getpid()):
        signal_all(os.getpid(), signal.SIGKILL)
        reap()


def reap() -> None:
    """Take in adopted children that ended, without waiting."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def main() -> int:
    parent, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked_read, asked_write = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(asked_write, b"."))
    parent_ends = os.pidfd_open(parent)
    if os.getppid() != parent:  # it died before we looked, and the number may be another's by now
        return 1
    child = subprocess.Popen(command)
    child_ends = os.pidfd_open(child.pid)
    ready, _, _ = select.select([parent_ends, child_ends, asked_read], [], [])
    if asked_read in ready:
        child.terminate()
        ready, _, _ = select.select([parent_ends, child_ends], [], [], PATIENCE)
    status = child.wait() if child_ends in ready else 1
    kill_all()
    if parent_ends in ready:
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
