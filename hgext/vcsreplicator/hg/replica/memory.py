# SPDX-License-Identifier: GPL-2.0-or-later
"""What a worker's memory is bounded by: no bundle, whatever it unpacks to, may take the machine.

Mercurial holds a whole chunk of a bundle and a whole file at a time, several times over. The bound is the kernel's: an allocation
beyond it fails as MemoryError, which is the trouble of one repository. Files that are mapped, as those of large stores, do not
count.
"""

import resource

OUT_OF_MEMORY = "more memory is needed than worker-memory-bytes allows"


def bound(size: int) -> None:
    """Bounds what this process may allocate to `size` bytes, or to what its limits are already if that is less."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if most == resource.RLIM_INFINITY else min(size, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size, most))
