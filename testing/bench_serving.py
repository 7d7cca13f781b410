# SPDX-License-Identifier: GPL-2.0-or-later
"""Serving: what the watermark costs a repository with 50,000 heads.

The same repository is served by a mirror, of which the last changeset is not released, and by plain Mercurial (ratio).
Requests go to hgweb within this process. "After a release" is the first request that sees one, with nothing kept in memory;
plain Mercurial is then given a repository that has just changed.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from testing.measure import Row

HEADS = 50_000
SAMPLES = 15
CHILD = "testing.bench_serving"


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        figures = {role: _child(Path(folder), role) for role in ("make", "plain", "mirror")}
    plain, mirror = figures["plain"], figures["mirror"]
    return [
        *(
            Row(name=name, unit="ms", samples=mirror[name], baseline=_median(plain[name]) if name in plain else None)
            for name in mirror
        )
    ]


def _median(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


def _child(folder: Path, role: str) -> dict[str, list[float]]:
    """What a process of its own measured: Mercurial's extensions are for the whole process."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", CHILD, str(folder), role],
        env={**os.environ, "HGRCPATH": os.devnull, "HGENCODING": "UTF-8"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.rpartition("\t")
        figures.setdefault(name, []).append(float(value) * 1000)
    return figures


def main(folder: str, role: str) -> None:
    """In the child: measure and print lines of name, tab, seconds."""
    from testing import serving_border

    place = os.path.join(folder, "repo")
    if role == "make":
        serving_border.make(place, HEADS)
        return
    for name, act in serving_border.acts(place, role):
        for _ in range(SAMPLES):
            print(f"{name}\t{_timed(act)}")


def _timed(act: Callable[[], Callable[[], Iterable[bytes]]]) -> float:
    measured = act()
    start = time.perf_counter()
    for _ in measured():
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main(*sys.argv[1:])
