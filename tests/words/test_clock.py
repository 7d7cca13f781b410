# SPDX-License-Identifier: GPL-2.0-or-later
"""Durations in words."""

import pytest

from hgext.vcsreplicator.words.clock import DAY, format_delay, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (119 * 60, "119 min"),
        (2 * 3600, "2 h"),
        (DAY, "24 h"),
        (7 * DAY, "7 d"),
        (-3600, "-60 min"),
    ],
)
def test_a_duration_has_the_largest_unit_of_which_it_has_two(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0407, "41 ms"), (-0.2, "-200 ms"), (2, "2 s"), (3 * DAY, "3 d")])
def test_a_delay_of_less_than_two_seconds_is_in_milliseconds(seconds: float, text: str) -> None:
    assert format_delay(seconds) == text
