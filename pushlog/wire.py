# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog over Mercurial's wire protocol.

There are two commands for clients, and the form of a row. `fetching` is the client's side.

A row is ``<id> <user> <epoch> <node> <node> …``; rows come by ascending id. ``pushlog`` answers at once (``1`` and the rows, or
``0`` and a message). ``pushlog-stream`` streams rows and ends with ``ok`` or ``error <message>``, so that a client can tell a
whole answer from a broken one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mercurial import wireprototypes
from mercurial.localrepo import localrepository
from mercurial.utils import stringutil

from . import api
from .limit import NamedChangesets, visible_limit
from .store import database, entry

if TYPE_CHECKING:
    from mercurial.wireprototypes import baseprotocolhandler


def serve_pushlog(repo: localrepository, proto: baseprotocolhandler, firstpush: bytes) -> Any:
    try:
        answer = b"\n".join([b"1", *_encode_rows(repo, _parse_first(firstpush))])
    except (ValueError, sqlite3.Error, OSError) as problem:
        answer = b"0\n" + stringutil.forcebytestr(problem)
    return wireprototypes.bytesresponse(answer)


def serve_pushlog_stream(repo: localrepository, proto: baseprotocolhandler, firstpush: bytes) -> Any:
    return wireprototypes.streamreslegacy(gen=stream_rows(repo, firstpush))


def stream_rows(repo: localrepository, firstpush: bytes) -> Iterator[bytes]:
    try:
        for row in _encode_rows(repo, _parse_first(firstpush)):
            yield row + b"\n"
        yield b"ok\n"
    except Exception as problem:  # the client must learn the reason: it would retry a stream that merely ends
        yield b"error %s\n" % stringutil.forcebytestr(problem).replace(b"\n", b" ")


def _parse_first(firstpush: bytes) -> int:
    """Return the first id asked for, within what SQLite takes."""
    return max(0, min(int(firstpush), database.LARGEST))


def _encode_rows(repo: localrepository, first: int) -> Iterator[bytes]:
    """Yield the rows of pushes of which the view names a changeset.

    A push that lost its changesets here has a row, too, without any.
    """
    limit, is_named = visible_limit(repo), NamedChangesets(repo).names
    for number, user, date, nodes in api.pushes(repo, first):
        if limit is not None and number > limit:
            return
        named = [node for node in nodes if is_named(node.decode("ascii"))]
        if nodes and not named:
            continue
        yield b"%d %s %d %s" % (number, b"".join(user.splitlines()), date, b" ".join(named))


def parse_row(row: bytes) -> entry.Push:
    """Return the push of a row, whose user may have blanks; raises `ValueError`."""
    words = row.split(b" ")
    last = len(words)
    while last > 3 and len(words[last - 1]) in (0, 40):
        last -= 1
    nodes = [word.decode("ascii", "replace") for word in words[last:] if word]
    if last < 3 or not all(map(database.is_node, nodes)) or len(nodes) != len(set(nodes)):
        raise ValueError(f"not a row of a pushlog: {row[:200]!r}")
    number, date = _parse_integer(words[0]), _parse_integer(words[last - 1])
    if number < 1:
        raise ValueError(f"not the id of a push: {number}")
    return entry.Push(
        id=number, user=b" ".join(words[1 : last - 1]).decode("utf-8", "replace"), date=date, nodes=tuple(nodes)
    )


def _parse_integer(word: bytes) -> int:
    """Return a number that SQLite can hold, from plain digits."""
    if not word.removeprefix(b"-").isdigit() or len(word) > 20 or abs(number := int(word)) > database.LARGEST:
        raise ValueError(f"not a number: {word[:50]!r}")
    return number
