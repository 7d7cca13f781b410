# SPDX-License-Identifier: GPL-2.0-or-later
"""What a master does not take, because mirrors could not have it too: each check raises Abort, which refuses the push."""

import math
import re
from dataclasses import replace
from typing import Any

from mercurial import error, phases
from mercurial.utils import stringutil

from ...outbox import RECORD_LIMIT, Entry, NewestEvent, Outbox
from ...words.event import Changes, MarkerNode
from ...words.shape import to_json
from .. import observe
from ..text import local

EVENT_LIMIT = 4 * 1024 * 1024 - 64 * 1024  # bytes of JSON; `wire.HEADER_LIMIT` with room for the attachment
EVENT_REST = 16 * 1024  # of that, for everything but the changes
REFUSED_REQUIREMENTS = {
    b"lfs": "LFS",
    b"largefiles": "largefiles",
    b"narrowhg-experimental": "narrow clones",
    b"treemanifest": "tree manifests",
}
_CONTROL = r"[\x00-\x1f\x7f]"


def refuse_format(repo: Any) -> None:
    """Raises Abort for content that no mirror would get."""
    for requirement, name in REFUSED_REQUIREMENTS.items():
        if requirement in repo.requirements:
            raise error.Abort(
                f"this repository uses {name}, which is not replicated".encode(),
                hint=b"convert it, or keep it outside [vcsreplicator-roots]",
            )


def refuse_odd_markers(markers: list[Any]) -> None:
    """Raises Abort for a marker that reads back from disk as another one: master and mirrors would never agree on it again."""
    for _precursor, _successors, _flags, _metadata, (seconds, zone), _parents in markers:
        if zone % 60 or not math.isfinite(seconds):
            raise error.Abort(
                b"an obsolescence marker has a date that cannot be stored: %r %r" % (seconds, zone),
                hint=b"its time zone must be whole minutes",
            )


def refuse_odd_phases(tr: Any) -> None:
    """Raises Abort for changesets that go to a phase that never travels: mirrors would go on to show them, or show them at all."""
    for revs, (_old, new) in tr.changes[b"phases"]:
        if revs and new not in observe.PHASES:
            raise error.Abort(
                b"changesets of a replicated repository cannot become %s" % phases.phasenames[new],
                hint=b"strip them, or mark them as obsolete",
            )


def refuse_odd_bookmarks(changes: Changes) -> None:
    """Raises Abort for a bookmark whose name does not survive Mercurial's own files and protocol, all lines and columns."""
    for bookmark in changes.bookmarks:
        name = bookmark.name
        if bookmark.node is not None and (not name or name != name.strip() or re.search(_CONTROL, name)):
            raise error.Abort(
                b"a bookmark cannot have this name: %s" % stringutil.pprint(local(name)),
                hint=b"no control characters, and no blanks at its ends",
            )


def refuse_fork(box: Outbox) -> None:
    """Raises Abort while the log tells another history than this outbox."""
    reason = box.fork()
    if reason:
        raise error.Abort(
            f"this repository takes no changes: {reason}".encode(),
            hint=b"see 'hg help replicateadopt'",
        )


def refuse_other_path(level: NewestEvent, path: str) -> None:
    """Raises Abort if the repository's folder was moved or copied behind our back."""
    if level.path != path:
        raise error.Abort(
            f"this repository was {level.path} and is {path} now".encode(),
            hint=b"if it was moved, run 'hg replicaterename'; if it is a copy, run 'hg replicateadopt'",
        )


def fitting(entry: Entry) -> Entry:
    """The entry, if one record of the log can hold its event; else without the markers' descriptions; else Abort.

    Abort also if the outbox could not read it back: a marker may carry any number of notes.
    """
    event = entry.event
    if len(to_json(entry)) > RECORD_LIMIT:
        raise _too_large(event.changes, b"push it in parts")
    if len(to_json(event)) <= EVENT_LIMIT:
        return entry
    bare = [
        replace(m, precursor=_bare(m.precursor), successors=tuple(map(_bare, m.successors)))
        for m in event.changes.markers
    ]
    event = replace(event, changes=replace(event.changes, markers=tuple(bare)))
    size = len(to_json(event))
    if size <= EVENT_LIMIT:
        return replace(entry, event=event)
    raise _too_large(event.changes, b"push it in parts")


def refuse_large(changes: Changes, *, hint: bytes) -> None:
    """Raises Abort for changes that no event can hold, before anything is done."""
    if not fits(changes):
        raise _too_large(changes, hint)


def fits(changes: Changes) -> bool:
    """Whether an event can hold these changes."""
    return len(to_json(changes)) <= EVENT_LIMIT - EVENT_REST


def _too_large(changes: Changes, hint: bytes) -> error.Abort:
    counts = f"{len(changes.heads_added) + len(changes.heads_removed)} heads, {len(changes.bookmarks)} bookmarks"
    return error.Abort(
        f"this change is too large for one event: {counts}, {len(changes.markers)} markers".encode(), hint=hint
    )


def _bare(node: MarkerNode) -> MarkerNode:
    return replace(node, desc=None)
