# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways into a mirror's repositories, wrapped to show only the release.

They are installed when a process opens its first mirror repository: its own hgrc, or a web server's file, can set the role after
Mercurial has started. Each wrapper checks the repository's configuration and does nothing for other roles.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from mercurial import error, hg, localrepo
from mercurial.hgweb import common
from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.ui import ui as Ui

from pushlog import seams

from ...mirror.supervision import boot
from ..pages import files
from . import copies, refusals, watermark
from .views import first_unreleased, held_release, is_limited, is_mirror, limited_view, register_views, shown_release

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import hgweb, requestcontext
    from mercurial.hgweb.request import parsedrequest, wsgiresponse

# Seconds of the aggregator's silence after which a mirror with `refuse-when-stale` refuses to answer.
STALE_AFTER = 30.0
STALE = b"this mirror does not know what is released now; please retry, or use another mirror\n"
BEHIND = b"this mirror restores what it served before; please retry, or use another mirror\n"
# Seconds after which a refused client may ask again.
RETRY_AFTER = "5"
# The member of a request's environment with the tag that hgweb gives its answer, if it gives one.
_ETAG = b"vcsreplicator.etag"
# The attribute of a repository object that answers clients: its bookmarks are those of the release.
_SERVING = "_vcsreplicator_serving"


def install() -> None:
    """Register a mirror's views and wrap every way in, once per process.

    Raises MissingSeam if this Mercurial lacks one of them or gives it other arguments.
    """
    register_views()
    if ("path", watermark.WATERMARK) in hg.foi:
        return

    from .repository import OVERRIDDEN

    seams.check("mercurial.localrepo", *(f"localrepository.{name}" for name in OVERRIDDEN))
    seams.wrap("mercurial.exchanges.peer", "server_filtername", choose_wire_view)
    seams.wrap("mercurial.localrepo", "localpeer.local", open_behind_path)
    seams.wrap("mercurial.bookmarks", "_getbkfile", open_bookmarks)
    seams.wrap("mercurial.phases", "listphases", list_phases)
    _list_guarded_phases()
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "getwebview", choose_web_view)
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "hgweb._runwsgi", answer_web_request)
    common.permhooks.append(state_release)
    files.install()
    copies.install()
    refusals.install()
    hg.foi.append(("path", watermark.WATERMARK))


def _list_guarded_phases() -> None:
    """Have `listkeys` call the guarded function.

    Its table keeps the function that it found when it was imported.
    """
    phases: Any = importlib.import_module("mercurial.phases")
    pushkey: Any = importlib.import_module("mercurial.pushkey")
    pushkey.register(b"phases", phases.pushphase, phases.listphases)


def serve(repo: localrepository) -> None:
    """Mark that this repository object answers clients."""
    setattr(repo.unfiltered(), _SERVING, True)


def choose_wire_view(orig: Callable[..., bytes], repo: localrepository, accesshidden: bool) -> bytes:
    """Choose a peer's view; Abort if it cannot be limited, or the mirror must refuse."""
    view = orig(repo, accesshidden)
    if not is_mirror(repo.ui):
        return view
    if (reason := _find_refusal(repo)) is not None:
        raise error.Abort(reason.strip())
    serve(repo)
    return limited_view(view)


def _find_refusal(repo: localrepository) -> bytes | None:
    """Return the line that says why nothing of a repository may be shown now."""
    if _is_stale(repo.ui):
        return STALE
    return BEHIND if boot.is_behind(os.fsdecode(repo.root)) else None


def _is_stale(ui: Ui) -> bool:
    """Return whether the file that `refuse-when-stale` names was not renewed lately.

    False if the setting names none. A time in the future counts as stale: the clock was set back, and the file's age is unknown
    until it is renewed.
    """
    age = _measure_silence(ui)
    return age is not None and abs(age) > STALE_AFTER


def _measure_silence(ui: Ui) -> float | None:
    """Return the seconds since the mirror's service heard the aggregator.

    None if no setting names the file that says it, infinity without that file.
    """
    file = ui.configpath(b"vcsreplicator", b"refuse-when-stale")
    if not file:
        return None
    try:
        return time.time() - os.stat(file).st_mtime
    except OSError:
        return math.inf


def answer_web_request(
    orig: Callable[..., Iterable[bytes]], web: hgweb, req: parsedrequest, res: wsgiresponse, repo: localrepository
) -> Iterable[bytes]:
    """Answer a request to hgweb, which has a repository object of its own."""
    if not is_mirror(repo.ui):
        return orig(web, req, res, repo)
    serve(repo)
    req.rawenv[_ETAG] = b'W/"%d"' % web.mtime
    try:
        for section in (b"web", b"server"):
            limited_view(_configured_view(repo.ui, section))
    except error.Abort as problem:
        return _refuse_request(res, b"500 Internal Server Error", problem.message + b"\n")
    if (reason := _find_refusal(repo)) is not None:
        res.headers[b"Retry-After"] = RETRY_AFTER.encode()
        return _refuse_request(res, b"503 Service Unavailable", reason)
    return orig(web, req, res, repo)


def state_release(web: requestcontext, req: parsedrequest, operation: bytes | None) -> None:
    """State in the answer's headers which release the answer shows, if any.

    Only clients that may read get these headers, because the other checks come before. Mercurial allows none of them in an answer
    304 (not modified).
    """
    release = shown_release(web.repo) if is_mirror(web.repo.ui) else None
    is_unchanged = req.headers.get(b"If-None-Match") == req.rawenv.get(_ETAG, b"")
    if release is not None and not is_unchanged:
        web.res.headers[b"X-Vcsreplicator-Event"] = b"%d" % release.seq
        web.res.headers[b"X-Vcsreplicator-Pushid"] = b"%d" % (release.push_id or 0)
        silence = _measure_silence(web.repo.ui)
        if silence is not None and math.isfinite(silence):
            web.res.headers[b"X-Vcsreplicator-Heard"] = b"%d" % max(0, int(silence))


def _refuse_request(res: wsgiresponse, status: bytes, reason: bytes) -> Iterator[bytes]:
    res.status = status
    res.headers[b"Content-Type"] = b"text/plain; charset=utf-8"
    res.setbodybytes(reason)
    return res.sendresponse()


def _configured_view(ui: Ui, section: bytes) -> bytes | None:
    """Read `view` of [web], which a repository's owner may set, or of [server]."""
    view: bytes | None = ui.config(section, b"view", untrusted=section == b"web")
    return view


def open_behind_path(orig: Callable[..., localrepository], local_peer: localrepo.localpeer) -> localrepository:
    """Return the repository behind a path to a command that works on it directly."""
    repo = orig(local_peer)
    return repo.unfiltered().filtered(b"served") if is_limited(repo) else repo


def choose_web_view(orig: Callable[..., localrepository], repo: localrepository) -> localrepository:
    """Choose the view of hgweb's pages; the request refused unlimited views."""
    if not is_mirror(repo.ui):
        return orig(repo)
    try:
        return repo.filtered(limited_view(_configured_view(repo.ui, b"web")))
    except error.Abort:
        return repo.filtered(limited_view(b"base"))


def open_bookmarks(orig: Callable[..., IO[bytes]], repo: localrepository) -> IO[bytes]:
    """Open the file from which the bookmark store reads its lines."""
    if not getattr(repo.unfiltered(), _SERVING, False):
        return orig(repo)
    return io.BytesIO(held_release(repo).bookmarks)


def list_phases(orig: Callable[..., dict[bytes, bytes]], repo: localrepository) -> dict[bytes, bytes]:
    """List draft roots for `listkeys`, but those that are not released."""
    keys = orig(repo)
    if not is_mirror(repo.ui):
        return keys
    first, repo = first_unreleased(repo), repo.unfiltered()
    for root in repo._phasecache.nonpublicphaseroots(repo):
        if root >= first:
            keys.pop(hex(repo.changelog.node(root)), None)
    return keys
