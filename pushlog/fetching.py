# SPDX-License-Identifier: GPL-2.0-or-later
"""The client's side of the wire protocol.

A pull and a clone bring the server's pushlog along, in their own transaction.

Rules of this module:

1. An answer is read up to its trailer before anything is done with it: over SSH the next answer follows on the same channel.
2. Everything readable is recorded. An unreadable row is left out; a changeset that the server names and does not give (hidden, or
  gone) is left out of its push. The user sees a message about both.
3. A row that names changesets a later pull will bring ends the answer: it and the rest come with that pull.
4. The last answer counts: a changeset that was in another push here leaves it. So a push that was stripped on the server and
  pushed again has its new row here, too; and of two servers that know a changeset by different pushes the higher id wins.
5. New changesets in no push may belong to a push that lost them here, or came without them. The client asks the server again, from
  the first such push on; for all pushes if it does not know that push and the server's view withholds drafts (`pushlog-withholds`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import error
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from . import api, wire
from .settings import read_recorded
from .store import database, entry, progress
from .store.session import session_of
from .store.storage import Pushlog

if TYPE_CHECKING:
    from mercurial.exchange import pulloperation
    from mercurial.interfaces.repository import IPeer

# Attempts to read the server's answer.
ATTEMPTS = 3
# Most problems of one kind that are shown.
SHOWN = 10
# Bytes of the longest row: three million changesets of one push.
LONGEST = 128 * 1024 * 1024
# Bytes that are read at once.
_PIECE = 64 * 1024
# Most changesets of one `known` command.
_KNOWN_BATCH = 500


def pull(orig: Any, pullop: pulloperation) -> Any:
    """Wrap the last step inside a pull's transaction: fetch the pushes.

    Where a pull is a push of its own, the server's rows would take its changesets away.
    """
    result = orig(pullop)
    if pullop.remote.capable(b"pushlog-stream") and b"pull" not in read_recorded(pullop.repo.ui):
        fetch(pullop)
    return result


def fetch(pullop: pulloperation) -> None:
    """Record the server's newer pushes as they are there, or abort the pull."""
    log = Pushlog(pullop.repo)
    first = api.last_push_id(log.repo) + 1
    name_stale_mirror(log.repo.ui, pullop.remote, newest=first - 1)
    answer = _ask_for_pushes(log, pullop.remote, first)
    pushes = list(_select_obtainable(log, pullop.remote, answer))
    if not pushes:
        log.create()
    _record_pushes(log, pullop, pushes)
    log.repo.ui.status(b"added %d pushes\n" % len(pushes))
    if first > 1 and (returned := _find_unrecorded(log).difference(*(push.nodes for push in answer))):
        again = _find_first_incomplete(log, returned, withheld=bool(pullop.remote.capable(b"pushlog-withholds")))
        if again is not None:
            rows = [push for push in _ask_for_pushes(log, pullop.remote, again) if not returned.isdisjoint(push.nodes)]
            _record_pushes(
                log, pullop, [push for push in _select_obtainable(log, pullop.remote, rows) if _is_ours(log, push)]
            )


def name_stale_mirror(ui: Ui, remote: IPeer, *, newest: int) -> None:
    """Report in one line a mirror that serves fewer pushes than are here."""
    served = _read_newest(remote)
    if served is not None and served < newest:
        ui.status(b"this mirror is behind: it serves pushes up to %d, the newest here is %d\n" % (served, newest))


def _read_newest(remote: IPeer) -> int | None:
    """Return the newest push that a mirror serves; None if the server does not tell."""
    served = remote.capable(b"pushlog-last")
    return int(served[:20]) if isinstance(served, bytes) and served.isdigit() else None


class BrokenStream(Exception):
    """The answer ended too early, or the server said what went wrong."""


def _ask_for_pushes(log: Pushlog, remote: IPeer, first: int) -> list[entry.Push]:
    """Return the server's pushes from id ``first`` on, in up to three attempts."""
    ui, newest = log.repo.ui, _read_newest(remote)
    total = newest + 1 - first if newest is not None and newest >= first else None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            rows = list(progress.show_count(ui, b"receiving pushes", receive_lines(remote, first), total))
            return _parse_rows(ui, rows, first)
        except (BrokenStream, error.PeerTransportError, OSError) as problem:
            ui.warn(b"remote error fetching pushlog on attempt %d: %s\n" % (attempt, stringutil.forcebytestr(problem)))
            if attempt < ATTEMPTS:
                time.sleep(ui.configint(b"pushlog", b"retrydelayms") * attempt / 1000)
    raise error.Abort(b"remote error fetching pushlog after %d attempts" % ATTEMPTS)


def receive_lines(remote: IPeer, first: int) -> Iterator[bytes]:
    """Yield the lines of the answer before its trailer.

    Raises BrokenStream, and Abort for a line that is too long.
    """
    for line in _read_lines(remote._callstream(b"pushlog-stream", firstpush=b"%d" % first)):
        if line == b"ok\n":
            return
        if line.startswith(b"error "):
            raise BrokenStream(line[len(b"error ") :].rstrip(b"\n").decode("utf-8", "replace"))
        if not line.endswith(b"\n"):
            break
        yield line[:-1]
    raise BrokenStream("stream ended without trailer")


def _read_lines(stream: Any) -> Iterator[bytes]:
    """Yield the lines of a stream; the last may lack its end.

    Raises Abort for a line that is too long, of which it reads no more.
    """
    # `readline` takes no limit over SSH, nor before Mercurial 7.1 over HTTP, where `read` ends with the answer. Over SSH the
    # stream stays open, but until the next request nothing follows the answer.
    read = getattr(stream, "unbufferedread", stream.read)
    pieces: list[bytes] = []
    length = 0
    while piece := read(_PIECE):
        *ended, rest = piece.split(b"\n")
        for line in ended:
            yield b"".join((*pieces, line, b"\n"))
            pieces, length = [], 0
        pieces.append(rest)
        length += len(rest)
        if length > LONGEST:
            raise error.Abort(b"a row of the server's pushlog is longer than %d bytes" % LONGEST)
    if length:
        yield b"".join(pieces)


def _parse_rows(ui: Ui, rows: Iterable[bytes], first: int) -> list[entry.Push]:
    pushes: list[entry.Push] = []
    problems: list[str] = []
    for row in rows:
        try:
            push = wire.parse_row(row)
            if push.id < first:
                raise ValueError(f"push {push.id} was not asked for, or comes twice")
        except ValueError as problem:
            problems.append(str(problem))
            continue
        pushes.append(push)
        first = push.id + 1
    for text in problems[:SHOWN]:
        ui.warn(b"row of the server's pushlog left out: %s\n" % text.encode("ascii", "backslashreplace"))
    if len(problems) > SHOWN:
        ui.warn(b"rows of the server's pushlog left out: %d more\n" % (len(problems) - SHOWN))
    return pushes


def _select_obtainable(log: Pushlog, remote: IPeer, pushes: list[entry.Push]) -> Iterator[entry.Push]:
    """Yield the pushes before the first that a later pull completes.

    Reports that one, and the pushes with changesets that the server does not give.
    """
    unknown = [node for push in pushes for node in push.nodes if log.revision_of(node) is None]
    to_come = find_first_offered(remote, unknown)
    missing = set(unknown)
    lacking: list[str] = []
    for push in pushes:
        if to_come in push.nodes:
            names = list_names([node for node in push.nodes if node in missing])
            log.repo.ui.warn(b"received pushlog entry for unknown changeset %s; ignoring\n" % names)
            break
        if not missing.isdisjoint(push.nodes):
            lacking.append(str(push.id))
        yield push
    if lacking:
        names = list_names(lacking)
        log.repo.ui.status(b"pushes without the changesets that are not given by the server: %s\n" % names)


def find_first_offered(remote: IPeer, nodes: list[str]) -> str | None:
    """Return the first of ``nodes`` that the server would give, None if none.

    If the server cannot tell, that is the first of all.
    """
    if not remote.capable(b"known"):
        return nodes[0] if nodes else None
    for start in range(0, len(nodes), _KNOWN_BATCH):
        batch = nodes[start : start + _KNOWN_BATCH]
        with remote.commandexecutor() as executor:
            answers = executor.callcommand(b"known", {b"nodes": [bytes.fromhex(node) for node in batch]}).result()
        for node, is_known in zip(batch, answers, strict=False):
            if is_known:
                return node
    return None


def list_names(names: list[str]) -> bytes:
    """List the first of these names, and how many more there are."""
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) + more).encode("ascii")


def _record_pushes(log: Pushlog, pullop: pulloperation, pushes: list[entry.Push]) -> None:
    """Record pushes as the server has them, without the changesets that are not here."""
    session = None
    try:
        for push in progress.show_count(log.repo.ui, b"recording pushes", pushes, len(pushes)):
            session = session or session_of(log, pullop.gettransaction())
            present = tuple(node for node in push.nodes if log.revision_of(node) is not None)
            if present != push.nodes:
                session.remember(push)
            session.take(push.with_nodes(present))
    except sqlite3.Error as problem:
        raise error.Abort(b"cannot record pushes: %s" % str(problem).encode()) from problem


def _find_unrecorded(log: Pushlog) -> set[str]:
    """Return the changesets that this pull brought and that are in no push."""
    tr = log.repo.currenttransaction()
    if tr is None:
        return set()
    changelog = log.repo.changelog
    new = [changelog.node(revision).hex() for revision in changelog.revs(start=tr.changes[b"origrepolen"])]
    with log.view() as connection:
        return {node for node in new if database.push_id_of(connection, node) is None}


def _find_first_incomplete(log: Pushlog, returned: set[str], *, withheld: bool) -> int | None:
    """Return the first push that has no changesets, or once had some of ``returned``.

    It is None if there is none. It is 1 if no push is known that had them all, and the server may show now what it ``withheld``.
    """
    with log.view() as connection:
        emptied = database.first_emptied(connection)
    pushes = (fact for fact in log.sound_facts() if isinstance(fact, entry.Push))
    once = [push for push in pushes if not returned.isdisjoint(push.nodes)]
    if withheld and not returned.issubset(node for push in once for node in push.nodes):
        return 1
    return min([*(push.id for push in once), *([] if emptied is None else [emptied])], default=None)


def _is_ours(log: Pushlog, push: entry.Push) -> bool:
    """Return whether this id is free here, or is the server's push; warn if not."""
    with log.view() as connection:
        here = database.push(connection, push.id)
    if here is None or (here.is_same_act(push) and set(here.nodes) <= set(push.nodes)):
        return True
    log.repo.ui.warn(b"row of the server's pushlog left out: push %d is another push here\n" % push.id)
    return False
