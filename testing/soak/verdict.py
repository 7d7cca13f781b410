# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the figures of a soak stay flat, and their plots; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

# How much a figure may grow from the third quarter of the time to the last, by its unit: a part of it, or so much.
ALLOWED = {
    "MB": (0.05, 2.0),
    "handles": (0.05, 3.0),
    "ms": (0.25, 20.0),
    "notices": (0.25, 40.0),
    "bytes": (0.05, 0.0),
}
# The size of a plot.
WIDTH, HEIGHT = 900, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was measured `at` so many seconds from the begin, by name; the last word of a name is its unit."""

    at: float
    figures: Mapping[str, float]


def find_growing(samples: Sequence[Sample]) -> list[str]:
    """Describe each figure that is not flat: its median of the last quarter is above that of the quarter before.

    The first half counts for nothing: caches fill. A figure that a quarter lacks is not judged.
    """
    end = max((sample.at for sample in samples), default=0.0)
    third = [sample for sample in samples if end / 2 <= sample.at < end * 3 / 4]
    last = [sample for sample in samples if sample.at >= end * 3 / 4]
    growing = []
    for name in _list_names(samples):
        before, after = ([each.figures[name] for each in part if name in each.figures] for part in (third, last))
        if not before or not after:
            continue
        part, much = ALLOWED[name.split()[-1]]
        was, became = median(before), median(after)
        if became - was > max(part * was, much):
            growing.append(f"{name}: {was:.1f} in the third quarter of the time, {became:.1f} in the last")
    return growing


def draw(samples: Sequence[Sample]) -> str:
    """Draw a plot for each figure, one below the other, as SVG; each begins at 0."""
    end = max((sample.at for sample in samples), default=0.0) or 1.0
    names = _list_names(samples)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{len(names) * (HEIGHT + 20)}">']
    for number, name in enumerate(names):
        values = [(sample.at, sample.figures[name]) for sample in samples if name in sample.figures]
        top = max(value for _, value in values) or 1.0
        base = number * (HEIGHT + 20) + HEIGHT + 14
        points = " ".join(f"{at / end * WIDTH:.1f},{base - value / top * HEIGHT:.1f}" for at, value in values)
        title = f"{escape(name)}: {values[0][1]:.1f} at first, {values[-1][1]:.1f} at last, {top:.1f} at most"
        lines.append(f'<text y="{base - HEIGHT - 3}" font-size="11">{title}</text>')
        lines.append(f'<polyline points="{points}" fill="none" stroke="navy"/>')
    return "\n".join([*lines, "</svg>", ""])


def _list_names(samples: Sequence[Sample]) -> list[str]:
    return sorted({name for sample in samples for name in sample.figures})
