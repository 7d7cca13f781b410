# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository on a mirror and on its master, both read without a lock."""

import os

from mercurial import error
from mercurial import ui as uimod

from pushlog import versions

from ...mirror.settings import MirrorSettings
from ...mirror.task import FingerprintPair, Look
from ...words.errors import ReplicationError, Unavailable
from ..fingerprint import fingerprint
from . import healing, replicated, scan, snapshot


def _find_folder(task: Look, settings: MirrorSettings) -> str | None:
    """Find the repository at its path, damaged or not, or where it waits."""
    at_path = scan.inspect(task.folder)
    if at_path is not None and (at_path.checkpoint is None or at_path.checkpoint.repository == task.repository):
        return task.folder
    found = scan.find(settings, task.repository)
    return found.folder if found else None


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
        repo = versions.factory.repository(ui, os.fsencode(folder)).unfiltered()
        try:
            return FingerprintPair(here=fingerprint(repo, lambda: replicated.read(repo)), there=there)
        finally:
            repo.close()
    except Unavailable as problem:
        return FingerprintPair(here=None, there=None, problem=str(problem))
    except (error.Error, ReplicationError, OSError, ValueError) as problem:
        return FingerprintPair(here=None, there=there, problem=f"cannot be read: {problem}")
