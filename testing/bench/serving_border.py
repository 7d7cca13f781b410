# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's part of `bench_serving`: a repository of very many heads, and a server of it that reads its commands as lines.

    python -m testing.bench.serving_border FOLDER make HEADS
    python -m testing.bench.serving_border FOLDER plain|pushlog|mirror

A server prints the names of its requests, then a line for each that it reads: `ask NAME` answers a request, `change BEHIND` adds
a changeset and shows all but the last BEHIND, `release` shows what is shown already once more.
"""

import os
import sys
import time
from contextlib import closing
from typing import Any
from urllib.parse import quote

from mercurial import extensions, initialization, metadata, phases
from mercurial import ui as uimod
from mercurial.hgweb import hgweb_mod
from mercurial.node import nullid
from mercurial.repo import factory

from hgext.vcsreplicator.hg.serving import views, watermark
from pushlog.store import connections, database, entry, statements
from pushlog.store.storage import Pushlog

_CAPABILITIES = quote(quote("HG20\nchangegroup=01,02,03\nphases=heads\nlistkeys\nbookmarks\nobsmarkers=V0,V1"))


def make(place: str, heads: int) -> None:
    """A root and its children, each with a push of its own, made by writing the changelog and the pushlog alone."""
    initialization.init()
    repo: Any = factory.repository(_ui(), os.fsencode(place), create=True).unfiltered()
    with repo.lock(), repo.transaction(b"bench") as tr:
        facts = [_push(number, _add(repo, tr, number)) for number in range(heads + 1)]
        Pushlog(repo).file.append(tr, map(entry.encode, facts))
    with repo.lock(), repo.transaction(b"bench") as tr:
        phases.advanceboundary(repo, tr, phases.public, [repo.changelog.node(n) for n in range(len(repo.changelog))])
    log = Pushlog(repo)
    with closing(connections.open_for_writing(log.path, timeout_ms=1000)) as connection:
        for fact in facts:
            connection.execute(statements.INSERT_PUSH, (fact.id, fact.user, fact.date))
            connection.execute(statements.INSERT_CHANGESET, (fact.id, fact.id - 1, fact.nodes[0]))
        database.set_state(connection, log.file.tail(), log.fingerprint())
        connection.execute("COMMIT")
    with repo.lock():
        repo.updatecaches()


def _ui() -> Any:
    ui = uimod.ui.load()
    ui.setconfig(b"ui", b"quiet", b"yes")
    ui.setconfig(b"web", b"style", b"gitweb")  # the one with a summary
    return ui


def _add(repo: Any, tr: Any, number: int) -> bytes:
    changelog = repo.changelog
    root = changelog.node(0) if number else nullid
    files, date = metadata.ChangingFiles(), b"%d 0" % number
    added: bytes = changelog.add(nullid, files, b"change %d" % number, tr, root, nullid, b"tester", date, {})
    return added


def _push(number: int, node: bytes) -> entry.Push:
    return entry.Push(id=number + 1, user="tester", date=number, nodes=(node.hex(),))


class Server:
    """hgweb over a repository, in this process; another object of the repository stands for the worker that changes it."""

    def __init__(self, place: str, role: str) -> None:
        initialization.init()
        ui = _ui()
        # Before the extensions, as a mirror's worker: they would make it read-only.
        self._repo = factory.repository(ui, os.fsencode(place)).unfiltered()
        self._is_mirror = role == "mirror"
        if self._is_mirror:
            ui.setconfig(b"vcsreplicator", b"role", b"mirror")
        for name in {"plain": (), "pushlog": (b"pushlog",), "mirror": (b"pushlog", b"vcsreplicator")}[role]:
            ui.setconfig(b"extensions", name, b"")
        extensions.loadall(ui)
        extensions.populateui(ui)
        self._seq = 0
        self._behind = 1
        self.release()
        self._web = hgweb_mod.hgweb(os.fsencode(place), baseui=ui)

    def requests(self) -> dict[str, str]:
        """Path and query by name; the newest changeset in them is the last that a mirror shows."""
        changelog = self._repo.changelog
        root, newest = changelog.node(0).hex(), changelog.node(len(changelog) - 2).hex()
        known = "+".join(changelog.node(number).hex() for number in range(0, min(20_000, len(changelog)), 200))
        return {
            "page of a changeset": f"/rev/{newest}",
            "plain text of a changeset": f"/raw-rev/{newest}",
            "summary": "/summary",
            "json-pushes of ten": "/json-pushes",
            "capabilities": "?cmd=capabilities",
            "heads": "?cmd=heads",
            "branchmap": "?cmd=branchmap",
            "known (of 100)": f"?cmd=known&nodes={known}",
            "lookup of the tip": "?cmd=lookup&key=tip",
            "listkeys of phases": "?cmd=listkeys&namespace=phases",
            "getbundle of a changeset": f"?cmd=getbundle&bundlecaps=HG20%2Cbundle2%3D{_CAPABILITIES}&cg=1&phases=1"
            f"&obsmarkers=1&listkeys=bookmarks&common={root}&heads={newest}",
        }

    def ask(self, name: str) -> str:
        """Milliseconds of wall and of processor time."""
        path, _, query = self.requests()[name].partition("?")
        environ = _environment(path, query)
        status: list[str] = []
        wall, spent = time.perf_counter(), time.process_time()
        for _ in self._web(environ, lambda line, _headers: status.append(line)):
            pass
        wall, spent = time.perf_counter() - wall, time.process_time() - spent
        assert status[0].startswith("200"), f"{name}: {status[0]}"
        return f"{wall * 1000} {spent * 1000}"

    def change(self, behind: int) -> None:
        """What came before has its caches; then a changeset comes, and a mirror shows all but the last `behind`."""
        if self._is_mirror:
            views.warm(self._repo)
        repo = self._repo
        with repo.lock(), repo.transaction(b"bench") as tr:
            number = len(repo.changelog)
            node = _add(repo, tr, number)
            phases.advanceboundary(repo, tr, phases.public, [node])
        repo.invalidate()
        self._behind = behind
        self.release()

    def release(self) -> str:
        """Milliseconds that it takes to write what is shown; a plain repository shows everything."""
        repo, begin = self._repo, time.perf_counter()
        self._seq += 1
        if self._is_mirror:
            length = len(repo.changelog) - self._behind
            watermark.write_watermark(
                repo,
                watermark.Watermark(
                    seq=self._seq, length=length, tip=repo.changelog.node(length - 1).hex(), push_id=50_000
                ),
            )
        return f"{(time.perf_counter() - begin) * 1000}"


def main(place: str, role: str, *sizes: str) -> None:
    if role == "make":
        make(place, int(sizes[0]))
        return
    server = Server(place, role)
    print("\t".join(server.requests()), flush=True)
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["ask", name]:
                print(server.ask(name), flush=True)
            case ["change", behind]:
                server.change(int(behind))
                print(flush=True)
            case ["release"]:
                print(server.release(), flush=True)


def _environment(path: str, query: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": path or "/",
        "QUERY_STRING": query,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": None,
        "wsgi.errors": None,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
