# SPDX-License-Identifier: GPL-2.0-or-later
"""What is found in lines that a notifier could have written."""

from typing import Any

from testing.builders.load import Accepted
from testing.checks.lines import announced, told_in_order


def line(
    sequence: int, previous: int | None = None, *, head: str | None = None, id: str | None = None
) -> dict[str, Any]:
    """The line of a push, told after the one numbered `previous`."""
    return {
        "type": "changegroup.1",
        "id": id or f"id-{sequence}",
        "previous": None if previous is None else f"id-{previous}",
        "repository": "a" * 32,
        "sequence": sequence,
        "data": {"repo_url": "https://hg.example/red", "heads": [head or f"head-{sequence}"]},
    }


def accepted(*heads: str) -> list[Accepted]:
    """What pushers were told is in, in order."""
    return [Accepted(repository="red", head=head, attempts=1, is_recorded=True) for head in heads]


def test_a_repeated_line_is_counted_and_no_violation() -> None:
    assert told_in_order([line(1), line(2, 1), line(1), line(2, 1), line(3, 2)]) == ([], 2)


def test_a_missing_line_is_found() -> None:
    found, _ = told_in_order([line(1), line(3, 2)])
    assert len(found) == 1
    assert "follows id-2, the last was id-1" in found[0]


def test_lines_in_the_wrong_order_are_found() -> None:
    found, _ = told_in_order([line(2), line(1, 2)])
    assert any("1 was told after 2" in each for each in found)


def test_a_push_that_was_not_announced_is_found() -> None:
    assert "is in 0 messages" in announced([line(1)], accepted("head-1", "head-2"))[0]


def test_a_push_that_two_messages_tell_of_is_found() -> None:
    lines = [line(1, head="twice"), line(2, 1, head="twice")]
    assert "is in 2 messages" in announced(lines, accepted("twice"))[0]


def test_pushes_told_in_another_order_than_accepted_are_found() -> None:
    lines = [line(1, head="second"), line(2, 1, head="first")]
    assert announced(lines, accepted("first", "second")) == ["red: second is told before what was accepted earlier"]
