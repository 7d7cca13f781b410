# SPDX-License-Identifier: GPL-2.0-or-later
"""The picture of a timeline. Pure.

It has a line for the master, each mirror and the notice, from one stage to the next.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..status.timeline import Stage, TimelineStep

# Positions of the first and the last dot, in percent of the width.
FIRST, LAST = 2.0, 98.0
# Position of the last dot while a stage is missing.
LAST_SO_FAR = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineTrack:
    """A track of the picture: its label, its dots, and where it begins and ends.

    A dot is a place, in percent of the width, and a stage. A track that is not done goes on to the edge.
    """

    label: str
    dots: tuple[tuple[float, Stage], ...]
    start: float
    end: float
    is_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePicture:
    """The picture of a timeline, which is `seconds` long.

    `released` is where a line goes through all tracks, in percent of the width.
    """

    tracks: tuple[TimelineTrack, ...]
    released: float | None
    seconds: float


def draw_timeline(steps: Sequence[TimelineStep]) -> TimelinePicture:
    """Draw the steps that have a time; a track that lacks a step stays open."""
    times = [step.at for step in steps if step.at is not None]
    first, last = min(times), max(times)

    width = (LAST if all(step.is_done for step in steps if step.stage is not Stage.PASSED) else LAST_SO_FAR) - FIRST

    def locate(at: float) -> float:
        return round(FIRST + ((at - first) / (last - first) * width if last > first else 0.0), 2)

    begins = {step.stage: step.at for step in steps if step.at is not None and step.mirror is None}
    logged = begins.get(Stage.LOGGED) or first
    tracks = [_draw_track("master to log", steps, (Stage.COMMITTED, Stage.LOGGED), None, first, locate)]
    for mirror in sorted({step.mirror for step in steps if step.mirror is not None}):
        tracks.append(_draw_track(mirror, steps, (Stage.APPLIED, Stage.SERVED), mirror, logged, locate))
    served = max((step.at for step in steps if step.stage is Stage.SERVED and step.at is not None), default=logged)
    tracks.append(_draw_track("notice", steps, (Stage.ANNOUNCED,), None, served, locate))
    released = begins.get(Stage.RELEASED)
    return TimelinePicture(
        tracks=tuple(tracks), released=None if released is None else locate(released), seconds=last - first
    )


def _draw_track(
    label: str,
    steps: Iterable[TimelineStep],
    stages: Sequence[Stage],
    mirror: str | None,
    start: float,
    locate: Callable[[float], float],
) -> TimelineTrack:
    """Draw the stages of one track, from where the stage before it ended."""
    mine = [step for step in steps if step.stage in stages and step.mirror == mirror]
    dots = [(locate(step.at), step.stage) for step in mine if step.at is not None]
    is_done = all(step.is_done for step in mine)
    end = max([x for x, _ in dots], default=locate(start))
    return TimelineTrack(
        label=label,
        dots=tuple(dots),
        start=min(locate(start), end),
        end=end if is_done else 100.0,
        is_done=is_done,
    )
