# SPDX-License-Identifier: GPL-2.0-or-later
"""A release carried out on a mirror.

From now on clients see the state of the released event, at its path.

An event that was applied shows nothing yet. Its release writes the configuration, moves the repository to the event's path or sets
a deleted one aside, and writes the watermark, in this order. After a kill between two steps the watermark still names the former
release, so all steps are repeated, and finished ones change nothing.

A repository in the way of a released one waits without a URL for its own release, which moves it on. Two workers may release at
one path at the same moment: each writes and moves only a repository that it holds (`place.hold`) and has read since.
"""

import os

from mercurial.localrepo import localrepository

from ...mirror.checkpoint import Checkpoint
from ...mirror.plan import Claim, claim
from ...mirror.settings import MirrorSettings
from ...words.records import Reason
from .. import observe
from ..allowed import put
from ..serving import watermark
from . import place, replicated, scan
from .local import Halted, LocalRepository
from .repository import OpenRepositories


def release(
    local: LocalRepository,
    repositories: OpenRepositories,
    settings: MirrorSettings,
    *,
    released: int,
    keep: bool,
    now: float,
) -> None:
    """Show the release; with `keep` a deletion removes nothing."""
    newest = local.checkpoint
    if newest is None or local.folder is None or min(released, newest.seq) <= local.serving:
        return
    with local.hold() as held:
        repo = repositories.open(held.folder)
        repo.invalidate()
        found = replicated.find(repo, released)
        if found is not None and found[0].seq > local.serving and _can_show(repo, newest, found[0]):
            shown, moved = found
            if not local.serving and shown.length:
                repo[shown.length - 1].manifest()  # after a power cut the index may be whole, and what it names torn
            hgrc = replicated.hgrc_since(repo, local.serving, released)
            if hgrc is not None:
                put(repo, hgrc)
            if shown.deleted and not keep:
                repositories.close(held.folder)
                place.set_aside(settings.folder, settings.root, held, f"{shown.repository}-deleted")
                local.gone, local.checkpoint, local.folder = shown, None, None
                return
            if not shown.deleted or not os.path.lexists(os.path.join(settings.local(shown.path), ".hg")):
                _move_to_path(local, held, repositories, settings, shown)
            repo = repositories.open(held.folder)
            reached = watermark.Watermark(seq=shown.seq, length=shown.length, tip=shown.tip, push_id=shown.push)
            watermark.write_watermark(repo, reached, settings=shown.settings, moved=moved)
            local.serving, local.served_at = shown.seq, now
        if local.serving < min(released, newest.seq):
            later = (each.seq for each in replicated.after(repo, released) if _can_show(repo, newest, each))
            local.floor = next(later, newest.seq + 1)


def _move_to_path(
    local: LocalRepository,
    held: place.LockedPlace,
    repositories: OpenRepositories,
    settings: MirrorSettings,
    shown: Checkpoint,
) -> None:
    """Move the repository to the released path.

    Raises Halted if an operator must say which belongs there.

    If a newer repository has the path by now, this one gets no URL: a later release moves it elsewhere.
    """
    target = settings.local(shown.path)
    if held.folder == target or place.is_same(held.folder, target):
        return
    place.check_inside(settings.root, target)
    has_room = _make_room(repositories, settings, shown, held.folder, target)
    repositories.close(held.folder)
    repositories.close(target)
    if has_room:
        place.move(settings.folder, settings.root, held, target)
    elif held.folder != place.waiting_of(settings.folder, shown.repository):
        place.hide(settings.folder, settings.root, held, shown.repository)
    local.folder = held.folder


def refuse_conflict(settings: MirrorSettings, repository: str, path: str, generation: int) -> None:
    """Raise Halted if the repository at the path never makes room."""
    target = settings.local(path)
    if (file := place.find_obstacle(settings.root, target)) is not None:
        raise Halted(Reason.REFUSED, f"path {path!r} cannot be made: {file} is no folder")
    found = scan.inspect(target)
    occupant = found.checkpoint if found else None
    if occupant is None or occupant.repository == repository:
        return
    _decide_claim(settings, path, generation, occupant, target)


def _make_room(
    repositories: OpenRepositories, settings: MirrorSettings, shown: Checkpoint, folder: str, target: str
) -> bool:
    """Free the target for the repository in `folder`, which is released there.

    Returns False if that must wait. The occupant stays locked until it is elsewhere: its own worker either has finished before, or
    finds it moved.
    """
    if not os.path.lexists(os.path.join(target, ".hg")):
        return True
    if not _may_displace(settings, shown, folder, target):
        return False
    repositories.close(target)
    with place.hold(target) as held:
        found = scan.inspect(target)
        if not _may_displace(settings, shown, folder, target):
            return False
        if found is None or found.checkpoint is None:
            # Damaged, or never replicated: kept, but not here.
            place.set_aside(settings.folder, settings.root, held, f"{shown.repository}-before")
        else:
            place.hide(settings.folder, settings.root, held, found.checkpoint.repository)
    return True


def _may_displace(settings: MirrorSettings, shown: Checkpoint, folder: str, target: str) -> bool:
    """Return whether the occupant makes room; raises Halted if neither ever does."""
    found = scan.inspect(target)
    if found is None or (occupant := found.checkpoint) is None:
        return True
    if occupant.repository == shown.repository:
        copy = f"{target} is another copy of the repository in {folder}: move either of them out of the root"
        raise Halted(Reason.REFUSED, copy)
    return _decide_claim(settings, shown.path, shown.generation, occupant, target) is Claim.DISPLACE


def _decide_claim(settings: MirrorSettings, path: str, generation: int, occupant: Checkpoint, target: str) -> Claim:
    """Decide whether the occupant makes room; raises Halted if it never does."""
    is_leaving = occupant.deleted or settings.local(occupant.path) != target
    decision = claim(path, generation, occupant, is_leaving=is_leaving)
    if decision is Claim.REFUSED and path != occupant.path:
        raise Halted(Reason.REFUSED, f"the folder of path {path!r} is that of {occupant.path!r}")
    if decision is Claim.REFUSED:
        raise Halted(Reason.REFUSED, f"path {path!r} is taken by repository {occupant.repository}")
    return decision


def _can_show(repo: localrepository, newest: Checkpoint, checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint can be shown; False if it was stripped since."""
    is_whole = checkpoint.seq == newest.seq and not newest.stripping
    return is_whole or observe.begins_with(repo, checkpoint.length, checkpoint.tip)
