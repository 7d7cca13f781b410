# SPDX-License-Identifier: GPL-2.0-or-later
"""Each parser of untrusted bytes gives a value or raises an error that it documents, in little time and memory."""

import os
import random
import time
from collections.abc import Callable

import pytest

from testing.fuzzing import hunt
from tests.fuzz.parsers import PARSERS

# Examples of each parser in `make test`, and in `make test-all`.
FEW, MANY = 60, 100_000


# Mercurial reads escapes in strings of revsets as old Pythons did.
@pytest.mark.filterwarnings("ignore:invalid (octal )?escape sequence:DeprecationWarning")
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARSERS)
def test_hostile_bytes_are_read_or_refused(name: str, count: int, told: Callable[[object], None]) -> None:
    seed = os.environ.get("VCSREPLICATOR_TEST_SEED") or random.randrange(2**32)
    began = time.process_time()
    read, refused = hunt(PARSERS[name], count, seed)
    assert read
    assert read + refused >= count
    if count == MANY:
        took = time.process_time() - began
        told(f"{name}: {read + refused} examples in {took:.0f} s, {read} read, {refused} refused")
