# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository with something laid over it, `hg -R some.hg` or `-R union:a+b`: it shows more than there is, and changes nothing.

It has the store of the repository beneath: what would be written, and told to mirrors, is that repository's, seen with changesets
that it does not have.
"""

from typing import Any

from mercurial import error


def is_overlay(repo: Any) -> bool:
    """Whether this repository is laid over another, whose store it has."""
    return repo.url().startswith((b"bundle:", b"union:"))  # type: ignore[no-any-return]


def refusal(repo: Any) -> error.Abort:
    """What a user reads who would change it."""
    return error.Abort(
        b"%s shows a repository with more laid over it: it takes no changes" % repo.url(),
        hint=b"pull or unbundle into the repository itself",
    )


def refuse(repo: Any) -> None:
    """Raises Abort for an overlay."""
    if is_overlay(repo):
        raise refusal(repo)


def read_only(base: type) -> type:
    """The class of an overlay: every transaction is refused, whatever it is for (`tests/hg/master/overlay.t`)."""

    class overlaidrepository(base):  # type: ignore[misc, valid-type]
        def transaction(self, desc: bytes, report: Any = None) -> Any:
            raise refusal(self.unfiltered())

    return overlaidrepository
