# SPDX-License-Identifier: GPL-2.0-or-later
"""Serving: what the watermark adds to a request, of a repository with 50,000 heads.

A mirror, of which the last changeset is not released, and plain Mercurial (for json-pushes: with the pushlog alone) answer the
same requests in turn, each through hgweb in a process of its own. "Added" is the difference of each pair, so it can be negative.
Warm: nothing changed since the same request. After a release: the first request after a changeset came and, on the mirror, was
released; no cache was made in between. Behind a release: the same, but the changeset released is the one before.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

from testing.bench.measure import Row

HEADS = 50_000
SAMPLES = 15
CHILD = "testing.bench.serving_border"
# How many changesets stay unreleased when one comes before each request.
MOMENTS = {"warm": None, "after a release": 0, "behind a release": 1}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as ending:
        made = os.path.join(temporary, "made")
        make(made, HEADS)
        servers: dict[str, Server] = {}
        for role in ("plain", "pushlog", "mirror"):
            place = shutil.copytree(made, os.path.join(temporary, role))
            servers[role] = ending.enter_context(Server(place, role))
        mirror = servers["mirror"]
        for moment, behind in MOMENTS.items():
            for request in mirror.requests:
                plain = servers["pushlog" if request.startswith("json-pushes") else "plain"]
                yield from _compared(request, moment, behind, plain, mirror)
        released = [mirror.release() for _ in range(SAMPLES)]
        yield Row(name="release: watermark and replicated-data", unit="ms", samples=released)


def _compared(request: str, moment: str, behind: int | None, plain: "Server", mirror: "Server") -> Iterator[Row]:
    """The mirror's time for a request, and what that adds to plain Mercurial's: on the clock, and of the processor."""
    samples: dict[Server, list[tuple[float, float]]] = {plain: [], mirror: []}
    for server in samples:
        server.ask(request)
    for number in range(SAMPLES):
        for server in (plain, mirror) if number % 2 else (mirror, plain):
            if behind is not None:
                server.change(behind)
            samples[server].append(server.ask(request))
    base = statistics.median(wall for wall, _ in samples[plain])
    yield Row(name=f"{request}, {moment}", unit="ms", samples=[wall for wall, _ in samples[mirror]], baseline=base)
    pairs = list(zip(samples[plain], samples[mirror], strict=True))
    yield Row(name="  added", unit="ms", samples=[limited[0] - whole[0] for whole, limited in pairs])
    yield Row(name="  added", unit="ms CPU", samples=[limited[1] - whole[1] for whole, limited in pairs])


def make(place: str, heads: int) -> None:
    """Make a repository with so many heads."""
    subprocess.run([*_command(place, "make"), str(heads)], env=_environment(), check=True)


def _command(place: str, role: str) -> list[str]:
    return [sys.executable, "-P", "-m", CHILD, place, role]


class Server:
    """A process that answers requests; Mercurial's extensions are for the whole process."""

    def __init__(self, place: str, role: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(_command(place, role), env=_environment(), stdin=pipe, stdout=pipe, text=True)
        self.requests = self._answer().split("\t")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, request: str) -> tuple[float, float]:
        """Milliseconds of wall and of processor time that the answer took."""
        wall, spent = self._do(f"ask\t{request}").split()
        return float(wall), float(spent)

    def change(self, behind: int) -> None:
        self._do(f"change\t{behind}")

    def release(self) -> float:
        return float(self._do("release"))

    def _do(self, what: str) -> str:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the server ended"
        return answer.rstrip("\n")


def _environment() -> dict[str, str]:
    return {**os.environ, "HGRCPATH": os.devnull, "HGENCODING": "UTF-8"}
