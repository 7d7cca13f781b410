# SPDX-License-Identifier: GPL-2.0-or-later
"""Formats that are not replicated, and pushes that would bring one.

Mercurial and its extensions write some formats into `requires` while a push is under way, two of them past the journal. What is
refused here leaves `requires` as it was, killed or not: otherwise one refused push would make the repository refuse all others
(`tests/hg/master/formats.t`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import error, extensions, requirements
from mercurial.localrepo import localrepository
from mercurial.transaction import transaction as Transaction

from .repository import replicated

if TYPE_CHECKING:
    from mercurial.bundle2 import bundleoperation, unbundlepart

# Requirement → what it is called.
REFUSED_REQUIREMENTS = {
    b"lfs": "LFS",
    b"largefiles": "largefiles",
    b"narrowhg-experimental": "narrow clones",
    b"treemanifest": "tree manifests",
}
ABORT = b"outbox-requirements"
# Where largefiles keeps the names of its files' content.
_STANDINS = b".hglf/"
_OUTSIDE = b"keep it outside [vcsreplicator-roots]"


def refuse_format(repo: localrepository) -> None:
    """Raise Abort for content that mirrors, or events that the relay, would not get."""
    for requirement, name in REFUSED_REQUIREMENTS.items():
        if requirement in repo.requirements and _is_required(repo, requirement):
            raise _refusal(f"uses {name}")
    if b"store" not in repo.requirements:
        raise _refusal("has a format from before Mercurial 0.9.2", convert=b"make it anew with 'hg clone --pull'")


def refuse_large_files(repo: localrepository, tr: Transaction) -> None:
    """Raise Abort if the transaction adds files of largefiles.

    The extension makes them a requirement only after the commit. Without it on the server no client can push such files.
    """
    if not _is_loaded(b"largefiles"):
        return
    log = repo.changelog
    for rev in range(tr.changes[b"origrepolen"], len(log)):
        if any(name.startswith(_STANDINS) for name in log.changelogrevision(rev).files):
            raise _refusal("would use largefiles")


def keep_requirements(repo: localrepository, tr: Transaction) -> None:
    """Have a rollback of the transaction take back what is added to the requirements.

    The hook of LFS adds one, in memory and on disk.
    """
    if not _is_loaded(b"lfs"):
        return
    before, features = set(repo.requirements), set(repo.features)

    def restore(_tr: Transaction) -> None:
        repo.requirements.intersection_update(before)
        repo.features.intersection_update(features)

    tr.addbackup(b"requires", location=b"" if requirements.SHARESAFE_REQUIREMENT in before else b"plain")
    tr.addabort(ABORT, restore)


def handle_changegroup(handler: Callable[[Any, Any], None], operation: bundleoperation, part: unbundlepart) -> None:
    """Wrap the handler of changegroups; refuse tree manifests.

    Mercurial gives an empty repository the format of what it gets, at once and for good.
    """
    if b"treemanifest" in part.params and replicated(operation.repo) is not None:
        raise _refusal("would use tree manifests")
    handler(operation, part)


def _is_required(repo: localrepository, requirement: bytes) -> bool:
    """Return whether the requirement is on disk; forget it if not.

    A rollback may have taken it back since the repository was opened.
    """
    if any(requirement in files.tryread(b"requires").split() for files in (repo.vfs, repo.svfs)):
        return True
    repo.requirements.discard(requirement)
    return False


def _is_loaded(name: bytes) -> bool:
    try:
        extensions.find(name)
    except KeyError:
        return False
    return True


def _refusal(what: str, *, convert: bytes = b"convert it") -> error.Abort:
    return error.Abort(f"this repository {what}, which is not replicated".encode(), hint=convert + b", or " + _OUTSIDE)
