# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog over Mercurial's wire protocol: two commands for clients, and the client's side at pull and clone.

A row is ``<id> <user> <epoch> <node> <node> …``; rows come by ascending id. ``pushlog`` answers at once (``1`` and the rows, or
``0`` and a message), ``pushlog-stream`` streams rows and ends with ``ok`` or ``error <message>``, so that a client knows a
whole answer from a broken one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

from mercurial import error, wireprototypes, wireprotov1server
from mercurial.utils import stringutil

from . import api, entry
from .limit import visible_limit
from .storage import Pushlog

ATTEMPTS = 3


def register() -> None:
    """Offer both commands and announce them; called once per process."""
    wireprotov1server.wireprotocommand(b"pushlog", b"firstpush", permission=b"pull")(serve_pushlog)
    wireprotov1server.wireprotocommand(b"pushlog-stream", b"firstpush", permission=b"pull")(serve_pushlog_stream)


def capabilities(orig: Any, repo: Any, proto: Any) -> list[bytes]:
    return [*orig(repo, proto), b"pushlog", b"pushlog-stream"]


def serve_pushlog(repo: Any, proto: Any, firstpush: bytes) -> Any:
    try:
        answer = b"\n".join([b"1", *_rows(repo, int(firstpush))])
    except (ValueError, sqlite3.Error, OSError) as problem:
        answer = b"0\n" + stringutil.forcebytestr(problem)
    return wireprototypes.bytesresponse(answer)


def serve_pushlog_stream(repo: Any, proto: Any, firstpush: bytes) -> Any:
    return wireprototypes.streamreslegacy(gen=_stream(repo, firstpush))


def _stream(repo: Any, firstpush: bytes) -> Iterator[bytes]:
    try:
        for row in _rows(repo, int(firstpush)):
            yield row + b"\n"
        yield b"ok\n"
    except Exception as problem:  # the client must hear of it: a stream that only ends is tried again
        yield b"error %s\n" % stringutil.forcebytestr(problem).replace(b"\n", b" ")


def _rows(repo: Any, first: int) -> Iterator[bytes]:
    limit = visible_limit(repo)
    for number, user, date, nodes in api.pushes(repo, first):
        if limit is not None and number > limit:
            return
        yield b"%d %s %d %s" % (number, b"".join(user.splitlines()), date, b" ".join(nodes))


def parse_row(row: bytes) -> entry.Push:
    """The push that a row describes; raises `ValueError` for anything but a row. A user may contain blanks."""
    words = row.split(b" ")
    last = len(words)
    while last > 3 and len(words[last - 1]) in (0, 40):
        last -= 1
    nodes = [word for word in words[last:] if word]
    if last < 3 or not all(_is_node(node) for node in nodes):
        raise ValueError(f"not a row of a pushlog: {row[:200]!r}")
    return entry.Push(
        id=_positive(words[0]),
        user=b" ".join(words[1 : last - 1]).decode("utf-8", "replace"),
        date=int(words[last - 1]),
        nodes=tuple(node.decode("ascii") for node in nodes),
    )


def _positive(word: bytes) -> int:
    number = int(word)
    if number < 1:
        raise ValueError(f"not the id of a push: {number}")
    return number


def _is_node(word: bytes) -> bool:
    return len(word) == 40 and not word.strip(b"0123456789abcdef")


def pull(orig: Any, pullop: Any) -> Any:
    """Wraps the last step of a pull inside its transaction: fetch the pushes that the server knows and we do not."""
    result = orig(pullop)
    if pullop.remote.capable(b"pushlog-stream"):
        fetch(pullop)
    return result


def fetch(pullop: Any) -> None:
    """Record the server's newer pushes under its ids and dates, all or nothing; aborts the pull when it cannot be had."""
    repo = pullop.repo.unfiltered()
    ui = repo.ui
    first = api.last_push_id(repo) + 1
    for attempt in range(1, ATTEMPTS + 1):
        try:
            pushes = list(_known(repo, _received(pullop.remote, first)))
        except (_BrokenStream, error.PeerTransportError, OSError) as problem:
            ui.warn(b"remote error fetching pushlog on attempt %d: %s\n" % (attempt, stringutil.forcebytestr(problem)))
            if attempt < ATTEMPTS:
                time.sleep(ui.configint(b"pushlog", b"retrydelayms") * attempt / 1000)
            continue
        if pushes:
            _insert(repo, pullop.gettransaction(), pushes)
            ui.status(b"added %d pushes\n" % len(pushes))
        return
    raise error.Abort(b"remote error fetching pushlog after %d attempts" % ATTEMPTS)


class _BrokenStream(Exception):
    """The answer ended too early, or the server said what went wrong."""


def _received(remote: Any, first: int) -> Iterator[entry.Push]:
    """The server's rows, up to its trailer and nothing further: over SSH the next answer follows on the same channel."""
    stream = remote._callstream(b"pushlog-stream", firstpush=b"%d" % first)
    while line := stream.readline():
        if line == b"ok\n":
            return
        if line.startswith(b"error "):
            raise _BrokenStream(line[len(b"error ") :].rstrip(b"\n").decode("utf-8", "replace"))
        if not line.endswith(b"\n"):
            break
        try:
            yield parse_row(line[:-1])
        except ValueError as problem:
            raise _BrokenStream(str(problem)) from problem
    raise _BrokenStream("stream ended without trailer")


def _known(repo: Any, pushes: Iterable[entry.Push]) -> Iterator[entry.Push]:
    """The pushes before the first that names a changeset we do not have; the rest is read and dropped."""
    revision_of = Pushlog(repo).revision_of
    is_known = True
    for push in pushes:
        if is_known and (unknown := [node for node in push.nodes if revision_of(node) is None]):
            is_known = False
            names = ", ".join(unknown).encode("ascii")
            repo.ui.warn(b"received pushlog entry for unknown changeset %s; ignoring\n" % names)
        if is_known:
            yield push


def _insert(repo: Any, tr: Any, pushes: Iterable[entry.Push]) -> None:
    try:
        session = Pushlog(repo).session(tr)
        for push in pushes:
            session.insert(push)
    except sqlite3.Error as problem:
        raise error.Abort(b"cannot record pushes: %s" % str(problem).encode()) from problem
