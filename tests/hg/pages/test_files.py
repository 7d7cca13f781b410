# SPDX-License-Identifier: GPL-2.0-or-later
"""No page that we serve shows a file revision of a changeset that it hides, or says that there is one."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.hg.serving import watermark
from testing.builders.asked_pages import Answer, AskedPages, asked_pages
from testing.warm_hg import shared_hg, shared_python

pytestmark = pytest.mark.processes

ROLES = ("master", "mirror")
# What `vcsreplicator web` serves: without a role hgrc loads the pushlog alone.
SERVED = (*ROLES, None)
FILE_PAGES = ("raw-file", "file", "json-file", "annotate", "json-annotate", "raw-annotate", "diff", "raw-diff")
FILE_PAGES += ("comparison", "log", "json-log", "filelog", "json-filelog", "atom-log", "rss-log")
# What the hidden changesets have and no visible one.
SECRETS = (b"secretword", b"secretuser", b"secretdesc", b"obsoletedesc")


class History:
    """A repository with a secret changeset (1), a visible one beside it (2), an obsolete one (3) and its successor (4).

    3 and 4 have the same revision of `f`. 5 has no `f`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rc = folder.parent.parent / "history.hgrc"
        self.rc.write_text(
            "[ui]\nusername = anna\n[phases]\npublish = no\n[experimental]\nevolution = all\n[extensions]\nrebase =\n"
        )
        self.hg("init", str(folder), cwd=None)
        self.commit({"f": "one\n", "g": "one\n"}, "first")
        self.commit({"f": "secretword\n", "onlythere": "secretword\n"}, "secretdesc", user="secretuser")
        self.hg("phase", "--force", "--secret", "1")
        self.hg("update", "--clean", "0")
        self.commit({"g": "two\n"}, "beside")
        self.commit({"f": "one\ntwo\n"}, "obsoletedesc")
        self.hg("commit", "--date", "7 0", "--amend", "--message", "successor")
        self.hg("remove", "f")
        self.hg("commit", "--date", "7 0", "--message", "removed")
        self.hg("update", "--clean", "null")
        self._nodes = self.hg("log", "--hidden", "--rev", "all()", "--template", "{node}\n").split()
        self._manifests = [self.hg("manifest", "--hidden", "--debug", "--rev", node) for node in self._nodes]

    def hg(self, *words: str, cwd: Path | None = Path()) -> str:
        place = self.folder if cwd is not None else None
        environment = {**os.environ, "HGRCPATH": str(self.rc)}
        done = subprocess.run([shared_hg(), *words], cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commit(self, files: dict[str, str], message: str, user: str = "anna") -> None:
        for name, content in files.items():
            (self.folder / name).write_text(content)
        self.hg("commit", "--date", "7 0", "--addremove", "--user", user, "--message", message)

    def node(self, number: int) -> str:
        return self._nodes[number]

    def file_node(self, number: int, name: str = "f") -> str:
        return next(line.split()[0] for line in self._manifests[number].splitlines() if line.split()[-1] == name)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    root = tmp_path_factory.mktemp("pages") / "root"
    (root).mkdir()
    return History(root / "repo")


def hgrc(role: str | None, folder: Path) -> str:
    replication = "" if role is None else "vcsreplicator =\n"
    return (
        f"[extensions]\n*:required = yes\npushlog =\n{replication}[phases]\npublish = no\n[web]\nallow-archive = zip\n"
        f"[experimental]\nevolution = all\n[vcsreplicator]\nrole = {role}\nlog = sqlite://{folder}/log.db\n"
        f"source = hg://master\n[vcsreplicator-roots]\n{folder}/elsewhere = .\n"
    )


@pytest.fixture(scope="module", params=SERVED)
def pages(history: History, request: pytest.FixtureRequest) -> Iterator[AskedPages]:
    """The pages of the history, all of which a mirror has released."""
    root = history.folder.parent
    tip = history.node(5)
    (history.folder / ".hg" / "replicated-watermark").write_text(f"1 1 6 {tip} -\n")
    assert watermark.WATERMARK == b"replicated-watermark"
    with asked_pages(root, hgrc(request.param, root.parent)) as asked:
        yield asked


def leaks(answer: Answer) -> list[bytes]:
    return [word for word in SECRETS if word in answer.body]


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", FILE_PAGES)
def test_a_hidden_file_revision_is_refused_as_an_absent_one(pages: AskedPages, history: History, page: str) -> None:
    hidden = {"1": "99", history.file_node(1): "7" * 40, history.file_node(1)[:12]: "7" * 12, history.node(1): "7" * 40}
    for name, absent in hidden.items():
        asked, other = pages.get(f"/repo/{page}/{name}/f"), pages.get(f"/repo/{page}/{absent}/f")
        assert (name, asked.status, leaks(asked)) == (name, 404, [])
        assert stripped(asked, name) == stripped(other, absent)
        by_file = [
            pages.get("/repo", f"cmd={page.rpartition('-')[2]}&file=f&filenode={each}") for each in (name, absent)
        ]
        assert leaks(by_file[0]) == []
        assert stripped(by_file[0], name) == stripped(by_file[1], absent)


def stripped(answer: Answer, name: str) -> tuple[int, bytes]:
    """An answer without what was asked, and without what no two pages share."""
    body = re.sub(rb'nonce="[^"]*"|<updated>[^<]*|<pubDate>[^<]*', b"", answer.body)
    before = "" if len(name) > 5 else "(?:(?<=['/=])|(?<=found: ))"
    return answer.status, re.sub(rf"{before}\b({name}|{name[:12]})\b".encode(), b"NAME", body)


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", [page for page in FILE_PAGES if page != "comparison"])
def test_a_file_that_only_a_hidden_changeset_has_is_absent(pages: AskedPages, page: str) -> None:
    """Mercurial looks for the newest revision before a changeset without the file."""
    for number in (0, 2, 4):
        asked, other = pages.get(f"/repo/{page}/{number}/onlythere"), pages.get(f"/repo/{page}/{number}/absent")
        assert (leaks(asked), stripped(asked, "onlythere")) == ([], stripped(other, "absent"))


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", FILE_PAGES)
def test_a_file_revision_that_a_visible_changeset_shares_is_shown(
    pages: AskedPages, history: History, page: str
) -> None:
    for name in ("4", history.node(4), history.file_node(3)):
        if page == "comparison" and name == history.file_node(3):
            continue  # takes changesets alone
        asked = pages.get(f"/repo/{page}/{name}/f")
        assert (name, asked.status, leaks(asked)) == (name, 200, [])
        if page in ("json-file", "json-annotate"):
            assert history.node(4)[:12].encode() in asked.body


@pytest.mark.sample(3)
@pytest.mark.parametrize("style", ["", "json-", "atom-"])
def test_the_history_of_lines_passes_over_hidden_changesets(pages: AskedPages, style: str) -> None:
    for query in ("linerange=1:1&descend=1&patch=1", "linerange=1:1&patch=1", "patch=1&revcount=9"):
        for number in (0, 4):
            asked = pages.get(f"/repo/{style}log/{number}/f", query)
            assert (number, query, asked.status, leaks(asked), asked.failure) == (number, query, 200, [], None)


PROGRAM = """
import sys
from mercurial import error
from mercurial.ui import ui
from pushlog.versions import factory, initialize
from hgext.vcsreplicator.hg.pages import files
initialize()
files.install()
repo = factory.repository(ui.load(), sys.argv[1].encode())
print(repo.unfiltered().filectx(b"f", fileid=1).user().decode())
try:
    print(repo.filtered(b"served").filectx(b"f", fileid=1).user().decode())
except error.RepoLookupError as problem:
    print(problem.args[0].decode())
"""


def test_no_way_to_a_file_revision_leads_to_a_hidden_changeset(history: History) -> None:
    """Pages that Mercurial may get one day are guarded too."""
    program = [shared_python(), "-c", PROGRAM, str(history.folder)]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "HGRCPATH": str(history.rc)})
    assert done.stdout.splitlines() == ["secretuser", "unknown revision '1'"], done.stderr


@pytest.mark.sample(3)
@pytest.mark.parametrize("style", ["", "raw-", "json-"])
def test_the_children_of_a_file_revision_are_the_visible_ones(pages: AskedPages, style: str) -> None:
    for page in ("file", "annotate", "rev", "diff"):
        asked = pages.get(f"/repo/{style}{page}/0/f" if page != "rev" else f"/repo/{style}rev/0")
        assert (asked.status, leaks(asked)) == (200, [])


NAMING = ("rev", "raw-rev", "json-rev", "changeset", "log", "shortlog", "changelog", "graph", "json-graph", "manifest")
NAMING += ("json-manifest", "file", "raw-file", "archive", "diff", "comparison", "annotate")


def address(page: str, name: str) -> str:
    """The path of a page about a changeset of this name."""
    if page == "archive":
        return f"/repo/archive/{name}.zip"
    return f"/repo/{page}/{name}" + ("/f" if page in FILE_PAGES else "")


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", NAMING)
def test_a_hidden_changeset_has_the_words_of_an_absent_one(pages: AskedPages, history: History, page: str) -> None:
    for name, absent in (("1", "99"), (history.node(1), "7" * 40), (history.node(3)[:12], "7" * 12), ("3", "99")):
        asked, other = (pages.get(address(page, each)) for each in (name, absent))
        assert (name, asked.status) == (name, 404)
        assert stripped(asked, name) == stripped(other, absent)


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", ["json-pushes", "pushlog", "pushloghtml"])
def test_the_pushlog_has_the_words_of_absence_for_secrets(pages: AskedPages, history: History, command: str) -> None:
    for parameter in ("changeset", "fromchange", "tochange"):
        numbers = () if command == "pushloghtml" else (("1", "99"),)  # its page has other numbers
        for name, absent in (*numbers, (history.node(1), "7" * 40)):
            asked, other = (pages.get(f"/repo/{command}", f"{parameter}={each}") for each in (name, absent))
            assert stripped(asked, name) == stripped(other, absent)


def test_the_wire_has_the_words_of_absence_for_hidden_changesets(pages: AskedPages, history: History) -> None:
    for number in (1, 3):
        name = history.node(number)
        for query in (
            "cmd=lookup&key={}",
            "cmd=known&nodes={}",
            "cmd=branches&nodes={}",
            "cmd=between&pairs={0}-{0}",
            "cmd=changegroup&roots={}",
            "cmd=changegroupsubset&bases={0}&heads={0}",
            "cmd=getbundle&heads={}&common=" + "0" * 40,
            "cmd=batch&cmds=lookup+key%3D{}",
        ):
            asked, other = (pages.get("/repo", query.format(each)) for each in (name, "7" * 40))
            assert (query, stripped(asked, name)) == (query, stripped(other, "7" * 40))
            assert asked.failure == other.failure or (asked.failure and other.failure)
    for namespace in ("phases", "bookmarks"):
        assert history.node(1).encode() not in pages.get("/repo", f"cmd=listkeys&namespace={namespace}").body


def test_a_prefix_that_a_hidden_changeset_shares_is_not_ambiguous(pages: AskedPages, history: History) -> None:
    visible = [history.node(number) for number in (0, 2, 4, 5)]
    hidden = [history.node(number) for number in (1, 3)]
    for node in visible:
        length = next(n for n in range(1, 41) if sum(other[:n] == node[:n] for other in visible) == 1)
        length = max(length, next(n for n in range(1, 41) if not node[:n].isdigit()))
        assert pages.get(f"/repo/rev/{node[:length]}").status == 200, hidden


def test_no_page_shows_the_working_directory(pages: AskedPages) -> None:
    for name in ("f" * 40, "2147483647"):
        for page in NAMING:
            assert (page, name, pages.get(address(page, name)).status) == (page, name, 404)
    assert pages.alarms() == []


CAPABILITIES = """
import sys
from pushlog.versions import initialize
initialize()
from mercurial.hgweb import hgweb
environment = {
    "wsgi.url_scheme": "http", "wsgi.input": None, "SERVER_NAME": "x", "SERVER_PORT": "80", "SCRIPT_NAME": "",
    "PATH_INFO": "/", "QUERY_STRING": "cmd=capabilities", "REQUEST_METHOD": "GET",
}
print(*b"".join(hgweb(sys.argv[1].encode())(environment, lambda _status, _headers: None)).decode().split())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("line", "are_posted"), [("", True), ("httppostargs = no", False)])
def test_every_server_with_the_extension_takes_arguments_in_a_body(
    history: History, tmp_path: Path, role: str, line: str, are_posted: bool
) -> None:
    (tmp_path / "hgrc").write_text(hgrc(role, tmp_path) + f"[experimental]\n{line}\n")
    program = [shared_python(), "-c", CAPABILITIES, str(history.folder)]
    environment = {**os.environ, "HGRCPATH": str(tmp_path / "hgrc")}
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert ("httppostargs" in done.stdout.split()) == are_posted, done.stderr
    assert "batch" in done.stdout.split()


def test_a_tag_at_the_working_directory_is_not_there(tmp_path: Path) -> None:
    (folder := tmp_path / "root" / "repo").mkdir(parents=True)
    (folder / ".hgtags").write_text(f"{'f' * 40} nowhere\n")
    for words in (("init",), ("commit", "--addremove", "--user", "anna", "--message", "tags")):
        subprocess.run([shared_hg(), *words], cwd=folder, env={**os.environ, "HGRCPATH": os.devnull}, check=True)
    with asked_pages(folder.parent, "[extensions]\n*:required = yes\npushlog =\n") as pages:
        for page in ("tags", "summary?style=gitweb", "json-tags", "atom-tags", "log?rev=tag()"):
            path, _, query = page.partition("?")
            answer = pages.get(f"/repo/{path}", query)
            assert (page, answer.status, pages.alarms(), b">nowhere" in answer.body) == (page, 200, [], False)
