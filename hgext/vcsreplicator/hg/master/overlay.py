# SPDX-License-Identifier: GPL-2.0-or-later
"""Overlays: read-only repositories with further changesets laid over them.

`hg -R some.hg` and `hg -R union:a+b` open overlays. An overlay has the store of the repository beneath: a change would be written
to that repository, and its event would name changesets that are missing there.
"""

from __future__ import annotations

from typing import Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from . import repository


def refusal(repo: localrepository) -> error.Abort:
    return error.Abort(
        b"%s shows a repository together with further changesets: it is read-only" % repo.url(),
        hint=b"pull or unbundle into the repository itself",
    )


def refuse(repo: localrepository) -> None:
    if repository.is_overlay(repo):
        raise refusal(repo)


def read_only(base: type[localrepository]) -> type[localrepository]:
    """Return the class of an overlay, which refuses every transaction.

    Proven by `tests/hg/master/overlay.t`.
    """

    class overlaidrepository(base):  # type: ignore[misc, valid-type]
        """An overlay, which refuses every transaction."""

        def transaction(self, desc: bytes, report: Any = None) -> Transaction:
            raise refusal(self.unfiltered())

    return overlaidrepository
