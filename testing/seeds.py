# SPDX-License-Identifier: GPL-2.0-or-later
"""The few cases of a test of many that `make check` takes."""

from collections.abc import Iterable
from typing import Any

import pytest

# As many draws as `make check` takes, which has as few examples of Hypothesis.
FEW = 3


def seeds(count: int) -> list[Any]:
    """Return the parameters of so many draws; `make check` takes the first few."""
    return [*range(FEW), *marked_more(range(FEW, count))]


def ends(cases: Iterable[Any]) -> list[Any]:
    """Return the parameters of cases in their order; `make check` takes the first and the last."""
    first, *between, last = cases
    return [first, *marked_more(between), last]


def marked_more(cases: Iterable[Any]) -> list[Any]:
    """Return the parameters of cases that `make check` leaves to `make test`."""
    return [pytest.param(case, marks=pytest.mark.more) for case in cases]
