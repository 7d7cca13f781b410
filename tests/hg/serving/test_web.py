# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder of repositories over HTTP: new ones are served at once, and a mirror's own folder never is."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mercurial import templater

from hgext.vcsreplicator.hg.serving import watermark
from hgext.vcsreplicator.mirror.supervision import boot
from hgext.vcsreplicator.words.path import is_taken_by_pages
from testing.builders.mirror.author import Author
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

# hgweb's settings are for the whole process, so it has one of its own.
PROGRAM = """
import sys
from wsgiref.util import setup_testing_defaults
from hgext.vcsreplicator.hg.serving.web import application
from hgext.vcsreplicator.service import configure_logging
configure_logging("web")
web = application(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    path, _, query = line.strip().partition("?")
    environ = {"PATH_INFO": path, "QUERY_STRING": query or "style=raw", "REMOTE_ADDR": "127.0.0.1"}
    setup_testing_defaults(environ)
    answer, written = [], []
    body = b"".join(web(environ, lambda status, headers, failure=None: answer.append((status, headers)) or written.append))
    status, headers = answer[-1]
    shown = dict(headers)["Content-Type"] if "show=type" in query else sorted(body.decode().split())
    print(status.split()[0], shown, flush=True)
"""

# An extension that notes each time that a file of this name is opened.
COUNTING = """
import os, sys
opened = os.open("{opened}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(
    lambda event, given: event == "open" and str(given[0]).endswith("/{file}") and os.write(opened, b"opened ")
)
"""

Ask = Callable[[str], str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("root/known", "root/~vcsreplicator/staging/half-made"):
        subprocess.run([shared_hg(), "init", str(tmp_path / path)], check=True)
    return tmp_path / "root"


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """Templates of the site, of a content type of their own; give it with `ask`."""
    found = tmp_path / "templates"
    shutil.copytree(os.fsdecode(templater.templatedir()), found)
    plain = found / "paper" / "map"
    plain.write_text(re.sub("(?m)^mimetype = .*", "mimetype = 'text/strange; charset={encoding}'", plain.read_text()))
    return found


@pytest.fixture
def ask(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Status and words of a page of the folder, which is scanned again for a reason only."""
    site = f"templates = {tmp_path}/templates\n" if (tmp_path / "templates").exists() else ""
    (tmp_path / "scan.rc").write_text("[web]\nrefreshinterval = 1000000\n" + site)
    monkeypatch.setenv("HGRCPATH", os.pathsep.join((os.environ.get("HGRCPATH", ""), str(tmp_path / "scan.rc"))))
    program = [str(Path(shared_hg()).with_name("python")), "-c", PROGRAM, str(root)]
    with (
        (root.parent / "log").open("w") as log,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as web,
    ):
        assert web.stdin is not None
        assert web.stdout is not None
        assert web.stdout.readline() == "ready\n"

        def page(path: str) -> str:
            print(path, file=web.stdin, flush=True)
            return web.stdout.readline().strip()  # type: ignore[union-attr]

        yield page
        web.kill()  # a test that failed may have left it waiting


@pytest.fixture
def mirror(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Author:
    """A mirror's repository with two drafts, of which the first is released; the other repository is not a mirror's."""
    author = Author(root, "mirror")
    for _ in range(2):
        author.push(phase=1, parent="0" * 40)
    tip = author.repo.changelog.node(0).hex()
    watermark.write_watermark(author.repo, watermark.Watermark(seq=1, length=1, tip=tip, push_id=1))
    (root / "mirror" / ".hg" / "hgrc").write_text("[vcsreplicator]\nrole = mirror\n[phases]\npublish = no\n")
    (tmp_path / "hgrc").write_text(
        f"[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = master\nlog = sqlite://{tmp_path}/log.db\n"
        f"source = hg://master\n[vcsreplicator-roots]\n{tmp_path}/elsewhere = .\n"
    )
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    return author


def test_the_roots_of_drafts_that_are_not_released_are_not_listed(mirror: Author, ask: Ask) -> None:
    released, behind = (mirror.repo.changelog.node(number).hex() for number in range(2))
    assert ask("/known?cmd=listkeys&namespace=phases").startswith("200 ")
    answer = ask("/mirror?cmd=listkeys&namespace=phases")
    assert released in answer
    assert behind not in answer


def test_a_repository_that_a_power_cut_took_is_refused_and_not_missing(ask: Ask, root: Path) -> None:
    boot.write(str(root), boot.read_boot(), {"id": boot.Lacking("project/lost", "inc", 5)})
    asked = {path: ask(path)[:3] for path in ("/project/lost", "/project/lost/json-pushes", "/project/never", "/known")}
    assert asked == {
        "/project/lost": "503",
        "/project/lost/json-pushes": "503",
        "/project/never": "404",
        "/known": "200",
    }


def test_a_repository_in_one_that_a_power_cut_took_a_part_of_is_served(ask: Ask, root: Path) -> None:
    subprocess.run([shared_hg(), "init", str(root / "known/inner")], check=True)
    boot.write(str(root), boot.read_boot(), {"id": boot.Lacking("known", "inc", 5)})
    assert ask("/known/inner/log")[:3] == "200"


def test_a_path_of_many_folders_is_looked_at_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING.format(file=boot.FILE, opened=tmp_path / "opened"))
    (tmp_path / "hgrc").write_text(f"[extensions]\ncounting = {tmp_path}/counting.py\n")
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    assert request.getfixturevalue("ask")("/static/" + "a/" * 3000)[:3] == "404"
    opened = (tmp_path / "opened").read_text().split()
    assert 0 < len(opened) < 2000


def test_the_index_names_the_repositories_and_not_the_workshop(ask: Ask) -> None:
    assert ask("/") == "200 ['/known/']"


def test_what_a_client_of_mercurial_asks_a_repository_needs_no_templates(templates: Path, ask: Ask, root: Path) -> None:
    assert ask("/known?cmd=known&nodes=") == "200 []"
    templates.rename(root.parent / "elsewhere")
    assert ask("/known?cmd=known&nodes=") == "200 []"


def test_the_folders_own_pages_have_the_content_type_of_their_templates(templates: Path, ask: Ask) -> None:
    for _ in range(2):
        assert ask("/?show=type").startswith("200 text/strange; charset=")
        assert ask("/missing?show=type").startswith("404 text/strange; charset=")
        assert ask("/missing?show=type&style=raw").startswith("404 text/plain; charset=")


@pytest.mark.parametrize("style", ["coal", "gitweb", "json", "monoblue", "paper", "raw", "spartan"])
def test_a_repository_that_is_not_there_is_missing_in_each_style(ask: Ask, style: str) -> None:
    assert ask(f"/missing?style={style}").startswith("404 ")
    assert ask(f"/missing?cmd=capabilities&style={style}").startswith("404 ")


def test_what_is_being_made_is_not_found(ask: Ask) -> None:
    assert ask("/~vcsreplicator/staging/half-made").startswith("404 ")


def test_a_repository_is_found_by_the_first_request_after_its_creation(ask: Ask, root: Path) -> None:
    assert ask("/folder/new").startswith("404 ")
    subprocess.run([shared_hg(), "init", str(root / "folder" / "new")], check=True)
    assert ask("/folder/new").startswith("200 ")


def test_a_nested_repository_is_found_by_the_first_request(ask: Ask, root: Path) -> None:
    assert ask("/known/below").startswith("4")
    subprocess.run([shared_hg(), "init", str(root / "known" / "below")], check=True)
    assert ask("/known/below").startswith("200 ")
    assert ask("/known/below/deeper").startswith("4")


def test_a_repository_of_every_name_but_static_is_served(ask: Ask, root: Path) -> None:
    """The names of hgweb's pages and of our services; `words.path.is_taken_by_pages` has the one that is not served."""
    names = ("index", "rev", "json-pushes", "metrics", "health", "group/static", "group/index", "Static")
    for name in (*names, "static/one"):
        subprocess.run([shared_hg(), "init", str(root / name)], check=True)
        is_served = ask(f"/{name}/json-log").startswith("200 ")
        assert (name, is_served) == (name, not is_taken_by_pages(name))


def test_a_deleted_repository_is_not_served(ask: Ask, root: Path) -> None:
    subprocess.run([shared_hg(), "init", str(root / ".vcsreplicator" / "deleted" / "one")], check=True)
    assert ask("/.vcsreplicator/deleted/one/json-log").startswith("404 ")
    (root / "known").rename(root / "moved")  # so the folder is scanned
    assert ask("/known").startswith("404 ")
    assert ask("/.vcsreplicator/deleted/one/json-log").startswith("404 ")
    assert "deleted" not in ask("/")


def test_a_repository_of_two_names_has_both_without_a_scan(ask: Ask, root: Path) -> None:
    (root / "alias").symlink_to("known")
    listed = ask("/")
    subprocess.run([shared_hg(), "init", str(root / "new")], check=True)
    for path in ("/alias", "/known", "/alias/json-log", "/known/json-log", "/alias?cmd=heads"):
        assert (path, ask(path)[:4]) == (path, "200 ")
    assert ask("/") == listed


def test_a_link_inside_a_repository_leads_to_no_other(ask: Ask, root: Path) -> None:
    subprocess.run([shared_hg(), "init", str(root.parent / "outside")], check=True)
    (root / "linked").symlink_to(root.parent / "outside")
    (root / "known" / "linked").symlink_to(root.parent / "outside")
    assert ask("/linked").startswith("200 ")
    assert ask("/known/linked").startswith("4")


def test_a_repository_that_is_gone_is_not_found_and_no_folder_is_told(ask: Ask, root: Path) -> None:
    assert ask("/known").startswith("200 ")
    (root / "known").rename(root / "elsewhere")
    assert ask("/known").startswith("404 ")
    assert str(root) not in ask("/known/json-pushes")


SENSELESS = (
    "cmd=batch",
    "cmd=batch&cmds=x",
    "cmd=getbundle&heads=zz",
    "cmd=known&nodes=zz",
    "cmd=between&pairs=a",
    "cmd=changegroup&roots=12",
    "cmd=listkeys",
    "cmd=get_cached_bundle_inline&path=../../x",
    "style=%00",
)


def test_a_question_without_sense_is_400_and_the_next_goes_on(ask: Ask) -> None:
    for question in SENSELESS:
        assert (question, ask(f"/known?{question}")) == (question, "400 ['Bad', 'Request']")
        assert ask("/known?cmd=heads").startswith("200 ")


def test_the_feed_has_the_address_that_the_operator_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\n[web]\nbaseurl = https://hg.example.com/hg\n"
    )
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "hgrc"))
    ask: Ask = request.getfixturevalue("ask")
    assert "<id>https://hg.example.com/hg/known/pushlog</id>" in ask("/known/atom-pushlog")
    assert 'href="/hg/known/pushlogstyle"' in ask("/known/pushloghtml?style=paper")


def test_a_repository_that_cannot_be_opened_is_no_mistake_of_the_client(ask: Ask, root: Path) -> None:
    hgrc = root / "known" / ".hg" / "hgrc"
    hgrc.write_text("no section\n")
    for question in ("", "/json-pushes", "?cmd=heads"):
        answer = ask(f"/known{question}")
        assert (question, answer[:4]) == (question, "500 ")
        assert str(root) not in answer
    line = json.loads((root.parent / "log").read_text().splitlines()[-1])
    assert (line["level"], line["path"]) == ("error", "/known")
    assert f"{hgrc}:1" in line["reason"]
    hgrc.unlink()
    assert ask("/known").startswith("200 ")


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_of_a_repository_holds_up_no_page(ask: Ask, root: Path) -> None:
    for number, name in enumerate(("requires", "store/00changelog.i", "cache/tags2-served")):
        shutil.copytree(root / "known", root / f"known{number}")
        file = root / f"known{number}/.hg" / name
        file.unlink(missing_ok=True)
        file.parent.mkdir(exist_ok=True)
        os.mkfifo(file)
        assert ask(f"/known{number}").startswith("500 "), name
        assert f"Not a file: '{file}'" in (root.parent / "log").read_text()


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_the_history_of_a_file_holds_up_no_page(ask: Ask, root: Path) -> None:
    known = root / "known"
    (known / "f").write_text("content\n")
    subprocess.run([shared_hg(), "commit", "-qAm", "f", "-u", "dana"], cwd=known, check=True)
    assert ask("/known/raw-file/tip/f") == "200 ['content']"
    history = known / ".hg/store/data/f.i"
    history.unlink()
    os.mkfifo(history)
    assert ask("/known/raw-file/tip/f").startswith("500 ")
    assert f"Not a file: '{history}'" in (root.parent / "log").read_text()


def test_a_file_that_a_link_in_a_repository_names_is_not_given_away(ask: Ask, root: Path) -> None:
    (root / "secret").mkdir()
    for name in ("key", "key.i"):
        (root / "secret" / name).write_text("password\n")
    (root / "known/.hg/store/fncache").write_text("data/key.i\n")
    for link, target, query in (
        ("clonebundles.manifest", "secret/key", "cmd=clonebundles"),
        ("bundle-cache", "secret", "cmd=get_cached_bundle_inline&path=key"),
        ("store/data", "secret", "cmd=stream_out"),  # begins before the file is opened, and ends with the connection
    ):
        (root / "known/.hg" / link).symlink_to(root / target)
        assert not ask(f"/known?{query}").startswith("200 "), link
        (root / "known/.hg" / link).unlink()


@pytest.mark.usefixtures("mirror")
def test_an_archive_of_a_master_fetches_no_subrepository(ask: Ask, root: Path) -> None:
    def run(where: str, *arguments: str) -> None:
        plain = {**os.environ, "HGRCPATH": "", "HGUSER": "dana"}
        subprocess.run([shared_hg(), *arguments], cwd=root / where, check=True, env=plain)

    (root / "known/.hgsub").write_text(f"inner = {root}/elsewhere\n")
    run(".", "init", "known/inner")
    (root / "known/inner/file").write_text("private\n")
    run("known/inner", "commit", "-qAm", "private")
    run("known", "commit", "-qAm", "public")
    (root / "known/inner").rename(root / "elsewhere")
    (root / "known/.hg/hgrc").write_text("[web]\narchivesubrepos = yes\nallow-archive = zip\n")
    assert ask("/known/archive/tip.zip").startswith("200 ")
    assert not (root / "known/inner").exists()


@pytest.fixture
def large(tmp_path: Path, root: Path) -> Path:
    """A repository with a folder of large files."""
    (tmp_path / "key").write_text("password\n")
    (root / "known/.hg/largefiles").mkdir()
    (root / "known/.hg/largefiles" / ("a" * 40)).write_text("large\n")
    return root / "known/.hg"


@pytest.mark.usefixtures("large", "with_large_files")
def test_large_files_are_named_by_their_hashes_alone(ask: Ask) -> None:
    assert ask(f"/known?cmd=getlfile&sha={'a' * 40}") == "200 ['6', 'large']"
    assert ask("/known?cmd=getlfile&sha=../../../../key") == "400 ['Bad', 'Request']"


@pytest.mark.usefixtures("with_large_files")
def test_no_large_file_is_given_away_that_a_link_names(ask: Ask, large: Path) -> None:
    (large / "largefiles" / ("b" * 40)).symlink_to(large.parents[2] / "key")
    assert ask(f"/known?cmd=getlfile&sha={'b' * 40}").startswith("500 ")


@pytest.fixture
def with_large_files(mirror: Author, tmp_path: Path) -> None:
    """The configuration of a master that loads largefiles."""
    with (tmp_path / "hgrc").open("a") as hgrc:
        hgrc.write("[extensions]\nlargefiles =\n")


def test_a_repository_names_no_extension_that_a_server_loads(ask: Ask, large: Path) -> None:
    with (large / "requires").open("a") as requires:
        requires.write("largefiles\n")
    assert ask(f"/known?cmd=getlfile&sha={'a' * 40}").startswith("500 ")
    assert "requires features unknown to this Mercurial: largefiles" in (large.parents[2] / "log").read_text()


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_the_file_of_a_power_cut_holds_up_no_page(ask: Ask, root: Path) -> None:
    os.mkfifo(root / boot.FILE)
    assert ask("/never").startswith("503 ")
    assert ask("/known").startswith("200 ")


@pytest.fixture
def loaded(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What exists once an extension ran that an account of the group names in a file of a user who is trusted."""
    found, user = tmp_path / "loaded", 54321 if os.geteuid() == 0 else os.geteuid()
    (tmp_path / "evil.py").write_text(f"open({str(found)!r}, 'w')\n")
    (tmp_path / "site").write_text(f"[trusted]\nusers = {user}\n")
    hgrc = root / "known/.hg/hgrc"
    hgrc.write_text(f"[extensions]\nevil = {tmp_path}/evil.py\n")
    os.chown(hgrc, user, -1)
    for path in (hgrc, hgrc.parent):
        path.chmod(path.stat().st_mode | 0o020)
    monkeypatch.setenv("HGRCPATH", str(tmp_path / "site"))
    return found


def test_a_web_server_runs_no_code_of_a_renamed_file(loaded: Path, ask: Ask) -> None:
    assert ask("/known?cmd=known&nodes=") == "200 []"
    assert not loaded.exists()


@pytest.fixture
def piped(root: Path) -> Path:
    """A folder with repositories that each have a pipe where Mercurial reads a file, or an hgrc that includes one."""
    folder = root / "group"
    for name, file in (("settings", "hgrc"), ("lost", "requires"), ("including", "hgrc")):
        control = folder / name / ".hg"
        subprocess.run([shared_hg(), "init", str(control.parent)], check=True)
        (control / file).unlink(missing_ok=True)
        os.mkfifo(folder / "pipe" if name == "including" else control / file)
    (folder / "including/.hg/hgrc").write_text(f"%include {folder}/pipe\n")
    return folder


@pytest.mark.timeout(30)
def test_a_pipe_in_a_repository_holds_up_no_list_of_repositories(piped: Path, ask: Ask, root: Path) -> None:
    assert ask("/") == "200 ['/known/']"
    assert ask("/group/including").startswith("500 ")
    said = (root.parent / "log").read_text()
    assert f"Not a file: '{piped}/settings/.hg/hgrc'" in said
    assert f"cannot include {piped}/pipe (Not a file)" in said


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize(
    "name",
    [
        "requires",
        "store/requires",
        "store/00changelog.i",
        "store/pushlog.log",
        "store/pushlog-strip.log",
        "replicated-data",
    ],
)
@pytest.mark.parametrize("content", [None, "damaged\n" * 20, '{"nodes": 5}'], ids=["folder", "damaged", "other"])
def test_a_repository_with_an_unreadable_file_gives_no_traceback(
    ask: Ask, root: Path, name: str, content: str | None
) -> None:
    file = root / "known/.hg" / name
    if content is None:
        file.unlink(missing_ok=True)
        file.mkdir()
    else:
        file.write_text(content)
    for question in ("", "/json-pushes", "/pushloghtml?style=paper", "?cmd=capabilities"):
        answer = ask(f"/known{question}")
        assert answer[:4] in ("200 ", "500 ")
        assert str(root) not in answer
    assert "Traceback" not in (root.parent / "log").read_text()


@pytest.mark.parametrize("style", ["", "?style=gitweb"])
def test_a_repository_with_an_unreadable_store_is_not_the_clients_fault(ask: Ask, root: Path, style: str) -> None:
    requirements = root / "known/.hg/store/requires"
    requirements.unlink()
    requirements.mkdir()
    assert ask(f"/known{style}").startswith("500 ")
    line = json.loads((root.parent / "log").read_text().splitlines()[-1])
    assert (line["level"], line["event"], line["path"]) == ("error", "repository cannot be read", "/known")
    assert str(requirements) in line["reason"]


@pytest.mark.parametrize("style", ["", "?style=gitweb"])
def test_a_file_that_is_not_beside_the_templates_is_not_found(ask: Ask, style: str) -> None:
    assert ask(f"/static/none.js{style}").startswith("404 ")


def test_a_repository_that_an_extension_refuses_is_not_the_clients_fault(ask: Ask, root: Path) -> None:
    refusal = "raise error.Abort(b'missing: guard', hint=b'upgrade')"
    (root / "refuses.py").write_text(f"from mercurial import error\ndef reposetup(ui, repo):\n    {refusal}\n")
    (root / "known" / ".hg" / "hgrc").write_text(f"[extensions]\n*:required = yes\nrefuses = {root}/refuses.py\n")
    assert ask("/known").startswith("500 ")
    assert json.loads((root.parent / "log").read_text().splitlines()[-1])["reason"] == "abort: missing: guard (upgrade)"
