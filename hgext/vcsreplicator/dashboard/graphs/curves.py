# SPDX-License-Identifier: GPL-2.0-or-later
"""The graphs of samples, as lines of SVG. Pure.

A point stands for a part of the time and shows its worst sample. Where there is none, because the dashboard or the log was away,
the line has a gap.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .history import MINUTE, MinuteSample

# Most points of a line, and the least seconds of one: more than between two samples, which else would leave gaps.
POINTS, LEAST = 120, 2 * MINUTE
# The size of a picture, in its own units.
WIDTH, HEIGHT = 1000, 160
# Mirrors that have a line, each of its own colour: those with the longest lags.
MIRRORS = 6

# The names of the other lines; no mirror's begins with a blank.
_PUSHES, _WAITING, _MEDIAN, _SLOW = " pushes", " events", " half within", " 95 % within"

# Seconds of each span that a reader may choose.
SPANS = {"hour": 3600, "day": 86400, "week": 7 * 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One series: its name, its lines as points of SVG, its newest and its highest value."""

    label: str
    lines: tuple[str, ...]
    newest: float | None
    highest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One picture, of which the upper edge is `top`; its values are seconds or counts."""

    title: str
    is_time: bool
    top: float
    curves: tuple[Curve, ...]


def draw_graphs(samples: Sequence[MinuteSample], span: int, now: float) -> list[Graph]:
    """Draw the samples of the last `span` seconds."""
    points = min(POINTS, span // LEAST)
    worst: list[dict[str, float]] = [{} for _ in range(points)]
    newest, mirrors = dict[str, float](), set[str]()
    for sample in samples:
        if not now - span < sample.at <= now:
            continue
        found = {**sample.lags, _PUSHES: sample.pushes, _WAITING: sample.waiting}
        if sample.median is not None and sample.slow is not None:
            found |= {_MEDIAN: sample.median, _SLOW: sample.slow}
        mirrors.update(sample.lags)
        newest |= found
        point = worst[min(points - 1, int((sample.at - now + span) / span * points))]
        for name, value in found.items():
            if value >= point.get(name, 0.0):
                point[name] = value
    highest = {name: max(point.get(name, 0.0) for point in worst) for name in newest}
    shown = sorted(sorted(mirrors, key=lambda name: (-highest[name], name))[:MIRRORS])
    wanted = (
        ("Pushes a minute", False, [_PUSHES]),
        ("From the commit to the notice", True, [_SLOW, _MEDIAN]),
        ("Time for which mirrors lack an event", True, shown),
        ("Events without a notice", False, [_WAITING]),
    )
    return [_draw_graph(title, names, worst, newest, highest, is_time=is_time) for title, is_time, names in wanted]


def _draw_graph(
    title: str,
    names: Sequence[str],
    worst: Sequence[Mapping[str, float]],
    newest: Mapping[str, float],
    highest: Mapping[str, float],
    *,
    is_time: bool,
) -> Graph:
    top = max((highest.get(name, 0.0) for name in names), default=0.0) or 1.0
    curves = tuple(
        Curve(
            label=name.strip(),
            lines=tuple(_draw_lines(name, worst, top)),
            newest=newest.get(name),
            highest=highest.get(name),
        )
        for name in names
    )
    return Graph(title=title, is_time=is_time, top=top, curves=curves)


def _draw_lines(name: str, worst: Sequence[Mapping[str, float]], top: float) -> Iterator[str]:
    """Yield a line for each row of points that have a value."""
    places = enumerate(point.get(name) for point in worst)
    for is_gap, row in itertools.groupby(places, lambda each: each[1] is None):
        if is_gap:
            continue
        line = [
            f"{(place + 0.5) * WIDTH / len(worst):.1f},{HEIGHT - 2 - (value or 0.0) / top * (HEIGHT - 4):.1f}"
            for place, value in row
        ]
        # A point alone would not be seen.
        yield " ".join(line if len(line) > 1 else line * 2)
