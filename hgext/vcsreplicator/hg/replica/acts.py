# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that are no Mercurial transaction on the master: configuration, strip, censor, rename, delete, outside changes.

Each first does its work so that doing it again is harmless, then writes the level. Killed in between, the event is read again and
finds its work done. What an event says of URL and visibility (path, deletion, configuration) is written into the level, and acts
at its release (`releasing`).
"""

import glob
import os
from dataclasses import replace
from typing import Any

from mercurial import error, repair

from ...mirror.checkpoint import Checkpoint
from ...mirror.task import ReadEvent
from ...words.digest import advance, node_set
from ...words.errors import Diverged, MalformedEvent
from ...words.event import Event, Type
from .. import bundles, observe
from ..serving import watermark
from ..text import text
from . import replicated
from .apply import successor


def act(repo: Any, level: Checkpoint, item: ReadEvent, now: float) -> Checkpoint:
    """Carries out the event on an open, locked repository, and writes the level. Raises Diverged if it leads elsewhere."""
    event = item.event
    if advance(level.digest, event.type, event.changes) != event.digest:
        raise Diverged(f"event {event.seq} of {event.path}: its digest does not follow from the one before")
    before = observe.bookmarks(repo, map(text, repo._bookmarks)) if event.type is Type.STRIPPED else {}
    if event.type is Type.STRIPPED:
        _strip(repo, level, event)
    elif event.type is Type.CENSORED:
        _censor(repo, event)
    tip = observe.tip(repo)
    if tip != event.after:
        raise Diverged(
            f"event {event.seq} of {event.path}: expected {event.after.length} changesets up to {event.after.node}, "
            f"found {tip.length} up to {tip.node}"
        )
    reached = successor(level, item, tip.length, tip.node, now)
    after = observe.bookmarks(repo, before)
    reached = replace(
        reached, hgrc=event.hgrc, moved={name: node for name, node in before.items() if after[name] != node}
    )
    if event.type is Type.DELETED:
        reached = replace(reached, deleted=True)
    replicated.record(repo, reached)
    return reached


def _strip(repo: Any, level: Checkpoint, event: Event) -> None:
    """Removes what is no ancestor of the heads that the event leaves; nothing is shown meanwhile that will go.

    Mercurial removes all changesets from the first one on, and adds again what shall stay, from a file. A kill in between leaves
    that file; the level, lowered before, says up to where the changelog is certain. Bookmarks on what goes are moved before, with
    the level: Mercurial would do it last, in a transaction that a kill prevents. What was shown and stays is shown afterwards.
    """
    _add_again(repo)
    changelog = repo.changelog
    changes = event.changes
    heads = {changelog.node(rev).hex() for rev in changelog.headrevs()}
    left = (heads - set(changes.heads_removed)) | set(changes.heads_added)
    known = [rev for node in left if (rev := changelog.index.get_rev(bytes.fromhex(node))) is not None]
    keep = set(changelog.ancestors(known, inclusive=True))
    gone = [rev for rev in changelog if rev not in keep]
    if not gone:
        return
    nodes = [changelog.node(rev) for rev in gone]
    if node_set(nodes) != changes.removed:
        raise Diverged(
            f"event {event.seq} of {event.path}: it strips {changes.removed}, here that is {node_set(nodes)}"
        )
    first = gone[0]
    shown = watermark.fit(repo, watermark.read_watermark(repo))
    staying = [changelog.node(rev) for rev in range(first, shown) if rev in keep]
    moves = observe.bookmarks_after_strip(repo, set(gone))
    with repo.transaction(b"replicated") as tr:
        if moves:
            observe.move_bookmarks(repo, tr, moves)
        lowered = replace(level, length=first, tip=changelog.node(first - 1).hex(), stripping=True)
        replicated.append(repo, tr, [lowered])
    watermark.lower_watermark(repo, first)
    repair.strip(repo.ui, repo, nodes, backup=False)
    repo.invalidateall()
    if staying and staying == [repo.changelog.node(first + number) for number in range(len(staying))]:
        watermark.raise_watermark(repo, first + len(staying))


def _add_again(repo: Any) -> None:
    """What an interrupted strip took away only for a moment."""
    for name in glob.glob(os.path.join(glob.escape(repo.path), b"strip-backup", b"*-temp.hg")):
        with open(name, "rb") as file, repo.transaction(b"strip") as tr:
            bundles.apply(repo, tr, file, b"strip")
        os.unlink(name)
        repo.invalidateall()


def _node(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _censor(repo: Any, event: Event) -> None:
    """Erases one revision of one file."""
    detail = event.detail or {}
    file, node = os.fsencode(detail.get("file", "")), _node(detail.get("node", ""))
    if not file or len(node) != 20 or {b"..", b"", b".hg"} & set(file.split(b"/")):
        raise MalformedEvent(f"event {event.seq} of {event.path}: censored names no file or no node")
    log = repo.file(file)
    try:
        rev = log.rev(node)
    except error.LookupError as problem:
        raise Diverged(f"event {event.seq} of {event.path}: the censored file is not here") from problem
    if log.iscensored(rev):
        return
    with repo.transaction(b"censor") as tr:
        log.censorrevision(tr, [node], tombstone=b"")
    repo.invalidateall()
