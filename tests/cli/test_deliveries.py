# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator deliveries`: on a narrow terminal."""

import io
import re

from rich.console import Console

from hgext.vcsreplicator.cli.deliveries import HEADINGS, _row_of
from hgext.vcsreplicator.cli.display import table

NOW = 1_700_000_000.0


def test_a_delivery_that_waits_takes_one_line_of_80_columns() -> None:
    row = {"id": 1234, "subscription": "ci", "state": "queued", "attempt": 3, "mature_at": NOW + 300}
    row |= {"error": "status 503", "repo_url": "https://hg.example.org/mozilla-central", "type": "changegroup.1"}
    output = io.StringIO()
    Console(width=80, file=output).print(table(HEADINGS, [_row_of(row, NOW)]))
    [_, line] = output.getvalue().splitlines()
    assert re.split("  +", line.strip()) == ["1234", "ci", "queued", "3", "in 5 min", "status 503", "mozilla-central"]
