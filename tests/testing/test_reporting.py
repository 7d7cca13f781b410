# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker reports what a run shows."""

from typing import Any

import pytest

from testing.reporting import SHORT, is_shown


def a_report(**fields: Any) -> pytest.TestReport:
    place = ("test_one.py", 1, "test_it")
    made = {"when": "teardown", "outcome": "passed", "longrepr": None, "duration": SHORT / 2}
    return pytest.TestReport(nodeid="test_one.py::test_it", location=place, keywords={}, **{**made, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"when": "call"},
        {"outcome": "failed"},
        {"when": "setup", "outcome": "skipped"},
        {"outcome": "rerun"},
        {"duration": SHORT},
        {"sections": [("Captured stdout teardown", "text")]},
    ],
)
def test_calls_and_phases_that_failed_printed_or_took_long_are_shown(fields: dict[str, Any]) -> None:
    assert is_shown(a_report(**fields))


def test_short_setups_and_teardowns_that_passed_are_not() -> None:
    assert not is_shown(a_report(when="setup"))
    assert not is_shown(a_report(when="teardown"))
