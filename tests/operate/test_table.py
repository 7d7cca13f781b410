# SPDX-License-Identifier: GPL-2.0-or-later
"""Every entry of the runbook, and every line that a pusher reads, has a test that provokes it."""

import re

import pytest

from testing.services.cache import CHECKOUT

from .page import entries
from .provocations import PROVOCATIONS

# Their texts in the tests are shorter.
SHORTER = {
    "this change is too large for one event: N heads, N bookmarks, N markers": "too large for one event",
    "the push is kept and is not sent: the log has its event 12 …": "the push is kept and is not sent: the log has",
    "an interrupted strip is being finished": "is being finished",
}


def test_every_entry_is_provoked_and_repaired_by_its_words() -> None:
    # The alert of the aggregator's alarms is a table, each row an entry.
    assert entries().keys() - {"VcsreplicatorAggregatorAlarm"} == PROVOCATIONS.keys()


def lines_for_pushers() -> list[str]:
    """The first column of the table of what a pusher reads."""
    _, _, rest = (CHECKOUT / "docs/push.md").read_text().partition("## What the pusher reads\n")
    return re.findall(r"^\| `(.+?)` \| ", rest.partition("\n## ")[0], re.MULTILINE)


def fixed_part(line: str) -> str:
    """The longest part of a line that is the same every time."""
    parts = re.split(r"…|\b[NHA-Z]{1,}[A-Z]*\b|\b\d[\d.]*s?\b|\b[ab]\b|outbox\.\d+\.log|PROJ|/proj|HASH\.json", line)
    return max((part.strip(" ,:()/") for part in parts), key=len)


@pytest.mark.parametrize("line", lines_for_pushers())
def test_every_line_that_a_pusher_reads_is_provoked(line: str) -> None:
    part = SHORTER.get(line) or fixed_part(line)
    assert len(part) >= 8
    tests = [
        path
        for path in (CHECKOUT / "tests").rglob("*")
        if path.suffix in (".t", ".py") and path.name != "test_table.py"
    ]
    assert any(part in path.read_text(errors="replace") for path in tests), part
