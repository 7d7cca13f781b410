# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's port to Mercurial: bundles, recovery, first events, and what a kill interrupted."""

import os
from collections.abc import Mapping

from mercurial import configitems, error
from mercurial.utils import stringutil

import pushlog
from pushlog.store import journal

from ...outbox import Outbox
from ...words.errors import MalformedEvent, Refused
from ..bundles import OfFolders
from ..settings import Acknowledge, Durability, ExtensionSettings, MachineRole
from ..text import text
from . import intents, lifecycle, transactions
from .intents import Intent


class MasterRepositories(OfFolders):
    """Repositories below the relay's roots; opened for one job each, with nobody's configuration."""

    def __init__(self, roots: Mapping[str, str], source: str) -> None:
        super().__init__(skip_hgrc=True)
        journal.install()  # a strip that is finished here, where no extension is loaded
        configitems.loadconfigtable(
            self._ui, b"pushlog", pushlog.configtable
        )  # a strip that is finished here concerns it
        self._settings = ExtensionSettings(
            role=MachineRole.MASTER,
            roots={os.path.realpath(folder): prefix for folder, prefix in roots.items()},
            relay=None,
            log=None,
            blobs=None,
            source=source,
            durability=Durability.STORE,
            acknowledge=Acknowledge.OUTBOX,
            patience=0.0,
        )

    def recover(self, folder: str) -> bool:
        """Rolls back an abandoned transaction; leaves one alone whose process lives, for it holds the lock."""
        return transactions.recover_abandoned(self.open(folder))

    def announce(self, folder: str) -> bool:
        """Writes the first event, if there is none yet; False if somebody holds the lock.

        Raises Refused for a repository that may not have one.
        """
        repo = self.open(folder)
        if Outbox(repo.svfs).end() is None:
            transactions.set_up(repo, self._settings)
            try:
                with repo.lock(wait=False), repo.transaction(b"vcsreplicator-adopted"):
                    pass
            except error.LockError:
                return False
            except error.Abort as problem:
                raise Refused(str(problem)) from problem
        return True

    def finish(self, root: str) -> list[str]:
        """Finishes what intents say, but what somebody holds a lock for; what could not be finished."""
        real, problems = os.path.realpath(root), []
        try:
            files = intents.files(real)
        except OSError as problem:
            return [str(problem)]
        for file in files:
            try:
                intent = intents.load(file)
                intents.confine(intent, real, self._settings.roots)
            except FileNotFoundError:
                continue
            except (MalformedEvent, OSError) as problem:
                problems.append(f"{file}: {problem}")
                continue
            try:
                self._finish(real, intent)
            except Exception as problem:
                said = text(stringutil.forcebytestr(problem))
                problems.append(f"{intent.folder}: {intent.kind} not finished: {said}")
        return problems

    def _finish(self, root: str, intent: Intent) -> None:
        if not os.path.isdir(os.path.join(intent.folder, ".hg")):
            intents.remove(root, intent.path)  # moved already
            return
        repo = self.open(intent.folder)
        transactions.set_up(repo, self._settings)
        try:
            with repo.wlock(wait=False), repo.lock(wait=False):
                if intents.read(root, intent.path) != intent:
                    return
                if repo.svfs.exists(b"journal"):
                    repo.recover()
                lifecycle.finish(repo, intent, wait=False)
        except error.LockError:
            return
        if intent.to is not None:
            lifecycle.finish_move(root, intent)
