# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters: what they find, and what they may cost."""

import pytest

from notifier.destinations.webhook.filter import FilterFailed, check_filter, matches

HEADS = [f"{number:040x}" for number in range(1000)]
LARGE = {"type": "changegroup.1", "data": {"repo_url": "https://hg.example/try", "heads": HEADS}}
SMALL = {"type": "newrepo.1", "data": {"repo_url": "https://hg.example/try"}}


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("ends_with(data.repo_url, '/try')", True),
        ("type == 'newrepo.1'", False),
        (f"contains(data.heads, '{HEADS[-1]}')", True),
        (f"data.heads[?@ == '{HEADS[-1]}']", True),
        ("length(data.heads) > `999` && length(sort(data.heads)) > `999`", True),
        ("data.heads[*].[@, @][] | length(@) == `2000`", True),
        ("data.nothing", False),
    ],
)
def test_filter_finds(expression: str, found: bool) -> None:
    check_filter(expression)
    assert matches(expression, LARGE) is found


@pytest.mark.parametrize(
    "expression",
    [
        "length(data.heads) > `0`",  # of null
        "contains(data.repo_url, `1`)",  # jmespath lets the TypeError through
        "data.repo_url | [`1`, `2`][::0]",
        "|".join(["[@, @]"] * 60),
        "|".join(["{a: @, b: @}"] * 60) + "| to_string(@)",
        "|".join(["[@, @]"] * 60) + " == " + "|".join(["[@, @]"] * 60),
        "|".join(["[@, @][]"] * 60) + "| sort_by(@, &type)",
        "|".join(["[@]"] * 600) + "| to_string(@)",
    ],
)
def test_filter_that_cannot_be_applied_or_never_ends_fails(expression: str) -> None:
    check_filter(expression)
    with pytest.raises(FilterFailed):
        matches(expression, SMALL)


@pytest.mark.parametrize("expression", ["[[[", "", "(" * 4000, "a" * 5000, "nosuch("])
def test_filter_that_is_none_is_refused_when_it_is_stored(expression: str) -> None:
    with pytest.raises(ValueError, match=r"^filter: "):
        check_filter(expression)
