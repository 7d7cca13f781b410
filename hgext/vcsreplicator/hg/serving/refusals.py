# SPDX-License-Identifier: GPL-2.0-or-later
"""Refusals of a mirror: writing, and commands that read files past the view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import error, wireprototypes, wireprotov1server
from mercurial.hgweb import common
from mercurial.localrepo import localrepository
from mercurial.wireprototypes import baseprotocolhandler

from pushlog import seams

from .views import READ_ONLY, is_mirror

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext
    from mercurial.hgweb.request import parsedrequest

# Its own wrapper refuses it, so that clients of every version read why.
_PUSHKEY = b"pushkey"
# Commands of Mercurial's extensions that answer from files beside the history: largefiles, remotefilelog, fastannotate. And those
# by which a master offers all its data to mirrors.
_UNGUARDED = frozenset(
    b"getannotate getlfile statlfile x_rfl_getfile x_rfl_getfiles x_rfl_getflogheads "
    b"replication-state replication-changesets replication-fingerprint".split()
)


def install() -> None:
    """Wrap pushes, every command of the wire protocol, and hgweb's own check.

    A push over the wire is refused before its content is read: Mercurial would write all of it to a temporary file. That check is
    what hgweb asks about each operation. Raises MissingSeam if this Mercurial lacks one of them or gives it other arguments.
    """
    seams.wrap("mercurial.exchange", "unbundle", _refuse_push)
    seams.wrap("mercurial.wireprotov1server", "commands.pushkey", _refuse_pushkey)
    seams.wrap("mercurial.wireprotov1server", "dispatch", _dispatch)
    seams.wrap("mercurial.wireprotov1server", "commands.batch", _dispatch_batch)
    common.permhooks.insert(0, _refuse_writing)


def _refuse_push(
    orig: Callable[..., Any], repo: localrepository, cg: Any, heads: Any, source: bytes, url: bytes
) -> Any:
    if is_mirror(repo.ui) and source in (b"serve", b"push"):
        refusal = error.Abort(READ_ONLY)
        # Mercurial then answers so that the client can read it.
        refusal.duringunbundle2 = True
        raise refusal
    return orig(repo, cg, heads, source, url)


def _refuse_pushkey(orig: Callable[..., Any], repo: localrepository, proto: baseprotocolhandler, *args: bytes) -> Any:
    if is_mirror(repo.ui):
        return wireprototypes.bytesresponse(b"0\n%s\n" % READ_ONLY)
    return orig(repo, proto, *args)


def _dispatch(
    orig: Callable[..., Any],
    repo: localrepository,
    proto: baseprotocolhandler,
    command: bytes,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Answer a command, or refuse it; those inside a `batch` do not come here."""
    refusal = _reason_to_refuse(repo, command)
    return wireprototypes.ooberror(refusal) if refusal else orig(repo, proto, command, *args, **kwargs)


def _dispatch_batch(
    orig: Callable[..., Any], repo: localrepository, proto: baseprotocolhandler, commands: bytes, others: Any
) -> Any:
    reasons = (_reason_to_refuse(repo, command.partition(b" ")[0]) for command in commands.split(b";"))
    refusal = next(filter(None, reasons), None)
    return wireprototypes.ooberror(refusal) if refusal else orig(repo, proto, commands, others)


def _reason_to_refuse(repo: localrepository, command: bytes) -> bytes | None:
    """Find why a mirror does not answer: it would write, or read past the view."""
    entry = wireprotov1server.commands.get(command)
    if entry is None or command == _PUSHKEY or not is_mirror(repo.ui):
        return None
    if command in _UNGUARDED:
        return b"a mirror does not answer the command %s\n" % command
    return READ_ONLY + b"\n" if entry.permission != b"pull" else None


def _refuse_writing(web: requestcontext, req: parsedrequest, operation: bytes | None) -> None:
    """Refuse what would write through hgweb.

    A client reads so before Mercurial asks for TLS or a login. A client that may not read the repository reads only that.
    """
    if operation not in (None, b"pull") and is_mirror(web.repo.ui):
        common.checkauthz(web, req, b"pull")
        raise common.ErrorResponse(common.HTTP_FORBIDDEN, READ_ONLY)
