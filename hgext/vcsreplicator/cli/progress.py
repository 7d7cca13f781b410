# SPDX-License-Identifier: GPL-2.0-or-later
"""Bars of verbs that walk many repositories or records.

A bar is on standard error, and on a terminal alone: a pipe or a file gets nothing of it, and JSON on standard output stays clean.
"""

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TextIO, cast

import click

from ..config import Config
from ..log import Log, Reader
from .options import log_of

# Seconds after which a bar appears, and between two drawings of it.
DELAY, EVERY = 1.0, 0.1

# Erases the line of a bar, and shows the cursor that click hides.
_ERASE = "\r\x1b[K\x1b[?25h"


class Meter:
    """A bar with how much is done of how much, the rate and the time left.

    It appears once the work has taken `DELAY` seconds. Nothing of it remains on the terminal after the block, even after Ctrl-C.
    """

    def __init__(self, label: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._clock = label, clock
        self._is_terminal = is_terminal(sys.stderr)
        self._bar: Any = None
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.erase()

    def restart(self) -> None:
        """Measure from now on, for the next part of the work."""
        self.erase()
        self._began, self._drawn_at = self._clock(), float("-inf")

    def show(self, done: int, total: int) -> None:
        """Show how much is done, if the bar is due; erase it when all is done."""
        now = self._clock()
        if done >= total:
            self.erase()
        elif self._is_terminal and now - self._began >= DELAY and now - self._drawn_at >= EVERY:
            self._drawn_at = now
            self._draw(done, total, now)

    def erase(self) -> None:
        """Erase the bar before other output; the next `show` draws it again."""
        if self._bar is not None:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._bar = None

    def _draw(self, done: int, total: int, now: float) -> None:
        if self._bar is None:
            self._bar = click.progressbar(
                length=total,
                label=self._label,
                show_pos=True,
                file=sys.stderr,
                item_show_func=lambda rate: rate,
                width=0,
            )
        bar = self._bar
        bar.length, bar.pos = total, done
        if done:
            # click would measure from the making of the bar, which is later than the beginning.
            bar.avg, bar.eta_known = [(now - self._began) / done], True
            bar.current_item = f"{done / (now - self._began):.1f}/s"
        bar.render_progress()


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; None is a closed one."""
    return stream is not None and stream.isatty()


@contextlib.contextmanager
def metered_log(config: Config) -> Iterator[Log]:
    """Open the log that the file names; reading it shows a bar.

    For a verb that reads, answers and ends.
    """
    # Hundreds of thousands of levels are read and none is dropped: looking for garbage took a fifth of the time.
    gc.disable()
    try:
        with log_of(config) as log, metered(log) as shown:
            yield shown
    finally:
        gc.enable()


@contextlib.contextmanager
def metered(log: Log) -> Iterator[Log]:
    """Give the log; on a terminal, a bar shows while it is read."""
    with Meter("reading the log") as meter:
        yield cast(Log, _MeteredLog(log, meter)) if is_terminal(sys.stderr) else log


class _MeteredLog:
    """A log whose readers show how far they are from the ends as of their opening."""

    def __init__(self, log: Log, meter: Meter) -> None:
        self._log, self._meter = log, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def reader(self, positions: Mapping[tuple[str, int], int]) -> Reader:
        """Open a reader that is measured."""
        ends = {topic: self._log.ends(topic) for topic in {topic for topic, _ in positions}}
        self._meter.restart()
        return cast(Reader, _MeteredReader(self._log.reader(positions), self._meter, positions, ends))


class _MeteredReader:
    def __init__(
        self, reader: Reader, meter: Meter, begins: Mapping[tuple[str, int], int], ends: Mapping[str, Mapping[int, int]]
    ) -> None:
        self._reader, self._meter = reader, meter
        self._ends = {(topic, partition): ends[topic].get(partition, 0) for topic, partition in begins}
        self._total = sum(max(0, end - begins[place]) for place, end in self._ends.items())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def poll(self, timeout: float, *, limit: int = 500) -> list[Any]:
        """Return the next records, and show how many are left."""
        found = self._reader.poll(timeout, limit=limit)
        at = self._reader.positions()
        left = sum(max(0, end - at.get(place, end)) for place, end in self._ends.items())
        self._meter.show(self._total - left, self._total)
        return found

    def close(self) -> None:
        """Erase the bar, even of a reader that is not at the end, and close the reader."""
        self._meter.erase()
        self._reader.close()
