# SPDX-License-Identifier: GPL-2.0-or-later
"""A push through a local installation, and its timeline up to the notice.

Every time is read from the records that the services wrote, so the timeline is evidence.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..log import ACKS, EVENTS, NOTICES, STATE, Log, Record
from ..log.table import read_on
from ..words import wire
from ..words.errors import ReplicationError, Unavailable
from ..words.records import AGGREGATOR, Ack, Notice, RepositoryState
from ..words.shape import from_json
from .layout import Layout

# What happened to a push → when, seconds since the epoch, in order.
Timeline = dict[str, float]


class Watcher:
    """Reads what the services write from now on, and makes timelines of events."""

    def __init__(self, log: Log) -> None:
        # By repository and sequence: when each step happened, and the repository's path.
        self._moments: dict[tuple[str, int], Timeline] = {}
        self._paths: dict[tuple[str, int], str] = {}
        starts = {(t, p): end for t in (EVENTS, ACKS, STATE, NOTICES) for p, end in log.ends(t).items()}
        self._log, self._reader = log, log.reader(starts)

    def close(self) -> None:
        self._reader.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read while the block runs.

        A compacted topic has only the newest record of a repository: earlier ones cannot be read later.
        """
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                with contextlib.suppress(Unavailable):
                    self._take_records(self._reader.poll(0.1))

        thread = threading.Thread(target=read, name="demo-watcher")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def wait_for_notice(self, path: str, timeout: float) -> Timeline:
        """Wait for the newest event's notice; return the timeline, or raise Unavailable."""
        end = time.monotonic() + timeout
        with contextlib.suppress(Unavailable):
            self._take_records(read_on(self._log, self._reader))
        while (moments := self._find_announced(path)) is None:
            if time.monotonic() > end:
                raise Unavailable(f"no notice for {path} within {timeout:.0f} s; see the services' output")
            with contextlib.suppress(Unavailable):
                self._take_records(self._reader.poll(0.5))
        return moments

    def _find_announced(self, path: str) -> Timeline | None:
        """Return the timeline of the newest event; None while it has no notice."""
        newest = max((key for key, known in self._paths.items() if known == path), key=lambda key: key[1], default=None)
        moments = {} if newest is None else self._moments[newest]
        return order_moments(moments) if "notice written" in moments else None

    def _take_records(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.value is not None and record.key is not None:
                with contextlib.suppress(ReplicationError):
                    self._add_moments(record.topic, record.key, record.value, record.time)

    def _add_moments(self, topic: str, key: str, value: bytes, at: float) -> None:
        if topic == EVENTS:
            frame = wire.decode(value)
            if frame.header.event is not None:
                event = frame.event
                self._paths[event.repository, event.seq] = event.path
                self._add_moment(event.repository, event.seq, event.time, "committed on the master")
                self._add_moment(event.repository, event.seq, at, "in the log")
        elif topic == ACKS and "/" in key:
            ack = from_json(Ack, value)
            self._add_reached(ack.repository, f"applied on {ack.mirror}", ack.applied, ack.applied_at)
            self._add_reached(ack.repository, f"served by {ack.mirror}", ack.serving, ack.served_at)
        elif topic == STATE and key != AGGREGATOR:
            state = from_json(RepositoryState, value)
            self._add_reached(state.repository, "released", state.released, at)
        elif topic == NOTICES:
            notice = from_json(Notice, value)
            self._add_moment(notice.event.repository, notice.event.seq, at, "notice written")

    def _add_reached(self, repository: str, what: str, level: int, at: float) -> None:
        for seq in range(1, level + 1):
            self._add_moment(repository, seq, at, what)

    def _add_moment(self, repository: str, seq: int, at: float, what: str) -> None:
        self._moments.setdefault((repository, seq), {}).setdefault(what, at)


def order_moments(moments: Timeline) -> Timeline:
    """Sort the moments by time; nothing was served before its release.

    The record of a release is replaced by that of its notice, which may be the first that is read.
    """
    served = {what: at for what, at in moments.items() if what.startswith("served by ")}
    placed = {what: min([at, *served.values()]) if what == "released" else at for what, at in moments.items()}
    return dict(sorted(placed.items(), key=lambda moment: (moment[1], moment[0] in served)))


def with_delivery(moments: Timeline, delivered: float) -> Timeline:
    """Add the delivery of the notice, at the time of the file that got it.

    A system stamps its files with its last tick, up to 10 ms early, but nothing is delivered before it is written to the log.
    """
    found = moments | {"notice delivered (JSON lines)": max(delivered, moments.get("notice written", delivered))}
    return dict(sorted(found.items(), key=lambda moment: moment[1]))


def hg(layout: Layout, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run `hg` as a developer would, and return its output.

    It has no extensions unless `env` says otherwise. Raises Unavailable if the exit code is neither 0 nor 1.
    """
    plain = {**layout.master_env, "HGRCPATH": os.devnull, "HGUSER": "Dana Developer <dana@example.com>", "USER": "dana"}
    done = subprocess.run(
        ["hg", *arguments],
        env={**plain, **(env or {})},
        cwd=layout.options.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode not in (0, 1):
        raise Unavailable(f"hg {' '.join(arguments)} failed: {output.strip()}")
    return output


def push_changesets(layout: Layout, name: str, count: int) -> tuple[str, float]:
    """Commit and push changesets; return hg's output, and when it returned."""
    clone = layout.options.folder / "work" / name
    if not clone.exists():
        clone.parent.mkdir(exist_ok=True)
        hg(layout, "clone", "--quiet", layout.master_url + name, str(clone))
    for number in range(count):
        path = Path(clone, "story.txt")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"line {number} of {time.time_ns()}\n")
        hg(layout, "--cwd", str(clone), "commit", "--quiet", "--addremove", "-m", f"add line {number} to the story")
    output = hg(layout, "--cwd", str(clone), "push", layout.master_url + name)
    return output, time.time()


def wait_for_lines(file: Path, count: int, timeout: float) -> tuple[list[dict[str, object]], float]:
    """Wait for `count` JSON lines; return all lines, and when the last was written.

    Raises Unavailable after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines], file.stat().st_mtime
        time.sleep(0.002)
    raise Unavailable(f"{file}: fewer than {count} lines after {timeout:.0f} s; see the notifier's output")
