# SPDX-License-Identifier: GPL-2.0-or-later
"""Deletion and rename: the folder moves once the event is written.

`lifecycle` finishes what a kill interrupts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mercurial import error
from mercurial.utils import stringutil

from pushlog.store.appendfile import walk

from ....outbox.entry import NewestEvent
from ....outbox.file import Outbox, outbox_of
from ....relay.scan import find_repositories
from ....words.event import Type
from ...settings import root_of
from .. import capture, creation, intents, refusals, repository, twins
from ..announcing import Announcement
from ..intents import Intent
from . import writing

if TYPE_CHECKING:
    from ..repository import MasterRepository


def delete(repo: MasterRepository) -> bool:
    """Announce the end of the repository and move it to the deleted ones.

    False if it is only noted, because its event cannot be written now: the relay finishes it.
    """
    root, path, folder = repo.replication_root, repo.replication_path, repository.folder_of(repo)
    with repo.wlock(), repo.lock():
        newest = writing.announce_outside(repo)
        to = os.path.join(creation.make_folder(root, creation.DELETED), newest.repository)
        _refuse_immovable(folder, to, root)
        intent = Intent(
            kind=Type.DELETED.value, repository=newest.repository, seq=newest.seq, path=path, folder=folder, to=to
        )
        intents.write(root, intent)
        if not _try_to_announce(repo, intent, lambda: writing.announce(repo, Announcement(kind=Type.DELETED))):
            return False
    move(root, intent)
    intents.remove(root, path)
    return True


def rename(repo: MasterRepository, target: str | None) -> str | None:
    """Move the repository to `target`, or accept where it is; return its path.

    None if it is only noted, because its event cannot be written now: the relay finishes it.
    """
    root, settings, folder = repo.replication_root, repo.replication_settings, repository.folder_of(repo)
    end = capture.read_end(Outbox(repo.svfs))
    if end is None:
        raise error.Abort(b"this repository has no event yet, there is nothing to rename")
    old, to = end.newest.path, os.path.realpath(target or folder)
    path = settings.wire_path(to)
    if path is None:
        raise repository.not_configured()
    if path == old:
        raise error.Abort(f"this repository is {path} already".encode())
    to_root = root_of(settings, to)
    if to != folder:
        _refuse_taken(to, to_root)
    twins.refuse(path, folder, settings.roots)
    if to != folder:
        _refuse_immovable(folder, to, root)
    with contextlib.ExitStack() as until_moved:
        with repo.wlock(), repo.lock():
            # Read again under the lock: a push may have been under way. A folder that was moved by hand refuses other events.
            until_moved.enter_context(twins.reserved(repo.ui, path, folder, settings.roots))
            was_moved = old != repo.replication_path
            if was_moved:
                refusals.refuse_lost_history(repo, end.after)
            newest = writing.read_newest(repo) if was_moved else writing.announce_outside(repo)
            intent = Intent(
                kind=Type.RENAMED.value,
                repository=newest.repository,
                seq=newest.seq,
                path=old,
                folder=folder,
                to=to,
                to_path=path,
                to_root=to_root,
            )
            intents.write(root, intent)
            if not _try_to_announce(repo, intent, lambda: announce_renamed(repo, intent)):
                return None
        move(root, intent)
    intents.remove(root, old)
    return path


def _try_to_announce(repo: MasterRepository, intent: Intent, announce: Callable[[], None]) -> bool:
    """Write the event of an act that is noted; report in one line if that fails."""
    try:
        announce()
    except Exception as problem:
        act, reason = intents.act_of(intent), stringutil.forcebytestr(problem)
        repo.ui.warn(b"the %s is noted, the relay or the next change finishes it: %s\n" % (act, reason))
        return False
    return True


def announce_renamed(repo: MasterRepository, intent: Intent) -> None:
    assert intent.to_path is not None
    assert intent.to_root is not None
    root, path = intent.to_root, intent.to_path

    def identify(before: NewestEvent | None) -> NewestEvent:
        assert before is not None
        return replace(before, path=path, generation=creation.read_generation(root, path) + 1)

    writing.announce(repo, Announcement(kind=Type.RENAMED, identify=identify, root=root, detail={"from": intent.path}))


def finish_move(root: str, intent: Intent) -> None:
    """Move the folder as the note says, and remove the note.

    The caller does not hold the locks, which a moved repository would keep.
    """
    # Another process may have moved it.
    with contextlib.suppress(FileNotFoundError):
        if intent.concerns(outbox_of(intent.folder).newest()):
            move(root, intent)
    intents.remove(root, intent.path)


def _refuse_taken(to: str, root: str) -> None:
    """Raise Abort if `to` exists or is inside a repository.

    A repository inside another one would follow its moves.
    """
    if os.path.lexists(to):
        raise error.Abort(os.fsencode(f"{to} exists"))
    above = os.path.dirname(to)
    while len(above) >= len(root) and above != os.path.dirname(above):
        if os.path.isdir(os.path.join(above, ".hg")):
            raise error.Abort(os.fsencode(f"{to} is inside the repository {above}"))
        above = os.path.dirname(above)


def _refuse_immovable(folder: str, to: str, root: str) -> None:
    """Raise Abort unless `folder` can be moved to `to` in one step.

    Permissions, file systems and mounts decide that together, so this tries it with an empty folder beside `folder`.
    """
    if folder == root:
        raise error.Abort(os.fsencode(f"cannot move {folder}: it is a root of [vcsreplicator-roots]"))
    if os.path.ismount(folder):
        raise error.Abort(os.fsencode(f"cannot move {folder}: a file system is mounted there"))
    inside = next((found for found in find_repositories(folder) if found != folder), None)
    if inside is not None:
        raise error.Abort(os.fsencode(f"cannot move {folder}: the repository {inside} would go with it"))
    probe = ""
    try:
        os.makedirs(os.path.dirname(to), exist_ok=True)
        probe = tempfile.mkdtemp(prefix=".move-", dir=os.path.dirname(folder))
        moved = os.path.join(os.path.dirname(to), os.path.basename(probe))
        os.rename(probe, moved)
        probe = moved
    except OSError as problem:
        raise _name_immovable(folder, to, problem) from problem
    finally:
        if probe:
            os.rmdir(probe)


def _name_immovable(folder: str, to: str, problem: OSError) -> error.Abort:
    return error.Abort(os.fsencode(f"cannot move {folder} to {to}: {problem.strerror}"))


def move(root: str, intent: Intent) -> None:
    """Move the folder below its root in one step.

    Between a check and the move other users may put a link to their victim's folder in place of one in between, so none is
    followed. Raises Abort if it cannot be moved; the note stays then.
    """
    if intent.to is None or intent.to == intent.folder or not os.path.isdir(intent.folder):
        return
    try:
        with (
            _open_parent(root, intent.folder) as (former, name),
            _open_parent(intent.to_root or root, intent.to, makes=True) as (folder, new),
        ):
            os.rename(name, new, src_dir_fd=former, dst_dir_fd=folder)
    except OSError as problem:
        if os.path.lexists(intent.folder):  # else the relay has moved it
            raise _name_immovable(intent.folder, intent.to, problem) from problem


@contextlib.contextmanager
def _open_parent(root: str, path: str, *, makes: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder above a path below a root; give it, and the path's last part."""
    *folders, last = os.path.relpath(path, os.path.realpath(root)).split(os.sep)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, descriptor)
        yield opened.enter_context(walk(descriptor, folders, makes=makes)), last
