# SPDX-License-Identifier: GPL-2.0-or-later
"""The log comes back from an older copy, all services real: every push is announced, mirrors are level, `check` names the loss."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator.alarms import LOST, MISSING
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.follower import Follower
from testing.builders.cluster import Cluster
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes

NAMES = ("red", "blue")


class EmbeddedLog:
    """The log's file, with the backup that `docs/log.md` describes."""

    def __init__(self, folder: Path) -> None:
        self._path, self._copy = folder / "log.db", folder / "copy.db"

    def copy(self) -> None:
        with closing(sqlite3.connect(self._path)) as source, closing(sqlite3.connect(self._copy)) as target:
            source.backup(target)

    def restore(self) -> None:
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._copy.rename(self._path)


@dataclass
class Installation:
    """A cluster, and the log that it will lose records of."""

    cluster: Cluster
    log: EmbeddedLog | Kafka


@pytest.fixture
def installation(
    request: pytest.FixtureRequest, tmp_path: Path, own_service: Callable[[type[Kafka]], Kafka]
) -> Iterator[Installation]:
    log = own_service(Kafka) if request.param == "kafka" else EmbeddedLog(tmp_path)
    prepared = Cluster(tmp_path, *([] if isinstance(log, EmbeddedLog) else ["--log", log.url]))
    prepared.config.write_text(prepared.config.read_text().replace("[aggregator]\n", "[aggregator]\nbeat = 0.5\n"))
    with prepared as cluster:
        yield Installation(cluster, log)


def push(cluster: Cluster, clones: dict[str, Path], text: str) -> list[str]:
    """One push to each repository; their nodes."""
    nodes = [cluster.commit(clone, text) for clone in clones.values()]
    for clone in clones.values():
        assert "recorded push in replication log" in cluster.push(clone)
    return nodes


def announced(cluster: Cluster) -> list[str]:
    """Heads told since the beginning, in order, repeats included."""
    lines = [line for line in cluster.lines() if line["type"] == "changegroup.1"]
    return [head for line in lines for head in line["data"]["heads"]]


def level(cluster: Cluster, heads: dict[str, str]) -> bool:
    """Whether both mirrors serve these heads, and the log knows of nothing that anything waits for."""
    for name, head in heads.items():
        for mirror in cluster.about["mirrors"]:
            if head not in cluster.hg("identify", "--debug", mirror["url"] + name, check=False):
                return False
    with looking(cluster) as picture:
        behind = [mirror for mirror in picture.heartbeats if picture.behind(mirror)]
        return not picture.waiting() and not picture.detached() and not behind


@contextmanager
def looking(cluster: Cluster) -> Iterator[Picture]:
    with open_log(cluster.log_url, creates=True) as log, closing(Follower(log)) as follower:
        yield follower.update()


def applied(cluster: Cluster, mirror: str) -> int:
    """The sum of the sequences that a mirror says it has applied, but for the first of each repository."""
    with looking(cluster) as picture:
        return sum(ack.applied - 1 for ack in picture.acks.values() if ack.mirror == mirror)


def alarms(cluster: Cluster) -> str:
    with looking(cluster) as picture:
        return "; ".join(picture.aggregator.alarms if picture.aggregator else ())


@pytest.mark.parametrize("installation", ["embedded", pytest.param("kafka", marks=pytest.mark.slow)], indirect=True)
def test_after_an_older_log_every_push_is_announced(
    installation: Installation,
) -> None:
    cluster, log = installation.cluster, installation.log
    clones = {name: cluster.create(name) for name in NAMES}
    nodes = push(cluster, clones, "before")
    eventually(lambda: set(announced(cluster)) >= set(nodes), "the first notices")
    log.copy()
    nodes += push(cluster, clones, "lost with its notice")
    eventually(lambda: set(announced(cluster)) >= set(nodes), "more notices")
    cluster.stop("mirror-beta")
    nodes += push(cluster, clones, "lost before its notice")
    eventually(lambda: applied(cluster, "alpha") == 3 * len(NAMES), "alpha has it")
    cluster.stop("relay", "aggregator", "mirror-alpha", "notifier")
    log.restore()

    cluster.start("aggregator", "mirror-alpha", "mirror-beta", "notifier")
    named = f"{MISSING}: 4 missing, 2 repositories (blue, red)"
    eventually(lambda: named in alarms(cluster), "the loss is seen by the level of each mirror")
    told = cluster.cli("check")
    assert told.returncode == 2
    assert named in told.stdout
    assert nodes[-1] not in announced(cluster)

    cluster.start("relay")
    heads = dict(zip(NAMES, nodes[-2:], strict=True))
    eventually(lambda: level(cluster, heads) and set(announced(cluster)) == set(nodes), "healed")
    eventually(lambda: not alarms(cluster), "the loss is over")
    last = push(cluster, clones, "after")
    eventually(lambda: set(announced(cluster)) == {*nodes, *last}, "and on it goes")


def prune(store: Path, kept: int) -> None:
    """Takes all but the newest `kept` events out of the outbox, as its own pruning does when they are many."""
    places = list(Outbox(Store(str(store))).kept())
    content = (store / "outbox.0001.log").read_bytes()
    (store / "outbox.0002.log").write_bytes(content[places[-kept - 1].end :])
    (store / "outbox.0001.log").unlink()
    sent = json.loads((store / "outbox.sent").read_bytes())
    end = (store / "outbox.0002.log").stat().st_size
    (store / "outbox.sent").write_text(json.dumps({**sent, "segment": 2, "end": end}))


@pytest.mark.parametrize("installation", ["embedded", pytest.param("kafka", marks=pytest.mark.slow)], indirect=True)
def test_what_no_outbox_keeps_is_named_by_check_and_mended_by_a_sync(installation: Installation) -> None:
    cluster, log = installation.cluster, installation.log
    clone = cluster.create("red")
    nodes = push(cluster, {"red": clone}, "before")
    eventually(lambda: set(announced(cluster)) >= set(nodes), "the first notice")
    log.copy()
    cluster.stop("mirror-beta")
    nodes += push(cluster, {"red": clone}, "lost for good") + push(cluster, {"red": clone}, "still in the outbox")
    eventually(lambda: applied(cluster, "alpha") == 3, "alpha has it")
    cluster.stop("relay", "aggregator", "mirror-alpha", "notifier")
    log.restore()
    prune(cluster.repository("red") / ".hg" / "store", kept=1)

    cluster.start("relay", "aggregator", "mirror-alpha", "mirror-beta", "notifier")
    eventually(lambda: LOST in alarms(cluster), "the loss is seen")
    told = cluster.cli("check")
    assert told.returncode == 2
    lost = rf"{re.escape(LOST)}: 1 lost, 1 repository \(red\) \(since [0-9: -]+ UTC\); they get no notice; run `hg replicatesync`"
    assert re.search(lost, told.stdout), told.stdout
    assert '"missing": "3 to 3"' in cluster.output("relay")

    cluster.hg("-R", cluster.repository("red"), "replicatesync", on_master=True)
    eventually(lambda: level(cluster, {"red": nodes[-1]}), "healed")
    eventually(lambda: set(announced(cluster)) == {nodes[0], nodes[2]}, "what is kept is announced")
