# SPDX-License-Identifier: GPL-2.0-or-later
"""What verbs print for people: names, reasons and notes exactly as they are and whole, whatever they hold.

On a terminal a long cell is folded within its column. Elsewhere a row is a line, for `grep`.
"""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Column, Table

WIDE = 1_000_000
"""Columns of what is no terminal: nothing is folded."""


def console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error; text is printed without a look for markup."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else WIDE
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Columns under these headings; no cell is cut."""
    made = Table(*(Column(heading, overflow="fold") for heading in headings), box=None)
    for row in rows:
        made.add_row(*map(visible, row))
    return made


def visible(text: str) -> str:
    """The text in one line: what would move the cursor or colour the screen is written out, as in `\\x1b`."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
