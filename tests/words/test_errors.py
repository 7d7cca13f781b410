# SPDX-License-Identifier: GPL-2.0-or-later
"""What messages repeat of a value."""

import pytest

from hgext.vcsreplicator.words.errors import SHOWN, counted, quote_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("soon", "'soon'"),
        (7, "7"),
        ("a\nb", r"'a\nb'"),
        (SHOWN * "x", f"'{SHOWN * 'x'}'"),
        (10_000 * "x", f"'{SHOWN * 'x'}'…"),
        (["x"] * 10_000, f"{repr(['x'] * 10_000)[:SHOWN]}…"),
    ],
    ids=["text", "number", "lines", "limit", "long", "list"],
)
def test_a_value_is_shown_in_one_line_and_cut(value: object, shown: str) -> None:
    assert quote_value(value) == shown


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "event", "0 events"),
        (1, "repository", "1 repository"),
        (2, "repository", "2 repositories"),
        (1, "push", "1 push"),
        (12, "push", "12 pushes"),
    ],
)
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, noun: str, expected: str) -> None:
    assert counted(number, noun) == expected
