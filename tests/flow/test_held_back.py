# SPDX-License-Identifier: GPL-2.0-or-later
"""What waits, and that nothing else does: while a mirror is stopped, and while one mirror cannot apply one repository."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import ACKS, STATE, Log
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.records import Ack, AggregatorHeartbeat
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.cluster import Cluster
from testing.builders.developer import Developer
from testing.builders.load import developer_environment
from testing.checks import agreement, checker
from testing.checks.lines import told_in_order, try_line
from testing.waiting import eventually

pytestmark = pytest.mark.processes

DEVELOPERS = 4
PATIENCE = 180.0


@dataclass
class Installation:
    """A cluster whose log forgets nothing, and its repositories, announced."""

    cluster: Cluster
    log: Log
    names: list[str]

    def push(self, times: int) -> dict[str, list[str]]:
        """So many pushes to each repository, several at once; repository → heads in order."""
        environment = developer_environment(self.cluster)

        def work(mine: list[str]) -> dict[str, list[str]]:
            with Developer(self.cluster.folder, environment) as developer:
                return {name: [self._push(developer, name, number) for number in range(times)] for name in mine}

        with ThreadPoolExecutor(DEVELOPERS) as pool:
            done = pool.map(work, [self.names[number::DEVELOPERS] for number in range(DEVELOPERS)])
            return {name: heads for each in done for name, heads in each.items()}

    def _push(self, developer: Developer, name: str, number: int) -> str:
        clone = self.cluster.folder / "work" / name
        if not clone.exists():
            clone.parent.mkdir(exist_ok=True)
            assert developer.hg("init", clone)[0] == 0
        with (clone / "file").open("a") as file:
            file.write(f"{name} {number}\n")
        assert developer.hg("--cwd", clone, "commit", "-A", "-m", f"{name} {number}")[0] == 0
        code, output = developer.hg("--cwd", clone, "push", self.cluster.master_url + name)
        assert code == 0, output
        return developer.hg("--cwd", clone, "log", "-r", ".", "-T", "{node}")[1]

    def heads(self) -> dict[str, list[str]]:
        """Repository → heads that were told, in order; repeats are repeated."""
        told: dict[str, list[str]] = {}
        for line in self.cluster.lines():
            if line["type"] == "changegroup.1":
                told.setdefault(line["data"]["repo_url"].rsplit("/", 1)[-1], []).extend(line["data"]["heads"])
        return told

    def held(self) -> int:
        """How many events wait for their notice, as the aggregator says in its newest beat."""
        heartbeats = [r.value for r in checker.everything(self.log, (STATE,)) if r.key == "aggregator" and r.value]
        return from_json(AggregatorHeartbeat, heartbeats[-1]).held if heartbeats else 0

    def detached(self, mirror: str) -> set[str]:
        """Ids of the repositories that the mirror follows apart."""
        newest = {record.key: record.value for record in checker.everything(self.log, (ACKS,))}
        acks = [
            from_json(Ack, value) for key, value in newest.items() if value and (key or "").startswith(f"{mirror}/")
        ]
        return {ack.repository for ack in acks if ack.detached}

    def settled(self) -> bool:
        return not agreement.unsettled(self.cluster, self.log, self.names)


@contextmanager
def installation(folder: Path, repositories: int, url: str | None = None) -> Iterator[Installation]:
    url = url or f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
    with open_log(url, creates=True) as log:
        log.create(checker.remembering_topics())
        with Cluster(folder, "--log", url) as cluster:
            names = [f"repository-{number}" for number in range(repositories)]
            with Developer(folder, cluster.about["master"]["env"]) as administrator:
                for name in names:
                    assert administrator.hg("init", cluster.repository(name))[0] == 0
            eventually(lambda: len(cluster.lines()) == repositories, timeout=PATIENCE, what="the new repositories")
            yield Installation(cluster, log, names)


def too_early(name: str, head: str) -> dict[str, Any]:
    """A message about a push that no mirror may show yet: its changeset and its row of the pushlog."""
    pushes = [{"push_json_url": "https://hg.example/json-pushes?version=2&startID=0&endID=99"}]
    data = {"repo_url": f"https://hg.example/{name}", "heads": [head], "pushlog_pushes": pushes}
    return {"type": "changegroup.1", "id": "early", "data": data}


def nothing_is_told_while_a_mirror_is_away(folder: Path, repositories: int, times: int, url: str | None = None) -> None:
    count = repositories * times
    with installation(folder, repositories, url) as here:
        here.cluster.stop("mirror-beta")
        pushed = here.push(times)
        eventually(lambda: here.held() == count, every=0.5, timeout=PATIENCE, what="the aggregator holds them all")
        assert here.heads() == {}
        assert (
            len(try_line(here.cluster.about["mirrors"], too_early("repository-0", pushed["repository-0"][-1]), set()))
            == 4
        )

        here.cluster.start("mirror-beta")
        eventually(lambda: sum(map(len, here.heads().values())) >= count, timeout=PATIENCE, what="all have it")
        assert here.heads() == pushed
        assert told_in_order(here.cluster.lines()) == ([], 0)
        assert not [
            missed
            for line in here.cluster.lines()[-repositories:]
            for missed in try_line(here.cluster.about["mirrors"], line, set())
        ]
        eventually(here.settled, every=0.5, timeout=PATIENCE, what="all is served")
        report = checker.check(checker.history(here.log))
        assert not report.violations, report.violations[:5]
        assert report.notices == repositories + count


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_mirror_stopped_for_twelve_pushes_over_four_repositories(tmp_path: Path) -> None:
    nothing_is_told_while_a_mirror_is_away(tmp_path, 4, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_mirror_stops_for_two_hundred_pushes(tmp_path: Path) -> None:
    nothing_is_told_while_a_mirror_is_away(tmp_path, 20, 10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_mirror_stopped_for_two_hundred_pushes_on_kafka(kafka: Any, tmp_path: Path, unique_name: str) -> None:
    nothing_is_told_while_a_mirror_is_away(tmp_path, 20, 10, f"{kafka.url}?topic-prefix={unique_name}.")


@contextmanager
def locked(here: Installation, mirror: str, name: str) -> Iterator[None]:
    """Another process of the mirror's machine holds the repository's store lock, as a backup would."""
    root = next(Path(each["root"]) for each in here.cluster.about["mirrors"] if each["name"] == mirror)
    environment = {**here.cluster.about["master"]["env"], "HGRCPATH": os.devnull}
    holder = subprocess.Popen(
        ["hg", "-R", str(root / name), "debuglocks", "--set-lock"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: os.path.lexists(root / name / ".hg/store/lock"), what="the lock is held")
        yield
    finally:
        holder.terminate()
        holder.communicate()


@pytest.mark.timeout(900)
def test_one_detached_repository_holds_back_its_own_notices_only(tmp_path: Path) -> None:
    with installation(tmp_path, 3) as here:
        alone, *others = here.names
        with locked(here, "beta", alone):
            pushed = here.push(2)
            eventually(
                lambda: here.detached("beta"), every=0.5, timeout=PATIENCE, what="the locked repository is detached"
            )
            more = here.push(2)
            for name in here.names:
                pushed[name] += more[name]
            rest = {name: pushed[name] for name in others}
            eventually(lambda: here.heads() == rest, timeout=PATIENCE, what="the notices of the others")
            eventually(
                lambda: here.held() == len(pushed[alone]), every=0.5, timeout=PATIENCE, what="only its notices are held"
            )
            assert len(here.detached("beta")) == 1
            assert not here.detached("alpha")
            assert here.heads() == rest
        eventually(lambda: here.heads() == pushed, timeout=PATIENCE, what="all have it, in order and once")
        eventually(here.settled, every=0.5, timeout=PATIENCE, what="it follows the stream again")
        report = checker.check(checker.history(here.log))
        assert not report.violations, report.violations[:5]
