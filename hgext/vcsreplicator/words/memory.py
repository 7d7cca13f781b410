# SPDX-License-Identifier: GPL-2.0-or-later
"""How much memory a process may allocate.

The bound is the kernel's: an allocation beyond it fails as MemoryError, so no repository exhausts the machine. Mapped files, such
as large stores, do not count.
"""

import contextlib
import os
import resource
from pathlib import Path, PurePath

# Bytes with which the stack of a thread counts, though it uses little of them; those allowed beyond the half.
STACK = 1 << 23
STACKS = 32 * STACK


def bound(size: int) -> None:
    """Bound what this process may allocate to so many bytes, at most to its present hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size, most))


def bound_to_half() -> None:
    """Bound this process to half of the memory that it could have, and `STACKS`.

    A limit that is set already stays.
    """
    if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        bound(read_memory() // 2 + STACKS)


def allow_threads(count: int) -> None:
    """Add the stacks of so many threads to the bound that this module set."""
    present, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if present == read_memory() // 2 + STACKS:
        bound(present + count * STACK)


def read_memory(process: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of the machine's memory, or of this process' control groups if they allow less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        for line in process.read_text().splitlines():
            own = PurePath(line.removeprefix("0::/"))
            for group in (own, *own.parents) if line.startswith("0::/") else ():
                with contextlib.suppress(OSError, ValueError):  # ValueError: "max", as much as there is
                    sizes.append(int((groups / group / "memory.max").read_text()))
    return min(sizes)
