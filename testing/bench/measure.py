# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures of the benchmarks: samples in, rows of one table out.

Machines are noisy: a row gives number of samples, minimum, median, 95th percentile and maximum, and where it can the ratio of its
median against a baseline measured in the same run.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: what was measured, in which unit, its samples, and the median of what it is held against."""

    name: str
    unit: str
    samples: Sequence[float]
    baseline: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]


def show(title: str, rows: Iterable[Row], console: Console | None = None) -> None:
    """Prints the rows as a table."""
    console = console or Console()
    table = Table(title=title, title_justify="left", box=None)
    for column in ("what", "unit", "n", "min", "median", "p95", "max", "ratio", ""):
        table.add_column(column, justify="left" if column in ("what", "unit", "") else "right")
    for row in rows:
        numbers = [min(row.samples), row.median, row.p95, max(row.samples)]
        ratio = f"{row.median / row.baseline:.2f}" if row.baseline else ""
        table.add_row(
            row.name, row.unit, str(len(row.samples)), *(f"{number:.4g}" for number in numbers), ratio, row.note
        )
    console.print(table)
