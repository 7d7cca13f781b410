# SPDX-License-Identifier: GPL-2.0-or-later
"""What messages repeat of a value."""

import pytest

from hgext.vcsreplicator.words.errors import SHOWN, quote_value


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
