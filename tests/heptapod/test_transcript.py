# SPDX-License-Identifier: GPL-2.0-or-later
"""What `docs/heptapod.md` promises, on Heptapod's own packages: each operation of a real HGitaly is the same on every mirror.

GitLab is a stub that allows what it is asked (`testing/heptapod/gitlab.py`). What is not here, HGitaly leaves to other programs.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from testing.builders.cluster import Cluster
from testing.heptapod.host import USER, Heptapod
from testing.services.cache import CHECKOUT
from testing.waiting import eventually

pytestmark = pytest.mark.processes

REPOSITORY, OPERATION = "gitaly.RepositoryService.", "gitaly.OperationService."
MERCURIAL, SETTINGS = "hgitaly.MercurialOperationsService.", "hgitaly.MercurialRepositoryService."
# As a developer of a Heptapod project has them.
EVOLVING = ["--config", "extensions.evolve=", "--config", "extensions.topic=", "--config", "experimental.evolution=all"]
STATE = "{node} {phase} bookmarks:{bookmarks} topic:{topic} obsolete:{obsolete} {extras}\n"
LOG = ["log", "-r", "all()", "-T", STATE]
PUSHES = "SELECT id, user, date, node FROM pushlog JOIN changesets ON pushid = id ORDER BY id, rev"
DEFAULT = b"branch/default"
# What an operation must make known: types of messages, and their heads.
Said = list[tuple[str, tuple[str, ...]]]
NOTHING: Said = []


def blocks_of_the_page(cluster: Cluster) -> tuple[str, str]:
    """The lines for Heptapod's hgrc and for that of mirrors, of `docs/heptapod.md`, with the paths of this cluster."""
    page = (CHECKOUT / "docs" / "heptapod.md").read_text()
    master, mirror = re.findall(r"^```ini\n(# \S+hgrc\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (socket,) = re.findall(r"^relay = .*$", Path(cluster.about["master"]["env"]["HGRCPATH"]).read_text(), re.MULTILINE)
    master = re.sub(r"^relay = .*$", socket, master, flags=re.MULTILINE)
    return re.sub(r"^/\S+ = \.$", f"{cluster.master_root} = .", master, flags=re.MULTILINE), mirror


class Project:
    """A project of the host, a developer's clone of it, and what its mirrors must have."""

    def __init__(self, host: Heptapod, name: str) -> None:
        self.host, self.cluster, self.name = host, host.cluster, name
        self.folder, self.wire_path = host.folder_of(name), f"{host.path(name)}.hg"
        self.clone = host.cluster.folder / "work" / name
        self.clone.parent.mkdir(exist_ok=True)
        host.know(name)
        self._read = 0

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask HGitaly something about this project; gives its first answer."""
        return self.host.call(method, {"repository": self.host.named(self.name), **arguments})[0]

    def operate(self, method: str, **arguments: Any) -> str:
        """Ask it as the user for an operation; gives the changeset that it made or published."""
        answer = self.call(method, user=USER, **arguments)
        answer = answer.get("branchUpdate", answer)
        return str(answer.get("commitId") or answer.get("squashSha"))

    def edit(self, branch: bytes, file: bytes, content: bytes, **more: bytes) -> str:
        """What GitLab's editor does: a commit of one new file."""
        author = {"commitAuthorName": b"Ada", "commitAuthorEmail": b"ada@example.com", "commitMessage": b"edited"}
        about = {"repository": self.host.named(self.name), "user": USER, "branchName": branch, **author, **more}
        action = {"action": {"header": {"action": "CREATE", "filePath": file}}}
        requests = {"header": about}, action, {"action": {"content": content}}
        (answer,) = self.host.call(OPERATION + "UserCommitFiles", *requests)
        return str(answer["branchUpdate"]["commitId"])

    def hg(self, *words: str | Path, check: bool = True) -> str:
        """What the developer's `hg` prints, in the clone."""
        return self.cluster.hg("--cwd", self.clone, *EVOLVING, *words, check=check)

    def commit(self, file: str, text: str) -> str:
        (self.clone / file).write_text(text)
        self.hg("commit", "-q", "-A", "-m", text)
        return self.hg("log", "-r", ".", "-T", "{node}")

    def push(self, *options: str, check: bool = True) -> str:
        """Over HTTP, to Heptapod's WSGI application."""
        return self.hg("push", *options, self.host.url(self.name), check=check)

    def push_by_ssh(self, *options: str, check: bool = True) -> str:
        words = ("--config", f"ui.ssh={self.host.ssh(self.name)}", f"ssh://git@host/{self.name}")
        return self.hg("push", *options, *words, check=check)

    def begin(self, topic: str, file: str) -> str:
        """Push one changeset on a new topic, above the branch as the server has it."""
        self.hg("pull", "-q", self.host.url(self.name))
        self.hg("update", "-q", "-C", "max(public() and branch(default))")
        self.hg("topic", "-q", topic)
        node = self.commit(file, f"on {topic}")
        self.push("-r", ".")
        return node

    def state(self, root: str | Path) -> list[str]:
        """All changesets with phase, topic and bookmarks, all markers and all rows of the pushlog; nothing without a repository."""
        folder = Path(root, self.wire_path)
        if not (folder / ".hg" / "requires").exists():
            return []  # or what `hg` wrote below while a mirror took the repository away
        plain = ["-R", folder, "--hidden", *EVOLVING]
        shown = "".join(self.cluster.hg(*plain, *words, check=False) for words in (LOG, ["debugobsolete"]))
        rows = list[str]()
        with contextlib.suppress(sqlite3.OperationalError):  # it is taken away now
            file = f"file:{quote(str(folder / '.hg' / 'pushlog2.db'))}?mode=ro"
            with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
                rows = [str(row) for row in database.execute(PUSHES)] if shown else []
        return ["exists", *sorted(shown.splitlines()), *rows]

    def list_clone(self, url: str) -> list[str]:
        """What a developer gets from a server: all changesets that are served, with their topics."""
        place = self.cluster.folder / "clones" / str(len(list(self.cluster.folder.glob("clones/*"))))
        place.parent.mkdir(exist_ok=True)
        self.cluster.hg(*EVOLVING, "clone", "-q", "-U", url, place)
        return self.cluster.hg("-R", place, *EVOLVING, *LOG).splitlines()

    def settle(self, expected: Said) -> None:
        """Wait until the expected messages came and every mirror has what the master has; no other message did."""
        eventually(lambda: len(self._messages()) >= self._read + len(expected), f"announced: {expected}")
        master = self.state(self.cluster.master_root)
        for mirror in self.cluster.about["mirrors"]:
            try:
                eventually(partial(self._has, master, mirror["root"]), f"equal at {mirror['name']}")
            except AssertionError as error:
                error.add_note(str(set(self.state(mirror["root"])) ^ set(master)))
                raise
        said = self._messages()[self._read :]
        self._read += len(said)
        assert [(line["type"], tuple(sorted(line["data"].get("heads", ())))) for line in said] == expected
        for line in said:
            assert {push["user"] for push in line["data"].get("pushlog_pushes", ())} <= {"ada"}
        if self.folder.exists():
            self.cluster.hg("-R", self.folder, "verifypushlog", on_master=True)

    def _has(self, state: list[str], root: str) -> bool:
        with contextlib.suppress(sqlite3.OperationalError):  # the mirror is removing the repository just now
            return self.state(root) == state
        return False

    def _messages(self) -> list[dict[str, Any]]:
        tail = self.wire_path.rpartition("/")[2]
        return [line for line in self.cluster.lines() if line["data"]["repo_url"].endswith(tail)]


def changesets(*heads: str) -> Said:
    return [("changegroup.1", heads)]


def drafts(*heads: str) -> Said:
    """Above public ones: what they are in is said too."""
    return [*changesets(*heads), ("phase.1", ())]


def rewritten(*heads: str) -> Said:
    return [*changesets(*heads), ("obsolete.1", ())]


MARKERS: Said = [("obsolete.1", ())]
PHASES: Said = [("phase.1", ())]


class Story:
    """The operations, in their order: each gives the messages that it must cause."""

    def __init__(self, host: Heptapod) -> None:
        self.host, self.cluster = host, host.cluster
        self.one, self.two = Project(host, "one"), Project(host, "two")

    def create(self) -> Said:
        self.one.call(REPOSITORY + "CreateRepository")
        return [("newrepo.1", ())]

    def push_over_http(self) -> Said:
        self.cluster.hg(*EVOLVING, "clone", "-q", self.host.url("one"), self.one.clone)
        node = self.one.commit("a", "first")
        said = self.one.push()
        assert "recorded push in pushlog" in said
        assert "recorded push in outbox" in said
        return changesets(node)

    def push_over_ssh(self) -> Said:
        self.second = self.one.commit("b", "second")
        self.one.push_by_ssh()
        return changesets(self.second)

    def push_a_topic(self) -> Said:
        self.one.hg("topic", "-q", "work")
        self.one.commit("c", "one of work")
        node = self.one.commit("d", "two of work")
        self.one.push()
        return drafts(node)

    def amend(self) -> Said:
        (self.one.clone / "d").write_text("amended")
        self.one.hg("amend", "-q", "-m", "two of work, amended")
        self.one.push("-r", ".")
        return rewritten(self.one.hg("log", "-r", ".", "-T", "{node}"))

    def push_what_will_be_pruned(self) -> Said:
        node = self.one.commit("x", "to be pruned")
        self.one.push_by_ssh()
        return changesets(node)

    def prune(self) -> Said:
        self.one.hg("prune", "-q", "-r", ".")
        assert "1 new obsolescence markers" in self.one.push(check=False)
        return MARKERS

    def push_what_gitlab_refuses(self) -> Said:
        self.host.gitlab.refuses = "GitLab: this branch is protected"
        node = self.one.commit("y", "refused")
        assert "this branch is protected" in self.one.push(check=False)
        self.host.gitlab.refuses = None
        self.one.hg("--config", "extensions.strip=", "strip", "-q", "--no-backup", node)
        return NOTHING

    def edit_on_the_web(self) -> Said:
        return [*drafts(self.one.edit(DEFAULT, b"web", b"public")), *PHASES]

    def edit_on_a_topic(self) -> Said:
        self.edited = self.one.edit(b"topic/default/web", b"web2", b"draft", startBranchName=DEFAULT)
        return drafts(self.edited)

    def rebase(self) -> Said:
        self.rebased = self.one.operate(MERCURIAL + "Rebase", source=b"topic/default/work", destination=DEFAULT)
        return [*rewritten(self.rebased), *PHASES]

    def squash(self) -> Said:
        self.one.hg("pull", "-q", self.host.url("one"))
        base = self.one.hg("log", "-r", "max(public())", "-T", "{node}")
        about = {"author": USER, "commitMessage": b"squashed"}
        self.squashed = self.one.operate(OPERATION + "UserSquash", startSha=base, endSha=self.rebased, **about)
        return [*rewritten(self.squashed), *PHASES]

    def merge_what_fast_forwards(self) -> Said:
        assert self._merge(self.squashed) == self.squashed
        return PHASES

    def merge(self) -> Said:
        merged = self._merge(self.edited)
        assert merged != self.edited
        return [*changesets(merged), *PHASES]

    def fast_forward(self) -> Said:
        node = self.one.begin("forward", "b")
        self.one.settle(drafts(node))
        self.one.operate(OPERATION + "UserFFBranch", commitId=node, branch=DEFAULT)
        return PHASES

    def censor(self) -> Said:
        """The version of a file that was pushed over SSH and that the fast-forwarded changeset replaced."""
        about = {"changesetNodeId": self.second, "filePath": b"b", "tombstone": b"gone"}
        self.one.operate(MERCURIAL + "Censor", **about)
        for root in (self.cluster.master_root, *(mirror["root"] for mirror in self.cluster.about["mirrors"])):
            eventually(partial(self._is_censored, Path(root, self.one.wire_path)), f"censored at {root}")
        return NOTHING

    def publish(self) -> Said:
        node = self.one.begin("publish", "p")
        self.one.settle(drafts(node))
        about = {"hgPerms": "PUBLISH", "gitlabRevision": node.encode()}
        self.one.operate(MERCURIAL + "PublishChangeset", **about)
        return PHASES

    def delete_a_topic(self) -> Said:
        self.one.settle(drafts(self.one.begin("unwanted", "u")))
        self.one.operate(OPERATION + "UserDeleteBranch", branchName=b"topic/default/unwanted")
        return MARKERS

    def delete_a_branch(self) -> Said:
        """Mercurial's branches are closed, which is a changeset."""
        self.one.hg("pull", "-q", self.host.url("one"))
        self.one.hg("update", "-q", "-C", "max(public())")
        self.one.hg("branch", "-q", "stable")
        node = self.one.commit("s", "of a branch")
        self.one.push("--new-branch", "-r", ".")
        self.one.settle(changesets(node))
        self.one.operate(OPERATION + "UserDeleteBranch", branchName=b"branch/stable")
        self.one.hg("pull", "-q", self.host.url("one"))
        return [*drafts(self.one.hg("log", "-r", "max(closed())", "-T", "{node}")), *PHASES]

    def push_a_bookmark(self) -> Said:
        self.one.call(SETTINGS + "SetManagedConfig", heptapod={"allowBookmarks": True}, byLine="by Ada")
        self.one.hg("update", "-q", "-C", "max(public() and branch(default))")
        self.one.hg("bookmark", "mark")
        node = self.one.commit("k", "of a bookmark")
        self.one.push("-B", "mark")
        return changesets(node)

    def delete_a_bookmark(self) -> Said:
        self.one.operate(OPERATION + "UserDeleteBranch", branchName=b"mark")
        self.one.hg("bookmark", "-d", "mark")
        return NOTHING

    def push_a_tag(self) -> Said:
        self.one.hg("tag", "v1")
        self.one.push("-r", ".")
        return changesets(self.one.hg("log", "-r", ".", "-T", "{node}"))

    def fork(self) -> Said:
        bundle = self.one.host.call(REPOSITORY + "CreateBundle", {"repository": self.host.named("one")})
        pieces = [{"data": each["data"]} for each in bundle]
        self.host.call(REPOSITORY + "CreateRepositoryFromBundle", {"repository": self.host.named("two")}, *pieces)
        heads = self.one.hg("log", "-r", "head() and public()", "-T", "{node} ").split()
        self.two.settle([("newrepo.1", ()), *rewritten(*sorted(heads)), *PHASES])
        return NOTHING

    def push_from_the_fork(self) -> Said:
        node = self.two.edit(b"topic/default/forked", b"forked", b"of the fork", startBranchName=DEFAULT)
        self.two.settle(drafts(node))
        self.two.call(SETTINGS + "Push", remotePeer={"url": self.host.url("one")}, includeDrafts=True)
        return drafts(node)

    def remove(self) -> Said:
        """HGitaly renames the folder and deletes it; the relay announces that."""
        self.two.call(REPOSITORY + "RemoveRepository")
        self.two.settle(NOTHING)
        return NOTHING

    def _is_censored(self, folder: Path) -> bool:
        return "censored" in self.cluster.hg("-R", folder, "cat", "-r", self.second, "path:b", check=False)

    def _merge(self, node: str) -> str:
        about = {"hgPerms": "PUBLISH", "branch": DEFAULT, "message": b"merged"}
        return self.one.operate(MERCURIAL + "MergeBranch", commitId=node, **about)


OPERATIONS: list[Callable[[Story], Said]] = [act for name, act in vars(Story).items() if not name.startswith("_")]


@contextlib.contextmanager
def hosting(tmp_path: Path, relay: str) -> Iterator[Heptapod]:
    """A host as the page configures it, with more lines in `[relay]`."""
    cluster = Cluster(tmp_path)
    master, mirror = blocks_of_the_page(cluster)
    (tmp_path / "mirror.hgrc").write_text(mirror)
    types = 'types = ["changegroup.1", "newrepo.1", "obsolete.1", "phase.1"]'
    config = cluster.config.read_text().replace('type = "jsonlines"\n', f'type = "jsonlines"\n{types}\n')
    cluster.config.write_text(config.replace("[relay]\n", f"[relay]\n{relay}"))
    with cluster, Heptapod(cluster, master) as host:
        yield host


@pytest.mark.timeout(900)
def test_after_each_operation_of_a_real_hgitaly_all_mirrors_are_equal(tmp_path: Path) -> None:
    assert len(OPERATIONS) >= 20
    with hosting(tmp_path, 'scan = 0.5\nremoved = "announce"\nremoved-after = 2\n') as host:
        story = Story(host)
        for operate in OPERATIONS:
            try:
                story.one.settle(operate(story))
            except BaseException as error:
                error.add_note(f"in the operation {operate.__name__}")
                raise
        mirrors = host.cluster.about["mirrors"]
        clones = [story.one.list_clone(mirror["url"] + story.one.wire_path) for mirror in mirrors]
        assert any("topic:forked" in line for line in clones[0])
        assert clones == [story.one.list_clone(host.url("one"))] * 2
        for question in ("verify", "check"):
            done = host.cluster.cli(question)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_operator_announces_a_project_that_hgitaly_removed(tmp_path: Path) -> None:
    with hosting(tmp_path, "") as host:
        story = Story(host)
        story.one.settle(story.create())
        story.one.settle(story.push_over_http())
        story.two.call(REPOSITORY + "CreateRepository")
        story.two.settle([("newrepo.1", ())])
        story.one.call(REPOSITORY + "RemoveRepository")
        forgotten = host.cluster.cli("forget", story.one.wire_path, "--yes")
        assert forgotten.returncode == 0, forgotten.stdout + forgotten.stderr
        story.one.settle(NOTHING)
        assert story.two.state(host.cluster.about["mirrors"][0]["root"]), "the other project stays"
