# SPDX-License-Identifier: GPL-2.0-or-later
"""A comparison with the master, and a check of every revision; without a lock."""

import contextlib
import os
import sqlite3
from dataclasses import replace

from mercurial import error, verify
from mercurial import ui as uimod
from mercurial.localrepo import localrepository

from pushlog import api, versions

from ...mirror.checkpoint import Checkpoint
from ...mirror.settings import MirrorSettings
from ...mirror.task import Check, Checked, FingerprintPair, Look
from ...outbox.folder import refuse_repository_pipes
from ...words.errors import ReplicationError, Unavailable
from ...words.event import UNKNOWN_SETTINGS
from ..hashes import fingerprint
from ..serving import watermark
from ..text import text
from . import healing, replicated, scan, snapshot
from .local import Halted, LocalRepository
from .repository import OpenRepositories, locked
from .troubles import OUT_OF_MEMORY


def look(task: Look, settings: MirrorSettings) -> FingerprintPair:
    """Read both sides, the master first, so that the mirror is not behind."""
    ui = uimod.ui.load()
    try:
        there = snapshot.master_fingerprint(ui, healing.url_of(settings, task.path), settings.master_timeout)
    except ReplicationError as problem:
        return FingerprintPair(here=None, there=None, problem=str(problem))
    folder = _find_folder(task, settings)
    if folder is None:
        return FingerprintPair(here=None, there=there)
    try:
        refuse_repository_pipes(folder)
        repo = versions.factory.repository(ui, os.fsencode(folder)).unfiltered()
        try:
            here = fingerprint(repo, lambda: replicated.read(repo))
            _read_newest(repo)
            return FingerprintPair(here=here, there=there)
        finally:
            repo.close()
    except Unavailable as problem:
        return FingerprintPair(here=None, there=None, problem=str(problem))
    except (error.Error, ReplicationError, OSError, ValueError) as problem:
        return FingerprintPair(here=None, there=there, problem=f"cannot be read: {problem}")


def _read_newest(repo: localrepository) -> None:
    """Read the newest changeset and its manifest.

    Raises what Mercurial does if they are damaged. A fingerprint reads only the index; these contents lie at the ends of two
    files, so a file that was cut is found.
    """
    length = len(repo.changelog)
    if length:
        repo[length - 1].manifest()


def _find_folder(task: Look, settings: MirrorSettings) -> str | None:
    """Find the repository at its path, damaged or not, or where it waits."""
    at_path = scan.inspect_anyway(task.folder)
    if at_path is not None and (at_path.checkpoint is None or at_path.checkpoint.repository == task.repository):
        return task.folder
    found = scan.find(settings, task.repository)
    return found.folder if found else None


def check(repositories: OpenRepositories, settings: MirrorSettings, wanted: Check) -> Checked:
    """Find damage in a repository; undecided if it changed meanwhile."""
    local = LocalRepository(folder=wanted.folder)
    try:
        local.find(settings, wanted.repository)
        if local.folder is None:
            # It may have been moved meanwhile, from a folder searched later to a folder searched before.
            local.folder = wanted.folder
            local.find(settings, wanted.repository)
    except (Halted, PermissionError) as damaged:
        return Checked(repository=wanted.repository, problem=str(damaged))
    if local.folder is None:
        return Checked(repository=wanted.repository, problem="it is not here any more", sought=wanted.folder)
    return _check_in_place(repositories, replace(wanted, folder=local.folder))


def _check_in_place(repositories: OpenRepositories, wanted: Check) -> Checked:
    lower = problem = shown = None
    is_spent = is_other = False
    before = _observe_store(wanted.folder)
    try:
        repo = repositories.open(wanted.folder)
        repo.invalidateall()
        checkpoint = replicated.read(repo)
        if checkpoint is not None:
            is_other = checkpoint.repository != wanted.repository
            lower = checkpoint if checkpoint.seq < wanted.seq else None
        problem = _verify(repo) or _compare_bookmarks(repo, checkpoint) or _find_lost_pushes(repo, checkpoint)
        is_still = problem is None and _observe_store(wanted.folder) == before
        if is_still:
            _restore_settings(repo, checkpoint)
        if is_still and (seen := _read_shown(repo)) is not None:
            before = _observe_store(wanted.folder)  # only its lock has changed
            shown = (wanted.serving, seen) if seen < wanted.serving else None
    except MemoryError:
        problem, is_spent = OUT_OF_MEMORY, True
    except Exception as unreadable:
        problem = f"{type(unreadable).__name__}: {unreadable}"[:300]
    finally:
        repositories.close(wanted.folder)
    if is_spent:
        return Checked(repository=wanted.repository, problem=problem, is_undecided=True, is_spent=True)
    journal = os.path.join(wanted.folder, ".hg", "store", "journal")
    is_same = before is not None and _observe_store(wanted.folder) == before  # no store: it was moved away
    if not is_same or os.path.lexists(journal) or is_other:
        return Checked(repository=wanted.repository, problem=None, is_undecided=True)
    return Checked(repository=wanted.repository, problem=problem, lower=lower, shown=shown)


def _compare_bookmarks(repo: localrepository, checkpoint: Checkpoint | None) -> str | None:
    """Return the problem of the bookmarks, if every event is released.

    They are in two files then: either file was lost, or replaced by an older copy.
    """
    shown = watermark.read_watermark(repo.vfs)
    if checkpoint is None or shown is None or shown.seq != checkpoint.seq or not shown.fits(repo):
        return None
    return None if watermark.shows_present_bookmarks(repo) else "its bookmarks differ from its release"


def _restore_settings(repo: localrepository, checkpoint: Checkpoint | None) -> None:
    """Write the settings of the release again if they were lost or are older ones.

    The checkpoint has them if every event is released. Waits for no lock.
    """
    shown = watermark.read_watermark(repo.vfs)
    if checkpoint is None or shown is None or shown.seq != checkpoint.seq or not shown.fits(repo):
        return
    if checkpoint.settings in (UNKNOWN_SETTINGS, watermark.read_settings(repo.vfs, shown)):
        return
    with contextlib.suppress(error.LockError), locked(repo):
        if replicated.read(repo) == checkpoint and watermark.read_watermark(repo.vfs) == shown:
            watermark.write_watermark(repo, shown, settings=checkpoint.settings)


def _find_lost_pushes(repo: localrepository, checkpoint: Checkpoint | None) -> str | None:
    """Return the problem of a pushlog that ends before the newest push applied.

    Its files are older copies, or lost. A strip or a rollback leaves no such difference: a stripped push keeps its id, and the
    checkpoint is rolled back with the pushlog.
    """
    if checkpoint is None or checkpoint.push is None:
        return None
    try:
        last = api.last_push_id(repo)
    except sqlite3.OperationalError:
        return None  # another process holds it
    return f"its pushlog ends with push {last}, not {checkpoint.push}" if last < checkpoint.push else None


def _read_shown(repo: localrepository) -> int | None:
    """Return the event up to which clients see the repository; 0 if they see nothing.

    Removes a watermark that fits nothing: it would hide from the next release that it shows nothing. None if another process has
    the lock.
    """
    found = watermark.read_watermark(repo.vfs)
    if found is None or found.fits(repo):
        return 0 if found is None else found.seq
    try:
        with locked(repo):
            found = watermark.read_watermark(repo.vfs)
            if found is not None and found.fits(repo):
                return found.seq
            repo.vfs.tryunlink(watermark.WATERMARK)
            return 0
    except error.LockError:
        return None


def _observe_store(folder: str) -> tuple[int, int, int] | None:
    """Return values that change with a store: its lock changes its folder's time."""
    try:
        found = os.stat(os.path.join(folder, ".hg", "store"))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _verify(repo: localrepository) -> str | None:
    with repo.ui.configoverride({(b"censor", b"policy"): b"ignore"}, b"mirror"):
        verifier = _Verifier(repo)
        verifier.verify()
    return f"{verifier.errors} errors in the store, the first: {verifier.first}" if verifier.errors else None


class _Verifier(verify.verifier):
    """Mercurial's verifier, which keeps the first error instead of printing all; a censored revision is none."""

    first = ""

    def _err(self, linkrev: int | None, msg: bytes, filename: bytes | None = None) -> None:
        if linkrev is not None:
            self.badrevs.add(linkrev)
        self.errors += 1
        self.first = self.first or text(b": ".join(filter(None, (filename, msg))))[:300]

    def _exc(self, linkrev: int | None, msg: bytes, inst: Exception, filename: bytes | None = None) -> None:
        if not isinstance(inst, error.CensoredNodeError):  # which Mercurial looks for renames in
            super()._exc(linkrev, msg, inst, filename)
