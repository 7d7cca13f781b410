# SPDX-License-Identifier: GPL-2.0-or-later
"""The seeds of a test that draws at random."""

from typing import Any

import pytest

# As many as `make check` takes, which has as few examples of Hypothesis.
FEW = 5


def seeds(count: int) -> list[Any]:
    """Return the parameters of so many draws; `make check` takes the first few."""
    return [*range(FEW), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(FEW, count))]
