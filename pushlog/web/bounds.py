# SPDX-License-Identifier: GPL-2.0-or-later
"""The bounds of what one request may ask of hgweb's pages.

hgweb shows as many changesets as a client asks for, and draws its graph from any changeset down to any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mercurial import scmutil
from mercurial.hgweb import webutil

from .. import seams
from . import search

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import hgweb, requestcontext
    from mercurial.hgweb.request import parsedrequest, wsgiresponse
    from mercurial.localrepo import localrepository

# Changesets of a page at most, where the client asks for a number.
MOST = 2000


def register() -> None:
    """Bound hgweb's pages and its search; called in processes that serve web pages."""
    search.register()
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "hgweb._runwsgi", answer)
    seams.wrap("mercurial.hgweb.webcommands", "graph", graph)


def answer(
    orig: Callable[..., Iterable[bytes]], web: hgweb, req: parsedrequest, res: wsgiresponse, repo: localrepository
) -> Iterable[bytes]:
    """Wrap hgweb's answer: lower `revcount` to what a page may show."""
    try:
        asked = int(req.qsparams.get(b"revcount") or b"0")
    except ValueError:  # hgweb passes over it
        asked = 0
    if asked > MOST:
        req.qsparams[b"revcount"] = b"%d" % MOST
    return orig(web, req, res, repo)


def graph(orig: Callable[..., Iterable[bytes]], web: requestcontext) -> Iterable[bytes]:
    """Wrap the graph: begin it at most a page's bound above its first changeset."""
    parameters = web.req.qsparams
    if b"graphtop" in parameters:
        start = webutil.changectx(web.repo, web.req)
        top = scmutil.revsymbol(web.repo, parameters[b"graphtop"])
        is_near = 0 <= (top.rev() or 0) - (start.rev() or 0) <= MOST
        parameters[b"graphtop"] = (top if is_near else start).hex()  # hgweb takes whole hashes only
    return orig(web)
