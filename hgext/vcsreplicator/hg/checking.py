# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository read through: every revision of every file against its hash, without a lock, while events are applied."""

from typing import Any

from mercurial import verify

from ..mirror.task import Check, Checked
from . import replicated
from .repository import Repositories
from .text import text


def check(repositories: Repositories, wanted: Check) -> Checked:
    """What is wrong with the repository; nothing if it changed while it was read, or is not to be read now."""
    lower = None
    try:
        repo = repositories.open(wanted.folder)
        repo.invalidateall()
        before = replicated.read(repo)
        if before is not None and before.seq < wanted.seq:
            lower = before
        problem = _problem(repo)
        changed = replicated.read(repo) != before or repo.svfs.exists(b"journal")
    except Exception as unreadable:
        problem, changed = f"{type(unreadable).__name__}: {unreadable}"[:300], False
    finally:
        repositories.close(wanted.folder)
    return Checked(repository=wanted.repository, problem=None if changed else problem, lower=lower)


def _problem(repo: Any) -> str | None:
    verifier = _Verifier(repo)
    verifier.verify()
    return f"{verifier.errors} errors in the store, the first: {verifier.first}" if verifier.errors else None


class _Verifier(verify.verifier):  # type: ignore[misc]
    """Mercurial's, which remembers the first error instead of printing all."""

    first = ""

    def _err(self, linkrev: Any, msg: bytes, filename: bytes | None = None) -> None:
        self.badrevs.add(linkrev)
        self.errors += 1
        self.first = self.first or text(b": ".join(filter(None, (filename, msg))))[:300]
