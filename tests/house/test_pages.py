# SPDX-License-Identifier: GPL-2.0-or-later
"""A page is readable as a text too: its lines fit an editor, and a change of one sentence shows as one."""

from collections.abc import Iterator

from tests.house.sources import files

WIDTH = 120
# A row of a table is one line in Markdown, and a key of SSH one in its file: neither can be broken.
UNBREAKABLE = ("|", "restrict,command=")


def list_long_lines(text: str) -> Iterator[str]:
    """Yield number and line where a line that could be broken is longer than the width."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not line.strip().startswith(UNBREAKABLE):
            yield f"{number}: {line}"


def test_no_line_of_a_page_is_longer_than_120_characters() -> None:
    pages = list(files("*.md", ":!tests/golden"))
    assert len(pages) > 50
    assert not [f"{name}:{line}" for name, text in pages for line in list_long_lines(text)]


def test_the_check_of_long_lines_can_fail() -> None:
    assert list(list_long_lines("a\n" + "b" * 121)) == ["2: " + "b" * 121]
    assert not list(list_long_lines("b" * 120))
