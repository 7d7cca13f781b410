# SPDX-License-Identifier: GPL-2.0-or-later
"""Events that are no Mercurial transaction on the master.

These are configuration, strip, censor, rename, delete, and outside changes. Each first does its work so that doing it again is
harmless, then writes the checkpoint. After a kill in between, the event is read again and finds its work done. Changes of URL and
visibility (path, deletion, configuration) go into the checkpoint, and take effect at the release (`releasing`).
"""

import os
import re
from dataclasses import replace

from mercurial import error, repair
from mercurial.localrepo import localrepository

from ...mirror.checkpoint import Checkpoint
from ...mirror.task import ReadEvent
from ...words.digest import advance, node_set
from ...words.errors import Diverged, MalformedEvent, counted
from ...words.event import Event, Type
from .. import bundles, markers, observe
from ..serving import watermark
from . import replicated
from .apply import successor

_NODE = re.compile("[0-9a-f]{40}")


def carry_out(repo: localrepository, checkpoint: Checkpoint, item: ReadEvent, now: float) -> Checkpoint:
    """Carry out an event on an open, locked repository; raises Diverged."""
    event = item.event
    if advance(checkpoint.digest, event.type, event.changes) != event.digest:
        raise Diverged(f"event {event.seq} of {event.path}: its digest does not follow from the digest before")
    if event.type is Type.STRIPPED:
        _strip(repo, checkpoint, event)
    elif event.type is Type.CENSORED:
        censor(repo, event)
    tip = observe.tip(repo)
    # Who deletes a repository that was removed by hand may not know how its changelog ended.
    if tip != event.after and event.type is not Type.DELETED:
        raise Diverged(
            f"event {event.seq} of {event.path}: expected {counted(event.after.length, 'changeset')} up to {event.after.node}, "
            f"found {tip.length} up to {tip.node}"
        )
    # The bookmarks that a strip moves were on removed changesets: everything still shown is older than them.
    reached = replace(
        successor(checkpoint, item, tip.length, tip.node, now),
        hgrc=event.hgrc,
        deleted=checkpoint.deleted or event.type is Type.DELETED,
    )
    replicated.record(repo, reached)
    return reached


def _strip(repo: localrepository, checkpoint: Checkpoint, event: Event) -> None:
    """Remove all but the ancestors of the heads that the event leaves.

    No changeset that will be removed is shown meanwhile.

    Mercurial removes all changesets from the first one on, and adds the remaining ones again from a file. A kill in between leaves
    that file; the checkpoint, lowered before, says up to where the changelog is certain. Bookmarks on removed changesets are moved
    first, with the checkpoint: Mercurial would do it last, in a transaction that a kill prevents. Markers of removed changesets
    alone are deleted first, too: a strip that is repeated does not find them. Changesets that were shown and remain are shown again
    afterwards.
    """
    for bundle in bundles.find_set_aside(repo):
        bundles.add_again(repo, bundle)
        os.unlink(bundle)
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
    shown = watermark.count_shown(repo, watermark.read_watermark(repo.vfs))
    staying = [changelog.node(rev) for rev in range(first, shown) if rev in keep]
    moves = observe.bookmarks_after_strip(repo, set(gone))
    with repo.transaction(b"replicated") as tr:
        if moves:
            observe.move_bookmarks(repo, tr, moves)
        lowered = replace(checkpoint, length=first, tip=changelog.node(first - 1).hex(), stripping=True)
        replicated.append(repo, tr, [lowered])
    watermark.lower_watermark(repo, first)
    markers.delete(repo, markers.find_exclusive(repo, nodes))
    repair.strip(repo.ui, repo, nodes, backup=False)
    repo.invalidateall()
    if staying and staying == [repo.changelog.node(first + number) for number in range(len(staying))]:
        watermark.raise_watermark(repo, first + len(staying))


def censor(repo: localrepository, event: Event) -> None:
    """Erase one revision of one file; raises MalformedEvent if the event names none."""
    detail = event.detail or {}
    file, digits = os.fsencode(detail.get("file", "")), detail.get("node", "")
    if {b"..", b"", b".hg"} & set(file.split(b"/")) or not _NODE.fullmatch(digits):
        raise MalformedEvent(f"event {event.seq} of {event.path}: censored names no file or no node")
    node, history = bytes.fromhex(digits), repo.file(file)
    try:
        rev = history.rev(node)
    except error.LookupError as problem:
        raise Diverged(f"event {event.seq} of {event.path}: the censored file is not here") from problem
    if history.iscensored(rev):
        return
    with repo.transaction(b"censor") as tr:
        history.censorrevision(tr, [node], tombstone=b"")
    repo.invalidateall()
