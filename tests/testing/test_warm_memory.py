# SPDX-License-Identifier: GPL-2.0-or-later
"""What a process that forks others leaves free among its objects."""

import subprocess
import sys

import pytest

from testing.services.cache import CHECKOUT

pytestmark = pytest.mark.processes

# Leaves gaps of a size; prints how many of as many new pieces lie in them.
PROGRAM = """
import ctypes, sys
from testing.warm_memory import settle_memory
allocate_by, free_by, size, count, *settle = sys.argv[1:]
library = ctypes.PyDLL(None)
allocate, free = getattr(library, allocate_by), getattr(library, free_by)
allocate.restype, allocate.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
pieces = [allocate(int(size)) for _ in range(2 * int(count))]
gaps = set(pieces[::2])
for piece in gaps:
    free(piece)
if settle:
    settle_memory()
print(len(gaps & {allocate(int(size)) for _ in gaps}))
"""


@pytest.mark.parametrize(
    ("functions", "size"),
    [(("PyObject_Malloc", "PyObject_Free"), 64), (("malloc", "free"), 2000)],
    ids=["pools", "heap"],
)
def test_new_pieces_lie_in_no_gap_of_settled_memory(functions: tuple[str, str], size: int) -> None:
    def count_in_gaps(*settle: str) -> int:
        command = [sys.executable, "-c", PROGRAM, *functions, str(size), "500", *settle]
        return int(subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout)

    assert count_in_gaps() > 0
    assert count_in_gaps("settle") == 0
