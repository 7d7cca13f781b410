# SPDX-License-Identifier: GPL-2.0-or-later
"""What gets a row in the pushlog, and whose row it is, by the server's configuration."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

ALL = "push serve pull unbundle commit merge rebase"
HGRC = "[extensions]\n*:required = yes\npushlog =\nrebase =\n[ui]\nusername = author\n[experimental]\nevolution = all\n"


class Server:
    """A repository `server` with a working copy of its own, and a clone `other` with one more changeset."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"USER": "alice"}
        (folder / "hgrc").write_text(HGRC)
        self.hg("init", "server")

    def configure(self, *lines: str) -> None:
        with (self.folder / "hgrc").open("a") as hgrc:
            hgrc.write("[pushlog]\n" + "".join(f"{line}\n" for line in lines))

    def hg(self, *arguments: str, check: bool = True) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("USER", "REMOTE_USER")}
        done = subprocess.run(
            [shared_hg(), *arguments],
            cwd=self.folder,
            env={**environment, "HGRCPATH": str(self.folder / "hgrc"), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout
        return done.stdout

    def commit(self, repository: str, text: str, *, check: bool = True) -> str:
        (self.folder / repository / text).write_text(text)
        return self.hg("--cwd", repository, "commit", "-A", "-m", text, check=check)

    def rows(self) -> list[str]:
        """Of each changeset its push, the user of the push, and its description."""
        return self.hg("-R", "server", "log", "-r", "all()", "-T", "{pushid} {pushuser} {desc}\n").splitlines()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server(tmp_path)
    server.commit("server", "base")
    server.hg("clone", "-q", "server", "other")
    server.commit("other", "theirs")
    return server


def test_only_pushes_get_a_row_unless_the_server_records_more(server: Server) -> None:
    server.hg("--cwd", "server", "pull", "-q", "../other")
    server.commit("server", "more")
    assert server.rows() == ["  base", "  theirs", "  more"]


def test_commits_merges_and_rebases_get_rows_on_demand(server: Server) -> None:
    server.configure(f"record = {ALL}")
    assert "recorded push in pushlog" in server.commit("server", "ours")
    server.environment["USER"] = "bob"
    assert "recorded push in pushlog" in server.hg("--cwd", "server", "pull", "../other")
    server.hg("--cwd", "server", "merge", "-q")
    server.hg("--cwd", "server", "commit", "-q", "-m", "merged")
    server.environment["USER"] = "eve"
    server.hg("--cwd", "server", "update", "-q", "0")
    for text in ("first", "second"):
        server.commit("server", text)
    together = ("--config", "rebase.singletransaction=yes")
    server.hg("--cwd", "server", "rebase", "-q", "-b", ".", "-d", "desc(merged)", *together)
    assert server.rows()[1:] == [
        *("1 alice ours", "2 bob theirs", "3 bob merged"),
        *("6 eve first", "6 eve second"),
    ]
    assert server.hg("-R", "server", "verifypushlog", "--since", "1").startswith("pushlog contains all")


@pytest.mark.parametrize(("kind", "recorded"), [("merge", "merged"), ("commit", "ours"), ("rebase", "theirs")])
def test_each_way_to_make_a_changeset_is_recorded_alone(server: Server, kind: str, recorded: str) -> None:
    server.configure(f"record = {kind}")
    server.commit("server", "ours")
    server.hg("--cwd", "server", "pull", "-q", "../other")
    server.hg("--cwd", "server", "merge", "-q")
    server.hg("--cwd", "server", "commit", "-q", "-m", "merged")
    server.hg("--cwd", "server", "rebase", "-q", "-r", "desc(theirs)", "-d", "null", "--keep")
    rows = [row.split(" ", 2) for row in server.rows()]
    assert [desc for number, _user, desc in rows if number] == [recorded]


def test_a_fork_by_bundle_is_the_push_of_who_made_it(server: Server) -> None:
    server.configure("record = push serve unbundle")
    server.hg("-R", "other", "bundle", "-q", "--all", "all.hg")
    server.hg("init", "fork")
    server.hg("-R", "fork", "unbundle", "-q", "all.hg")
    assert server.hg("-R", "fork", "log", "-T", "{pushid} {pushuser} {desc}\n") == "1 alice theirs\n1 alice base\n"
    assert "pushlog contains all 2 changesets across 1 pushes" in server.hg("-R", "fork", "verifypushlog")


@pytest.mark.parametrize(("record", "pushes"), [("push serve", ["theirs", "theirs"]), (ALL, ["puller"])])
def test_a_pull_brings_the_rows_of_its_server_or_is_a_push_itself(
    server: Server, record: str, pushes: list[str]
) -> None:
    server.environment["USER"] = "theirs"
    for text in ("one", "two"):
        server.hg("-R", "other", "push", "-q", "server")
        server.commit("other", text)
    ssh = server.folder / "ssh"
    ssh.write_text('#!/bin/sh\nshift\neval "exec $*"\n')
    ssh.chmod(0o755)
    server.configure(f"record = {record}")
    server.environment["USER"] = "puller"
    server.hg("init", "copy")
    source = ("--config", f"ui.ssh={ssh}", "--config", f"ui.remotecmd={shared_hg()}", f"ssh://x/{server.folder}/server")
    for _again in range(2):
        server.hg("-R", "copy", "pull", "-q", *source)
    assert server.hg("-R", "copy", "log", "-r", "pushhead()", "-T", "{pushuser}\n").split() == pushes


def test_many_commits_of_one_transaction_are_one_row(server: Server) -> None:
    server.configure("record = commit")
    for text in ("one", "two", "three"):
        server.commit("other", text)
    server.hg("-R", "other", "export", "-q", "-r", "1:", "-o", str(server.folder / "%n.patch"))
    patches = sorted(str(patch) for patch in server.folder.glob("*.patch"))
    said = server.hg("--cwd", "server", "import", *patches)
    assert said.count("recorded push in pushlog") == 1
    assert {row.split(" ")[0] for row in server.rows()[1:]} == {"1"}


def test_a_commit_without_a_user_is_refused_where_it_would_get_a_row(server: Server) -> None:
    server.configure("record = commit")
    del server.environment["USER"]
    said = server.commit("server", "ours", check=False)
    assert "abort: authenticated user not found; refusing to write into pushlog" in said
    assert server.rows() == ["  base"]


def test_the_first_variable_that_is_set_names_the_pusher(server: Server) -> None:
    server.configure("user-variables = FRONT_END_USER REMOTE_USER", "remoteuserprefix = web", "userprefix = shell")
    for environment, wanted in (
        ({"FRONT_END_USER": "carol", "REMOTE_USER": "token", "USER": "www"}, "web:carol"),
        ({"FRONT_END_USER": "", "REMOTE_USER": "dave", "USER": "www"}, "web:dave"),
    ):
        server.environment = environment
        server.commit("other", wanted.partition(":")[2])
        server.hg("-R", "other", "push", "-q", "server")
        assert server.rows()[-1].split()[1] == wanted
    server.environment = {"USER": "www"}
    server.commit("other", "nobody")
    said = server.hg("-R", "other", "push", "server", check=False)
    assert "authenticated user not found; refusing to write into pushlog" in said
    assert "(the server's environment has neither FRONT_END_USER nor REMOTE_USER)" in said


def test_an_unknown_word_refuses_the_change_and_is_named(server: Server) -> None:
    server.configure("record = push comit")
    said = server.hg("-R", "other", "push", "server", check=False)
    assert re.search(r"config: \[pushlog\] record: expected some of push, .*, got \"comit\"", said)
