# SPDX-License-Identifier: GPL-2.0-or-later
"""The memory of a process that forks many others: what forks change lies together, and what they leave is in large pages.

A fork that writes to a page gets a copy of it. These copies, and the tables of pages, cost more than most commands of Mercurial
compute. An import leaves a free piece in thousands of pages, and new objects go into such gaps first.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

# The sizes for which Python has pools, and how many bytes are taken for each: what a few pools hold.
POOLED, TAKEN = range(16, 512 + 1, 16), 1 << 16
# What is taken of the C library's heap, large pieces first: up to a kilobyte it keeps a list for every sixteen bytes.
TAKEN_OF_HEAP = (*range(1 << 16, 1 << 10, -1024), *range(1 << 10, 8, -16))
# How many pieces of a size the library keeps apart, which it does not count as free; more in a row are not of its heap.
CACHED = 7
# A large page, and Linux' number for the advice to make one at once.
LARGE, MADV_COLLAPSE = 1 << 21, 25


class _Usage(ctypes.Structure):
    """What `mallinfo2` tells of the heap: among others how many bytes are free, and how many of these are at its end."""

    _fields_ = (
        *((f"other_{number}", ctypes.c_size_t) for number in range(8)),
        ("free", ctypes.c_size_t),
        ("end", ctypes.c_size_t),
    )


def settle_memory() -> None:
    """Prepare this process' memory for forks, as far as its C library and kernel can do it."""
    library = ctypes.CDLL(None)
    fill_pools()
    if hasattr(library, "mallinfo2"):
        fill_heap(library)
    for start in _list_large():
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(LARGE), MADV_COLLAPSE)


def fill_pools() -> None:
    """Take the free pieces of Python's pools, for good."""
    allocate = ctypes.pythonapi.PyObject_Malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    for size in POOLED:
        for _ in range(TAKEN // size):
            allocate(size)


def fill_heap(library: ctypes.CDLL) -> None:
    """Take the free pieces of the heap, for good, but for its end."""
    library.mallinfo2.restype = _Usage
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    for size in TAKEN_OF_HEAP:
        others = 0
        while others <= CACHED:
            before, piece, after = library.mallinfo2(), library.malloc(size), library.mallinfo2()
            if after.end != before.end:  # no gap was as large
                library.free(piece)
                break
            others = 0 if after.free < before.free else others + 1


def _list_large() -> Iterator[int]:
    """Where a large page fits into what this process may write and no file backs."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, file = line.split()[:5]
        if (access, file) == ("rw-p", "0"):
            first, last = (int(address, 16) for address in addresses.split("-"))
            yield from range(-(-first // LARGE) * LARGE, last // LARGE * LARGE, LARGE)
