# SPDX-License-Identifier: GPL-2.0-or-later
"""Arguments of requests that make no sense, told from faults of a server.

Mercurial decodes arguments as it goes, and raises what Python raises. Here each is checked where it is decoded, and `BadArgument`
is the only exception that is the client's mistake. Over SSH nothing changes.
"""

import errno
import re
from collections.abc import Callable, Mapping
from typing import Any

from mercurial import error, wireprotov1server
from mercurial.hgweb.common import HTTP_BAD_REQUEST, HTTP_NOT_FOUND, ErrorResponse
from mercurial.localrepo import localrepository

from pushlog import seams

from . import damage

# Arguments that are lists of nodes. `heads` of a push may be words.
_NODES = (b"bases", b"common", b"nodes", b"roots")
_WORKING = b"f" * 40
# Commands whose answers come in pieces: Mercurial gives them to no batch.
_IN_PIECES = (b"changegroup", b"changegroupsubset", b"get_cached_bundle_inline", b"getbundle", b"stream_out")
# What a client may ask of a bundle in the form before Mercurial 3.5.
_OF_FORMER_BUNDLES = frozenset({b"bundlecaps", b"common", b"heads"})
_BATCHED = re.compile(rb"(?P<command>[\w-]+) (?P<arguments>([^=,]+=[^=,]*(,[^=,]+=[^=,]*)*)?)")


class BadArgument(ValueError):
    """An argument of a client that cannot be decoded, or is missing."""


def install() -> None:
    """Check arguments in a process of pages, from now on, or raise MissingSeam."""
    seams.wrap("mercurial.hgweb.common", "ispathsafe", _find_path)
    for module in ("hgwebdir_mod_inner", "webcommands"):
        seams.wrap(f"mercurial.hgweb.{module}", "staticfile", _send_static_file)
    seams.wrap("mercurial.hgweb.webcommands", "comparison", _compare)
    seams.wrap("mercurial.hgweb.webcommands", "graph", _show_graph)
    seams.wrap("mercurial.hgweb.webutil", "cleanpath", _read_name)
    seams.wrap("mercurial.wireprotoserver", "httpv1protocolhandler.getargs", _read_arguments)
    seams.wrap("mercurial.wireprototypes", "decodelist", _decode_nodes)
    seams.wrap("mercurial.wireprotov1server", "commands.batch", _answer_batch)
    seams.wrap("mercurial.wireprotov1server", "commands.pushkey", damage.answer_pushkey)


def _find_path(orig: Callable[[bytes], bool], path: bytes) -> bool:
    """Fail for a file that is not below a folder; hgweb would send no answer."""
    if not orig(path):
        raise ErrorResponse(HTTP_NOT_FOUND)
    return True


def _send_static_file(orig: Callable[..., Any], *given: Any) -> Any:
    """Answer 404 for a name that no file can have: hgweb would blame the server."""
    try:
        return orig(*given)
    except ErrorResponse as answered:
        problem = answered.__context__
        if isinstance(problem, OSError) and problem.errno in (errno.ENAMETOOLONG, errno.ENOTDIR):
            raise ErrorResponse(HTTP_NOT_FOUND) from None
        raise


def _read_name(orig: Callable[..., bytes], repo: localrepository, path: bytes) -> bytes:
    """Read the name of a file; answer 404 for one so long that no store has a place for it."""
    name = orig(repo, path)
    try:
        repo.store.encode(b"data/%s.i" % name)
    except ValueError:
        raise ErrorResponse(HTTP_NOT_FOUND) from None
    return name


def _show_graph(orig: Callable[..., Any], web: Any) -> Any:
    """Look up the top of a graph before the page begins: then it can be refused."""
    top = web.req.qsparams.get(b"graphtop")
    if top is not None:
        if len(top) != 40 or not re.fullmatch(rb"[0-9a-f]*", top):
            raise error.RepoLookupError(b"unknown revision '%s'" % top)
        if web.repo[top].rev() is None:
            raise error.RepoLookupError(b"unknown revision '%s'" % top)
    return orig(web)


def _compare(orig: Callable[..., Any], web: Any) -> Any:
    """Compare two revisions of a file; the number of lines beside each change is one."""
    lines = web.req.qsparams.get(b"context", b"full")
    if lines != b"full" and not lines.isdigit():
        raise ErrorResponse(HTTP_BAD_REQUEST, b"context must be an integer or full")
    return orig(web)


def _read_arguments(orig: Callable[..., list[Any]], handler: Any, names: bytes) -> list[Any]:
    """Read a command's arguments, which must all be there."""
    try:
        values = orig(handler, names)
    except (KeyError, ValueError) as problem:
        raise BadArgument(str(problem)) from problem
    given = dict(zip(names.split(), values, strict=True))
    given |= given.pop(b"*", {})
    is_former = not any(each.startswith(b"HG2") for each in given.get(b"bundlecaps", b"").split(b","))
    if handler._req.qsparams.get(b"cmd") == b"getbundle" and is_former and given.keys() - _OF_FORMER_BUNDLES:
        raise BadArgument("more than changesets in a bundle that has nothing else")
    _check_nodes(given, *(() if names == b"heads" else (b"heads",)))
    return values


def _check_nodes(given: Mapping[bytes, bytes], *more: bytes) -> None:
    """Raise BadArgument for a list with a node that has not 40 digits, or is that of the working directory."""
    for name in (*_NODES, *more):
        if any(len(node) != 40 or node == _WORKING for node in given.get(name, b"").split(b" ") if node):
            raise BadArgument("a node has 20 bytes, and is a changeset's")


def _decode_nodes(orig: Callable[..., list[bytes]], text: bytes, sep: bytes = b" ") -> list[bytes]:
    """Decode a list, of nodes or of what else an extension encodes so, or a pair."""
    try:
        nodes = orig(text, sep)
    except ValueError as problem:
        raise BadArgument(str(problem)) from problem
    if not all(nodes):
        raise BadArgument("a node is empty")
    if sep == b"-" and [len(node) for node in nodes] != [20, 20]:
        raise BadArgument("a pair has two nodes")
    return nodes


def _answer_batch(orig: Callable[..., Any], repo: localrepository, proto: Any, cmds: bytes, others: Any) -> Any:
    """Answer a list of commands, each of which must be known and have its arguments."""
    for entry in cmds.split(b";"):
        found = _BATCHED.fullmatch(entry)
        if found is None or found["command"] not in wireprotov1server.commands or found["command"] in _IN_PIECES:
            raise BadArgument("not a list of commands")
        given = dict(argument.partition(b"=")[::2] for argument in found["arguments"].split(b","))
        _check_nodes(given)
        needed = set(wireprotov1server.commands[found["command"]].args.split()) - {b"*"}
        if missing := needed - given.keys():
            raise BadArgument(f"missing: {min(missing).decode()}")
    return orig(repo, proto, cmds, others)
