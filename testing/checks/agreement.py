# SPDX-License-Identifier: GPL-2.0-or-later
"""Do the mirrors hold what the master holds? `Examiner` asks plain `hg` and web pages, not what the services say of themselves.

Every function returns one line for each disagreement, and nothing if all is well.
"""

import contextlib
import difflib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hgext.vcsreplicator.log import ACKS, STATE, Log
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.words.records import Ack, RepositoryState
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.cluster import Cluster
from testing.builders.developer import Developer
from testing.checks.checker import everything
from testing.waiting import PATIENCE
from testing.warm import is_stem

NODES = ("log", "--hidden", "-r", "all()", "-T", "{rev} {node} {phase} {obsolete}\\n")
CLONED = ("log", "-T", "{node} {phase}\\n")
BOOKMARKS = ("bookmarks", "-T", "{bookmark} {node}\\n")
MARKERS = ("debugobsolete",)
PLAIN = ("--config", "experimental.evolution=all")


def unsettled(cluster: Cluster, log: Log, names: Iterable[str]) -> list[str]:
    """Repositories of which not everything that the master has is served by every mirror, in the stream, and announced."""
    levels = {name: Outbox(Store(str(cluster.repository(name) / ".hg/store"))).newest() for name in names}
    newest = {(record.topic, record.key): record.value for record in everything(log, (ACKS, STATE))}
    found = []
    for name, level in levels.items():
        if level is None:
            found.append(f"{name}: has no event")
            continue
        value = newest.get((STATE, level.repository))
        state = from_json(RepositoryState, value) if value else None
        if state is None or (state.seq, state.noticed) != (level.seq, level.seq):
            found.append(f"{name}: the master has {level.seq}, state is {state}")
        for mirror in cluster.about["mirrors"]:
            value = newest.get((ACKS, f"{mirror['name']}/{level.repository}"))
            ack = from_json(Ack, value) if value else None
            if ack is None or (ack.applied, ack.serving, ack.detached) != (level.seq, level.seq, None):
                found.append(f"{name}: the master has {level.seq}, {mirror['name']} says {ack}")
            elif ack.digest != level.digest:
                found.append(f"{name}: the digest of {mirror['name']} is another")
    return found


def settle(cluster: Cluster, log: Log, names: Sequence[str], *, timeout: float = PATIENCE) -> None:
    """Waits until nothing is unsettled; AssertionError with what still is once `timeout` seconds are over."""
    end = time.monotonic() + timeout
    while left := unsettled(cluster, log, names):
        if time.monotonic() > end:
            shown = "\n".join(left[:20])
            raise AssertionError(
                f"not settled after {timeout:.0f} s, {len(left)} of {len(names)} repositories × sides:\n{shown}"
            )
        time.sleep(0.5)


class Examiner:
    """Compares master and mirrors of a cluster, by `hg` kept open: a plain one, and one as on a server for each side."""

    def __init__(self, cluster: Cluster) -> None:
        about = cluster.about
        self._sides = {"master": (cluster.master_root, cluster.master_url)}
        self._sides |= {mirror["name"]: (Path(mirror["root"]), mirror["url"]) for mirror in about["mirrors"]}
        base = about["master"]["env"]
        plain = {**base, "HGRCPATH": os.devnull, "HGRCSKIPREPO": "1"}
        self._plain = Developer(cluster.folder, plain)
        on_mirror = about["services"]["web-" + about["mirrors"][0]["name"]]["env"]
        self._master, self._mirror = (Developer(cluster.folder, env) for env in (base, on_mirror))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._plain, self._master, self._mirror):
            each.close()

    def disagreements(self, name: str) -> list[str]:
        """Between the mirrors and the master about one repository: changesets, phases, bookmarks, markers, pushlog."""
        texts = {side: self._holds(root / name, url + name) for side, (root, url) in self._sides.items()}
        found = []
        for side in list(self._sides)[1:]:
            for what, text in texts[side].items():
                if text != (right := texts["master"][what]):
                    lines = difflib.unified_diff(right.split("\n"), text.split("\n"), "master", side, n=0)
                    found.append(f"{name}: {what} of {side}: " + "; ".join(list(lines)[2:8]))
        return found

    def lacks(self, name: str, nodes: Iterable[str]) -> list[str]:
        """Changesets that the master does not have, hidden or not."""
        there = self._ask(self._sides["master"][0] / name, *NODES)
        return [f"{name}: the master lacks {node}" for node in nodes if node not in there]

    def clones(self, name: str, folder: Path) -> list[str]:
        """What clones of the mirrors by HTTP have and a clone of the master has not, or the other way round; made in `folder`."""
        found = dict[str, str]()
        for side, (_, url) in self._sides.items():
            clone = folder / f"{side}-{name}"
            code, output = self._plain.hg("clone", "-q", "-U", url + name, clone)
            found[side] = output if code else "".join(sorted(self._ask(clone, *CLONED).splitlines(keepends=True)))
        return [f"{name}: a clone of {side} differs" for side, nodes in found.items() if nodes != found["master"]]

    def damages(self, name: str) -> list[str]:
        """What `hg verify` and `hg verifypushlog` find, on the master and on every mirror."""
        found = []
        for side, (root, _) in self._sides.items():
            server = self._master if side == "master" else self._mirror
            for verb in ("verify", "verifypushlog"):
                code, output = server.hg("-R", root / name, verb)
                if code:
                    found.append(f"{name}: hg {verb} on {side}: {output[-500:]}")
        return found

    def _holds(self, repository: Path, url: str) -> dict[str, str]:
        """All that a repository holds, as text."""
        return {
            "changesets": self._ask(repository, *NODES),
            "bookmarks": self._ask(repository, *BOOKMARKS),
            "markers": "\n".join(sorted(self._ask(repository, *MARKERS).splitlines())),
            "pushlog": page(f"{url}/json-pushes?version=2&startID=0")[1],
        }

    def _ask(self, repository: Path, *arguments: str) -> str:
        code, output = self._plain.hg("-R", repository, *PLAIN, *arguments)
        return output if code in (0, 1) else f"hg {arguments[0]}: exit {code}: {output}"


def page(url: str, *, timeout: float = PATIENCE) -> tuple[int, str]:
    """(status, body) of a page; 0 if no server answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def processes_below(folder: Path) -> Iterator[int]:
    """Processes that work in this folder or below."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = os.readlink(process / "cwd")
        except OSError:
            continue
        if Path(where).is_relative_to(folder):
            yield int(process.name)


def left_behind(folder: Path, *, timeout: float = PATIENCE) -> list[int]:
    """Processes that still work there after so many seconds: the kernel ends what was killed a moment later."""
    end = time.monotonic() + timeout
    while found := [process for process in processes_below(folder) if not is_stem(process)]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return found


def remains(repository: Path) -> list[str]:
    """What an abandoned transaction leaves in a repository: a journal, or a lock that a living process holds.

    A lock of a dead process is no obstacle: the next writer takes it.
    """
    found = []
    if os.path.lexists(journal := repository / ".hg/store/journal"):
        found.append(str(journal))
    for lock in (repository / ".hg/store/lock", repository / ".hg/wlock"):
        with contextlib.suppress(FileNotFoundError):
            owner = os.readlink(lock).rpartition(":")[2]
            if Path("/proc", owner).exists():
                found.append(f"{lock}, held by {owner}")
    return found
