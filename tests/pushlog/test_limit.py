# SPDX-License-Identifier: GPL-2.0-or-later
"""What a view shows of pushes, on every surface: no more than the view has, and all of it once it is shown."""

import pytest
from mercurial import obsolete, phases

from pushlog import limit
from tests.pushlog.conftest import Site

# Mercurial leaves the files of its templates to the garbage collector
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Where a client of a server finds changesets of pushes, as path and query.
SURFACES = {
    "json": ("/json-pushes", "startID=0"),
    "full": ("/json-pushes", "startID=0&full=1"),
    "version 2": ("/json-pushes", "startID=0&full=1&version=2"),
    "page": ("/pushloghtml", "startID=0"),
    "newest": ("/pushloghtml", ""),
    "feed": ("/pushlog", "startID=0"),
    "wire": ("/", "cmd=pushlog&firstpush=0"),
    "stream": ("/", "cmd=pushlog-stream&firstpush=0"),
    "pushid": ("/log", "rev=pushid(1)%2Bpushid(2)%2Bpushid(3)&revcount=100&style=raw"),
    "pushrev": ("/log", "rev=pushrev(pushid(1))&revcount=100&style=raw"),
    "pushuser": ("/log", "rev=pushuser(alice)&revcount=100&style=raw"),
    "pushhead": ("/log", "rev=pushhead()&revcount=100&style=raw"),
    "theme": ("/shortlog", "style=own"),
}
THEME = (
    "default = 'shortlog'\nmimetype = 'text/html; charset={encoding}'\nerror = '{error}'\nshortlog = '{entries%row}'\n"
    "filedifflink = ''\nfilenodelink = ''\nnochangesfile = ''\n"
    "row = '{node} {pushhead} {pushnodes % \"{node} \"} {pushheadnode} {pushbasenode}'\n"
)


@pytest.fixture
def mixed(place, tmp_path):
    """A server whose first push has one changeset of each kind, by name, and its folder.

    Push 2 is a secret changeset, push 3 a draft, push 4 a public changeset.
    """
    with open(tmp_path / "hgrc", "a") as hgrc:
        hgrc.write("[experimental]\nevolution = all\n")
    source, server = place("source"), place("server")
    nodes = {"public": source.commit(b"public")}
    for name in ("draft", "obsolete", "secret"):
        nodes[name] = source.commit(name.encode(), onto=bytes.fromhex(nodes["public"]))
    source.push_to(server)
    for name in ("late secret", "late draft", "late public"):
        nodes[name] = source.commit(name.encode(), onto=bytes.fromhex(nodes["public"]))
        source.push_to(server)
    repository = server.repository.unfiltered()
    with repository.lock(), repository.transaction(b"test") as tr:
        public = [bytes.fromhex(nodes[name]) for name in ("public", "late public")]
        phases.advanceboundary(repository, tr, phases.public, public)
        secret = [bytes.fromhex(nodes[name]) for name in ("secret", "late secret")]
        phases.retractboundary(repository, tr, phases.secret, secret)
        obsolete.createmarkers(repository, [(repository[bytes.fromhex(nodes["obsolete"])], ())])
    return server, nodes


BASE = {"public"}
PUBLIC = {*BASE, "late public"}
SERVED = {*PUBLIC, "draft", "late draft"}


def names_on(surface, server, nodes, settings):
    """The names of the changesets whose hashes a client gets there."""
    path, query = SURFACES[surface]
    theme = f"templates = {server.folder.parent / 'themes'}\nstyle = own\n" if surface == "theme" else ""
    status, _headers, body = Site(server.folder, settings + theme).get(path, query)
    assert status == 200
    return {name for name, node in nodes.items() if node[:12].encode() in body}


@pytest.mark.parametrize(
    ("view", "shown", "named"),
    [("served", SERVED, {"obsolete"}), ("immutable", PUBLIC, set()), ("base", BASE, set())],
)
def test_a_view_names_what_it_shows_and_no_more_on_every_surface(mixed, tmp_path, view, shown, named):
    server, nodes = mixed
    (tmp_path / "themes" / "own").mkdir(parents=True)
    (tmp_path / "themes" / "own" / "map").write_text(THEME)
    settings = f"[experimental]\nevolution = all\n[server]\nview = {view}\n[web]\nview = {view}\n"
    found = {surface: names_on(surface, server, nodes, settings) for surface in SURFACES}
    assert {surface: names - shown - named for surface, names in found.items() if not names <= shown | named} == {}
    whole = found.keys() - {"pushrev", "pushhead"}
    assert {surface: shown - found[surface] for surface in whole if not found[surface] >= shown} == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xa1Llast_push_id\x07", 7),
        *(
            (content, None)
            for content in (
                b"",
                b"\xa1Llast_push_id\xf5",
                b"_9\xcf@\xff\xff\xff\xff\xff",
                b"_\xf6_\xf6",
                b"_\x1b\x7f" + b"\xff" * 7,
                b"\x9f" * 3000,
            )
        ),
    ],
)
def test_a_damaged_file_of_the_release_limits_nothing(place, content, expected):
    repository = place("mirror").repository
    repository.vfs.write(limit.REPLICATED_DATA, content)
    assert limit.web_limit(repository) == expected
