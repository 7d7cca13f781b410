# SPDX-License-Identifier: GPL-2.0-or-later
"""A release carried out on a mirror: from now on clients find what the released event says, and where it says.

An event that was applied shows nothing yet. Its release writes the configuration, moves the repository to the event's path or sets
a deleted one aside, and writes the watermark, in this order. Killed between two of them, the watermark still names the
former release, so all of it is done again, and what is done already is found so.

What stands in the way of a repository that is released waits without a URL for its own release, which moves it on. Two workers
may release at one path at the same moment: each writes and moves only what it holds (`place.hold`), having looked what it is.
"""

import os
from typing import Any

from ...mirror.checkpoint import Checkpoint
from ...mirror.plan import Claim, claim
from ...mirror.settings import MirrorSettings
from ...words.levels import Reason
from ..allowed import put
from ..serving import watermark
from . import place, replicated, scan
from .here import Halted, Here
from .repository import OpenRepositories


def release(
    here: Here, repositories: OpenRepositories, settings: MirrorSettings, *, released: int, keep: bool, now: float
) -> None:
    """Shows what is applied and released, if that is more than is shown; with `keep` a deletion takes nothing away."""
    level = here.level
    if level is None or here.folder is None or min(released, level.seq) <= here.serving:
        return
    with here.held() as held:
        _show(here, held, repositories, settings, released=released, keep=keep, now=now)


def _show(
    here: Here,
    held: place.LockedPlace,
    repositories: OpenRepositories,
    settings: MirrorSettings,
    *,
    released: int,
    keep: bool,
    now: float,
) -> None:
    level = here.level
    assert level is not None
    repo = repositories.open(held.folder)
    repo.invalidate()
    found = replicated.find(repo, released)
    if found is not None and found[0].seq > here.serving and _can_show(repo, level, found[0]):
        shown, moved = found
        hgrc = replicated.hgrc_since(repo, here.serving, released)
        if hgrc is not None:
            put(repo, hgrc)
        if shown.deleted and not keep:
            _take_away(here, held, repositories, settings, shown)
            return
        if not shown.deleted or not os.path.lexists(os.path.join(settings.local(shown.path), ".hg")):
            go_home(here, held, repositories, settings, shown)
        repo = repositories.open(held.folder)
        watermark.write_watermark(
            repo, seq=shown.seq, length=shown.length, tip=shown.tip, push_id=shown.push, moved=moved
        )
        here.serving, here.served_at = shown.seq, now
    if here.serving < min(released, level.seq):
        can = (each.seq for each in replicated.after(repo, released) if _can_show(repo, level, each))
        here.floor = next(can, level.seq + 1)


def go_home(
    here: Here, held: place.LockedPlace, repositories: OpenRepositories, settings: MirrorSettings, shown: Checkpoint
) -> None:
    """Moves the repository to the path of what is released; raises Halted if an operator must say who lives there.

    If a newer repository lives there by now, this one has no URL: it is late, and what is released since leads elsewhere.
    """
    target = settings.local(shown.path)
    if held.folder == target:
        return
    place.check_inside(settings.root, target)
    has_room = _make_room(repositories, settings, shown, target)
    repositories.close(held.folder)
    repositories.close(target)
    if has_room:
        place.move(settings.folder, settings.root, held, target)
    elif held.folder != place.waiting_of(settings.folder, shown.repository):
        place.hide(settings.folder, settings.root, held, shown.repository)
    here.folder = held.folder


def refuse_conflict(settings: MirrorSettings, repository: str, path: str, generation: int) -> None:
    """Raises Halted if something is there for good that this repository can never displace."""
    target = settings.local(path)
    if (file := place.in_the_way(settings.root, target)) is not None:
        raise Halted(Reason.REFUSED, f"path {path!r} cannot be made: {file} is no folder")
    found = scan.look(target)
    occupant = found.checkpoint if found else None
    if occupant is None or occupant.repository == repository:
        return
    if claim(path, generation, occupant, is_leaving=_is_leaving(settings, occupant, target)) is Claim.REFUSED:
        raise _taken(path, occupant)


def _make_room(repositories: OpenRepositories, settings: MirrorSettings, shown: Checkpoint, target: str) -> bool:
    """Whether the folder is free now for the repository that is released there.

    What is in the way keeps its lock until it is elsewhere: its own worker either has finished before, or finds it moved.
    """
    if not os.path.lexists(os.path.join(target, ".hg")):
        return True
    if not _may_displace(settings, shown, target):
        return False
    repositories.close(target)
    with place.hold(target) as held:
        found = scan.look(target)
        if not _may_displace(settings, shown, target):
            return False
        if found is None or found.checkpoint is None:  # damaged, or never replicated: kept, but not here
            place.set_aside(settings.folder, settings.root, held, f"{shown.repository}-before")
        else:
            place.hide(settings.folder, settings.root, held, found.checkpoint.repository)
    return True


def _may_displace(settings: MirrorSettings, shown: Checkpoint, target: str) -> bool:
    """Whether what is in the folder makes room for what is released there, rather than the other way; raises Halted if neither."""
    found = scan.look(target)
    if found is None or (occupant := found.checkpoint) is None:
        return True
    decision = claim(shown.path, shown.generation, occupant, is_leaving=_is_leaving(settings, occupant, target))
    if decision is Claim.REFUSED:
        raise _taken(shown.path, occupant)
    return decision is Claim.DISPLACE


def _is_leaving(settings: MirrorSettings, occupant: Checkpoint, target: str) -> bool:
    return occupant.deleted or settings.local(occupant.path) != target


def _taken(path: str, occupant: Checkpoint) -> Halted:
    if path != occupant.path:
        return Halted(Reason.REFUSED, f"the folder of path {path!r} is that of {occupant.path!r}")
    return Halted(Reason.REFUSED, f"path {path!r} is taken by repository {occupant.repository}")


def _take_away(
    here: Here, held: place.LockedPlace, repositories: OpenRepositories, settings: MirrorSettings, level: Checkpoint
) -> None:
    repositories.close(held.folder)
    place.set_aside(settings.folder, settings.root, held, f"{level.repository}-deleted")
    here.gone, here.level, here.folder = level, None, None


def _can_show(repo: Any, newest: Checkpoint, level: Checkpoint) -> bool:
    """Whether the changelog still begins as the level says: what it would show may be stripped since."""
    return (level.seq == newest.seq and not newest.stripping) or fits(repo, level)


def fits(repo: Any, level: Checkpoint) -> bool:
    """Whether the changelog still begins as the level says."""
    changelog = repo.changelog
    return len(changelog) >= level.length and changelog.node(level.length - 1).hex() == level.tip
