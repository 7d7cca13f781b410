# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's part of `bench_serving`: a repository of very many heads, and requests to it.

Each act prepares something and returns what is to be timed.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mercurial import extensions, initialization, metadata, phases
from mercurial import ui as uimod
from mercurial.hgweb import hgweb_mod
from mercurial.node import nullid
from mercurial.repo import factory

from hgext.vcsreplicator.hg import visibility

Act = Callable[[], Callable[[], Iterable[bytes]]]


def make(place: str, heads: int) -> None:
    """A root and its children, made by writing the changelog alone."""
    initialization.init()
    ui = uimod.ui.load()
    ui.setconfig(b"ui", b"quiet", b"yes")
    repo: Any = factory.repository(ui, os.fsencode(place), create=True).unfiltered()
    with repo.lock(), repo.transaction(b"bench") as tr:
        changelog, files = repo.changelog, metadata.ChangingFiles()
        root = changelog.add(nullid, files, b"root", tr, nullid, nullid, b"tester", b"0 0", {})
        for number in range(heads):
            changelog.add(nullid, files, b"change %d" % number, tr, root, nullid, b"tester", b"0 0", {})
    with repo.lock(), repo.transaction(b"bench") as tr:
        phases.advanceboundary(repo, tr, phases.public, [repo.changelog.node(n) for n in range(len(repo.changelog))])


def acts(place: str, role: str) -> Iterator[tuple[str, Act]]:
    """(name, act) for a mirror, or for Mercurial alone."""
    initialization.init()
    ui = uimod.ui.load()
    ui.setconfig(b"ui", b"quiet", b"yes")
    if role == "mirror":
        ui.setconfig(b"vcsreplicator", b"role", b"mirror")
        for name in (b"pushlog", b"vcsreplicator"):
            ui.setconfig(b"extensions", name, b"")
        extensions.loadall(ui)
        extensions.populateui(ui)
    repo = factory.repository(ui, os.fsencode(place)).unfiltered()
    length = len(repo.changelog) - 1
    releases = iter(range(1, 10_000_000))

    def release() -> None:
        tip: str = repo.changelog.node(length - 1).hex()
        visibility.write_watermark(repo, seq=next(releases), length=length, tip=tip, push_id=None)

    def change() -> None:
        """Nothing changes but the time by which hgweb notices."""
        file = repo.svfs.join(b"00changelog.i")
        seconds = os.stat(file).st_mtime + 2
        os.utime(file, (seconds, seconds))

    renew = release if role == "mirror" else change
    renew()
    visibility.warm(repo)
    repo.filtered(b"served").branchmap()
    web = hgweb_mod.hgweb(os.fsencode(place), baseui=ui)

    def request(query: str) -> Callable[[], Iterable[bytes]]:
        return lambda: list(web(_environment(query), lambda *_: lambda _data: None))

    def again(query: str) -> Act:
        list(request(query)())
        return lambda: request(query)

    def renewed(query: str) -> Act:
        def act() -> Callable[[], Iterable[bytes]]:
            renew()
            return request(query)

        return act

    for what, query in (("capabilities", "capabilities"), ("heads", "heads"), ("branchmap", "branchmap")):
        yield f"{what}, warm", again(f"cmd={query}")
    for what, query in (("capabilities", "capabilities"), ("heads", "heads"), ("lookup tip", "lookup&key=tip")):
        yield f"{what}, after a release", renewed(f"cmd={query}")
    if role == "mirror":
        yield "release: watermark and replicated-data", lambda: _timed_only(release)


def _timed_only(act: Callable[[], None]) -> Callable[[], Iterable[bytes]]:
    def run() -> Iterable[bytes]:
        act()
        return ()

    return run


def _environment(query: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/",
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
