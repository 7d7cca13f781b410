# SPDX-License-Identifier: GPL-2.0-or-later
"""`answers.py REPOSITORY OTHER UNRELEASED…`: ask two repositories everything, and print each question whose answers differ.

Both are asked through hgweb in this process: every page, every command of the wire protocol and many revsets, each about what is
released and about each of the UNRELEASED words (hashes, numbers and names). All are counted, and one in `$ONE_IN` is asked, drawn
by `$VCSREPLICATOR_TEST_SEED`.
"""

import os
import random
import re
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from mercurial import demandimport, extensions
from mercurial import ui as uimod

from pushlog.versions import factory, hgweb_mod_inner, initialize

RELEASED = ("tip", "-1", "0")
FILES = ("both", "late", ".hgtags", "folder/inner", "")
NULL = "0" * 40
_ADDRESS = "0x0badadd"

# Of a changeset {node} and a file {file}.
PAGES = (
    "raw-rev/{node}",
    "json-log/{node}",
    "json-changeset/{node}",
    "json-manifest/{node}",
    "atom-log/{node}",
    "rss-log/{node}",
    "archive/{node}.zip",
    "json-pushes?changeset={node}",
    "json-pushes?fromchange={node}",
    "json-pushes?startID=0&tochange={node}",
    "json-pushes?startID=0&branch={node}",
    "json-pushes?startID=0&full=1&branch={node}",
    "pushloghtml?changeset={node}",
    "pushlog?fromchange={node}",
    "json-log?rev={node}",
    "json-log?rev={node}&forcekw=1",
    "?cmd=lookup&key={node}",
    "?cmd=known&nodes={node}",
    "?cmd=branches&nodes={node}",
    "?cmd=between&pairs={node}-" + NULL,
    "?cmd=changegroup&roots={node}",
    "?cmd=changegroupsubset&bases={node}&heads={node}",
    "?cmd=changegroupsubset&bases={node}&heads=" + NULL,
    f"?cmd=changegroupsubset&bases={NULL}&heads={{node}}",
    "?cmd=getbundle&heads={node}",
    "?cmd=getbundle&common={node}",
    "?cmd=batch&cmds=lookup key%3D{node}%3Bheads ",
    "?cmd=listkeys&namespace={node}",
    *(
        f"json-log?rev={quote(revset)}"
        for revset in (
            "reverse({node})",
            "id('{node}') or 0",
            "rev({node}) or 0",
            "tag('{node}') or 0",
            "bookmark('{node}') or 0",
            "branch('{node}') or 0",
            "children({node}) or 0",
            "ancestors({node}) or 0",
            "descendants({node})",
            "present({node}) or 0",
            "only({node}) or 0",
            "pushrev({node}) or 0",
            "first({node}:0)",
        )
    ),
)
PAGES_OF_FILES = (
    "json-file/{node}/{file}",
    "raw-file/{node}/{file}",
    "json-annotate/{node}/{file}",
    "json-filelog/{node}/{file}",
    "filelog/{node}/{file}?patch=1&descend=1&linerange=1:1",
    "rss-log/{node}/{file}",
    "json-comparison/{node}/{file}",
    "json-file?filenode={node}&file={file}",
)
ALONE = (
    "",
    "summary",
    "json-log",
    "json-tags",
    "tags",
    "atom-tags",
    "rss-tags",
    "json-branches",
    "branches",
    "atom-branches",
    "json-bookmarks",
    "bookmarks",
    "atom-bookmarks",
    "graph",
    "json-graph",
    "json-pushes",
    "json-pushes?version=2&full=1&startID=0",
    "json-pushes?startID=0&tipsonly=1&full=1",
    "json-pushes?startID=0&user=late",
    "pushloghtml",
    "pushlog",
    "?cmd=heads",
    "?cmd=branchmap",
    "?cmd=getbundle",
    "?cmd=getbundle&bundlecaps=HG20%2Cbundle2%3DHG20%250Achangegroup%253D02&cg=1&listkeys=phases%2Cbookmarks&phases=1&bookmarks=1&obsmarkers=1",
    "?cmd=changegroup&roots=" + NULL,
    *(f"?cmd=listkeys&namespace={name}" for name in ("namespaces", "bookmarks", "phases", "obsolete")),
    *(
        f"json-log?rev={quote(revset)}"
        for revset in (
            "reverse(all())",
            "heads(all())",
            "filelog('late') or 0",
            "filelog('both')",
            "file('late') or 0",
            "adds('*') or 0",
            "modifies('*') or 0",
            "removes('*') or 0",
            "tag()",
            "bookmark() or 0",
            "head()",
            "branch(0)",
            "merge() or 0",
            "limit(all(), 9)",
            "last(all())",
            "keyword('late') or 0",
            "user('late') or 0",
            "author('late') or 0",
            "desc('late') or 0",
            "date('2033') or 0",
            "extinct() or 0",
            "obsolete() or 0",
            "hidden() or 0",
            "draft() or 0",
            "public()",
            "secret() or 0",
            "closed() or 0",
            "contains('late') or 0",
            "follow('both')",
            "named('tags') or 0",
            "pushhead()",
            "pushuser('tester')",
            "pushid(4) or 0",
            "matching(0)",
            "2::",
            "0:",
            "-1",
        )
    ),
)


def questions(unreleased: list[str]) -> Iterator[str]:
    """Paths with their query strings."""
    yield from ALONE
    for word in (*RELEASED, *unreleased):
        yield from (page.replace("{node}", word).replace("%7Bnode%7D", word) for page in PAGES)
        for file in () if word.startswith("late") else FILES:
            yield from (page.format(node=word, file=file) for page in PAGES_OF_FILES)


class Site:
    """hgweb over one repository."""

    def __init__(self, place: str) -> None:
        interface = uimod.ui.load()
        extensions.loadall(interface)
        extensions.populateui(interface)
        self._web = hgweb_mod_inner.hgweb(factory.repository(interface, os.fsencode(place)))

    def ask(self, question: str) -> tuple[str, bytes]:
        """Return status and body, without what differs from one request to the next."""
        path, _, query = question.partition("?")
        environ: dict[str, Any] = {
            "wsgi.url_scheme": "http",
            "wsgi.input": None,
            "wsgi.errors": sys.stderr,
            "SERVER_NAME": "hg.example.com",
            "SERVER_PORT": "80",
            "SCRIPT_NAME": "",
            "PATH_INFO": f"/{path}",
            "QUERY_STRING": query,
            "REQUEST_METHOD": "GET",
        }
        started: list[str] = []
        written: list[bytes] = []

        def start(status: str, _headers: object) -> object:
            started.append(status)
            return written.append

        try:
            body = b"".join([*self._web(environ, start), *written])
        except Exception as problem:
            return type(problem).__name__.removeprefix("Filtered"), str(problem).encode()
        if query.startswith("cmd=") and body.startswith(b"x"):
            body = zlib.decompress(body)
        body = re.sub(rb'nonce="[^"]*"', b'nonce=""', body)
        return started[0], re.sub(rb"0x[0-9a-f]{6,}", _ADDRESS.encode(), body)


def difference(one: bytes, other: bytes) -> str:
    """The first lines that are not the same."""
    ours, theirs = one.splitlines() or [b""], other.splitlines() or [b""]
    for our, their in zip([*ours, b"(end)"], [*theirs, b"(end)"], strict=False):
        if our != their:
            return f"{our[:200]!a} {their[:200]!a}"
    return "(end)"


def main(one: str, other: str, unreleased: list[str]) -> None:
    initialize()
    demandimport.disable()
    time.time = lambda: 2_000_000_000.0
    sites = Site(one), Site(other)
    every = list(questions(unreleased))
    chance = random.Random(os.environ.get("VCSREPLICATOR_TEST_SEED"))
    for number in sorted(chance.sample(range(len(every)), len(every) // int(os.environ.get("ONE_IN", "1")))):
        question = every[number]
        (status, body), (other_status, other_body) = (site.ask(question) for site in sites)
        if (status, body) != (other_status, other_body):
            print(f"{question}: {status} {other_status} {difference(body, other_body)}")
    print(f"{len(every)} questions")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
