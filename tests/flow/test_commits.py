# SPDX-License-Identifier: GPL-2.0-or-later
"""What is committed on the server itself, where a master accepts that: an event like others, the same on every mirror."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from testing.builders.cluster import Cluster
from testing.builders.developer import Developer
from testing.waiting import eventually

pytestmark = pytest.mark.processes

ACCEPTING = ["--config", "vcsreplicator.commits=accept", "--config", "phases.publish=no", "--config", "ui.editor=true"]
for extension in ("rebase", "histedit", "evolve", "share", "topic"):
    ACCEPTING += ["--config", f"extensions.{extension}="]
STATE = "{node} {phase} {bookmarks} {obsolete}\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("commits")) as cluster:
        yield cluster


class Desk:
    """A working copy on the server, of the repository itself or of a share of it."""

    def __init__(self, administrator: Developer, folder: Path) -> None:
        self.administrator, self.folder = administrator, folder

    def hg(self, *arguments: str) -> str:
        code, printed = self.administrator.hg("--cwd", self.folder, *ACCEPTING, *arguments)
        assert code == 0, printed
        return printed

    def commit(self, file: str, text: str, *arguments: str) -> str:
        (self.folder / file).write_text(text)
        self.hg("commit", "-q", "-A", "-m", text, *arguments)
        return self.hg("log", "-r", ".", "-T", "{node}")


def state(cluster: Cluster, folder: Path) -> list[str]:
    """Every changeset with its phase, and the markers, in any order."""
    options = ("--config", "extensions.evolve=")
    plain = ["-R", str(folder), "--hidden", *options, "--config", "experimental.evolution=all"]
    shown = cluster.hg(*plain, "log", "-r", "all()", "-T", STATE) + cluster.hg(*plain, "debugobsolete")
    return sorted(shown.splitlines())


def equals(cluster: Cluster, folder: Path, wanted: list[str]) -> bool:
    return state(cluster, folder) == wanted


def work(desk: Desk, second: Path) -> None:
    """Every way in which a web application or an operator makes changesets there."""
    base = desk.commit("base", "base")
    first = desk.commit("one", "first")
    desk.hg("update", "-q", base)
    other = desk.commit("two", "other")
    desk.hg("merge", "-q", first)
    desk.hg("commit", "-q", "-m", "merged")
    desk.hg("tag", f"v-{desk.folder.name}")
    desk.hg("update", "-q", other)
    desk.commit("three", "to be rebased")
    desk.hg("rebase", "-q", "-s", ".", "-d", first)
    desk.commit("four", "to be rebased in memory")
    desk.hg("rebase", "-q", "-s", ".", "-d", other, "--config", "rebase.experimental.inmemory=yes")
    desk.hg("update", "-q", "tip")
    desk.commit("five", "to be amended")
    (desk.folder / "five").write_text("amended")
    desk.hg("commit", "-q", "--amend", "-m", "amended")
    picked = desk.commit("six", "picked")
    folded = desk.commit("seven", "folded")
    plan = second / "plan"
    plan.write_text(f"pick {picked[:12]}\nfold {folded[:12]}\n")
    desk.hg("histedit", "-q", "-r", picked, "--commands", str(plan))
    desk.commit("eight", "eight")
    desk.commit("nine", "nine")
    desk.hg("fold", "-q", "-r", ".^::.", "--exact", "-m", "folded by evolve")
    desk.commit("ten", "to be pruned")
    desk.hg("prune", "-q", "-r", ".")
    desk.hg("topics", "-q", "work")
    desk.commit("eleven", "on a topic")
    desk.hg("bookmark", f"mark-{desk.folder.name}")
    desk.hg("phase", "--public", "-r", first)


@pytest.mark.sample(1)
def test_what_is_committed_on_the_server_reaches_every_mirror(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("one")
    master = cluster.repository("one")
    with Developer(cluster.folder, cluster.about["master"]["env"]) as administrator:
        desks = [Desk(administrator, master), Desk(administrator, tmp_path / "desk")]
        desks[0].hg("share", "-q", "-U", "-B", str(master), str(tmp_path / "desk"))
        for desk in desks:
            work(desk, tmp_path)
    wanted = state(cluster, master)
    assert len(wanted) > 50
    for mirror in cluster.about["mirrors"]:
        copy = Path(mirror["root"], "one")
        eventually(partial(equals, cluster, copy, wanted), f"the same at {copy}", timeout=60)
    done = cluster.cli("verify", "--repository", "one")
    assert done.returncode == 0, done.stdout + done.stderr
