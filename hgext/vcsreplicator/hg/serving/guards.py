# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways into a mirror's repositories, each wrapped so that it shows what was released.

They are installed in every process, because a repository's own hgrc, or a web server's file, can make it a mirror after Mercurial
has started. Each wrapper asks the repository's configuration and leaves those of other roles alone.
"""

import errno
import io
import itertools
import os
import time
from typing import Any

from mercurial import (
    bookmarks,
    bundle2,
    error,
    exchange,
    hg,
    localrepo,
    phases,
    scmutil,
    streamclone,
    wireprototypes,
    wireprotov1server,
)
from mercurial.exchanges import bundle_cache, peer
from mercurial.node import hex

from pushlog import seams

from . import watermark
from .views import (
    READ_ONLY,
    everything_is_released,
    first_unreleased,
    is_limited,
    is_mirror,
    limited_view,
    register_views,
)

STALE_AFTER = 30.0
"""Seconds of the aggregator's silence after which a mirror that shall refuse answers no more."""

STALE = b"this mirror does not know what is released now; please retry, or elsewhere\n"
STREAM_PATIENCE = 10.0  # seconds that a stream clone waits for a release
# They refuse by themselves, so that clients of any age read why.
_REFUSING = (b"pushkey", b"unbundle")
# Commands of Mercurial's extensions that answer from files beside the history: largefiles, remotefilelog, fastannotate.
_UNGUARDED = frozenset(b"getannotate getlfile statlfile x_rfl_getfile x_rfl_getfiles x_rfl_getflogheads".split())
_SERVING = "_vcsreplicator_serving"
_STREAMING = "_vcsreplicator_streaming"


def install() -> None:
    """Wraps every way in but web pages, once per process; raises MissingSeam for one that cannot be guarded."""
    wrap = seams.wrap
    wrap(peer, "server_filtername", _wire_view)
    wrap(localrepo, "localpeer.local", _local)
    wrap(bookmarks, "_getbkfile", _bookmark_file)
    wrap(phases, "listphases", _phases)
    wrap(scmutil, "_filterederror", _unknown)
    wrap(scmutil, "resolvehexnodeidprefix", _by_prefix)
    wrap(streamclone, "allowservergeneration", _if_released)
    wrap(bundle2, "addpartbundlestream2", _stream_part)
    wrap(streamclone, "generatev1", _legacy_stream)
    for name in ("generatev2", "generatev3"):
        wrap(streamclone, name, _stream)
    wrap(bundle_cache, "get_manifest_lines", _clone_bundles)
    wrap(wireprotov1server, "find_pullbundle", _pull_bundle)
    wrap(exchange, "unbundle", _refuse_push)
    wrap(wireprotov1server, "commands.get_cached_bundle_inline", _inline_bundle)
    wrap(wireprotov1server, "commands.pushkey", _refuse_pushkey)
    wrap(wireprotov1server, "dispatch", _dispatch)
    wrap(wireprotov1server, "commands.batch", _batch)
    wrap(wireprotov1server, "commands.changegroup", _known_only)
    wrap(wireprotov1server, "commands.changegroupsubset", _known_only)


def install_views() -> None:
    """Makes known what a mirror shows, and wraps hgweb; at the first repository of a mirror, as hgweb costs a push 20 ms.

    A repository is set up before hgweb asks for its view.
    """
    register_views()
    if ("path", watermark.WATERMARK) in hg.foi:
        return
    from mercurial.hgweb import common, hgweb_mod_inner

    seams.wrap(hgweb_mod_inner, "getwebview", _web_view)
    seams.wrap(hgweb_mod_inner, "hgweb._runwsgi", _web_request)
    common.permhooks.append(_refuse_upload)
    hg.foi.append(("path", watermark.WATERMARK))


def _serve(repo: Any) -> None:
    """From now on this repository object answers clients: its bookmarks are those of the release."""
    setattr(repo.unfiltered(), _SERVING, True)


def _wire_view(orig: Any, repo: Any, accesshidden: bool) -> bytes:
    """HTTP, SSH and local peers ask here which view they serve."""
    view: bytes = orig(repo, accesshidden)
    if not is_mirror(repo.ui):
        return view
    if _is_stale(repo.ui):
        raise error.Abort(STALE.strip())
    _serve(repo)
    return limited_view(view)


def _is_stale(ui: Any) -> bool:
    """Whether the file that the mirror's service renews (`refuse-when-stale`) is too old; never without that setting.

    Or too new: then the clock of this machine was set back, and how old it is cannot be known before it is renewed.
    """
    file = ui.configpath(b"vcsreplicator", b"refuse-when-stale")
    if not file:
        return False
    try:
        return abs(time.time() - os.stat(file).st_mtime) > STALE_AFTER
    except OSError:
        return True


def _web_request(orig: Any, web: Any, req: Any, res: Any, repo: Any) -> Any:
    """Every request to hgweb, pages and wire protocol; of those that come at once some have a copy of the repository."""
    if not is_mirror(repo.ui):
        return orig(web, req, res, repo)
    _serve(repo)
    try:
        for section in (b"web", b"server"):
            limited_view(_configured_view(repo.ui, section))
    except error.Abort as problem:
        return _refused(res, b"500 Internal Server Error", problem.message + b"\n")
    return _refused(res, b"503 Service Unavailable", STALE) if _is_stale(repo.ui) else orig(web, req, res, repo)


def _refused(res: Any, status: bytes, reason: bytes) -> Any:
    res.status = status
    res.headers[b"Content-Type"] = b"text/plain; charset=utf-8"
    res.setbodybytes(reason)
    return res.sendresponse()


def _configured_view(ui: Any, section: bytes) -> bytes | None:
    """`view` of [web], which a repository's owner may set as well, or of [server]."""
    view: bytes | None = ui.config(section, b"view", untrusted=section == b"web")
    return view


def _local(orig: Any, local_peer: Any) -> Any:
    """The repository behind a path, for commands that work on it directly, such as the destination of a clone."""
    repo = orig(local_peer)
    return repo.unfiltered().filtered(b"served") if is_limited(repo) else repo


def _web_view(orig: Any, repo: Any) -> Any:
    """hgweb's pages ask here; a view that is refused is refused at the request."""
    if not is_mirror(repo.ui):
        return orig(repo)
    _serve(repo)
    try:
        return repo.filtered(limited_view(_configured_view(repo.ui, b"web")))
    except error.Abort:
        return repo.filtered(limited_view(b"base"))


def _bookmark_file(orig: Any, repo: Any) -> Any:
    """Where the bookmark store reads its lines."""
    if not getattr(repo.unfiltered(), _SERVING, False):
        return orig(repo)
    return io.BytesIO(watermark.read_bookmarks(repo))


def _phases(orig: Any, repo: Any) -> Any:
    """Draft roots for `listkeys`: Mercurial names those of the whole repository, which may be very many."""
    keys = orig(repo)
    if not is_mirror(repo.ui):
        return keys
    first, repo = first_unreleased(repo), repo.unfiltered()
    for number in [root for root in repo._phasecache.nonpublicphaseroots(repo) if root >= first]:
        keys.pop(hex(repo.changelog.node(number)), None)
    return keys


def _unknown(orig: Any, repo: Any, changeid: bytes) -> Any:
    """What a client reads who asks for a changeset that it must not see: the same as for one that does not exist."""
    if not is_limited(repo):
        return orig(repo, changeid)
    changeset = scmutil.revsymbol(repo.unfiltered(), changeid)
    if changeset.rev() < first_unreleased(repo):
        return orig(repo, changeid)
    return error.RepoLookupError(b"unknown revision '%s'" % changeid)


def _by_prefix(orig: Any, repo: Any, prefix: bytes) -> Any:
    """A changeset by its first digits, which mean what they mean at the release: Mercurial looks in the whole repository."""
    try:
        return orig(repo, prefix)
    except error.AmbiguousPrefixLookupError:
        whole, first = repo.unfiltered().changelog, first_unreleased(repo)
        if not is_limited(repo) or first == len(whole):
            raise
        digits = prefix.removeprefix(b"x")
        released = map(whole.node, range(first))
        found = list(itertools.islice((node for node in released if hex(node).startswith(digits)), 2))
        if len(found) > 1:
            raise
    if not found:
        return None
    repo.changelog.rev(found[0])  # it may be hidden
    return found[0]


def _if_released(orig: Any, repo: Any) -> bool:
    """Whether a stream clone is offered; it copies files, in which nothing can be hidden."""
    is_decided_later = getattr(repo.unfiltered(), _STREAMING, False)
    return (is_decided_later or everything_is_released(repo)) and orig(repo)


def _stream_part(orig: Any, bundler: Any, repo: Any, *args: Any, **kwargs: Any) -> Any:
    """A client asks for the stream that it was offered; events may have been applied since, so `_stream` decides again."""
    setattr(repo.unfiltered(), _STREAMING, True)
    try:
        return orig(bundler, repo, *args, **kwargs)
    finally:
        setattr(repo.unfiltered(), _STREAMING, False)


def _stream(orig: Any, repo: Any, *args: Any, **kwargs: Any) -> Any:
    """The scan behind a stream clone, under the lock and only of what is released; that is waited for."""
    if not is_mirror(repo.ui):
        return orig(repo, *args, **kwargs)
    end = time.monotonic() + STREAM_PATIENCE
    while True:
        with repo.lock():
            if everything_is_released(repo):
                return orig(repo, *args, **kwargs)
        if time.monotonic() > end:
            raise error.Abort(
                b"this mirror holds changesets that are not released yet; please retry, or without --stream"
            )
        time.sleep(0.02)


def _legacy_stream(orig: Any, repo: Any, *args: Any, **kwargs: Any) -> Any:
    """Its clients understand one temporary refusal: that the repository cannot be locked."""
    try:
        return _stream(orig, repo, *args, **kwargs)
    except error.Abort as refusal:
        raise error.LockError(errno.EAGAIN, str(refusal), repo.root, b"not released") from refusal


def _clone_bundles(orig: Any, repo: Any) -> list[bytes]:
    """The manifest of clone bundles, which are files made of whatever the disk held."""
    return orig(repo) if everything_is_released(repo) else []


def _pull_bundle(orig: Any, repo: Any, *args: Any, **kwargs: Any) -> Any:
    return orig(repo, *args, **kwargs) if everything_is_released(repo) else None


def _inline_bundle(orig: Any, repo: Any, proto: Any, path: bytes) -> Any:
    if not everything_is_released(repo):
        raise error.Abort(b"this mirror holds changesets that are not released yet; please retry")
    return orig(repo, proto, path)


def _known_only(orig: Any, repo: Any, proto: Any, *lists: bytes) -> Any:
    """The commands of old clients leave out what a view hides, and fail for what does not exist: here they fail for both."""
    for nodes in lists if is_mirror(repo.ui) else ():
        for node in wireprototypes.decodelist(nodes):
            repo.changelog.rev(node)
    return orig(repo, proto, *lists)


def _refuse_push(orig: Any, repo: Any, cg: Any, heads: Any, source: bytes, url: bytes) -> Any:
    if is_mirror(repo.ui) and source in (b"serve", b"push"):
        refusal = error.Abort(READ_ONLY)
        refusal.duringunbundle2 = True  # so that the client gets an answer it can read
        raise refusal
    return orig(repo, cg, heads, source, url)


def _refuse_pushkey(orig: Any, repo: Any, proto: Any, *args: bytes) -> Any:
    if is_mirror(repo.ui):
        return wireprototypes.bytesresponse(b"0\n%s\n" % READ_ONLY)
    return orig(repo, proto, *args)


def _dispatch(orig: Any, repo: Any, proto: Any, command: bytes, *arguments: Any, **keywords: Any) -> Any:
    """Every command of the wire protocol but those inside a `batch`."""
    refusal = _refusal(repo, command)
    return wireprototypes.ooberror(refusal) if refusal else orig(repo, proto, command, *arguments, **keywords)


def _batch(orig: Any, repo: Any, proto: Any, commands: bytes, others: Any) -> Any:
    refusals = filter(None, (_refusal(repo, command.partition(b" ")[0]) for command in commands.split(b";")))
    refusal = next(refusals, None)
    return wireprototypes.ooberror(refusal) if refusal else orig(repo, proto, commands, others)


def _refusal(repo: Any, command: bytes) -> bytes | None:
    """Why a mirror does not answer: an extension would write, or look past the view. None if it does."""
    entry = wireprotov1server.commands.get(command)
    if entry is None or command in _REFUSING or not is_mirror(repo.ui):
        return None
    if command in _UNGUARDED:
        return b"a mirror does not answer the command %s\n" % command
    return READ_ONLY + b"\n" if entry.permission != b"pull" else None


def _refuse_upload(web: Any, req: Any, operation: bytes | None) -> None:
    """Refuses what an extension would write through hgweb, such as an upload of LFS; hgweb asks about each operation.

    Two commands of the wire protocol refuse for themselves: they have no path, and an upload with their name in its query has one.
    """
    from mercurial.hgweb import common

    refuses_itself = not req.dispatchpath and req.qsparams.get(b"cmd") in _REFUSING
    if operation not in (None, b"pull") and not refuses_itself and is_mirror(web.repo.ui):
        raise common.ErrorResponse(common.HTTP_FORBIDDEN, READ_ONLY)
