# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository repaired from the master: brought up to date where it stands, or copied beside, compared, and swapped in one step.

Where it stands, when the repository is sound and only lacks something. Beside, when it is damaged or says something else than the
master: the old one stays in service until the new one is whole, and is kept aside afterwards. A kill leaves a half-made copy,
with which the next attempt goes on; a kill around the exchange may leave the old one there, with which none does.
"""

import contextlib
import os
import urllib.parse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mercurial import vfs

from ...mirror.checkpoint import Checkpoint, with_former
from ...mirror.comparison import differences
from ...mirror.settings import MirrorSettings
from ...words.errors import Diverged, Unavailable
from .. import fingerprint
from ..serving import watermark
from . import place, replicated, scan, snapshot
from .repository import OpenRepositories, locked

COMPARE_ATTEMPTS = 3
_EXCHANGED = "exchanged"
"""A file beside a copy, from before its exchange on: what is there after a kill may be the old repository, damaged."""


def url_of(settings: MirrorSettings, path: str) -> str:
    """Where the master serves the repository of a wire path; raises Unavailable if this mirror knows no master."""
    if settings.master is None:
        raise Unavailable(f"mirror.{settings.name}.master is not set: there is nothing to heal from")
    return settings.master.rstrip("/") + "/" + urllib.parse.quote(path.encode("utf-8", "surrogateescape"))


def bring_up(repo: Any, url: str, repository: str, settings: MirrorSettings, now: float) -> Checkpoint:
    """Brings a sound repository to the master's level where it stands; raises Diverged if only a new copy helps."""
    _expect(repository, master_repository(repo.ui, url, settings), url)
    with locked(repo):
        level = replicated.read(repo)
        if level is None or level.repository != repository:
            raise place.Busy(f"{os.fsdecode(repo.root)}: the repository left at the same moment")
        return snapshot.take(repo, url, now=now, timeout=settings.master_timeout)


def copy_beside(
    repositories: OpenRepositories, url: str, repository: str, settings: MirrorSettings, clock: Callable[[], float]
) -> tuple[str, Checkpoint]:
    """A whole and compared copy in the staging folder, and its level; goes on with what an earlier attempt left there."""
    made = place.staging_of(settings.folder, repository)
    _keep_aside(repositories, made, settings, repository)
    repo = _begun(repositories, made)
    _expect(repository, master_repository(repo.ui, url, settings), url)
    try:
        with locked(repo):
            level = snapshot.take(repo, url, now=clock(), timeout=settings.master_timeout)
        _expect(repository, level.repository, url)
        return made, _compared(repo, url, level, settings, clock)
    except Unavailable:
        raise
    except Exception:
        place.empty(made)
        raise
    finally:
        repositories.close(made)


def swap(repositories: OpenRepositories, made: str, folder: str, settings: MirrorSettings, repository: str) -> None:
    """Puts the copy in place. What it replaces is kept aside; what that one served goes on being served, if it is still true.

    Raises place.Busy if another repository is in the folder by now: the copy took its time, and others went on.
    """
    with _held_if_there(folder) as held:
        found = scan.look(folder)
        former = None if found is None else found.checkpoint
        if former is not None and former.repository != repository:
            raise place.Busy(f"{folder}: another repository moved there meanwhile")
        repo = repositories.open(made)
        if former is not None:
            level = replicated.read(repo)
            assert level is not None
            if with_former(level, former) != level:
                with locked(repo):
                    replicated.record(repo, with_former(level, former))
            _serve_on(repo, folder, former.incarnation == level.incarnation)
        _keep_hgrc(repo, folder)
        repositories.close(made)
        repositories.close(folder)
        with open(os.path.join(made, _EXCHANGED), "wb"):
            place.exchange(made, _base(settings, folder), folder, held)
    _keep_aside(repositories, made, settings, repository)


def _held_if_there(folder: str) -> contextlib.AbstractContextManager[place.LockedPlace | None]:
    is_there = os.path.lexists(os.path.join(folder, ".hg"))
    return place.hold(folder) if is_there else contextlib.nullcontext()


def master_repository(ui: Any, url: str, settings: MirrorSettings) -> str:
    """The id of the repository that the master has at the URL now."""
    return snapshot.master_level(ui, url, settings.master_timeout).repository


def _keep_aside(repositories: OpenRepositories, made: str, settings: MirrorSettings, repository: str) -> None:
    """Keeps what an exchange left where copies are made; no-op before one."""
    if not os.path.lexists(os.path.join(made, _EXCHANGED)):
        return
    repositories.close(made)
    if os.path.lexists(os.path.join(made, ".hg")):
        with place.hold(made) as held:
            place.set_aside(settings.folder, settings.folder, held, f"{repository}-healed")
    place.empty(made)


def _begun(repositories: OpenRepositories, made: str) -> Any:
    """The copy that an earlier attempt began, or an empty one."""
    try:
        repo = repositories.open(made)
        with locked(repo):
            return repo
    except Exception:  # whatever is wrong with it: it is only a beginning
        repositories.close(made)
        place.empty(made)
        return repositories.create(made)


def _compared(
    repo: Any, url: str, level: Checkpoint, settings: MirrorSettings, clock: Callable[[], float]
) -> Checkpoint:
    """The level of a copy that equals the master; raises Diverged if it does not. A master that is never still is believed."""
    for _ in range(COMPARE_ATTEMPTS):
        there = snapshot.master_fingerprint(repo.ui, url, settings.master_timeout)
        if there.seq == level.seq:
            here = fingerprint.fingerprint(repo, lambda: replicated.read(repo))
            differs = differences(here, there)
            if differs:
                raise Diverged(f"a new copy differs from the master in {', '.join(differs)}")
            break
        with locked(repo):
            level = snapshot.take(repo, url, now=clock(), timeout=settings.master_timeout)
    return level


def _serve_on(repo: Any, folder: str, same: bool) -> None:
    """What the repository in `folder` shows is shown by its copy too."""
    former = SimpleNamespace(vfs=vfs.vfs(os.fsencode(os.path.join(folder, ".hg"))))
    shown = watermark.read_watermark(former)
    if shown is None or not same:
        return
    changelog = repo.changelog
    if shown.length <= len(changelog) and changelog.node(shown.length - 1).hex() == shown.tip:
        bookmarks = watermark.read_bookmarks(former)
        watermark.write_watermark(
            repo, seq=shown.seq, length=shown.length, tip=shown.tip, push_id=shown.push_id, bookmarks=bookmarks
        )


def _keep_hgrc(repo: Any, folder: str) -> None:
    """The configuration of what is shown stays until the release of what the copy brought."""
    try:
        with open(os.path.join(folder, ".hg", "hgrc"), "rb") as file:
            repo.vfs.write(b"hgrc", file.read())
    except FileNotFoundError:
        repo.vfs.tryunlink(b"hgrc")


def _base(settings: MirrorSettings, folder: str) -> str:
    """The folder that a repository must not leave: the mirror's own while it has no URL."""
    own = settings.folder.rstrip("/") + "/"
    return settings.folder if folder.startswith(own) else settings.root


def _expect(repository: str, found: str, url: str) -> None:
    if found != repository:
        raise Unavailable(f"{url}: the master has repository {found} there, not {repository}")
