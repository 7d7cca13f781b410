# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror's repository object: read-only, and ending with the release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from mercurial import error, localrepo
from mercurial.filelog import filelog
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction

from ...mirror.checkpoint import FILE
from . import caches, following, watermark
from .ending import HiddenRevisions, end_file_history
from .views import (
    READ_ONLY,
    everything_is_released,
    first_unreleased,
    held_release,
    hold_release,
    is_limited,
    shown_release,
    unlimited,
    widest_view,
)

if TYPE_CHECKING:
    from mercurial.interfaces.repository import IBranchMap

OVERRIDDEN = ("__len__", "branchmap", "cancopy", "file", "heads", "pushkey", "rollback", "transaction")


def reposetup(repo: localrepository) -> None:
    """Hold the present release, follow its settings, refuse all that would write."""
    unfiltered = repo.unfiltered()
    hold_release(unfiltered)
    caches.keep_in_place(unfiltered)
    following.follow_master(unfiltered)
    unfiltered.__class__ = type("readonlymirror", (_ReadOnlyMirror, unfiltered.__class__), {})


class _ReadOnlyMirror(localrepo.localrepository):
    """The base in front of the class of a mirror's repository object."""

    def _pushlog_limit(self) -> int:
        """Find the last push that the pushlog shows."""
        release = shown_release(self)
        return 0 if release is None else release.push_id or 0

    def _pushlog_served(self) -> int:
        """Find the last push that the pushlog would show in a repository opened now.

        Only opening it shows whether a later release fits, because this object's changelog may be older.
        """
        release = watermark.read_watermark(self.vfs)
        if release == held_release(self).watermark:
            return self._pushlog_limit()
        return 0 if release is None else release.push_id or 0

    def _pushlog_view(self) -> bytes:
        """Choose the view in which the pushlog looks up changesets."""
        return widest_view(self)

    def cancopy(self) -> bool:
        return super().cancopy() and everything_is_released(self)

    def __len__(self) -> int:
        return first_unreleased(self) if is_limited(self) else super().__len__()

    def heads(self, start: bytes | None = None) -> list[bytes]:
        if start is not None or not is_limited(self):
            return super().heads(start)
        return self.changelog.heads()[::-1]

    def branchmap(self, *args: Any, **kwargs: Any) -> IBranchMap:
        if not is_limited(self) or isinstance(self.changelog.filteredrevs, HiddenRevisions):
            return super().branchmap(*args, **kwargs)
        # The same content, and its cache was written when the events were applied. Not from the top of the class: topic asks
        # from there, with arguments of its own.
        view = cast(_ReadOnlyMirror, unlimited(self))
        return super(_ReadOnlyMirror, view).branchmap(*args, **kwargs)

    def file(self, path: bytes, *args: Any, **kwargs: Any) -> filelog:
        history = super().file(path, *args, **kwargs)
        if is_limited(self) and (first := first_unreleased(self)) < super().__len__():
            end_file_history(history, first)
        return history

    def transaction(self, desc: bytes, report: Any = None) -> transaction:
        if self.vfs.exists(watermark.WATERMARK) or self.svfs.exists(FILE):
            raise error.Abort(READ_ONLY)
        return super().transaction(desc, report)

    def rollback(self, dryrun: bool = False, force: bool = False) -> NoReturn:
        raise error.Abort(READ_ONLY)

    def pushkey(self, namespace: bytes, key: bytes, old: bytes, new: bytes) -> NoReturn:
        raise error.Abort(READ_ONLY)
