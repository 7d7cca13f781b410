# SPDX-License-Identifier: GPL-2.0-or-later
"""A snapshot: a mirror's repository brought to exactly one sequence of the master, from nothing or from any earlier state.

Changesets come in pieces, a transaction each, in the master's order; a kill costs the piece at hand. Then one answer of the
master, read under its lock, says what it is after event N: length and tip, phases, bookmarks, markers, pushlog, digest, hgrc. What
the changelog still lacks of N is fetched, and everything else, with the level N, is written in one transaction. So no event between
"begun" and "ended" has to be guessed at: events up to N are repeats, N + 1 follows. Nothing is shown before N is released, which
is not this module's business.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from mercurial import error, phases
from mercurial.node import bin
from mercurial.repo import factory
from mercurial.utils import stringutil

from ...mirror.checkpoint import Checkpoint, with_former
from ...mirror.comparison import Fingerprint
from ...outbox.entry import NewestEvent
from ...words.errors import Diverged, MalformedEvent, Unavailable
from ...words.event import Tip
from ...words.shape import read
from ...words.wire import BUNDLE_LIMIT
from .. import observe
from ..frames import StreamAnswer
from ..master import offer
from ..text import local, text
from . import replicated
from .apply import unbundle

Progress = Callable[[int, int], None]
"""Called with the number of changesets here, and there."""

MASTER_AUTH = (b"vcsreplicator-mirror", b"master-auth")
"""Section and key of a file's name, set by the worker; nobody writes it into an hgrc."""

_SPOOLED = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The master's answer but for its body."""

    level: NewestEvent
    after: Tip
    phases: Mapping[str, tuple[str, ...]]
    bookmarks: Mapping[str, str]
    last_push: int
    markers: int
    hgrc: Mapping[str, Mapping[str, str]]


def take(
    repo: Any, url: str, *, now: float, timeout: float = 60.0, progress: Progress = lambda here, there: None
) -> Checkpoint:
    """Brings `repo` (a mirror's, empty or at any level) to the state of the master's repository at `url`; its level then.

    The caller holds both locks. Safe to repeat after a kill or an error, which keep what whole pieces brought. Raises Diverged if
    what is here is not the beginning of what is there, and nothing but a new copy helps; Unavailable if the master does not
    answer, does not let us, or loses changesets meanwhile.
    """
    with connected(repo.ui, url, timeout) as peer:
        return take_from(repo, peer, now=now, progress=progress)


def take_from(repo: Any, peer: Any, *, now: float, progress: Progress = lambda here, there: None) -> Checkpoint:
    """`take` over an open connection."""
    repo = repo.unfiltered()
    first = _state(peer, b"")
    _expect_history(repo, first)
    _pull(repo, peer, first.after, progress)
    first_push = _last_push(repo) + 1
    with tempfile.SpooledTemporaryFile(_SPOOLED) as body:
        answer = _ask(peer, b"replication-state", firstpush=b"%d" % first_push)
        state = _read(answer)
        _expect_history(repo, state)
        for frame in answer.frames():
            body.write(frame)
        body.seek(0)
        _pull(repo, peer, state.after, progress)
        return _settle(repo, state, body.read(state.markers), body, now)


def master_level(ui: Any, url: str, timeout: float = 60.0) -> NewestEvent:
    """Which repository the master has at the URL, and how far it is; raises Unavailable."""
    with connected(ui, url, timeout) as peer:
        return _state(peer, b"").level


def master_fingerprint(ui: Any, url: str, timeout: float = 60.0) -> Fingerprint:
    """What the master is now; raises Unavailable."""
    with connected(ui, url, timeout) as peer:
        answer = _ask(peer, b"replication-fingerprint")
        answer.finish()
        try:
            return read(Fingerprint, dict(answer.header), "fingerprint")
        except MalformedEvent as problem:
            raise Unavailable(f"the master's answer: {problem}") from problem


@contextlib.contextmanager
def connected(ui: Any, url: str, timeout: float) -> Iterator[Any]:
    """A connection to a repository elsewhere; whatever goes wrong with it is Unavailable.

    Name and password are read for each: section `[auth]` of the file that MASTER_AUTH names.
    """
    offer.register()  # over SSH a client must know the commands it sends
    ui = ui.copy()
    ui.setconfig(b"http", b"timeout", b"%d" % max(1, int(timeout)), b"vcsreplicator")
    if ui.config(b"ui", b"ssh") == b"ssh":  # nobody chose options: a master that vanished would be waited for for ever
        alive = b"ssh -o ServerAliveCountMax=3 -o ServerAliveInterval=%d" % max(1, int(timeout) // 3)
        ui.setconfig(b"ui", b"ssh", alive, b"vcsreplicator")
    try:
        peer = _opened(ui, url)
        try:
            yield peer
        finally:
            peer.close()
    except (error.PeerTransportError, error.RepoError, error.OutOfBandError, OSError, HTTPException) as problem:
        if isinstance(problem, OSError) and problem.filename is not None and not isinstance(problem, HTTPError):
            raise  # our own disk, not the connection
        raise Unavailable(f"{url}: {_words(problem)}") from problem


def _opened(ui: Any, url: str) -> Any:
    section, key = MASTER_AUTH
    file = dict(ui.configitems(section)).get(key)
    try:
        if file is not None:
            _expect_private(file)
            ui.resetstate()  # it would go on with the password that it had
            ui.readconfig(file, sections=[b"auth"], trust=True)
    except (OSError, error.Abort) as problem:
        raise Unavailable(f"master-auth: {_words(problem)}") from problem
    try:
        return factory.peer(ui, {}, url.encode())
    except error.Abort as problem:  # no password, a wrong one, a certificate that is not trusted
        raise Unavailable(f"{url}: {_words(problem)}") from problem


def _expect_private(file: bytes) -> None:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if mode & 0o077:
        name = os.fsdecode(file)
        raise Unavailable(f"master-auth: {name} has mode {mode:04o}, expected 0600 or stricter: chmod go= {name}")


def _ask(peer: Any, command: bytes, **arguments: bytes) -> StreamAnswer:
    try:
        return StreamAnswer(peer._callstream(command, **arguments))
    except error.Abort as problem:  # as when it is opened; elsewhere an Abort is about what the master sent
        raise Unavailable(f"{text(peer.url())}: {_words(problem)}") from problem


def _state(peer: Any, first_push: bytes) -> _State:
    answer = _ask(peer, b"replication-state", firstpush=first_push)
    answer.finish()
    return _read(answer)


def _read(answer: StreamAnswer) -> _State:
    try:
        return read(_State, dict(answer.header), "state")
    except MalformedEvent as problem:
        raise Unavailable(f"the master's answer: {problem}") from problem


def _expect_history(repo: Any, state: _State) -> None:
    """Raises Diverged if the master goes on with another history: what was served of the former one says nothing about it."""
    level = replicated.read(repo)
    if level is not None and level.incarnation != state.level.incarnation:
        raise Diverged(f"the master goes on as incarnation {state.level.incarnation}")


def _pull(repo: Any, peer: Any, after: Tip, progress: Progress) -> None:
    """Changesets up to `after`, a transaction per piece."""
    while (here := observe.tip(repo)).length < after.length:
        progress(here.length, after.length)
        wanted = {"first": b"%d" % here.length, "tip": here.node.encode(), "last": b"%d" % after.length}
        answer = _ask(peer, b"replication-changesets", **wanted)
        if answer.header["last"] <= here.length:
            raise Unavailable(
                f"the master has {answer.header['last']} changesets now, it had {after.length} a moment ago"
            )
        with repo.transaction(b"replicated") as tr:
            unbundle(repo, tr, answer, BUNDLE_LIMIT)
            answer.finish()
        if len(repo.changelog) != answer.header["last"]:
            raise Diverged(
                f"the master's changesets up to number {answer.header['last']} led to {len(repo.changelog)} here"
            )
    progress(here.length, after.length)
    if here != after:
        raise Diverged(f"expected {after.length} changesets up to {after.node}, found {here.length} up to {here.node}")


def _settle(repo: Any, state: _State, markers: bytes, rows: Iterable[bytes], now: float) -> Checkpoint:
    """Everything besides the changesets, and the level, in one transaction; the configuration acts at the level's release."""
    former = replicated.read(repo)
    with repo.transaction(b"replicated") as tr:
        if markers:
            repo.obsstore.mergemarkers(tr, markers)
        _set_phases(repo, tr, state.phases)
        moved = _set_bookmarks(repo, tr, state.bookmarks)
        _record_pushes(repo, tr, rows)
        level = replace(with_former(_level(state, now), former), moved=moved if former else {}, hgrc=state.hgrc)
        replicated.append(repo, tr, [level])
    return level


def _level(state: _State, now: float) -> Checkpoint:
    there = state.level
    return Checkpoint(
        repository=there.repository,
        incarnation=there.incarnation,
        path=there.path,
        generation=there.generation,
        seq=there.seq,
        id=there.id,
        digest=there.digest,
        length=state.after.length,
        tip=state.after.node,
        push=state.last_push or None,
        time=now,
    )


def _set_phases(repo: Any, tr: Any, roots: Mapping[str, tuple[str, ...]]) -> None:
    """Exactly these: everything public, then what is not."""
    phases.advanceboundary(repo, tr, phases.public, list(map(repo.changelog.node, repo.changelog.index.headrevs())))
    for phase in sorted(roots):
        if int(phase) not in observe.PHASES:
            raise Unavailable(f"the master's answer: phase {phase!r}")
        try:
            phases.retractboundary(repo, tr, int(phase), [bin(node) for node in roots[phase]])
        except LookupError as problem:
            raise Diverged(f"a phase of an unknown changeset: {_words(problem)}") from problem


def _set_bookmarks(repo: Any, tr: Any, wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Exactly these; returns those that were otherwise, as they were."""
    new = {local(name): bin(node) for name, node in wanted.items()}
    old = dict(repo._bookmarks.items())
    changes = [(name, node) for name, node in new.items() if old.get(name) != node]
    changes += [(name, None) for name in old if name not in new]
    moved = observe.bookmarks(repo, [text(name) for name, _ in changes])
    repo._bookmarks.applychanges(repo, tr, changes)
    return moved


def _record_pushes(repo: Any, tr: Any, rows: Iterable[bytes]) -> None:
    from pushlog import api

    for row in rows:
        number, user, date, nodes = json.loads(row)
        name = user.encode("utf-8", "surrogateescape")
        api.record_replicated(repo, tr, number, name, date, [node.encode() for node in nodes])


def _last_push(repo: Any) -> int:
    from pushlog import api

    return api.last_push_id(repo)


def _words(problem: Exception) -> str:
    told, _, _ = text(stringutil.forcebytestr(problem)).partition(":\n---%<---")  # the page of who is no master
    return " ".join(told.split())[:300] or type(problem).__name__
