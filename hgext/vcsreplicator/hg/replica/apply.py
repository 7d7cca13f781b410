# SPDX-License-Identifier: GPL-2.0-or-later
"""Events applied to a mirror's repository.

Events and the checkpoint that they lead to are written in one Mercurial transaction. Rules of this file, for a kill or an error at
any line:

1. The checkpoint is read under the lock, so of two processes with one event the second finds it applied.
2. The transaction's changes are observed as on the master, event by event; unless they give the event's digest and the changelog
   it names, nothing is kept.
3. A bundle may have only changesets and markers, because other parts could change anything, and at most `UNPACKED_LIMIT` bytes.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, Any

from mercurial import bundle2, changegroup, error, exchange
from mercurial import ui as uimod
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction

from pushlog import api

from ...mirror.checkpoint import Checkpoint
from ...mirror.task import ReadEvent
from ...words.digest import advance
from ...words.errors import Diverged, MalformedEvent, UnknownEvent, counted
from ...words.event import Changes, Event, Type
from ...words.wire import BUNDLE_LIMIT, UNPACKED_LIMIT
from .. import observe, text
from . import replicated

# Compressed bytes that are unpacked at a time.
SIP = 1024
PARTS = frozenset({b"changegroup", b"obsmarkers"})
# The callback by which Mercurial fills the caches of its own views after a transaction.
CACHE_FILLER = b"-warm-cache"


def apply_events(
    repo: localrepository,
    checkpoint: Checkpoint,
    items: Sequence[ReadEvent],
    bundles: Sequence[IO[bytes] | None],
    now: float,
) -> Checkpoint:
    """Apply consecutive events in one transaction, and return the checkpoint reached.

    Fills no caches: clients see other views, whose caches are filled after the release. The caller holds the locks. Raises
    Diverged if an event does not lead where it says, MalformedEvent for a damaged bundle.
    """
    reached = []
    with repo.transaction(b"replicated") as tr:
        tr.addpostclose(CACHE_FILLER, lambda _: None)
        for item, bundle in zip(items, bundles, strict=True):
            checkpoint = _apply_event(repo, tr, checkpoint, item, bundle, now)
            reached.append(checkpoint)
        replicated.append(repo, tr, reached)
    return checkpoint


def successor(checkpoint: Checkpoint, item: ReadEvent, length: int, tip: str, now: float) -> Checkpoint:
    """Make the checkpoint after an event that left the changelog like this."""
    event = item.event
    push = event.changes.push
    return replace(
        checkpoint,
        path=event.path,
        generation=event.generation,
        seq=event.seq,
        id=event.id,
        digest=event.digest,
        length=length,
        tip=tip,
        push=checkpoint.push if push is None else push.id,
        time=now,
        partition=item.partition,
        offset=item.offset,
        stripping=False,
        moved={},
        hgrc=None,
        settings=event.settings.for_clients(is_push=event.type is Type.CHANGED).after(checkpoint.settings),
    )


def _apply_event(
    repo: localrepository,
    tr: transaction,
    checkpoint: Checkpoint,
    item: ReadEvent,
    bundle: IO[bytes] | None,
    now: float,
) -> Checkpoint:
    event = item.event
    since = observe.mark(repo, tr)
    moved = observe.bookmarks(repo, (each.name for each in event.changes.bookmarks))
    if bundle is not None:
        try:
            unbundle(repo, tr, bundle, UNPACKED_LIMIT if item.inline else BUNDLE_LIMIT)
        except (error.LockError, OSError, MemoryError, MalformedEvent, UnknownEvent, Diverged):
            raise
        except Exception as problem:
            raise MalformedEvent(f"bundle: {type(problem).__name__}: {str(problem)[:200]}") from problem
    _move_phases_and_bookmarks(repo, tr, event)
    _record_push(repo, tr, event, since.length, checkpoint.push)
    observed = observe.observe(repo, tr, since=since, push=event.changes.push)
    tip = observe.tip(repo)
    if advance(checkpoint.digest, event.type, observed) != event.digest or tip != event.after:
        raise Diverged(f"event {event.seq} of {event.path}: {_describe_difference(event, observed, tip)}")
    return replace(successor(checkpoint, item, tip.length, tip.node, now), moved=moved)


def _move_phases_and_bookmarks(repo: localrepository, tr: transaction, event: Event) -> None:
    """Set phases and bookmarks; the nodes that they name must be here by now."""
    changes = event.changes
    try:
        observe.move_phases(repo, tr, changes.phases)
    except LookupError as problem:
        raise Diverged(f"event {event.seq} of {event.path}: a phase of an unknown changeset: {problem}") from problem
    if changes.bookmarks:
        observe.move_bookmarks(repo, tr, {each.name: each.node for each in changes.bookmarks})


def _record_push(repo: localrepository, tr: transaction, event: Event, first: int, last: int | None) -> None:
    """Record the push of an event; the newest one before it, `last`, must be there."""
    push = event.changes.push
    if push is None:
        return
    changelog = repo.changelog
    nodes = [changelog.node(rev).hex().encode() for rev in range(first, len(changelog))]
    api.record_replicated(repo, tr, push.id, push.user.encode("utf-8", "surrogateescape"), push.date, nodes, last=last)


def unbundle(repo: localrepository, tr: transaction, bundle: Any, limit: int) -> None:
    """Add a bundle within `tr`.

    Raises MalformedEvent for other parts or more bytes, UnknownEvent for a form that only a newer Mercurial reads.
    """
    try:
        unbundler = _open_bundle(repo.ui, bundle, limit)
        tr.hookargs[b"source"] = b"replicated"
        operation = bundle2.bundleoperation(repo, lambda: tr, source=b"replicated")
        for part in unbundler.iterparts():
            if part.type not in PARTS:
                raise MalformedEvent(f"bundle: part {text.text(part.type)[:40]!r} is not one of an event")
            _check_form(repo, part)
            bundle2._processpart(operation, part)
            part.consume()
    except error.BundleUnknownFeatureError as problem:
        raise UnknownEvent(f"bundle: this mirror's Mercurial does not read {text.text(problem.args[0])}") from problem


def _open_bundle(ui: uimod.ui, bundle: IO[bytes], limit: int) -> bundle2.unbundle20:
    """Open a bundle, of which at most `limit` bytes are unpacked."""
    unbundler = exchange.readbundle(ui, bundle, None)
    if not isinstance(unbundler, bundle2.unbundle20):
        raise MalformedEvent("bundle: expected a bundle of version 2")
    # Reading the parameters chooses the engine; `iterparts` installs its reader.
    _ = unbundler.params
    unbundler._compengine = _BoundedEngine(unbundler._compengine, limit)
    return unbundler


def list_changesets(bundle: bytes) -> list[str]:
    """List the changesets of a bundle inside a record; raises MalformedEvent.

    Only what is before the manifests is unpacked.
    """
    try:
        for part in _open_bundle(uimod.ui(), io.BytesIO(bundle), UNPACKED_LIMIT).iterparts():
            if part.type == b"changegroup":
                unpacker = changegroup.getunbundler(part.params.get(b"version", b"01"), part, None)
                unpacker.changelogheader()
                # Mercurial 7.2 has a class for what are tuples in older ones.
                return [(each[0] if isinstance(each, tuple) else each.node).hex() for each in unpacker.deltaiter()]
    except (MemoryError, MalformedEvent):
        raise
    except Exception as problem:
        raise MalformedEvent(f"bundle: {type(problem).__name__}: {str(problem)[:200]}") from problem
    return []


def _check_form(repo: localrepository, part: Any) -> None:
    """Raise BundleUnknownFeatureError for an unknown form: Mercurial says no reason."""
    version = part.params.get(b"version", b"01")
    if part.type == b"changegroup" and version not in changegroup.allsupportedversions(repo):
        raise error.BundleUnknownFeatureError(part.type, (b"version",), (version,))


class BundleTooLarge(MalformedEvent):
    """A bundle that unpacks to too many bytes: the mirror asks the master instead."""


class _BoundedEngine:
    """Mercurial's engine for a compression; its reader stops after `limit` bytes."""

    def __init__(self, engine: Any, limit: int) -> None:
        self._engine, self._limit = engine, limit

    def decompressorreader(self, file: IO[bytes]) -> "_LimitedFile":
        """Open the unpacked content of `file`."""
        is_packed = self._engine.name() != b"none"
        return _LimitedFile(self._engine.decompressorreader(_SlowFile(file) if is_packed else file), self._limit)


class _SlowFile:
    """A file read in small pieces: Mercurial unpacks each piece whole."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, SIP))


class _LimitedFile:
    """A file of at most `limit` bytes; raises BundleTooLarge before it reads more."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file = file
        self._left = limit

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise BundleTooLarge("bundle: more bytes than it may unpack to")
        data: bytes = self._file.read(size)
        self._left -= len(data)
        return data


def _describe_difference(event: Event, observed: Changes, tip: Any) -> str:
    """Describe the first difference from the event."""
    if tip != event.after:
        return f"expected {counted(event.after.length, 'changeset')} up to {event.after.node}, found {tip.length} up to {tip.node}"
    expected = event.changes
    for name in ("added", "heads_added", "heads_removed", "phases", "bookmarks", "markers_sha256"):
        if getattr(expected, name) != getattr(observed, name):
            return f"{name}: expected {str(getattr(expected, name))[:300]}, found {str(getattr(observed, name))[:300]}"
    return "the changes are as the event says, but lead to another digest"
