# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes that a master refuses, and the push with them.

Mirrors could not apply them, or the master's own files or disk do not allow them. Each refusal is an Abort.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import bundle2, error, phases
from mercurial.localrepo import localrepository
from mercurial.node import bin
from mercurial.transaction import transaction as Transaction
from mercurial.utils import stringutil

from pushlog.store.appendfile import AppendFile
from pushlog.store.frames import OlderCopy, TornRecord

from ...outbox.entry import Entry
from ...outbox.file import RECORD_LIMIT, Fork, Outbox
from ...relay import client
from ...words.errors import MalformedEvent, ReplicationError, counted
from ...words.event import Changes, Tip
from ...words.path import REPLICA_FILE
from ...words.shape import to_json
from ...words.value import replace
from .. import observe
from ..text import local, text
from . import repository

if TYPE_CHECKING:
    from mercurial.obsolete import _Marker

    from ...relay.client import RelayLine
    from ..settings import ExtensionSettings
    from .repository import MasterRepository

# Bytes of an event's JSON: `wire.HEADER_LIMIT` without room for the attachment.
EVENT_LIMIT = 4 * 1024 * 1024 - 64 * 1024
# Bytes of that for everything but the changes.
EVENT_REST = 16 * 1024
# Bytes of the shortest marker in that.
SHORTEST_MARKER = 100
# The message to a pusher, where Mercurial alone would answer with an internal error.
NO_ROOM = b"no room on the disk of the server; the push is rolled back"
# Why a repository without events refuses changes while the log cannot be asked.
UNKNOWN_PLACE = "it has no event yet, and it is unknown whether the log has another repository at its path"
# What to do about a history that is damaged or lost.
RESTORE_HISTORY = (
    "mirrors have what it had: run 'hg verify' in it, and restore it (docs/operating.md, Restore repositories)"
)
ADOPT_LOSS = "only if the removal was meant: 'hg replicateadopt'"
_CONTROL = r"[\x00-\x1f\x7f]"


class Forked(error.Abort):
    """The refusal while the log has another history than the outbox."""


def name_full_disk(orig: Callable[..., Any], repo: localrepository, cg: Any, *arguments: Any) -> Any:
    """Wrap `exchange.unbundle`: turn the error of a full disk into Abort.

    Mercurial sends an Abort in a form that the client can read. The relay learns of each refusal that the server's files
    cause.
    """
    try:
        return orig(repo, cg, *arguments)
    except Exception as problem:
        if has_server_fault(problem):
            _report_refusal(repo, problem)
        if not isinstance(problem, OSError) or problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        refusal = error.Abort(NO_ROOM)
        # The form that the client can read, which an error of the rollback does not have.
        refusal.duringunbundle2 = isinstance(cg, bundle2.unbundle20)
        raise refusal from problem


def has_server_fault(problem: BaseException | None) -> bool:
    """Return whether a file of the server is the reason, not the push."""
    while problem is not None:
        if isinstance(problem, (OSError, TornRecord, OlderCopy, Forked)):
            return not isinstance(problem, (ConnectionError, TimeoutError, error.LockHeld))
        problem = problem.__cause__
    return False


def _report_refusal(repo: localrepository, problem: Exception) -> None:
    master = repository.replicated(repo)
    if master is not None and master.replication_settings.relay:
        line = client.RelayLine.open(master.replication_settings.relay, master.replication_folder)
        if line is not None:
            line.report_refusal(describe(problem))
            line.close()


def describe(problem: Exception) -> str:
    """Return the reason and the hint of a refusal."""
    reason, hint = stringutil.forcebytestr(problem), getattr(problem, "hint", None)
    return text(b"%s (%s)" % (reason, hint) if hint else reason)


def refuse_odd_markers(markers: list[_Marker]) -> None:
    """Raise Abort for a marker that would read back from disk as a different one, or that Mercurial cannot list for a client."""
    for _precursor, _successors, _flags, metadata, (seconds, zone), _parents in markers:
        for key, value in metadata:
            if b":" in key or b"\0" in key + value:
                raise error.Abort(
                    b"an obsolescence marker has metadata that no list of markers can have: %r" % key[:60],
                    hint=b"a key has no colon, and neither it nor its value has a NUL",
                )
        if zone % 60 or not math.isfinite(seconds):
            raise error.Abort(
                b"an obsolescence marker has a date that cannot be stored: %r %r" % (seconds, zone),
                hint=b"its time zone must be whole minutes",
            )


def refuse_many_markers(markers: list[_Marker], changes: Changes) -> None:
    """Raise Abort for more markers than an event can hold, before each is described, which takes seconds under the lock."""
    if len(markers) * SHORTEST_MARKER > EVENT_LIMIT:
        raise _too_large(changes, b"push it in parts", markers=len(markers))


def refuse_odd_phases(tr: Transaction) -> None:
    """Raise Abort for a phase above secret: mirrors would have a different one."""
    for revs, (_old, new) in tr.changes[b"phases"]:
        if revs and new not in observe.PHASES:
            raise error.Abort(
                b"changesets of a replicated repository cannot become %s" % phases.phasenames[new],
                hint=b"strip them, or mark them as obsolete",
            )


def refuse_odd_bookmarks(repo: localrepository, changes: Changes) -> None:
    """Raise Abort for a bookmark that Mercurial's files would not keep.

    This includes a bookmark at an unknown changeset: Mercurial ignores such a line when it reads the file, and drops it
    later.
    """
    has_node = repo.unfiltered().changelog.index.has_node
    for bookmark in changes.bookmarks:
        name = bookmark.name
        if bookmark.node is not None and (not name or name != name.strip() or re.search(_CONTROL, name)):
            raise error.Abort(
                b"a bookmark cannot have this name: %s" % stringutil.pprint(local(name)),
                hint=b"no control characters, and no blanks at its ends",
            )
        if bookmark.node is not None and not has_node(bin(bookmark.node)):
            raise error.Abort(
                b"a bookmark cannot be at a changeset that is not here: %s, %s" % (local(name), bookmark.node.encode()),
                hint=b"push the changeset, too",
            )


def refuse_fork(box: Outbox, *, is_empty: bool = False) -> None:
    """Raise Abort while the log has another history than this outbox.

    An outbox that `is_empty` may have lost sent events, which the relay would notice too late.
    """
    try:
        fork = box.fork()
        if fork is None and is_empty:
            from ...outbox.forks import fork_behind

            fork = fork_behind(box)
    except OSError as problem:
        raise name_unreadable(problem) from problem
    if fork is not None:
        raise _make_refusal(fork)


def refuse_cut_changelog(repo: localrepository) -> None:
    """Raise Abort unless the newest changeset can be read.

    If the file of contents was cut, the next changeset would not be where the index says.
    """
    changelog = repo.unfiltered().changelog
    try:
        changelog.revision(changelog.tip())
    except (OSError, error.StorageError) as problem:
        reason = b"this repository refuses changes: %s" % stringutil.forcebytestr(problem)
        raise error.Abort(reason, hint=RESTORE_HISTORY.encode()) from problem


def refuse_lost_history(repo: localrepository, before: Tip) -> None:
    """Raise Abort unless the changelog begins as the newest event left it.

    Otherwise the next event would make all mirrors drop what is missing.
    """
    if (lost := find_lost_history(repo, before)) is not None:
        raise error.Abort(
            f"this repository refuses changes: {lost}".encode(), hint=f"{RESTORE_HISTORY}; {ADOPT_LOSS}".encode()
        )


def find_lost_history(repo: localrepository, before: Tip) -> str | None:
    """Say what the changelog has lost since the newest event; None if nothing.

    `before` is the tip that the event left.
    """
    if observe.begins_with(repo, before.length, before.node):
        return None
    now = observe.tip(repo)
    return (
        f"it lost changesets, perhaps by damage: its newest event left {before.length} up to {before.node[:12]},"
        f" and it has {now.length} up to {now.node[:12]}"
    )


def read_copied(repo: localrepository) -> Fork | None:
    """Read whose history this store has, if it is a mirror's copy; else None.

    The fork names no repository if the copy's checkpoints cannot be read.
    """
    if not repo.svfs.exists(REPLICA_FILE):
        return None
    from ...mirror.checkpoint import MAGIC, checkpoint_of

    reason, checkpoint = "it is a copy from a mirror, and has no outbox", None
    with contextlib.suppress(TornRecord, MalformedEvent, OSError):
        last = AppendFile(repo.svfs, REPLICA_FILE, MAGIC).last()
        checkpoint = None if last is None else checkpoint_of(last.payload)
    if checkpoint is None:
        return Fork(reason=reason)
    return Fork(
        reason=reason,
        incarnation=checkpoint.incarnation,
        repository=checkpoint.repository,
        generation=checkpoint.generation,
    )


def refuse_unknown_place(repo: MasterRepository, line: RelayLine | None, *, is_requested: bool) -> None:
    """Raise Abort for a repository without events if the log may have one at its path.

    Asks the relay, or the log if pushes send their events themselves. A mirror's copy is refused without a question. An event that
    an operator requested needs no answer: the relay compares the repository before it sends anything.
    """
    settings, box = repo.replication_settings, Outbox(repo.svfs)
    fork = read_copied(repo)
    if fork is None and line is None and settings.log:
        from . import sending

        try:
            fork = sending.find_other(repo)
        except ReplicationError as problem:
            fork = Fork(reason=f"{UNKNOWN_PLACE}: {problem}")
    elif fork is None and settings.relay:
        if _is_log_available(line, settings):
            return
        fork = box.fork()
        if fork is None and not is_requested:
            fork = Fork(reason=f"{UNKNOWN_PLACE}: the relay does not answer")
    if fork is not None:
        raise _make_refusal(fork)


def _make_refusal(fork: Fork) -> Forked:
    hint = b"see 'hg help replicateadopt'"
    if fork.master is not None:
        hint = b"push to the new master"
    elif fork.repository is not None:
        hint = b"promote a mirror to the master (docs/operating.md), or " + hint
    return Forked(f"this repository refuses changes: {fork.reason}".encode(), hint=hint)


def name_unreadable(problem: OSError) -> error.Abort:
    """Return the refusal where a file of the outbox cannot be read.

    Mercurial answers an OSError over HTTP as an internal error.
    """
    return error.Abort(f"this repository refuses changes: {problem}".encode("utf-8", "surrogateescape"))


def refuse_unavailable_log(box: Outbox, line: RelayLine | None, settings: ExtensionSettings) -> None:
    """Raise Abort unless the relay says that the log is available.

    That is, the log answers and has every event of this repository. The relay has the `patience` of the settings. The log may still
    disappear before the commit: then the change is kept and sent later.
    """
    if _is_log_available(line, settings):
        return
    refuse_fork(box)
    raise error.Abort(
        b"the replication log is not available, and this server refuses changes without it",
        hint=b"nothing was changed; try again later, or ask the server's administrators",
    )


def _is_log_available(line: RelayLine | None, settings: ExtensionSettings) -> bool:
    """Return whether the relay says that the log answers, and has or may have all events."""
    return line is not None and client.ask_within(
        settings.relay or "",
        lambda seconds: line.is_log_available(patience=seconds),
        patience=settings.patience,
        pause=settings.relay_pause,
    )


def fitting(entry: Entry) -> Entry:
    """Return the entry, made to fit into one record of the log.

    Drops the markers' descriptions if one record of the log cannot hold the event otherwise. Raises Abort if it is still too
    large, or if the outbox could not read it back even without its connection: a marker may carry any number of notes.
    """
    size, event = len(to_json(entry)), entry.event
    if size <= EVENT_LIMIT:  # which includes the event's own
        return entry
    if entry.connection is not None and size > RECORD_LIMIT:
        entry = replace(entry, connection=None)
        size = len(to_json(entry))
    if size > RECORD_LIMIT:
        raise _too_large(event.changes, b"push it in parts")
    if len(to_json(event)) <= EVENT_LIMIT:
        return entry
    bare = [
        replace(
            marker,
            precursor=replace(marker.precursor, desc=None),
            successors=tuple(replace(node, desc=None) for node in marker.successors),
        )
        for marker in event.changes.markers
    ]
    event = replace(event, changes=replace(event.changes, markers=tuple(bare)))
    if len(to_json(event)) > EVENT_LIMIT:
        raise _too_large(event.changes, b"push it in parts")
    return replace(entry, event=event)


def refuse_large(changes: Changes, *, hint: bytes) -> None:
    """Raise Abort for changes that no event can hold, before anything is done."""
    if not fits(changes):
        raise _too_large(changes, hint)


def fits(changes: Changes) -> bool:
    return len(to_json(changes)) <= EVENT_LIMIT - EVENT_REST


def _too_large(changes: Changes, hint: bytes, markers: int = 0) -> error.Abort:
    heads = counted(len(changes.heads_added) + len(changes.heads_removed), "head")
    counts = (
        f"{heads}, {counted(len(changes.bookmarks), 'bookmark')}, {counted(markers or len(changes.markers), 'marker')}"
    )
    return error.Abort(f"this change is too large for one event: {counts}".encode(), hint=hint)
