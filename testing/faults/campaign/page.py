# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the table of docs/reliability.md, faults by what came of them, between its two markers."""

from collections.abc import Sequence
from pathlib import Path

from testing.faults.campaign.history import Seen, of_kind
from testing.faults.campaign.judge import find_recoveries, is_late, judge, tell_seconds
from testing.faults.campaign.table import EVERY

PAGE = Path(__file__).parents[3] / "docs/reliability.md"
BEGIN, END = "<!-- the table of a run: begin -->", "<!-- the table of a run: end -->"


def write_page(histories: Sequence[Sequence[Seen]], page: Path = PAGE) -> None:
    """Replace what is between the markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{make_table(histories)}\n\n{END}{after}")


def make_table(histories: Sequence[Sequence[Seen]]) -> str:
    """Return a sentence about these campaigns, and the table: one row for each fault that struck."""
    recoveries = [recovery for seen in histories for recovery in find_recoveries(seen)]
    violations = [violation for seen in histories for violation in judge(seen)]
    late, pushes = sum(map(is_late, violations)), sum(len(of_kind(seen, "pushed")) for seen in histories)
    rows = []
    for fault in EVERY:
        own = [each for each in recoveries if each.fault.who == fault.id]
        if own:
            median, worst = tell_seconds(own)
            cells = (fault.does, fault.promised, len(own), median, worst, sum(each.repeats for each in own))
            rows.append("| " + " | ".join(map(str, cells)) + " |")
    seeds = ", ".join(dict.fromkeys(each.who for seen in histories for each in of_kind(seen, "began")))
    return "\n".join(
        [
            f"Seeds {seeds}: {pushes} pushes, {len(recoveries)} faults of {len(rows)} kinds.",
            f"Violations: {len(violations) - late}, and {late} recoveries of a destination, or waits of a push, beyond the bound.",
            "",
            "| fault | what happens | times | recovery, median | worst | messages again |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )
