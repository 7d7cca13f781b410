# SPDX-License-Identifier: GPL-2.0-or-later
"""What each test costs in processor seconds: `pytest -p testing.costs --costs FILE`, then `sort -rn FILE | head`.

Seconds of the processor and not of the clock, so that a loaded machine measures the same. A test's processes count if
they ended and were waited for; what a fixture of a session costs is in the test that asked for it first.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask for the file."""
    parser.addoption("--costs", type=Path, required=True, help="append each test's processor seconds to this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write the seconds of a test, its fixtures included, and its name."""
    before = _read_seconds()
    result = yield
    with open(item.config.getoption("costs"), "a") as costs:
        costs.write(f"{_read_seconds() - before:.3f} {item.nodeid}\n")
    return result


def _read_seconds() -> float:
    """The processor seconds of this process and of its children that ended."""
    return sum(os.times()[:4])
