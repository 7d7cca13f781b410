# SPDX-License-Identifier: GPL-2.0-or-later
"""Wire commands for mirrors that copy or compare a repository.

Hidden changesets are included.

    replication-state first-push     newest event, phases, bookmarks, hgrc; all markers; the pushlog from that id on ("": not these)
    replication-changesets first tip last   a bundle of revisions from number `first` on, as many as are reasonable at once
    replication-fingerprint          hashes of everything, with the sequence they belong to

They show data hidden from clients, so only those in `[vcsreplicator] snapshot-allow` may use them: a list of users (as the web
server or SSH authenticated them), of addresses or networks of HTTP clients that connect without a proxy, or `*`.
Answers are framed as in `frames`.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from mercurial import encoding, error, wireprototypes
from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.ui import ui as Ui

from ...outbox.file import Outbox
from ...words.errors import Diverged, ReplicationError, Unavailable
from ...words.shape import plain
from .. import bundles, frames, hashes, observe
from ..text import text
from . import capture, recovery, refusals

# Changesets in one answer.
CHANGESETS = 2000
# Seconds to wait for a lock: the mirror has other repositories to ask for.
LOCK_SECONDS = 5
_FORWARDED = (b"X-Forwarded-For", b"Forwarded", b"X-Real-IP", b"Via")


def guard(function: Callable[..., Iterator[bytes]]) -> Callable[..., Any]:
    """Return a command that checks the client, and answers with our errors."""

    def command(repo: localrepository, proto: wireprototypes.baseprotocolhandler, *arguments: bytes) -> Any:
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


def check_allowed(ui: Ui, proto: wireprototypes.baseprotocolhandler) -> None:
    """Raise Unavailable unless the configuration lets this client see everything."""
    user, address = _user_of(proto), _address_of(proto)
    for entry in ui.configlist(b"vcsreplicator", b"snapshot-allow"):
        if entry == b"*" or entry == user or _is_covered(entry, address):
            return
    client = "this client"
    if user:
        client = f"user {text(user)}"
    elif address:
        client = f"a client at {text(address)}"
    raise Unavailable(f"{client} may not copy this repository: add it to [vcsreplicator] snapshot-allow there")


def _user_of(proto: wireprototypes.baseprotocolhandler) -> bytes | None:
    if proto.name == wireprototypes.SSHV1:
        return encoding.environ.get(b"REMOTE_USER") or encoding.environ.get(b"USER")
    return proto._req.remoteuser or None


def _address_of(proto: wireprototypes.baseprotocolhandler) -> bytes | None:
    """Return the address of an HTTP client; None over SSH or behind a proxy.

    A proxy connects on behalf of any client. REMOTE_HOST does not count: where a server looks names up, the client's own name
    server decides what it is.
    """
    if proto.name == wireprototypes.SSHV1:
        return None
    request = proto._req
    if any(name in request.headers for name in _FORWARDED):
        return None
    return request.rawenv.get(b"REMOTE_ADDR")


def _is_covered(entry: bytes, address: bytes | None) -> bool:
    if address is None:
        return False
    try:
        return ipaddress.ip_address(address.decode()) in ipaddress.ip_network(entry.decode(), strict=False)
    except ValueError:
        return False


def read_state(repo: localrepository, firstpush: bytes) -> Iterator[bytes]:
    """Read the state under the lock, and the pushlog, which only grows, afterwards.

    Raises Unavailable for a history that the log may never get: that of a former master, or of a copy that was restored, with
    pushes which were not sent.
    """
    from pushlog import api

    patience = {(b"ui", b"timeout"): LOCK_SECONDS}
    with repo.ui.configoverride(patience, b"vcsreplicator"), repo.lock():
        if repo.svfs.exists(b"journal"):
            recovery.roll_back(repo)
            repo.invalidateall()
        box = Outbox(repo.svfs)
        end = box.end()
        if end is None:
            raise Unavailable("the master's repository has no event yet; run 'hg replicatesync' there")
        # Mirrors keep what could restore it.
        if (lost := refusals.find_lost_history(repo, end.after)) is not None:
            raise Unavailable(f"the master's repository cannot be copied: {lost}")
        if (fork := box.fork()) is not None and box.has_unsent():
            raise Unavailable(f"the log lacks events of the master's repository, and gets none: {fork.reason}")
        last_push = api.last_push_id(repo)
        header: dict[str, Any] = {
            "level": plain(end.newest),
            "after": plain(observe.tip(repo)),
            "phases": {
                str(phase): [hex(node).decode() for node in roots] for phase, roots in observe.phase_roots(repo).items()
            },
            "bookmarks": {text(name): hex(node).decode() for name, node in repo._bookmarks.items()},
            "last_push": last_push,
            "markers": 0,
            "hgrc": capture.read_hgrc(repo),
            "settings": plain(capture.read_master_settings(repo)),
        }
        markers = repo.svfs.tryread(b"obsstore") if firstpush else b""
    header["markers"] = len(markers)
    rows = _push_rows(repo, int(firstpush), last_push) if firstpush else iter(())
    return frames.answer(header, itertools.chain([markers] if markers else [], rows))


def _push_rows(repo: localrepository, first: int, last: int) -> Iterator[bytes]:
    """Yield the pushes as JSON lists with a line feed each: id, user, date, nodes."""
    from pushlog import api

    for number, user, date, nodes in api.pushes(repo, first):
        if number > last:
            return
        row = [number, user.decode("utf-8", "surrogateescape"), date, [node.decode() for node in nodes]]
        yield json.dumps(row).encode("ascii") + b"\n"


def bundle_changesets(repo: localrepository, first: bytes, tip: bytes, last: bytes) -> Iterator[bytes]:
    """Make a bundle of revisions in the master's order, which fixes their numbers."""
    begin, changelog = int(first), repo.changelog
    end = min(int(last), len(changelog), begin + CHANGESETS)
    if not 0 <= begin <= end or hex(changelog.node(begin - 1)) != tip:
        raise Diverged(f"the master's changeset number {begin} is not {text(tip)[:40]}")
    return frames.answer({"first": begin, "last": end}, bundles.make_bundle(repo, begin, end))


def _read_fingerprint(repo: localrepository) -> Iterator[bytes]:
    return frames.answer(plain(hashes.fingerprint(repo, Outbox(repo.svfs).newest)))


# The answers, as `hg.wirecommands` names them.
answer_state = guard(read_state)
answer_changesets = guard(bundle_changesets)
answer_fingerprint = guard(_read_fingerprint)
