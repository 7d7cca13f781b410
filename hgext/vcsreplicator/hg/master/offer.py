# SPDX-License-Identifier: GPL-2.0-or-later
"""What a repository tells those who copy or check it: wire commands for replication alone, hidden changesets included.

    replication-state first-push     the level, phases, bookmarks, hgrc; all markers; the pushlog from that id on ("": not these)
    replication-changesets first tip last   a bundle of revisions from number `first` on, as many as are reasonable at once
    replication-fingerprint          hashes of everything, with the sequence they belong to

They show what clients must not see, so nobody may call them unless `[vcsreplicator] snapshot-allow` says so: a list of users
(as the web server or SSH authenticated them), of addresses or networks of HTTP clients that connect without a proxy, or `*`.
Answers are framed as in `frames`.
"""

import json
from collections.abc import Iterator
from typing import Any

from mercurial import encoding, error, wireprototypes, wireprotov1server
from mercurial.node import hex

from ...outbox import Outbox
from ...words.errors import Diverged, ReplicationError, Unavailable
from ...words.shape import plain
from .. import bundles, fingerprint, frames, observe
from ..text import text
from . import capture

CHANGESETS = 2000  # of one answer
LOCK_SECONDS = 5
_FORWARDED = (b"X-Forwarded-For", b"Forwarded", b"X-Real-IP", b"Via")


def register() -> None:
    """Makes the commands known, once per process. They are not announced: who needs them knows them."""
    for name, arguments, function in (
        (b"replication-state", b"firstpush", _state),
        (b"replication-changesets", b"first tip last", _changesets),
        (b"replication-fingerprint", b"", _fingerprint),
    ):
        if name not in wireprotov1server.commands:
            wireprotov1server.wireprotocommand(name, arguments, permission=b"pull")(_guarded(function))


def _guarded(function: Any) -> Any:
    """The command, answered to whom it may be, with our errors as part of the answer."""

    def command(repo: Any, proto: Any, *arguments: bytes) -> Any:
        try:
            check_allowed(repo.ui, proto)
            chunks = function(repo.unfiltered(), *arguments)
        except error.LockError as problem:
            chunks = frames.refusal(Unavailable, f"the repository is locked: {problem}")
        except ReplicationError as problem:
            chunks = frames.refusal(type(problem), str(problem))
        except ValueError as problem:
            chunks = frames.refusal(Unavailable, f"not an argument: {problem}")
        return wireprototypes.streamreslegacy(gen=chunks)

    return command


def check_allowed(ui: Any, proto: Any) -> None:
    """Raises Unavailable unless the configuration lets this client see everything."""
    who = _user(proto)
    address = _address(proto)
    for entry in ui.configlist(b"vcsreplicator", b"snapshot-allow"):
        if entry == b"*" or entry == who or _covers(entry, address):
            return
    name = f"user {text(who)}" if who else f"a client at {text(address)}" if address else "this client"
    raise Unavailable(f"{name} may not copy this repository: add it to [vcsreplicator] snapshot-allow there")


def _user(proto: Any) -> bytes | None:
    if proto.name == wireprototypes.SSHV1:
        return encoding.environ.get(b"REMOTE_USER") or encoding.environ.get(b"USER")
    return proto._req.remoteuser or None


def _address(proto: Any) -> bytes | None:
    """The address of an HTTP client; None behind a proxy, which connects on behalf of anybody.

    REMOTE_HOST does not count: where a server looks names up it is what the client's own name server says.
    """
    if proto.name == wireprototypes.SSHV1:
        return None
    request = proto._req
    if any(name in request.headers for name in _FORWARDED):
        return None
    return request.rawenv.get(b"REMOTE_ADDR")  # type: ignore[no-any-return]


def _covers(entry: bytes, address: bytes | None) -> bool:
    if address is None:
        return False
    import ipaddress  # 4 ms that no push shall pay for

    try:
        return ipaddress.ip_address(address.decode()) in ipaddress.ip_network(entry.decode(), strict=False)
    except ValueError:
        return False


def _state(repo: Any, firstpush: bytes) -> Iterator[bytes]:
    """One moment, held still by the lock; what only grows is read afterwards, up to where it was."""
    patience = {(b"ui", b"timeout"): LOCK_SECONDS}  # a mirror has others to ask about
    with repo.ui.configoverride(patience, b"vcsreplicator"), repo.lock():
        if repo.svfs.exists(b"journal"):
            repo.recover()
            repo.invalidateall()
        level = Outbox(repo.svfs).level()
        if level is None:
            raise Unavailable("the master's repository has no event yet; run 'hg replicatesync' there")
        header = {
            "level": plain(level),
            "after": plain(observe.tip(repo)),
            "phases": {str(phase): _nodes(repo, revs) for phase, revs in _phase_roots(repo)},
            "bookmarks": {text(name): hex(node).decode() for name, node in repo._bookmarks.items()},
            "last_push": _last_push(repo),
            "markers": 0,
            "hgrc": capture.hgrc_of(repo),
        }
        markers = repo.svfs.tryread(b"obsstore") if firstpush else b""
    header["markers"] = len(markers)
    body = _rows(repo, int(firstpush), header["last_push"]) if firstpush else iter(())
    return frames.answer(header, _chain(markers, body))


def _chain(markers: bytes, rows: Iterator[bytes]) -> Iterator[bytes]:
    if markers:
        yield markers
    yield from rows


def _phase_roots(repo: Any) -> list[tuple[int, Any]]:
    roots = repo._phasecache._phaseroots
    return [(phase, roots[phase]) for phase in observe.PHASES if roots.get(phase)]


def _nodes(repo: Any, revs: Any) -> list[str]:
    return [hex(repo.changelog.node(rev)).decode() for rev in sorted(revs)]


def _last_push(repo: Any) -> int:
    from pushlog import api

    return api.last_push_id(repo)


def _rows(repo: Any, first: int, last: int) -> Iterator[bytes]:
    """The pushlog, a JSON list and a line feed each: id, user, date, nodes."""
    from pushlog import api

    for number, user, date, nodes in api.pushes(repo, first):
        if number > last:
            return
        row = [number, user.decode("utf-8", "surrogateescape"), date, [node.decode() for node in nodes]]
        yield json.dumps(row).encode("ascii") + b"\n"


def _changesets(repo: Any, first: bytes, tip: bytes, last: bytes) -> Iterator[bytes]:
    """Revisions in the master's order, so that numbers mean the same on both sides."""
    begin, changelog = int(first), repo.changelog
    end = min(int(last), len(changelog), begin + CHANGESETS)
    if not 0 <= begin <= end or hex(changelog.node(begin - 1)) != tip:
        raise Diverged(f"the master's changeset number {begin} is not {text(tip)[:40]}")
    return frames.answer({"first": begin, "last": end}, bundles.chunks(repo, begin, end))


def _fingerprint(repo: Any) -> Iterator[bytes]:
    return frames.answer(plain(fingerprint.fingerprint(repo, lambda: Outbox(repo.svfs).level())))
