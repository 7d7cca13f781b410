# SPDX-License-Identifier: GPL-2.0-or-later
"""The output of verbs.

For programs it is JSON; for people it is complete texts, without control characters. On a terminal a long cell is folded within
its column. Elsewhere each row is one line, for `grep`.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ..words.errors import visible
from .progress import is_terminal

# Columns where the output is not a terminal: so wide that nothing is folded.
WIDE = 1_000_000
# Columns from which on a terminal has room for times that are not folded.
ROOM = 60


class PipedConsole(Console):
    """A console that ends the program when the reader of its pipe is gone.

    The exit code is 141, as in main().
    """

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()
        sys.exit(141)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints brackets and colons as they are."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if is_terminal(stream) else WIDE
    return PipedConsole(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2))


def print_listing(
    data: object, what: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool
) -> None:
    """Print a listing: the data for programs, or the rows for people."""
    if as_json:
        print_json(data)
    else:
        console().print(make_listing(what, headings, rows))


def make_listing(what: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table | Text:
    """Make a table of the rows; for none, a line that there are no such, by their name in the plural."""
    made = table(headings, rows)
    return made if made.row_count else Text(f"no {what}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table, with its headings if any of them is not empty; no cell is cut."""
    has_room = console().width >= ROOM
    columns = (Column(heading, overflow="fold", no_wrap=has_room and heading.endswith("(UTC)")) for heading in headings)
    made = Table(*columns, box=None, show_header=any(headings))
    for row in rows:
        made.add_row(*map(visible, row))
    return made
