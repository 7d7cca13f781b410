# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's port to Mercurial (`relay.port.MasterPort`).

It gives the relay bundles, recovery, first events, and the completion of interrupted acts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from mercurial import config, configitems, error
from mercurial.localrepo import localrepository
from mercurial.utils import stringutil

import pushlog
from pushlog import store
from pushlog.store import derivation, regular
from pushlog.store.storage import Pushlog

from ..outbox.entry import OutboxEnd
from ..outbox.file import Outbox, outbox_of
from ..relay.scan import is_folder
from ..words.errors import MalformedEvent, Refused, Unavailable
from ..words.unexpected import OUT_OF_MEMORY, lacks_memory
from . import observe, opening
from .bundles import RepositoryOpener
from .master import creation, formats, intents, recovery, refusals
from .master.acts import lifecycle, moving
from .master.intents import Intent
from .master.repository import OWN
from .serving import left_locks
from .settings import ExtensionSettings, root_of
from .text import text

if TYPE_CHECKING:
    from .master.repository import MasterRepository


class MasterRepositories(RepositoryOpener):
    """A `MasterPort` to the repositories below roots, without their configuration."""

    def __init__(self, roots: Mapping[str, str], source: str) -> None:
        super().__init__(skip_hgrc=True)
        # No extension is loaded here, and finishing a strip needs both.
        store.complete_journals()
        regular.install()
        left_locks.install()
        configitems.loadconfigtable(self._ui, b"pushlog", pushlog.configtable)
        self._settings = ExtensionSettings(
            role="master",
            roots={os.path.realpath(folder): prefix for folder, prefix in roots.items()},
            source=source,
            acknowledge="outbox",
        )

    def recover(self, folder: str) -> bool:
        repo = self.open(folder)
        return recovery.recover_abandoned(repo, _trying_lock(repo.svfs.join(b"lock")))

    def announce(self, folder: str) -> bool:
        repo = self.open(folder)
        if Outbox(repo.svfs).end() is not None:
            return True
        try:
            opening.set_up(repo, self._settings)
            with (
                _trying_lock(repo.svfs.join(b"lock")),
                repo.lock(wait=False),
                repo.transaction(OWN + b"adopted"),
            ):
                return True
        except error.Abort as problem:
            raise Refused(str(problem)) from problem
        return False

    def place(self, folder: str) -> tuple[str, int] | None:
        with contextlib.suppress(error.ConfigError):
            path = self._settings.wire_path(folder)
            if path is not None:
                return path, creation.read_generation(root_of(self._settings, folder), path) + 1
        return None

    def refuse_format(self, folder: str) -> None:
        """Raise Refused if the format on disk is not replicated, or is unknown here.

        Changes nothing. Raises OSError.
        """
        try:
            formats.refuse_format(self.open(folder))
        except (error.Abort, error.RepoError) as problem:
            raise Refused(text(stringutil.forcebytestr(problem))) from problem

    @staticmethod
    def runs_code(hgrc: bytes) -> bool:
        """Return whether an hgrc runs code in a push, or may: it includes another file, or cannot be read."""
        found = config.config()
        try:
            found.parse(b"hgrc", hgrc)
        except error.ConfigError:
            return True
        includes = any(line.startswith(b"%include") for line in hgrc.splitlines())
        return includes or any(map(found.items, (b"hooks", b"extensions")))

    def is_changed_outside(self, folder: str) -> bool | None:
        box = outbox_of(folder)
        before = box.end()
        if before is None:
            return False
        repo = self.open(folder)
        if _is_busy(repo):
            return None
        now = observe.tip(repo)
        return None if _is_busy(repo) or box.end() != before else now != before.after

    def find_refusal(self, folder: str) -> str | None:
        box, repo = outbox_of(folder), None
        end = box.end()
        try:
            repo = self.open(folder)
            is_busy = _is_busy(repo)
            found = None if is_busy else _find_lost(repo, end) or derivation.find_older_copy(Pushlog(repo))
        except (error.RepoError, error.StorageError, FileNotFoundError, ValueError, MemoryError) as problem:
            # What has no event is not replicated yet, and of a repository that was deleted meanwhile nothing is read.
            if end is None or not is_folder(os.path.join(folder, ".hg")):
                raise
            reason = OUT_OF_MEMORY if lacks_memory(problem) else text(stringutil.forcebytestr(problem))
            is_busy, found = False, f"a file of its history cannot be read: {reason}; {refusals.RESTORE_HISTORY}"
        # A strip that began meanwhile cuts files, too.
        is_busy = is_busy or (repo is not None and _is_busy(repo))
        if is_busy or box.end() != end:
            raise Unavailable(f"{folder}: another process works there")
        return found

    def finish(self, root: str) -> list[str]:
        real, problems = os.path.realpath(root), []
        try:
            files = intents.files(real)
        except OSError as problem:
            return [f"{root}: its interrupted acts cannot be read: {problem.strerror}: {problem.filename}"]
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
                reason = text(stringutil.forcebytestr(problem))
                problems.append(f"{intent.folder}: {intents.act_of(intent).decode()} not finished: {reason}")
        return problems

    def _finish(self, root: str, intent: Intent) -> None:
        if not is_folder(os.path.join(intent.folder, ".hg")):
            # It has been moved.
            intents.remove(root, intent.path)
            return
        repo = cast("MasterRepository", self.open(intent.folder))
        opening.set_up(repo, self._settings)
        try:
            with repo.wlock(wait=False), repo.lock(wait=False):
                if intents.read(root, intent.path) != intent:
                    return
                if repo.svfs.exists(b"journal"):
                    recovery.roll_back(repo)
                lifecycle.finish(repo, intent, wait=False)
        except error.LockHeld:
            return
        if intent.to is not None:
            moving.finish_move(root, intent)


def _find_lost(repo: localrepository, end: OutboxEnd | None) -> str | None:
    """Say what the history lost since the newest event; raises what Mercurial raises where it cannot read a damaged file."""
    if end is not None and (lost := refusals.find_lost_history(repo, end.after)) is not None:
        return f"{lost}; {refusals.RESTORE_HISTORY}; {refusals.ADOPT_LOSS}"
    observe.read_newest(repo)
    return None


def _is_busy(repo: localrepository) -> bool:
    return repo.svfs.lexists(b"lock") or repo.svfs.exists(b"journal")


@contextlib.contextmanager
def _trying_lock(file: bytes) -> Iterator[None]:
    """Leave the block if another process has the lock of this file.

    Raises OSError with the file if it cannot be taken at all: Mercurial's own error names the link's target.
    """
    try:
        yield
    except error.LockHeld:
        return
    except error.LockError as problem:
        raise OSError(problem.errno, problem.strerror, os.fsdecode(file)) from problem
