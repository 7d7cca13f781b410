# SPDX-License-Identifier: GPL-2.0-or-later
"""What changes a repository without being one transaction: strip, censor, delete, rename, and a new incarnation.

Each is: a note of the intent; the act; its event, in the repository's own outbox with its own sequence; the note goes away. Killed
anywhere, `finish` does the rest, and finds out itself what is done already.

Before changesets go, bundles of events that are not sent yet are kept as files beside the outbox.
"""

import contextlib
import errno
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mercurial import error, repair, util
from mercurial.node import bin, hex

from pushlog import stripping

from ... import outbox
from ...outbox import Needs, NewestEvent, Outbox, Store
from ...relay.scan import find_repositories
from ...relay.sending import ChangesetsGone
from ...words.digest import START, node_set
from ...words.event import Changes, Type
from .. import bundles, observe
from ..settings import root_of
from ..text import path as path_text
from . import announcing, capture, creation, intents, overlay, refusals, twins
from .announcing import Announcement
from .intents import Intent


def announce(repo: Any, announcement: Announcement, *, told: bool = True) -> None:
    """Writes one event in a transaction of its own; `told`: what is there now needs no event of its own before it."""
    name = announcing.LIFECYCLE if told else b"vcsreplicator-request"
    with repo.lock(), repo.transaction(name) as tr:
        announcing.capture_of(tr).announcements.append(announcement)


def strip(original: Callable[..., Any], ui: Any, repo: Any, nodelist: Any, *arguments: Any, **keywords: Any) -> Any:
    """Wraps `repair.strip` (`master-strip.t`)."""
    unfiltered = repo.unfiltered()
    overlay.refuse(unfiltered)
    if not getattr(unfiltered, "announces_changes", False) or getattr(unfiltered, announcing.QUIET, False):
        return original(ui, repo, nodelist, *arguments, **keywords)
    if isinstance(nodelist, bytes):
        nodelist = [nodelist]
    with unfiltered.lock():
        _level_first(unfiltered)
        intent, before = _strip_intent(unfiltered, nodelist), observe.tip(unfiltered)
        refusals.refuse_large(_strip_changes(intent), hint=b"strip it in parts")
        with _alone(unfiltered):
            keep_bundles(unfiltered)
            intents.write(unfiltered.replication_root, intent)
            try:
                with announcing.quiet(unfiltered):
                    result = original(ui, repo, nodelist, *arguments, **keywords)
            except BaseException:
                # Refused before it touched anything: nobody shall finish it.
                unfiltered.invalidateall()
                if observe.tip(unfiltered) == before and not _half_stripped(unfiltered):
                    intents.remove(unfiltered.replication_root, intent.path)
                raise
        unfiltered.invalidateall()
        _announce_strip(unfiltered, intent)
        intents.remove(unfiltered.replication_root, intent.path)
    return result


def censor(original: Callable[..., Any], log: Any, tr: Any, nodes: Any, *arguments: Any, **keywords: Any) -> Any:
    """Wraps `revlog.censorrevision`: tells which revisions of which file were erased, with the transaction that does it."""
    captured = getattr(tr, announcing.CAPTURE, None)
    if captured is None:
        return original(log, tr, nodes, *arguments, **keywords)
    nodes = [nodes] if isinstance(nodes, bytes) else list(nodes)
    name = log.target[1] if log.target else b""
    for node in nodes:
        detail = {"file": path_text(name), "node": hex(node).decode()}
        captured.announcements.append(Announcement(kind=Type.CENSORED, detail=detail))
    with _alone(captured.repo):
        keep_bundles(captured.repo)
        return original(log, tr, nodes, *arguments, **keywords)


def delete_markers(original: Callable[..., Any], obsstore: Any, indices: Any) -> Any:
    """Wraps `repair.deleteobsmarkers`, which is no transaction and which no event tells (`tests/hg/master/strip-refused.t`)."""
    repo = obsstore.repo.unfiltered()
    if indices and getattr(repo, "announces_changes", False) and not getattr(repo, announcing.QUIET, False):
        raise error.Abort(b"markers of a replicated repository cannot be deleted", hint=b"mirrors would keep them")
    return original(obsstore, indices)


def delete(repo: Any) -> None:
    """Announces the end of the repository and moves it aside, where the relay removes it once the log knows."""
    repo = repo.unfiltered()
    root, path, folder = repo.replication_root, repo.replication_path, _folder(repo)
    with repo.wlock(), repo.lock():
        _level_first(repo)
        level = Outbox(repo.svfs).level()
        assert level is not None
        to = os.path.join(creation.make_folder(root, creation.DELETED), level.repository)
        _refuse_immovable(folder, to, root)
        intent = Intent(
            kind=Type.DELETED.value, repository=level.repository, seq=level.seq, path=path, folder=folder, to=to
        )
        intents.write(root, intent)
        announce(repo, Announcement(kind=Type.DELETED))
    _move(intent)
    intents.remove(root, path)


def rename(repo: Any, target: str | None, settings: Any) -> str:
    """Gives the repository another path: moves its folder to `target`, or accepts where it is; the new wire path."""
    repo = repo.unfiltered()
    root, folder = repo.replication_root, _folder(repo)
    end = capture.end_of(Outbox(repo.svfs))
    if end is None:
        raise error.Abort(b"this repository has no event yet, there is nothing to rename")
    old, to = end.level.path, os.path.realpath(target or folder)
    path = settings.wire_path(to)
    if path is None:
        raise error.Abort(*announcing.NOT_CONFIGURED[:1], hint=announcing.NOT_CONFIGURED[1])
    if path == old:
        raise error.Abort(f"this repository is {path} already".encode())
    if to != folder:
        _refuse_taken(to, root_of(settings, to))
    twins.refuse(path, folder, settings.roots)
    if to != folder:
        _refuse_immovable(folder, to, root)
    with repo.wlock(), repo.lock():
        if old == repo.replication_path:
            _level_first(repo)
        level = Outbox(repo.svfs).level()  # as of the lock: a push may have been under way
        assert level is not None
        intent = Intent(
            kind=Type.RENAMED.value,
            repository=level.repository,
            seq=level.seq,
            path=old,
            folder=folder,
            to=to,
            to_path=path,
            to_root=root_of(settings, to),
        )
        intents.write(root, intent)
        _announce_rename(repo, intent)
    _move(intent)
    intents.remove(root, old)
    return path


def adopt(repo: Any) -> NewestEvent:
    """Takes this repository as it is: a copy gets an identity of its own, any other a new incarnation. Its new level.

    What was not sent yet is sent before, where that can follow what the log has.
    """
    repo = repo.unfiltered()
    box = Outbox(repo.svfs)
    with repo.lock():
        end = capture.end_of(box)
        if end is None:
            announce(repo, Announcement(kind=Type.SYNC), told=False)
        else:
            copied = end.level.path != repo.replication_path
            if copied:
                twins.refuse(repo.replication_path, _folder(repo), repo.replication_roots)
            with box.sending(wait=True):
                if copied or box.fork() is not None:
                    # These events are another's, or do not follow what the log has: what they did is in the new event.
                    *_, newest = box.kept()
                    box.mark_sent(newest.sent())
                    box.set_fork(None)
                announce(repo, _adoption(repo, copied))
    level = box.level()
    assert level is not None
    return level


def finish(repo: Any, intent: Intent, *, wait: bool = True) -> None:
    """Does what is left of an interrupted act but `finish_move`; the caller holds the lock. Does nothing where all is done.

    Without `wait` raises LockError if it would have to wait for somebody who sends the repository's events.
    """
    repo = repo.unfiltered()
    end = Outbox(repo.svfs).end()
    if end is None or not intent.concerns(end.level):
        intents.remove(repo.replication_root, intent.path)  # its repository is where it belongs, this is another
        return
    if intent.kind == Type.STRIPPED.value:
        _finish_strip(repo, intent, announced=end.level.seq > intent.seq, wait=wait)
        intents.remove(repo.replication_root, intent.path)
    elif end.level.seq == intent.seq:
        if intent.kind == Type.DELETED.value:
            announce(repo, Announcement(kind=Type.DELETED))
        elif intent.kind == Type.RENAMED.value:
            _announce_rename(repo, intent)


def finish_move(root: str, intent: Intent) -> None:
    """The last step of a rename or deletion: without the locks, which a moved repository would keep for ever."""
    with contextlib.suppress(FileNotFoundError):  # somebody else was faster
        if intent.concerns(Outbox(Store(os.path.join(intent.folder, ".hg", "store"))).level()):
            _move(intent)
    intents.remove(root, intent.path)


def keep_bundles(repo: Any) -> None:
    """Saves the bundles of events that are not sent, while their changesets are still what they were.

    One that was saved before stays as it is: its changesets may be gone by now. What nobody saved and is gone is left to the
    master: the relay tells mirrors to look there.
    """
    box = Outbox(repo.svfs)
    for place in box.unsent():
        event = place.entry.event.id
        if place.entry.needs is Needs.BUNDLE and not box.keeps_bundle(event):
            with contextlib.suppress(ChangesetsGone):
                box.keep_bundle(event, bundles.entry_chunks(repo, place.entry))


@contextlib.contextmanager
def _alone(repo: Any, *, wait: bool = True) -> Iterator[None]:
    """Within, nobody sends events of this repository, which means: makes bundles of what is just going."""
    box = Outbox(repo.svfs)
    with box.sending(wait=False) as alone:
        if alone:
            yield
            return
    if not wait:
        raise error.LockHeld(errno.EAGAIN, repo.svfs.join(outbox.LOCK), b"outbox", None)
    repo.ui.warn(b"waiting until the events that are being sent are sent\n")
    with box.sending(wait=True):
        yield


def _adoption(repo: Any, copied: bool) -> Announcement:
    now = observe.tip(repo)
    if copied:
        generation = creation.next_generation(repo.replication_root, repo.replication_path)
        return announcing.created(now, repo.replication_path, generation, "adopted", hgrc=capture.hgrc_of(repo))
    replaced: dict[str, str] = {"reason": "adopted", "bootstrap": "false"}

    def level(before: NewestEvent | None) -> NewestEvent:
        assert before is not None
        replaced["replaces"] = before.incarnation
        return replace(before, incarnation=outbox.new_id(), seq=0, id="", digest=START)

    return Announcement(kind=Type.SYNC, needs=Needs.MASTER, level=level, detail=replaced, hgrc=capture.hgrc_of(repo))


def _level_first(repo: Any) -> None:
    """Tells what happened outside before something else is told."""
    with repo.lock(), repo.transaction(b"vcsreplicator-level"):
        pass


def _strip_intent(repo: Any, nodelist: Any) -> Intent:
    changelog, level = repo.changelog, Outbox(repo.svfs).level()
    assert level is not None
    gone = {changelog.rev(node) for node in nodelist}
    gone.update(changelog.descendants(gone))
    keep = [rev for rev in changelog if rev not in gone]
    after = _heads_among(changelog, set(keep))
    before = {hex(changelog.node(rev)).decode() for rev in changelog.headrevs()} if len(changelog) else set()
    return Intent(
        kind=Type.STRIPPED.value,
        repository=level.repository,
        seq=level.seq,
        path=repo.replication_path,
        folder=_folder(repo),
        roots=tuple(hex(node).decode() for node in nodelist),
        heads_added=tuple(sorted(after - before)),
        heads_removed=tuple(sorted(before - after)),
        heads_after=tuple(sorted(after)),
        removed=node_set([changelog.node(rev) for rev in sorted(gone)]),
        bookmarks=None if capture.has_own_bookmarks(repo) else observe.bookmarks_after_strip(repo, gone),
    )


def _heads_among(changelog: Any, revs: set[int]) -> set[str]:
    covered = {parent for rev in revs for parent in changelog.parentrevs(rev)}
    return {hex(changelog.node(rev)).decode() for rev in revs - covered}


def _strip_changes(intent: Intent) -> Changes:
    return Changes(
        added=None, removed=intent.removed, heads_added=intent.heads_added, heads_removed=intent.heads_removed
    )


def _announce_strip(repo: Any, intent: Intent) -> None:
    announce(repo, Announcement(kind=Type.STRIPPED, changes=_strip_changes(intent)))


def _finish_strip(repo: Any, intent: Intent, *, announced: bool, wait: bool) -> None:
    has = repo.changelog.index.has_node
    with _alone(repo, wait=wait), announcing.quiet(repo):
        for bundle in _half_stripped(repo):
            if not all(has(bin(node)) for node in intent.heads_after):
                with open(bundle, "rb") as file, repo.lock(), repo.transaction(b"strip") as tr:
                    bundles.apply(repo, tr, file, b"strip")
                repo.invalidateall()
                has = repo.changelog.index.has_node
            util.tryunlink(bundle)
        left = [bin(node) for node in intent.roots if has(bin(node))]
        if left:
            # Who finishes may be the relay, where no extension is loaded that would tell the pushlog.
            stripping.strip(repair.strip, repo.ui, repo, left)
            repo.invalidateall()
        if intent.bookmarks and not announced:
            with repo.lock(), repo.transaction(b"strip") as tr:
                observe.move_bookmarks(repo, tr, intent.bookmarks)
    if not announced:
        _announce_strip(repo, intent)


def _half_stripped(repo: Any) -> list[bytes]:
    """The bundles of changesets that a strip in the middle of its work means to add again."""
    return sorted(glob.glob(os.path.join(glob.escape(repo.path), b"strip-backup", b"*-temp.hg")))


def _announce_rename(repo: Any, intent: Intent) -> None:
    assert intent.to_path is not None
    assert intent.to_root is not None
    path = intent.to_path
    generation = creation.next_generation(intent.to_root, path)
    announce(
        repo,
        Announcement(
            kind=Type.RENAMED,
            level=lambda before: replace(_known(before), path=path, generation=generation),
            detail={"from": intent.path},
        ),
    )


def _known(level: NewestEvent | None) -> NewestEvent:
    assert level is not None
    return level


def _refuse_taken(to: str, root: str) -> None:
    """Raises Abort if there is something at `to`, or it is inside a repository, with which it would be moved."""
    if os.path.lexists(to):
        raise error.Abort(os.fsencode(f"{to} exists"))
    above = os.path.dirname(to)
    while len(above) >= len(root) and above != os.path.dirname(above):
        if os.path.isdir(os.path.join(above, ".hg")):
            raise error.Abort(os.fsencode(f"{to} is inside the repository {above}"))
        above = os.path.dirname(above)


def _refuse_immovable(folder: str, to: str, root: str) -> None:
    """Raises Abort unless `folder` can be moved to `to` in one step: tried with an empty folder from beside the one to that beside
    the other, since permissions, file systems and mounts all have a say.
    """
    if folder == root:
        raise error.Abort(os.fsencode(f"cannot move {folder}: it is a root of [vcsreplicator-roots]"))
    if os.path.ismount(folder):
        raise error.Abort(os.fsencode(f"cannot move {folder}: a file system is mounted there"))
    inside = next((found for found in find_repositories(folder) if found != folder), None)
    if inside is not None:
        raise error.Abort(os.fsencode(f"cannot move {folder}: the repository {inside} would go with it"))
    tried = ""
    try:
        os.makedirs(os.path.dirname(to), exist_ok=True)
        tried = tempfile.mkdtemp(prefix=".move-", dir=os.path.dirname(folder))
        moved = os.path.join(os.path.dirname(to), os.path.basename(tried))
        os.rename(tried, moved)
        tried = moved
    except OSError as problem:
        raise error.Abort(os.fsencode(f"cannot move {folder} to {to}: {problem.strerror}")) from problem
    finally:
        if tried:
            os.rmdir(tried)


def _move(intent: Intent) -> None:
    if intent.to is not None and intent.to != intent.folder and os.path.isdir(intent.folder):
        os.makedirs(os.path.dirname(intent.to), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the relay was faster
            os.rename(intent.folder, intent.to)


def _folder(repo: Any) -> str:
    return os.path.dirname(path_text(os.path.realpath(repo.sharedpath)))
