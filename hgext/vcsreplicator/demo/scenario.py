# SPDX-License-Identifier: GPL-2.0-or-later
"""A push through a local cluster, watched: what happened when, from the commit on the master to the delivered notice.

Every instant is read from the records that the services wrote, so the timeline is evidence and not this program's opinion.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..log import ACKS, EVENTS, NOTICES, STATE, Log, Record
from ..words import wire
from ..words.errors import ReplicationError, Unavailable
from ..words.levels import Ack, Notice, RepositoryState
from ..words.shape import from_json
from .layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One step of a push: when (seconds since the epoch) and what, in words for people."""

    time: float
    what: str


class Watcher:
    """Reads everything the services write from now on, in a thread; ask it for the timeline of an event."""

    def __init__(self, log: Log) -> None:
        self._moments: dict[tuple[str, int], list[Moment]] = {}
        self._paths: dict[tuple[str, int], str] = {}
        self._levels: dict[str, int] = {}
        self._news = threading.Condition()
        self._stop = threading.Event()
        starts = {(t, p): end for t in (EVENTS, ACKS, STATE, NOTICES) for p, end in log.ends(t).items()}
        self._reader = log.reader(starts)
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops reading."""
        self._stop.set()
        self._reader.wake()
        self._thread.join()
        self._reader.close()

    def wait_for_notice(self, path: str, timeout: float) -> list[Moment]:
        """The timeline of the newest event of this repository once its notice is written; raises Unavailable after `timeout`."""
        end = time.monotonic() + timeout
        with self._news:
            while True:
                keys = [key for key, known in self._paths.items() if known == path]
                if keys:
                    moments = self._moments[max(keys, key=lambda key: key[1])]
                    if any(moment.what == "notice written" for moment in moments):
                        return sorted(moments, key=lambda moment: moment.time)
                if not self._news.wait(end - time.monotonic()):
                    raise Unavailable(f"no notice for {path} within {timeout:.0f} s; see the services' output")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                records = self._reader.poll(0.5)
            except Unavailable:
                continue
            with self._news:
                for record in records:
                    self._see(record)
                self._news.notify_all()

    def _see(self, record: Record) -> None:
        if record.value is None or record.key is None:
            return
        try:
            self._note(record.topic, record.key, record.value, record.time)
        except ReplicationError:
            return

    def _note(self, topic: str, key: str, value: bytes, at: float) -> None:
        if topic == EVENTS:
            frame = wire.decode(value)
            if frame.header.event is not None:
                event = frame.event
                self._paths[event.repository, event.seq] = event.path
                self._add(event.repository, event.seq, event.time, "committed on the master")
                self._add(event.repository, event.seq, at, "in the log")
        elif topic == ACKS and "/" in key:
            ack = from_json(Ack, value)
            self._reach(ack.repository, f"applied on {ack.mirror}", ack.applied, ack.applied_at)
            self._reach(ack.repository, f"served by {ack.mirror}", ack.serving, ack.served_at)
        elif topic == STATE and key != "aggregator":
            state = from_json(RepositoryState, value)
            self._reach(state.repository, "released", state.released, at)
        elif topic == NOTICES:
            notice = from_json(Notice, value)
            self._add(notice.event.repository, notice.event.seq, at, "notice written")

    def _reach(self, repository: str, what: str, level: int, at: float) -> None:
        before = self._levels.get(f"{repository} {what}", 0)
        for seq in range(before + 1, level + 1):
            self._add(repository, seq, at, what)
        self._levels[f"{repository} {what}"] = max(before, level)

    def _add(self, repository: str, seq: int, at: float, what: str) -> None:
        moments = self._moments.setdefault((repository, seq), [])
        if not any(moment.what == what for moment in moments):
            moments.append(Moment(time=at, what=what))


def hg(layout: Layout, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What `hg` prints, run as a developer on another machine would: without the master's extensions, unless `env` says so."""
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
    """Commits `count` changesets in a clone of the repository and pushes them; (what hg printed, when it returned)."""
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
    """The JSON lines in `file` once there are `count`, and when the last was written; raises Unavailable after `timeout` s."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines], file.stat().st_mtime
        time.sleep(0.002)
    raise Unavailable(f"{file}: fewer than {count} lines after {timeout:.0f} s; see the notifier's output")
