# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for what other threads and processes do: one patience for all, which only a failing test uses up."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0  # seconds; a loaded machine of two cores needs a few


def eventually(claim: Callable[[], T], what: str = "", *, timeout: float = PATIENCE, every: float = 0.02) -> T:
    """The first true value of `claim()`, asked `every` so many seconds; AssertionError with the last one once `timeout` is over."""
    end = time.monotonic() + timeout
    while not (value := claim()):
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {timeout:.0f} s: {what or claim}; last seen: {value!r}")
        time.sleep(every)
    return value
