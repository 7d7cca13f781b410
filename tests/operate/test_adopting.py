# SPDX-License-Identifier: GPL-2.0-or-later
"""From another host to this project and back, by the commands of the page about adopting."""

import functools
import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from testing.builders.cluster import Cluster
from testing.faults import PythonSteps
from testing.waiting import eventually

from .page import Answer, Entry, operation
from .there import USER, Push, There

pytestmark = pytest.mark.processes

PASSAGE = "Side by side, until the switch, and back"
# Neither extension of the host there.
OFF = "--config extensions.pushlog=! --config extensions.vcsreplicator=!"
OUTGOING = f"hg -R THEIR-FOLDER outgoing {OFF} HERE-URL"
PULL = f"hg -R THEIR-FOLDER pull {OFF} HERE-URL"
RECOVER = f"hg -R THEIR-FOLDER recover {OFF}"
CLONE = f"hg clone --noupdate {OFF} HERE-URL THEIR-FOLDER"
COPY = "hg -R THEIR-FOLDER copypushlog --config extensions.pushlog= --config extensions.vcsreplicator=! HERE-URL"
QUERY = "version=2&full=1&startID=0"
DANA = "dana@example.com"
OUR_SETTINGS = """
[hooks]
pretxnopen.maintenance = python:hooks.maintenance.refuse
prepushkey.maintenance = python:hooks.maintenance.refuse
[maintenance]
file = {folder}/maintenance
"""
THEIR_SETTINGS = """
[replicationpathrewrites]
{root}/ = {{moz}}/
[replicationproducer]
acktimeout = 10000
[pushlog]
autolanduser = lander@example.com
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An installation whose master has the settings of the host there, converted, and the hook for maintenance."""
    folder = tmp_path_factory.mktemp("here")
    cluster = Cluster(folder)
    (folder / "theirs.hgrc").write_text(THEIR_SETTINGS.format(root=cluster.master_root))
    done = CliRunner().invoke(program, ["adopt", str(folder / "theirs.hgrc"), "--output", str(folder / "adopted")])
    assert done.exit_code == 0, done.output
    hgrc = folder / "master.hgrc"
    hgrc.write_text(f"%include adopted/master.hgrc\n{hgrc.read_text()}{OUR_SETTINGS.format(folder=folder)}")
    with cluster:
        yield cluster


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    with There(tmp_path / "there") as there:
        yield there


def part(name: str) -> str:
    """The text of a part of the section."""
    _, _, rest = operation(PASSAGE, "adopt").partition(f"### {name}\n")
    assert rest, name
    return rest.partition("\n### ")[0]


class Passage:
    """One repository on its way between both hosts, and a developer who pushes to them."""

    def __init__(self, cluster: Cluster, there: There, name: str) -> None:
        self.cluster, self.there, self.name = cluster, there, name
        self.place, self.url = cluster.repository(name), cluster.master_url + name
        self.clone = cluster.folder / "work" / name
        self.clone.parent.mkdir(exist_ok=True)
        cluster.hg("clone", "-q", there.url, self.clone)
        self.maintenance = cluster.folder / "maintenance"
        self.maintenance.write_text("not here")
        self._text = operation(PASSAGE, "adopt")
        self._typed: set[str] = set()
        self.filled = {
            "THEIR-URL": there.url,
            "FOLDER": self.place,
            "HERE-URL": self.url,
            "THEIR-FOLDER": there.repository,
        }

    def _entry(self, environment: dict[str, str]) -> Entry:
        return Entry(self.cluster, PASSAGE, self._text, self._typed, environment)

    def here(self, command: str) -> str:
        """Type a command of the page on the master here; what it printed."""
        return self._entry({}).do(command, **self.filled)

    def typed_there(self, command: str, **more: Any) -> Answer:
        """Type a command of the page on the master there."""
        return self._entry({**self.there.environment, **more.pop("steps", {})}).type(command, **{**self.filled, **more})

    def on_there(self, command: str, **more: Any) -> str:
        answer = self.typed_there(command, **more)
        assert answer.code == 0, answer.text
        return answer.text

    def untyped(self, *parts: str) -> set[str]:
        """The commands of these parts that were not typed."""
        return set().union(*(Entry(self.cluster, name, part(name), self._typed).untyped for name in parts))

    def push(self, url: str, *words: str, count: int = 1) -> list[str]:
        """Make changesets and push them; their nodes."""
        nodes = [self.cluster.commit(self.clone, f"{url} {number}") for number in range(count)]
        self.cluster.push(self.clone, *words, url)
        return nodes

    def fill(self) -> None:
        self.here("hg clone --noupdate --config extensions.vcsreplicator=! THEIR-URL FOLDER")
        self.here("hg -R FOLDER replicatesync")

    def follow(self) -> str:
        text = self.here("hg -R FOLDER pull --config extensions.vcsreplicator=! THEIR-URL")
        self.here("hg -R FOLDER replicatesync")
        return text

    def switch(self) -> None:
        """As the page says, from where pushes there have stopped."""
        self.follow()
        answer = self._entry({}).type(
            "hg -R FOLDER incoming --config extensions.vcsreplicator=! THEIR-URL", **self.filled
        )
        assert "no changes found" in answer.text
        self.compare()
        self.maintenance.unlink()

    def compare(self) -> None:
        self.here("hg -R FOLDER verifypushlog")
        for mirror in ("alpha", "beta"):
            entry = self._entry({})
            compare = functools.partial(entry.type, "vcsreplicator verify NAME", NAME=mirror)
            eventually(lambda compare=compare: compare().code == 0, f"{mirror} is equal", every=1)

    def stop_here(self) -> None:
        """Step 1 of the way back."""
        self.maintenance.write_text("moved back")
        self._entry({}).until_ok()

    def go_back(self) -> str:
        """Steps 1 to 4 of the way back; what the last one printed."""
        self.stop_here()
        assert "no changes found" in self.typed_there(OUTGOING).text
        self.on_there(PULL)
        return self.on_there(COPY)

    def announced(self) -> list[Push]:
        """The pushes of the notices, in their order; the dates are those of the pushlog."""
        lines = [line["data"] for line in self.cluster.lines() if line["type"] == "changegroup.1"]
        return [
            Push(row["pushid"], row["user"], row["time"], tuple(data["heads"]))
            for data in lines
            if data["repo_url"].endswith(f"/{self.name}")
            for row in data["pushlog_pushes"]
        ]

    def wait_announced(self, count: int) -> list[Push]:
        """All announced pushes, once there are so many."""
        eventually(lambda: len(self.announced()) >= count, f"{count} notices of {self.name}")
        return self.announced()

    def json_pushes(self, query: str) -> Any:
        """What a mirror here answers."""
        url = self.cluster.about["mirrors"][0]["url"] + self.name
        with urllib.request.urlopen(f"{url}/json-pushes?{query}", timeout=60) as answer:
            return json.load(answer)


def test_a_site_comes_goes_back_and_comes_again(cluster: Cluster, there: There) -> None:
    passage = Passage(cluster, there, "whole")
    passage.push(there.url)
    passage.fill()
    two, three = passage.push(there.url), passage.push(there.url, count=2)
    passage.follow()
    assert [(push.id, push.user) for push in passage.wait_announced(2)] == [(2, USER), (3, USER)]
    passage.switch()
    four, five = passage.push(passage.url), passage.push(passage.url, count=3)
    passage.wait_announced(4)
    before = there.pushes()

    assert passage.go_back() == "copied 2 pushes into pushlog2.db\n"
    assert there.pushes()[:3] == before
    assert [(push.id, push.user, list(push.nodes)) for push in there.pushes()[1:]] == [
        (2, USER, two),
        (3, USER, three),
        (4, DANA, four),
        (5, DANA, five),
    ]
    assert there.has_its_own_schema()
    assert passage.json_pushes(QUERY)["pushes"] == there.json_pushes(QUERY)["pushes"]
    six = [cluster.commit(passage.clone, "six")]
    refused = cluster.hg("--cwd", passage.clone, "push", passage.url, check=False)
    assert "remote: moved back\n" in refused
    cluster.push(passage.clone, there.url)
    assert there.pushes()[-1][::3] == (6, tuple(six))

    assert "added 1 pushes\n" in passage.follow()
    passage.switch()
    seven = passage.push(passage.url)
    announced = passage.wait_announced(6)
    assert [(push.id, push.nodes[-1]) for push in announced] == [
        (number, nodes[-1]) for number, nodes in enumerate((two, three, four, five, six, seven), 2)
    ]
    assert [push[1:3] for push in announced[:5]] == [push[1:3] for push in there.pushes()[1:]]
    assert passage.json_pushes(QUERY)["lastpushid"] == 7
    assert passage.untyped("Side by side", "The switch") == set()
    assert passage.untyped("Back") == {CLONE, RECOVER}


def kill_halfway(passage: Passage, command: str, *files: str) -> None:
    """Kill a command on the host there in the middle of its work; a copy of the repository shows how much that is."""
    copy = passage.there.repository.with_name("copy")
    shutil.copytree(passage.there.repository, copy)
    verb = command.split()[3]
    steps = PythonSteps(files=files, argument=verb, record=copy.with_name(f"{verb}.steps"))
    places = steps.taken(lambda _: passage.typed_there(command, steps=steps.environment(), **{"THEIR-FOLDER": copy}))
    shutil.rmtree(copy)
    struck = steps.environment(kill_at=len(places) // 2)
    assert passage.typed_there(command, steps=struck).code == -signal.SIGKILL


@pytest.mark.slow
def test_a_kill_on_the_way_back_is_mended_by_the_same_commands(cluster: Cluster, there: There) -> None:
    passage = Passage(cluster, there, "killed")
    passage.push(there.url)
    passage.fill()
    passage.switch()
    made = [passage.push(passage.url, count=2) for _ in range(3)]
    passage.stop_here()
    before = there.pushes()
    kill_halfway(passage, PULL, "mercurial/transaction.py")
    stopped = passage.typed_there(PULL)
    assert stopped.code == 255
    assert "abandoned transaction found" in stopped.text
    passage.on_there(RECOVER)
    passage.on_there(PULL)
    kill_halfway(passage, COPY, "pushlog/copying.py", "pushlog/store/database.py")
    assert there.pushes() == before
    passage.on_there(PULL)
    assert passage.on_there(COPY) == "copied 3 pushes into pushlog2.db\n"
    assert [(push.id, list(push.nodes)) for push in there.pushes()[1:]] == list(enumerate(made, 2))
    assert passage.on_there(COPY) == "copied 0 pushes into pushlog2.db\n"
    assert passage.json_pushes(QUERY)["pushes"] == there.json_pushes(QUERY)["pushes"]


@pytest.mark.slow
def test_a_push_on_both_sides_is_shown_and_nothing_is_lost(cluster: Cluster, there: There) -> None:
    passage = Passage(cluster, there, "both")
    passage.push(there.url)
    passage.fill()
    passage.switch()
    late = cluster.folder / "work" / "late"
    cluster.hg("clone", "-q", there.url, late)
    [ours] = passage.push(passage.url)
    theirs = cluster.commit(late, "pushed to the other host after the switch")
    cluster.push(late, there.url)
    passage.stop_here()
    assert theirs[:12] in passage.typed_there(OUTGOING).text
    passage.on_there(PULL)
    before = there.pushes()
    refused = passage.typed_there(COPY)
    assert refused.code == 255
    assert re.findall(r"push 2: here (\S+), .*, (\w+); there (\S+), .*, (\w+)\n", refused.text) == [
        (USER, theirs[:12], DANA, ours[:12])
    ]
    assert there.pushes() == before
    passage.maintenance.unlink()
    cluster.hg("--cwd", late, "pull", "-q", passage.url)
    cluster.hg("--cwd", late, "merge", "-q", "--tool", ":local", ours)
    cluster.hg("--cwd", late, "commit", "-q", "-m", "merge")
    cluster.push(late, passage.url)
    passage.on_there("hg -R THEIR-FOLDER strip REV", REV=theirs)
    text = passage.go_back()
    assert text.endswith("copied 2 pushes into pushlog2.db\n")
    assert f"pushes that had no changesets here and are now those of {passage.url}: 2\n" in text
    assert [(push.id, push.user) for push in there.pushes()] == [(1, USER), (2, DANA), (3, DANA)]
    assert theirs in there.pushes()[-1].nodes
    assert passage.json_pushes(QUERY)["pushes"] == there.json_pushes(QUERY)["pushes"]
    assert passage.untyped("A push on both sides") == set()


@pytest.mark.slow
def test_a_repository_that_was_created_here_is_made_there(cluster: Cluster, there: There) -> None:
    passage = Passage(cluster, there, "new")
    passage.maintenance.unlink()
    cluster.hg("init", passage.place, on_master=True)
    made = [passage.push(passage.url, count=2) for _ in range(2)]
    passage.stop_here()
    shutil.rmtree(there.repository)
    passage.on_there(CLONE)
    assert passage.on_there(COPY) == "copied 2 pushes into pushlog2.db\n"
    assert [(push.id, push.user, list(push.nodes)) for push in there.pushes()] == [
        (1, DANA, made[0]),
        (2, DANA, made[1]),
    ]
    assert there.has_its_own_schema()
