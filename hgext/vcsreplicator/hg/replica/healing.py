# SPDX-License-Identifier: GPL-2.0-or-later
"""The repair of a repository from the master.

The repository is brought up to date in place, or copied beside, compared, and swapped in one step.

In place, if the repository is sound and only lacks something. Beside, if it is damaged or differs from the master: the old one
stays in service until the new one is complete, and is kept aside afterwards. After a kill the next attempt continues the partial
copy. A kill around the exchange may leave the old repository there instead, which no attempt continues.
"""

import contextlib
import os
import urllib.parse
from collections.abc import Callable

from mercurial import vfs
from mercurial.localrepo import localrepository

from pushlog.store import disk

from ...mirror.checkpoint import Checkpoint, with_former
from ...mirror.comparison import differences
from ...mirror.settings import MirrorSettings
from ...mirror.task import Task
from ...outbox.entry import NewestEvent
from ...words.clock import Clock
from ...words.errors import Changing, Diverged, Rejected, Unavailable
from ...words.records import Reason
from .. import hashes
from ..allowed import put
from ..serving import watermark
from . import place, replicated, scan, snapshot
from .local import Halted, LocalRepository
from .releasing import refuse_conflict
from .repository import OpenRepositories, locked

# How often a copy follows a master that changes while it is compared.
COMPARE_ATTEMPTS = 3
# Reasons for a repair in place, if the repository is there and sound.
IN_PLACE = frozenset({Reason.GAP, Reason.BLOB_MISSING, Reason.EXPIRED, Reason.BOOTSTRAP})
# Most former copies of one repository: failing repairs must not fill the disk.
HEALED_KEPT = 3
# A file beside a copy, made before its exchange: after a kill, the "copy" there may be the old repository, damaged.
_EXCHANGED = "exchanged"


def heal(
    local: LocalRepository, repositories: OpenRepositories, settings: MirrorSettings, task: Task, clock: Clock
) -> None:
    """Repair the repository of the task from the master, in place or beside."""
    with contextlib.suppress(Halted):
        local.find(settings, task.repository, settings.local(task.path))
    url = url_of(settings, task.path)
    if task.heal in IN_PLACE and local.folder is not None and local.checkpoint is not None:
        repo = repositories.open(local.folder)
        local.checkpoint = bring_up(repo, url, task.repository, settings, clock.now())
        return
    made, checkpoint = copy_beside(repositories, url, task.repository, settings, clock.now)
    refuse_conflict(settings, task.repository, checkpoint.path, checkpoint.generation)
    local.folder = _choose_folder(local, settings, task)
    swap(repositories, made, local.folder, settings, task.repository)
    local.find(settings, task.repository)


def _choose_folder(local: LocalRepository, settings: MirrorSettings, task: Task) -> str:
    """Choose a copy's folder: the repository, or a damaged one, may have moved."""
    waiting = place.waiting_of(settings.folder, task.repository)
    damaged = None
    for folder in (*filter(None, (local.folder, task.folder)), waiting, settings.local(task.path)):
        found = scan.inspect(folder)
        if found is not None and found.is_of(task.repository):
            return folder
        if os.path.lexists(os.path.join(folder, ".hg")) and (found is None or found.checkpoint is None):
            damaged = damaged or folder
    return damaged or waiting


def url_of(settings: MirrorSettings, path: str) -> str:
    """Return the URL of a wire path on the master; raises Unavailable without one."""
    if settings.master is None:
        raise Unavailable(f"mirror.{settings.name}.master is not set: there is nothing to heal from")
    return settings.master.rstrip("/") + "/" + urllib.parse.quote(path.encode("utf-8", "surrogateescape"))


def bring_up(repo: localrepository, url: str, repository: str, settings: MirrorSettings, now: float) -> Checkpoint:
    """Bring a repository to the master's level in place, or raise Diverged."""
    _expect(repository, snapshot.master_newest_event(repo.ui, url, settings.master_timeout), url)
    with locked(repo):
        checkpoint = replicated.read(repo)
        if checkpoint is None or checkpoint.repository != repository:
            raise place.Busy(f"{os.fsdecode(repo.root)}: the repository was moved away at the same moment")
        return snapshot.take(repo, url, now=now, timeout=settings.master_timeout)


def copy_beside(
    repositories: OpenRepositories, url: str, repository: str, settings: MirrorSettings, clock: Callable[[], float]
) -> tuple[str, Checkpoint]:
    """Return folder and checkpoint of a whole, compared copy, perhaps begun before."""
    made = place.staging_of(settings.folder, repository)
    keep_aside(repositories, made, settings, repository)
    repo = _open_begun(repositories, made)
    _expect(repository, snapshot.master_newest_event(repo.ui, url, settings.master_timeout), url)
    try:
        with locked(repo):
            checkpoint = snapshot.take(repo, url, now=clock(), timeout=settings.master_timeout)
        _expect(repository, checkpoint, url)
        return made, _compare(repo, url, checkpoint, settings, clock)
    except Unavailable:
        raise
    except Exception:
        place.empty(made)
        raise
    finally:
        repositories.close(made)


def swap(repositories: OpenRepositories, made: str, folder: str, settings: MirrorSettings, repository: str) -> None:
    """Put the copy in place; keep the old one aside, and go on showing its release.

    Raises place.Busy if another repository is in the folder by now: others moved while the copy was made.
    """
    with _hold_if_present(folder) as held:
        found = scan.inspect(folder)
        former = None if found is None else found.checkpoint
        if former is not None and former.repository != repository:
            raise place.Busy(f"{folder}: another repository moved there meanwhile")
        repo = repositories.open(made)
        if former is not None:
            checkpoint = replicated.read(repo)
            assert checkpoint is not None
            successor = with_former(checkpoint, former)
            if successor != checkpoint:
                with locked(repo):
                    replicated.record(repo, successor)
            if former.incarnation == checkpoint.incarnation:
                _keep_serving(repo, folder, checkpoint)
        _keep_hgrc(repo, folder)
        repositories.close(made)
        repositories.close(folder)
        is_own = folder.startswith(settings.folder.rstrip("/") + "/")
        mark = os.path.join(made, _EXCHANGED)
        try:
            with open(mark, "wb"):
                place.exchange(made, settings.folder if is_own else settings.root, folder, held)
        except (OSError, Rejected, place.Busy):
            # Nothing was exchanged: the next attempt continues this copy, instead of keeping it aside and beginning another.
            with contextlib.suppress(FileNotFoundError):  # if the mark could not be made, the caller reads why
                os.unlink(mark)
            raise
    keep_aside(repositories, made, settings, repository)


def _hold_if_present(folder: str) -> contextlib.AbstractContextManager[place.LockedPlace | None]:
    is_there = os.path.lexists(os.path.join(folder, ".hg"))
    return place.hold(folder) if is_there else contextlib.nullcontext()


def keep_aside(repositories: OpenRepositories, made: str, settings: MirrorSettings, repository: str) -> None:
    """Keep aside the old repository that an exchange left; does nothing before one."""
    if not os.path.lexists(os.path.join(made, _EXCHANGED)):
        return
    repositories.close(made)
    if os.path.lexists(os.path.join(made, ".hg")):
        with place.hold(made) as held:
            place.set_aside(settings.folder, settings.folder, held, f"{repository}-healed")
        place.thin_out(settings.folder, f"{repository}-healed", HEALED_KEPT)
    place.empty(made)


def _open_begun(repositories: OpenRepositories, made: str) -> localrepository:
    """Open the copy that an earlier attempt began, or an empty one."""
    try:
        repo = repositories.open(made)
        with locked(repo):
            return repo
    except Exception:
        # A partial copy that is damaged is not worth a diagnosis.
        repositories.close(made)
        place.empty(made)
        return repositories.create(made)


def _compare(
    repo: localrepository, url: str, checkpoint: Checkpoint, settings: MirrorSettings, clock: Callable[[], float]
) -> Checkpoint:
    """Compare the copy with the master; raises Diverged if they differ.

    A master that changes all the time is trusted without a comparison.
    """
    for _ in range(COMPARE_ATTEMPTS):
        there = None
        with contextlib.suppress(Changing):
            there = snapshot.master_fingerprint(repo.ui, url, settings.master_timeout)
        if there is not None and there.seq == checkpoint.seq:
            here = hashes.fingerprint(repo, lambda: replicated.read(repo))
            differs = differences(here, there)
            if differs:
                raise Diverged(f"a new copy differs from the master in {', '.join(differs)}")
            break
        with locked(repo):
            checkpoint = snapshot.take(repo, url, now=clock(), timeout=settings.master_timeout)
    return checkpoint


def _keep_serving(repo: localrepository, folder: str, newest: Checkpoint) -> None:
    """Have the copy show the release that the repository in `folder` shows.

    The copy is at `newest`. If something else than a file has the name of the former bookmarks, these are lost, and the copy
    shows nothing until its own release.
    """
    former = vfs.vfs(os.fsencode(os.path.join(folder, ".hg")))
    shown = watermark.read_watermark(former)
    bookmarks = former.join(watermark.BOOKMARKS)
    is_lost = os.path.lexists(bookmarks) and not os.path.isfile(bookmarks)
    if shown is not None and shown.fits(repo) and not is_lost:
        # Bookmarks and settings of the copy are as the master's, if it shows all.
        kept, settings = None, newest.settings
        if shown.seq != newest.seq:
            kept, settings = watermark.read_bookmarks(former), watermark.read_settings(former, shown)
        watermark.write_watermark(repo, shown, settings=settings, bookmarks=kept)


def _keep_hgrc(repo: localrepository, folder: str) -> None:
    """Keep the shown configuration until the release of the copy.

    If it is missing, or no file, the copy's counts: the old one, with its access rules, may be lost, and there may be no release to
    come.
    """
    name = os.path.join(folder, ".hg", "hgrc")
    if os.path.isfile(name):
        with open(name, "rb") as file:
            disk.replace(repo.vfs, b"hgrc", file.read()).close()
    else:
        newest = replicated.read(repo)
        put(repo, newest.hgrc or {} if newest else {})


def _expect(repository: str, found: NewestEvent, url: str) -> None:
    if found.repository != repository:
        raise Unavailable(f"{url}: the master has repository {found.repository} there, not {repository}")
