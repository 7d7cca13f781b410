# SPDX-License-Identifier: GPL-2.0-or-later
"""A snapshot: a mirror's repository at exactly one sequence of the master.

The repository is brought there from nothing or from any earlier state. Changesets come in pieces, a transaction each, in the
master's order; a kill costs the piece at hand. Then one answer of the master, read under its lock, describes the repository
after event N: length and tip, phases, bookmarks, markers, pushlog, digest, hgrc. The changesets of N that the changelog still lacks
are fetched, and all the rest, with the checkpoint of N, is written in one transaction. So events up to N are repeats, and N + 1
follows. Nothing is shown before N is released (`releasing`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, TypeVar
from urllib.error import HTTPError

from mercurial import error, phases, statichttprepo, util
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex
from mercurial.transaction import transaction
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from pushlog import api, versions

from ...mirror.checkpoint import Checkpoint, with_former
from ...mirror.comparison import Fingerprint
from ...outbox.entry import NewestEvent
from ...words.errors import Diverged, Unavailable, counted
from ...words.event import Changes, MasterSettings, PhaseMove, Tip, check_changes, check_names
from ...words.secrecy import describe_readers
from ...words.shape import Count, parse, read
from ...words.wire import BUNDLE_LIMIT
from .. import observe, wirecommands
from ..frames import StreamAnswer
from ..text import local, text
from . import replicated
from .apply import unbundle

if TYPE_CHECKING:
    from mercurial.interfaces.repository import IPeer

T = TypeVar("T")

# Section and key of a file's name. The worker sets it; do not set it in an hgrc.
MASTER_AUTH = (b"vcsreplicator-mirror", b"master-auth")
# Bytes of an answer that are kept in memory; more go to a temporary file.
_SPOOLED = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _MasterState:
    """The master's answer without its body."""

    # The member has the name that it has in the answer.
    level: NewestEvent
    after: Tip
    phases: Mapping[str, tuple[str, ...]]
    bookmarks: Mapping[str, str]
    last_push: Count
    markers: Count
    hgrc: Mapping[str, Mapping[str, str]]
    # None from a master of a former release.
    settings: MasterSettings | None = None

    def check(self) -> None:
        """Raise MalformedEvent or ValueError unless each member is sound."""
        check_names(self.level)
        phases = {str(phase): phase for phase in observe.PHASES}
        moves = tuple(PhaseMove(phase=phases.get(name, -1), nodes=nodes) for name, nodes in self.phases.items())
        nodes = (self.after.node, *self.bookmarks.values())
        check_changes(Changes(added=None, heads_added=nodes, phases=moves))
        # A repository may have had names that no event allows, before it became a master.
        if any(not name or b"\n" in local(name) for name in self.bookmarks):
            raise ValueError("bookmarks: expected names of one line each")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PieceHeader:
    """The header of a bundle: its changesets have these numbers, without `last`."""

    first: Count
    last: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _MasterPush:
    """A push of the answer's body."""

    id: Count
    user: str
    date: int
    nodes: tuple[str, ...]


def take(repo: localrepository, url: str, *, now: float, timeout: float = 60.0) -> Checkpoint:
    """Bring a mirror's `repo` to the state of the master's at `url`.

    Returns its checkpoint. The caller holds both locks. Safe to repeat after a kill or an error: complete pieces are kept. Raises
    Diverged if the mirror's history is not the beginning of the master's, so that only a new copy helps; Unavailable if the master
    does not answer, does not allow it, or loses changesets meanwhile.
    """
    with connected(repo.ui, url, timeout) as peer:
        return take_from(repo, peer, now=now)


def take_from(repo: localrepository, peer: IPeer, *, now: float) -> Checkpoint:
    """Do the work of `take` over an open connection."""
    repo = repo.unfiltered()
    first = _ask_state(peer)
    _expect_history(repo, first)
    _pull(repo, peer, first.after)
    # From the newest push here on: a restored master may have given its id to another push.
    first_push = api.last_push_id(repo)
    with tempfile.SpooledTemporaryFile(_SPOOLED) as body:
        answer = _ask(peer, b"replication-state", firstpush=b"%d" % first_push)
        state = read_state(answer)
        _expect_history(repo, state)
        for frame in answer.frames():
            body.write(frame)
        body.seek(0)
        _pull(repo, peer, state.after)
        return _settle(repo, state, body.read(state.markers), body, now)


def master_newest_event(ui: Ui, url: str, timeout: float = 60.0) -> NewestEvent:
    """Ask for the newest event of the master's repository; raises Unavailable."""
    with connected(ui, url, timeout) as peer:
        return _ask_state(peer).level


def master_fingerprint(ui: Ui, url: str, timeout: float = 60.0) -> Fingerprint:
    """Ask for the master's present fingerprint; raises Unavailable."""
    with connected(ui, url, timeout) as peer:
        answer = _ask(peer, b"replication-fingerprint")
        answer.finish()
        return _read_header(Fingerprint, answer, "fingerprint")


@contextlib.contextmanager
def connected(ui: Ui, url: str, timeout: float) -> Iterator[IPeer]:
    """Connect to a repository elsewhere within the block.

    Every error of the connection is raised as Unavailable. Name and password are read for each connection: section `[auth]` of the
    file that MASTER_AUTH names.
    """
    # Over SSH a client must know the commands that it sends.
    wirecommands.register()
    # Where a server answers with a page, Mercurial would read the files of a store there, and believe them.
    statichttprepo.statichttprepository.__init__ = _refuse_files
    ui = ui.copy()
    ui.setconfig(b"http", b"timeout", b"%d" % max(1, int(timeout)), b"vcsreplicator")
    if ui.config(b"ui", b"ssh") == b"ssh":
        # Unless the operator set ssh options: ssh alone would wait indefinitely for a master that vanished.
        alive = b"ssh -o ServerAliveCountMax=3 -o ServerAliveInterval=%d" % max(1, int(timeout) // 3)
        ui.setconfig(b"ui", b"ssh", alive, b"vcsreplicator")
    try:
        with contextlib.closing(_open_peer(ui, url)) as peer:
            yield peer
    except (error.PeerTransportError, error.RepoError, error.OutOfBandError, OSError, HTTPException) as problem:
        if isinstance(problem, HTTPError):
            problem.close()
        elif isinstance(problem, OSError) and problem.filename is not None:
            # The mirror's own disk failed, not the connection.
            raise
        raise Unavailable(f"{url}: {_describe(problem)}") from problem


def _refuse_files(*_: object) -> None:
    raise error.RepoError(b"expected a server of Mercurial")


def _open_peer(ui: Ui, url: str) -> IPeer:
    section, key = MASTER_AUTH
    file = dict(ui.configitems(section)).get(key)
    try:
        if file is not None:
            if wrong := describe_readers(os.fsdecode(file), os.stat(file).st_mode):
                raise Unavailable(f"master-auth: {wrong}")
            # Otherwise the old password would be used.
            ui.resetstate()
            ui.readconfig(file, sections=[b"auth"], trust=True)
    except (OSError, error.Abort) as problem:
        raise Unavailable(f"master-auth: {_describe(problem)}") from problem
    try:
        return versions.factory.peer(ui, {}, url.encode())
    except error.Abort as problem:
        # No password, a wrong one, a certificate that is not trusted.
        raise Unavailable(f"{url}: {_describe(problem)}") from problem


def _ask(peer: IPeer, command: bytes, **arguments: bytes) -> StreamAnswer:
    try:
        return StreamAnswer(peer._callstream(command, **arguments))
    except error.Abort as problem:
        # As when it is opened; elsewhere an Abort is about the master's answer.
        raise Unavailable(f"{text(peer.url())}: {_describe(problem)}") from problem


def _ask_state(peer: IPeer) -> _MasterState:
    answer = _ask(peer, b"replication-state", firstpush=b"")
    answer.finish()
    return read_state(answer)


def read_state(answer: StreamAnswer) -> _MasterState:
    state = _read_header(_MasterState, answer, "state")
    with _blaming_master():
        state.check()
    return state


def _read_header(kind: type[T], answer: StreamAnswer, what: str) -> T:
    with _blaming_master():
        return read(kind, dict(answer.header), what)


@contextlib.contextmanager
def _blaming_master() -> Iterator[None]:
    """Raise Unavailable for a part of the master's answer that is malformed."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as problem:
        raise Unavailable(f"the master's answer: {_describe(problem)}") from problem


def _expect_history(repo: localrepository, state: _MasterState) -> None:
    """Raise Diverged if the master goes on with another incarnation."""
    checkpoint = replicated.read(repo)
    if checkpoint is not None and checkpoint.incarnation != state.level.incarnation:
        raise Diverged(f"the master continues as incarnation {state.level.incarnation}")


def _pull(repo: localrepository, peer: IPeer, after: Tip) -> None:
    """Pull changesets up to `after`, a transaction per piece."""
    while (here := observe.tip(repo)).length < after.length:
        wanted = {"first": b"%d" % here.length, "tip": here.node.encode(), "last": b"%d" % after.length}
        answer = _ask(peer, b"replication-changesets", **wanted)
        last = _read_header(_PieceHeader, answer, "changesets").last
        if last <= here.length:
            raise Unavailable(f"the master has {counted(last, 'changeset')} now, it had {after.length} a moment ago")
        with repo.transaction(b"replicated") as tr:
            unbundle(repo, tr, util.chunkbuffer(answer.frames()), BUNDLE_LIMIT)
            answer.finish()
        if len(repo.changelog) != last:
            raise Diverged(f"the master's changesets up to number {last} led to {len(repo.changelog)} here")
    if here != after:
        raise Diverged(
            f"expected {counted(after.length, 'changeset')} up to {after.node}, found {here.length} up to {here.node}"
        )


def _settle(
    repo: localrepository, state: _MasterState, markers: bytes, rows: Iterable[bytes], now: float
) -> Checkpoint:
    """Write all but the changesets, with the checkpoint, in one transaction."""
    former = replicated.read(repo)
    with repo.transaction(b"replicated") as tr:
        if markers:
            with _blaming_master():
                repo.obsstore.mergemarkers(tr, markers)
        _set_phases(repo, tr, state.phases)
        moved = _set_bookmarks(repo, tr, state.bookmarks)
        _record_pushes(repo, tr, rows)
        checkpoint = Checkpoint(
            **vars(state.level),
            length=state.after.length,
            tip=state.after.node,
            push=state.last_push or None,
            time=now,
            moved=moved if former else {},
            hgrc=state.hgrc,
            settings=(state.settings or MasterSettings()).for_clients(is_push=True),
        )
        checkpoint = with_former(checkpoint, former)
        replicated.append(repo, tr, [checkpoint])
    return checkpoint


def _set_phases(repo: localrepository, tr: transaction, roots: Mapping[str, tuple[str, ...]]) -> None:
    """Set exactly these phases: everything public first, then the other phases."""
    phases.advanceboundary(repo, tr, phases.public, list(map(repo.changelog.node, repo.changelog.index.headrevs())))
    for phase in sorted(roots):
        try:
            phases.retractboundary(repo, tr, int(phase), [bin(node) for node in roots[phase]])
        except LookupError as problem:
            raise Diverged(f"a phase of an unknown changeset: {_describe(problem)}") from problem


def _set_bookmarks(repo: localrepository, tr: transaction, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Set exactly these bookmarks; returns the changed bookmarks' former values."""
    old = {text(name): hex(node).decode() for name, node in repo._bookmarks.items()}
    moves = {name: wanted.get(name) for name in {**wanted, **old} if wanted.get(name) != old.get(name)}
    observe.move_bookmarks(repo, tr, moves)
    return {name: old.get(name) for name in moves}


def _record_pushes(repo: localrepository, tr: transaction, rows: Iterable[bytes]) -> None:
    """Record the master's pushes, or raise Diverged.

    If there are pushes here, the newest of them must be the master's first.
    """
    newest = api.last_push_id(repo)
    expected = next(api.pushes(repo, newest), None) if newest else None
    for row in rows:
        push = read_push(row)
        if expected not in (None, push):
            break
        expected = None
        api.record_replicated(repo, tr, *push)
    if expected is not None:
        raise Diverged(f"the master's push {newest} is another one")


def read_push(row: bytes) -> tuple[int, bytes, int, list[bytes]]:
    """Read a line of the answer; a push has any number of changesets."""
    with _blaming_master():
        number, user, date, nodes = parse(row, "push", limit=len(row))
        push = read(_MasterPush, {"id": number, "user": user, "date": date, "nodes": nodes}, "push")
        check_changes(Changes(added=None, heads_added=push.nodes))
        return push.id, push.user.encode("utf-8", "surrogateescape"), push.date, [node.encode() for node in push.nodes]


def _describe(problem: Exception) -> str:
    # The rest is the page of a server that is no master.
    message, _, _ = text(stringutil.forcebytestr(problem)).partition(":\n---%<---")
    return " ".join(message.split())[:300] or type(problem).__name__
