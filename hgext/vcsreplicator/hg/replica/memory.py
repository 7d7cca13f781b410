# SPDX-License-Identifier: GPL-2.0-or-later
"""A bound on a worker's memory: no bundle may exhaust the machine.

Mercurial holds a whole chunk of a bundle and a whole file at a time, several times over. The bound is the kernel's: an allocation
beyond it fails as MemoryError, which stops one repository. Mapped files, as those of large stores, do not count.
"""

import resource

OUT_OF_MEMORY = "more memory is needed than worker-memory-bytes allows"


def bound(size: int) -> None:
    """Bound what this process may allocate, at most to its present limit."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size, most))
