# SPDX-License-Identifier: GPL-2.0-or-later
"""What each test costs in processor seconds: `pytest -p testing.costs --costs FILE`, then `sort -rn FILE | head`.

Seconds of the processor and not of the clock, so that a loaded machine measures the same. All processes of a test count, also
those that nothing waited for; what a fixture of a session costs is in the test that asked for it first.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.services.guard import PR_SET_CHILD_SUBREAPER

TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask for the file."""
    parser.addoption("--costs", type=Path, required=True, help="append each test's processor seconds to this file")


def pytest_configure() -> None:
    """Keep what the processes used whose parents ended: they become children of this one, which leaves them as zombies."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write the seconds of a test, its fixtures included, and its name."""
    before = _read_seconds()
    result = yield
    with open(item.config.getoption("costs"), "a") as costs:
        costs.write(f"{_read_seconds() - before:.2f} {item.nodeid}\n")
    return result


def _read_seconds() -> float:
    """The processor seconds of this process and of all below it, with their children that ended."""
    found, ticks = [os.getpid()], 0
    for process in found:
        with contextlib.suppress(OSError):  # ended meanwhile
            with open(f"/proc/{process}/stat", "rb") as status:
                ticks += sum(map(int, status.read().rpartition(b")")[2].split(maxsplit=15)[11:15]))
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", "rb") as children:
                    found += map(int, children.read().split())
    return ticks / TICKS
