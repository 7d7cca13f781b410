# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether this machine can fork workers, and by which system call.

Separate from `nursery`, because a worker imports this and needs no log lines.
"""

import os

# The number of the system call `clone` by machine; on others workers are started one by one.
SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def can_fork() -> bool:
    """Return whether this machine has what a nursery needs (Linux 5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return os.uname().machine in SYS_CLONE
