# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that this thread may not use, also where the tests run as root."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

# `_LINUX_CAPABILITY_VERSION_3`, and the bits of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_VERSION, _OVERRIDE = 0x20080522, 1 << 1 | 1 << 2


@contextlib.contextmanager
def closed(path: Path) -> Iterator[None]:
    """Within the block the thread may neither read nor write `path`, or what is below it."""
    library, mode = ctypes.CDLL(None, use_errno=True), path.stat().st_mode
    header, before = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if library.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    without = (ctypes.c_uint32 * 6)(before[0] & ~_OVERRIDE, *before[1:])
    path.chmod(0)
    library.capset(header, without)
    try:
        if os.access(path, os.R_OK, effective_ids=True):
            raise RuntimeError(f"{path} can still be read")
        yield
    finally:
        library.capset(header, before)
        path.chmod(mode)


@contextlib.contextmanager
def under(umask: int) -> Iterator[None]:
    """Within the block the process makes files with this umask."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)
