# SPDX-License-Identifier: GPL-2.0-or-later
"""Strip and censor, which remove changesets or content.

`lifecycle` finishes a strip that a kill interrupts. Before changesets go, the bundles of unsent events are stored beside the
outbox.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import error, repair, util
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex
from mercurial.transaction import transaction as Transaction
from mercurial.ui import ui as Ui

from pushlog import stripping as pushlog_stripping

from ....outbox.bundles import ChangesetsGone
from ....outbox.entry import MirrorNeeds
from ....outbox.file import LOCK, Outbox
from ....words.digest import node_set
from ....words.event import Changes, Type
from ... import bundles, markers, observe
from .. import capture, durability, intents, overlay, refusals, repository
from ..announcing import Announcement
from ..intents import Intent
from . import writing

if TYPE_CHECKING:
    from mercurial.obsolete import obsstore as ObsStore
    from mercurial.revlog import revlog as Revlog

    from ..repository import MasterRepository


def strip(
    original: Callable[..., Any],
    ui: Ui,
    repo: localrepository,
    nodelist: bytes | list[bytes],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Wrap `repair.strip`: note, strip, announce.

    Proven by `tests/hg/master/acts/lifecycle.t`.
    """
    overlay.refuse(repo.unfiltered())
    master = repository.replicated(repo)
    # In a transaction Mercurial refuses it, and a note would have the next change strip.
    if master is None or repository.is_silenced(master) or master.currenttransaction() is not None:
        return original(ui, repo, nodelist, *arguments, **keywords)
    if repository.is_share(master):
        # Mercurial keeps the removed changesets for a moment in the share, where no other process would find them after a kill.
        hint = b"strip them in %s" % os.path.dirname(master.sharedpath)
        raise error.Abort(b"changesets of a replicated repository cannot be stripped in a share", hint=hint)
    if isinstance(nodelist, bytes):
        nodelist = [nodelist]
    with master.lock():
        is_backed_up = _makes_backup(*arguments, **keywords)
        intent, before = _make_intent(master, nodelist, is_backed_up=is_backed_up), observe.tip(master)
        refusals.refuse_large(_changes_of(intent), hint=b"strip it in parts")
        with _no_sender(master):
            store_bundles(master)
            intents.write(master.replication_root, intent)
            try:
                with repository.silenced(master), durability.replacing_synced(master):
                    result = original(ui, repo, nodelist, *arguments, **keywords)
            except BaseException:
                # A strip that was refused before it changed anything must not be finished later: it truncates the changelog first.
                master.invalidateall()
                if observe.tip(master) == before and not master.svfs.exists(b"journal"):
                    intents.remove(master.replication_root, intent.path)
                raise
        master.invalidateall()
        _announce_stripped(master, intent)
        intents.remove(master.replication_root, intent.path)
    return result


def censor(
    original: Callable[..., Any],
    log: Revlog,
    tr: Transaction,
    nodes: bytes | list[bytes],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Wrap `revlog.censorrevision`: announce it in the transaction that erases."""
    if not hasattr(tr, repository.CAPTURE):
        return original(log, tr, nodes, *arguments, **keywords)
    captured = capture.capture_of(tr)
    nodes = [nodes] if isinstance(nodes, bytes) else list(nodes)
    name = log.target[1] if log.target else b""
    for node in nodes:
        detail = {"file": os.fsdecode(name), "node": hex(node).decode()}
        captured.announcements.append(Announcement(kind=Type.CENSORED, detail=detail))
    with _no_sender(captured.repo):
        store_bundles(captured.repo)
        return original(log, tr, nodes, *arguments, **keywords)


def delete_markers(original: Callable[..., Any], obsstore: ObsStore, indices: Any) -> Any:
    """Wrap `repair.deleteobsmarkers`: refuse, since no event can announce it.

    Proven by `tests/hg/master/strip-refused.t`.
    """
    repo = obsstore.repo
    if indices and repository.replicated(repo) is not None and not repository.is_silenced(repo):
        raise error.Abort(b"markers of a replicated repository cannot be deleted", hint=b"mirrors would keep them")
    return original(obsstore, indices)


def store_bundles(repo: localrepository) -> None:
    """Store the bundles of unsent events, while their changesets are still there.

    A bundle that is stored already stays as it is: its changesets may be gone by now. For changesets that are gone without a
    stored bundle, mirrors compare with the master.
    """
    box = Outbox(repo.svfs)
    for place in box.unsent():
        event = place.entry.event.id
        if place.entry.needs is MirrorNeeds.BUNDLE and not box.bundles.has(event):
            with contextlib.suppress(ChangesetsGone):
                box.bundles.store(event, bundles.make_entry_bundle(repo, place.entry))


def finish_strip(repo: MasterRepository, intent: Intent, *, is_announced: bool, wait: bool) -> None:
    """Finish an interrupted strip under the lock; without `wait` may raise LockError."""
    has_node = repo.changelog.index.has_node
    with _no_sender(repo, wait=wait), repository.silenced(repo), durability.replacing_synced(repo):
        for bundle in _find_temporary_bundles(repo, intent.former_bundles or ()):
            if not all(has_node(bin(node)) for node in intent.heads_after):
                bundles.add_again(repo, bundle)
                has_node = repo.changelog.index.has_node
            util.tryunlink(bundle)
        left = [bin(node) for node in intent.roots if has_node(bin(node))]
        if left:
            # A relay loads no extension that would change the pushlog.
            pushlog_stripping.strip(repair.strip, repo.ui, repo, left, backup=intent.backup is not False)
            repo.invalidateall()
        markers.delete(repo, intent.markers or ())
        if intent.bookmarks and not is_announced:
            with repo.lock(), repo.transaction(b"strip") as tr:
                observe.move_bookmarks(repo, tr, intent.bookmarks)
    if not is_announced:
        _announce_stripped(repo, intent)


@contextlib.contextmanager
def _no_sender(repo: localrepository, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes from sending events within the block.

    Sending an event makes a bundle, perhaps of changesets that are to be removed. Without `wait`, raises LockHeld if a process is
    sending.
    """
    box = Outbox(repo.svfs)
    with box.sending(wait=False) as alone:
        if alone:
            yield
            return
    if not wait:
        raise error.LockHeld(errno.EAGAIN, repo.svfs.join(LOCK), b"outbox", None)
    repo.ui.warn(b"waiting until the events that are being sent are sent\n")
    with box.sending(wait=True):
        yield


def _makes_backup(backup: bytes | bool = True, *_arguments: Any, **_keywords: Any) -> bool:
    """Return whether `repair.strip` with these arguments makes a backup."""
    return bool(backup) and backup not in (b"none", b"strip")


def _make_intent(repo: MasterRepository, nodelist: list[bytes], *, is_backed_up: bool) -> Intent:
    newest, changelog = writing.announce_outside(repo), repo.changelog
    gone = {changelog.rev(node) for node in nodelist}
    gone.update(changelog.descendants(gone))
    left = {rev for rev in changelog if rev not in gone}
    after = {hex(changelog.node(rev)).decode() for rev in observe.heads_of(changelog, left)}
    before = {hex(changelog.node(rev)).decode() for rev in changelog.headrevs()} if len(changelog) else set()
    removed = [changelog.node(rev) for rev in sorted(gone)]
    return Intent(
        kind=Type.STRIPPED.value,
        repository=newest.repository,
        seq=newest.seq,
        path=repo.replication_path,
        folder=repository.folder_of(repo),
        roots=tuple(hex(node).decode() for node in nodelist),
        heads_added=tuple(sorted(after - before)),
        heads_removed=tuple(sorted(before - after)),
        heads_after=tuple(sorted(after)),
        removed=node_set(removed),
        bookmarks=observe.bookmarks_after_strip(repo, gone),
        former_bundles=tuple(map(_identify_bundle, _find_temporary_bundles(repo))) or None,
        backup=None if is_backed_up else False,
        markers=markers.find_exclusive(repo, removed) or None,
    )


def _changes_of(intent: Intent) -> Changes:
    return Changes(
        added=None, removed=intent.removed, heads_added=intent.heads_added, heads_removed=intent.heads_removed
    )


def _announce_stripped(repo: MasterRepository, intent: Intent) -> None:
    if repo.replication_settings.durability == "store":
        durability.sync_repository(repo)
    writing.announce(repo, Announcement(kind=Type.STRIPPED, changes=_changes_of(intent)))


def _find_temporary_bundles(repo: localrepository, former: tuple[str, ...] = ()) -> list[bytes]:
    """Find what strips set aside to add it again, but for `former` bundles."""
    return [bundle for bundle in bundles.find_set_aside(repo) if _identify_bundle(bundle) not in former]


def _identify_bundle(bundle: bytes) -> str:
    """Return a bundle's name and time of writing.

    A strip may write a bundle whose name another one had.
    """
    return f"{os.fsdecode(os.path.basename(bundle))} {os.stat(bundle).st_mtime_ns}"
