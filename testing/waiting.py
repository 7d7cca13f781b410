# SPDX-License-Identifier: GPL-2.0-or-later
"""Waiting for what other threads and processes do: one patience for all, which only a failing test uses up."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds; a loaded machine of two cores needs a few.
PATIENCE = 60.0
# Seconds between two questions at most, and how many times as long as a question took.
LONGEST_PAUSE, PAUSES = 0.5, 4
# The part of the time waited so far that may pass between two questions, up to so many seconds.
PART, LONG = 0.1, 0.1


def eventually(claim: Callable[[], T], what: str = "", *, timeout: float = PATIENCE, every: float = 0.02) -> T:
    """The first true value of `claim()`, asked `every` so many seconds; AssertionError with the last one once `timeout` is over.

    A claim that takes long, or was waited for long, is asked less often: what is waited for needs the processor.
    """
    asked = begun = time.monotonic()
    end = begun + timeout
    while not (value := claim()):
        answered = time.monotonic()
        if answered > end:
            raise AssertionError(f"did not happen within {timeout:.0f} s: {what or claim}; last seen: {value!r}")
        for_its_cost, for_the_wait = (
            min(PAUSES * (answered - asked), LONGEST_PAUSE),
            min(PART * (answered - begun), LONG),
        )
        time.sleep(max(every, for_its_cost, for_the_wait))
        asked = time.monotonic()
    return value
