# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters: what they find, and what they may cost."""

import pytest

from notifier.destinations.webhook.filter import _VISITS, FilteredMessage, FilterFailed, check_filter

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
        ("`1` == `true`", False),
        ("`0` != `false` && type != `0` && `0` != type", True),
    ],
)
def test_filter_finds(expression: str, found: bool) -> None:
    check_filter(expression)
    assert FilteredMessage(LARGE).matches(expression) is found


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
        FilteredMessage(SMALL).matches(expression)


@pytest.mark.parametrize("expression", ["[[[", "", "(" * 4000, "a" * 5000, "nosuch("])
def test_filter_that_is_none_is_refused_when_it_is_stored(expression: str) -> None:
    with pytest.raises(ValueError, match=r"^filter: "):
        check_filter(expression)


def test_filters_of_a_message_have_their_steps_each_for_itself() -> None:
    message = FilteredMessage(LARGE)
    costly = [f"length(data.heads[*].[@, @][]) > `{number}`" for number in range(50)]
    assert all(message.matches(each) for each in costly)


def test_filter_that_failed_leaves_others_their_steps() -> None:
    message = FilteredMessage(SMALL)
    with pytest.raises(FilterFailed):
        message.matches("|".join(["[@, @]"] * 60))
    assert message.matches("type == 'newrepo.1'")


def test_a_condition_that_many_filters_have_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, visit = list[object](), _VISITS["subexpression"]
    monkeypatch.setitem(_VISITS, "subexpression", lambda *given: seen.append(given) or visit(*given))
    filters = [f"data.repo_url == 'https://hg.example/{number}' && type == 'newrepo.1'" for number in range(50)]
    for each in filters:
        check_filter(each)
    message = FilteredMessage(SMALL)
    assert [message.matches(each) for each in filters] == [False] * 50
    assert len(seen) == 1, "once for all fifty"
    assert not FilteredMessage({"type": "newrepo.1"}).matches("data.repo_url == 'https://hg.example/try'")
    assert FilteredMessage(SMALL).matches("data.repo_url == 'https://hg.example/try'"), "of each message anew"


def test_texts_are_compared_without_a_look_for_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was more than a quarter of what a thousand filters cost that differ in each condition."""
    monkeypatch.setattr("jmespath.visitor._is_special_number_case", lambda *given: pytest.fail("it looked"))
    assert FilteredMessage(SMALL).matches("type == 'newrepo.1' && data.repo_url != 'https://hg.example/other'")


def test_a_condition_that_stands_again_takes_its_steps_again() -> None:
    message = FilteredMessage({"type": "changegroup.1", "data": {"heads": HEADS[:24]}})
    with pytest.raises(FilterFailed, match="too many steps"):
        message.matches(" || ".join(["data.heads[?@ == 'x']"] * 170))
