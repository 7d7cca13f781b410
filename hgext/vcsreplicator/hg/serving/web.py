# SPDX-License-Identifier: GPL-2.0-or-later
"""A folder of repositories over HTTP: hgweb as a WSGI application that knows a new repository at its first request.

hgweb scans its folder every `web.refreshinterval` seconds (20), which hides a new repository after its notice. Here the scan
happens when it is needed: a path that is a repository on disk and that hgweb does not know yet, or that was one.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog
from mercurial import demandimport, error
from mercurial.hgweb import hgwebdir_mod

from ...words import path as wire

logger = structlog.get_logger()

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def application(root: str) -> Application:
    """The WSGI application for every repository below `root`.

    Configuration comes from HGRCPATH alone; a repository's own hgrc is read by Mercurial as usual unless HGRCSKIPREPO is set.
    Demand import must be off: threads that import lazily at once answer 500. What the process holds by now is not looked at for
    garbage any more.
    """
    demandimport.disable()
    folder = os.fsencode(os.path.realpath(root))
    hgweb = _Repositories({b"/": os.path.join(folder, b"**")})
    # hgweb looks for garbage after each request: 16 ms through modules that never are.
    gc.collect()
    gc.freeze()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if _has_changed(hgweb, folder, environ.get("PATH_INFO", "")):
            hgweb.lastrefresh = 0
        return _answered(hgweb, environ, start_response)

    return answer


def _answered(hgweb: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """hgweb's answer, or 400 for what it cannot read: malformed arguments leave it as exceptions of many kinds.

    A storage that cannot be read is no mistake of the client's.
    """
    try:
        body = iter(hgweb(environ, start_response))
        first = next(body, b"")
    except (ValueError, KeyError, RecursionError, error.Abort) as problem:
        if isinstance(problem, error.StorageError):
            raise
        kind = type(problem).__name__
        logger.warning("request not understood", path=environ.get("PATH_INFO"), problem=kind, place=_place(problem))
        start_response("400 Bad Request", [("Content-Type", "text/plain; charset=utf-8")], sys.exc_info())
        return [b"Bad Request\n"]
    return _continued(first, body)


def _continued(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _place(problem: BaseException) -> str:
    """Where it was raised: FILE:LINE, for whoever must tell a client's mistake from one of ours."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"


class _Repositories(hgwebdir_mod.hgwebdir):  # type: ignore[misc]
    """A folder of repositories but for a mirror's own folder in it, where repositories are made and put aside."""

    known: frozenset[bytes]

    def refresh(self) -> None:
        before = self.lastrefresh
        super().refresh()  # at each request; mostly it does nothing
        if self.lastrefresh != before:
            self.repos = [(name, place) for name, place in self.repos if not _is_ours(name)]
            self.known = frozenset(name for name, _ in self.repos)


def _is_ours(virtual: bytes) -> bool:
    """No wire path has a part that begins with `~`."""
    return any(part.startswith(b"~") for part in virtual.split(b"/"))


def _has_changed(hgweb: Any, folder: bytes, where: str) -> bool:
    """Whether the request's path leads into a repository that the last scan did not see, or that is gone since."""
    virtual = b""
    # WSGI hands paths over as Latin-1 text.
    for part in where.strip("/").encode("latin-1", "replace").split(b"/"):
        if part in (b"", b".", b"..") or part.startswith(b"~") or b"\0" in part:
            return False
        virtual = virtual + b"/" + part if virtual else part
        if len(virtual) > wire.MAX_PATH:
            return False
        if (virtual in hgweb.known) != os.path.isdir(os.path.join(folder, virtual, b".hg")):
            return True
    return False
