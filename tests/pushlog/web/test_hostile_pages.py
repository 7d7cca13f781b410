# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's own pages and ours, in every style that Mercurial ships: what a pusher chose is text and nothing else."""

import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from mercurial import commands

from testing.warm_hg import shared_hg, shared_python
from tests.pushlog.conftest import Site, environment, set_branch
from tests.pushlog.hostile import FEEDS, NAME, STYLES, Page, addresses, fill

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# What was escaped twice; nothing here has an "&" of its own.
DOUBLE = re.compile(rb"&amp;(?:lt|gt|quot|amp|#x?[0-9]+);")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    settings = "[experimental]\nevolution = all\n[ui]\nusername = test\n"
    with pytest.MonkeyPatch.context() as monkeypatch:
        names = fill(Site(folder / "hostile", settings, create=True).repository, monkeypatch)
    return Site(folder / "hostile", settings), names


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_what_a_pusher_chose_is_text_on_every_page(hostile, style):
    site, names = hostile
    intruded, shown = {}, 0
    for path, query in addresses(names):
        status, _headers, body = site.get(f"/{path}", f"{query}&style={style}".lstrip("&"))
        assert status in (200, 400, 403, 404, 500), path
        page = Page(body)
        shown += b"xevil" in body
        if found := page.intrusions() or DOUBLE.findall(body):
            intruded[path, query] = found[:2]
    assert not intruded
    assert shown > 60


@pytest.mark.parametrize("style", FEEDS)
def test_what_a_pusher_chose_is_text_in_every_feed(hostile, style):
    site, names = hostile
    for path, query in addresses(names):
        if not path.startswith(("log", "changelog", "tags", "branches", "bookmarks", "filelog")):
            continue
        status, headers, body = site.get(f"/{style}-{path}", query)
        if status == 200 and "xml" in headers["Content-Type"]:
            ElementTree.fromstring(body)
            assert not Page(body).intrusions(), path


def test_characters_that_no_xml_has_leave_feeds_readable(tmp_path):
    repository = Site(tmp_path / "odd", "[ui]\nusername = test\n", create=True).repository
    odd = "".join(map(chr, (*range(1, 10), 11, 12, *range(14, 32), 0x7F, 0xFFFE, 0xFFFF))).encode()
    (tmp_path / "odd" / "file").write_bytes(b"text")
    set_branch(repository, b"branch " + odd)
    with repository.wlock():
        commands.commit(
            repository.ui, repository, addremove=True, message=b"text " + odd, user=odd + b"<" + odd + b"@x>"
        )
    site = Site(tmp_path / "odd")
    for style in FEEDS:
        for page in ("log", "branches", "filelog/0/file", "pushlog"):
            status, _headers, body = site.get(f"/{style}-{page}")
            assert (status, b"text" in body or page != "log") == (200, True)
            ElementTree.fromstring(body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("style", STYLES)
def test_a_list_of_repositories_shows_names_as_text_under_a_policy(tmp_path, style):
    name = NAME.replace("%", "")
    (tmp_path / "hgrc").write_text("[extensions]\n*:required = yes\npushlog =\n")
    (tmp_path / "web.conf").write_text(f"[paths]\n/ = {tmp_path}/repos/**\n")
    (tmp_path / "repos" / f"group {name}").mkdir(parents=True)
    where = environment(tmp_path)
    subprocess.run([shared_hg(where), "init", str(tmp_path / "repos" / f"group {name}" / name)], env=where, check=True)
    result = subprocess.run(
        [shared_python(where), "-c", LIST, str(tmp_path / "web.conf"), style],
        env=where,
        stdout=subprocess.PIPE,
        check=True,
    )
    policy, _newline, body = result.stdout.partition(b"\n")
    assert b"script-src 'self' 'nonce-" in policy
    assert b"xevil" in body
    assert not Page(body).intrusions()


LIST = r"""
import sys
from pushlog.versions import initialize
initialize()
from mercurial.hgweb import hgweb
application = hgweb(sys.argv[1].encode())
environment = {
    "wsgi.url_scheme": "http", "wsgi.input": None, "SERVER_NAME": "x", "SERVER_PORT": "80", "SCRIPT_NAME": "",
    "PATH_INFO": "/", "QUERY_STRING": "style=" + sys.argv[2], "REQUEST_METHOD": "GET",
}
headers = {}
body = b"".join(application(environment, lambda _status, given: headers.update(given)))
sys.stdout.buffer.write(headers["Content-Security-Policy"].encode() + b"\n" + body)
"""


def test_scripts_of_a_page_carry_a_nonce_that_no_other_page_has(hostile):
    site, _names = hostile
    seen = set()
    for style in STYLES:
        _status, headers, body = site.get("/graph", f"style={style}")
        [nonce] = re.findall(r"'nonce-([\w-]{22})'", headers["Content-Security-Policy"])
        inline = [attributes for tag, attributes in Page(body).elements if tag == "script" and "src" not in attributes]
        assert inline
        assert all(attributes["nonce"] == nonce for attributes in inline)
        assert "ETag" not in headers
        seen.add(nonce)
    assert len(seen) == len(STYLES)


@pytest.mark.parametrize(
    "path",
    ["/json-pushes", "/pushlog", "/json-rev/0", "/raw-rev/0", "/atom-log", "/static/mercurial.js", "/pushlogstyle"],
)
def test_answers_for_programs_have_the_policy_and_their_entity_tag(hostile, path):
    site, _names = hostile
    status, headers, _body = site.get(path)
    assert (status, "default-src 'none'" in headers["Content-Security-Policy"]) == (200, True)
    assert site.get(path, if_none_match=headers["ETag"])[0] == 304


@pytest.mark.parametrize("path", ["/raw-file/0/{}", "/shortlog", "/static/mercurial.js"])
def test_no_browser_takes_a_file_of_a_pusher_for_a_script(hostile, path):
    site, names = hostile
    _status, headers, _body = site.get(path.format(names["top"]))
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(("setting", "header"), [("csp =", None), ("csp = default-src 'self'", "default-src 'self'")])
def test_an_operator_s_policy_counts_and_so_does_none(root, setting, header):
    _status, headers, _body = Site(root / "golden", f"[web]\n{setting}\n").get("/shortlog")
    assert headers.get("Content-Security-Policy") == header
