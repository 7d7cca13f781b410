# SPDX-License-Identifier: GPL-2.0-or-later
"""The cases of a test of many that `make check` takes, and those of `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest

# As many draws as `make check` takes, which has as few examples of Hypothesis.
FEW = 3
# As many as `make test` takes.
DOZEN = 12


def seeds(count: int) -> list[Any]:
    """Return the parameters of so many draws; `make check` takes the first few, and `make test` the first dozen."""
    rare = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(DOZEN, count)]
    return [*range(FEW), *marked_more(range(FEW, DOZEN)), *rare]


def ends(cases: Iterable[Any]) -> list[Any]:
    """Return the parameters of cases in their order; `make check` takes the first and the last."""
    first, *between, last = cases
    return [first, *marked_more(between), last]


def marked_more(cases: Iterable[Any]) -> list[Any]:
    """Return the parameters of cases that `make check` leaves to `make test`."""
    return [pytest.param(case, marks=pytest.mark.more) for case in cases]
