# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the table of docs/reliability.md, faults by what came of them, between its two markers."""

from collections.abc import Sequence
from pathlib import Path

from testing.faults.campaign.history import Seen, of_kind
from testing.faults.campaign.judge import find_recoveries, judge, tell_seconds
from testing.faults.campaign.table import FAULTS

PAGE = Path(__file__).parents[3] / "docs/reliability.md"
BEGIN, END = "<!-- the table of a run: begin -->", "<!-- the table of a run: end -->"


def write_page(seen: Sequence[Seen], how: str, page: Path = PAGE) -> None:
    """Replace what is between the markers; `how` says how the campaign was run."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{make_table(seen, how)}\n\n{END}{after}")


def make_table(seen: Sequence[Seen], how: str) -> str:
    """Return the text and the table, one row for each fault that struck."""
    recoveries = find_recoveries(seen)
    pushes, violations = len(of_kind(seen, "pushed")), len(judge(seen))
    rows = []
    for fault in FAULTS:
        own = [each for each in recoveries if each.fault.who == fault.id]
        if own:
            median, worst = tell_seconds(own)
            cells = (fault.does, fault.promised, len(own), median, worst, sum(each.repeats for each in own))
            rows.append("| " + " | ".join(map(str, cells)) + " |")
    struck = len({each.fault.who for each in recoveries})
    return "\n".join(
        [
            f"{how}: {pushes} pushes, {len(recoveries)} faults of {struck} kinds, {violations} violations.",
            "",
            "| fault | what happens | times | recovery, median | worst | messages again |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )
