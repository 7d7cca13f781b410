# SPDX-License-Identifier: GPL-2.0-or-later
"""Formats that are not replicated, and pushes that would bring one.

Mercurial and its extensions write some formats into `requires` while a push is under way, past the journal. So such a push is
refused before they do: otherwise it would make the repository refuse all others (`tests/hg/master/formats.t`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.node import hex, nullid, nullrev
from mercurial.ui import ui as Ui
from mercurial.utils import stringutil

from pushlog import seams, versions

from .repository import is_silenced, replicated

if TYPE_CHECKING:
    from mercurial.bundle2 import bundleoperation, unbundlepart
    from mercurial.transaction import transaction

# Opens the versions of the file of a name.
OpenFile = Callable[[bytes], Any]

# Requirement → its name.
REFUSED_REQUIREMENTS = {
    b"lfs": "LFS",
    b"largefiles": "largefiles",
    b"narrowhg-experimental": "narrow clones",
    b"treemanifest": "tree manifests",
    # Mercurial itself makes bundles of it that lack the content of files.
    b"exp-copies-sidedata-changeset": "copies beside changesets",
}
HOOK = b"pretxnchangegroup.vcsreplicator"
# Bytes of a name that are shown.
_SHOWN = 200
# Seconds of the farthest date and zone: a database keeps no larger integers, and Mercurial subtracts one from the other.
_FARTHEST = 2**63
# Files of a push whose indexes are kept open: many changesets change the same ones.
_OPEN_FILES = 500
# Where largefiles keeps the names of its files' content.
_STANDINS = b".hglf/"
# In names of files that Mercurial neither adds nor checks out.
_LEADING_OUT = re.compile(rb"(?:^|/)(?:|\.\.?|\.hg)(?:/|$)", re.IGNORECASE)


def refuse_format(repo: localrepository) -> None:
    """Raise Abort for content that could not be replicated."""
    _refuse_requirements(repo.requirements, uses="uses", has="has")


def refuse_created(ui: Ui, options: Mapping[bytes, Any] | None, requirements: Collection[bytes] | None) -> None:
    """Raise Abort for a new repository whose format could not be replicated.

    A share has that of its repository.
    """
    if b"sharedrepo" in (options or {}):
        return
    if requirements is None:
        requirements = versions.new_requirements(ui, options or {})
    _refuse_requirements(requirements, uses="would use", has="would have")


def _refuse_requirements(requirements: Collection[bytes], *, uses: str, has: str) -> None:
    for requirement, name in REFUSED_REQUIREMENTS.items():
        if requirement in requirements:
            raise _make_refusal(f"{uses} {name}")
    if b"store" not in requirements:
        raise _make_refusal(
            f"{has} a format from before Mercurial 0.9.2", convert=b"re-create it with 'hg clone --pull'"
        )


@functools.cache
def guard_names() -> None:
    """Let largefiles find files by hashes alone: another name could lead to any file of the server."""
    seams.wrap("hgext.largefiles.lfutil", "storepath", _find_large_file)


def _find_large_file(orig: Callable[..., bytes], repo: localrepository, hash: bytes, *rest: Any, **named: Any) -> bytes:
    if not re.fullmatch(rb"[0-9a-f]{40}", hash):
        raise error.InputError(b"expected the hash of a large file, got %s" % stringutil.pprint(hash[:80]))
    return orig(repo, hash, *rest, **named)


def guard_content(repo: localrepository) -> None:
    """Refuse changesets with files of LFS or largefiles, where these are loaded.

    The extensions make them a requirement, LFS in a hook of its own, largefiles after the commit. Without the extension on the
    server no client can push such files.
    """
    repo.ui.setconfig(b"hooks", HOOK, _refuse_content, b"vcsreplicator")
    repo.ui.setconfig(b"hooks", b"priority." + HOOK, b"1000", b"vcsreplicator")


def _refuse_content(ui: Ui, repo: localrepository, node: bytes, **_arguments: Any) -> None:
    """Refuse the changesets of a push, before the hook of LFS sees them.

    Those that a strip removes and adds again are not refused.
    """
    if is_silenced(repo):
        return
    refuse_content(repo, repo[node].rev())


def refuse_content(repo: localrepository, first: int) -> None:
    """Raise Abort if a changeset from `first` on has a file of LFS or largefiles."""
    with_large, with_lfs = seams.find_extension(b"largefiles"), seams.find_extension(b"lfs")
    for rev in range(first, len(repo)) if with_large or with_lfs else ():
        changed: Any = repo[rev]
        names = changed.files()
        if with_large and any(name.startswith(_STANDINS) for name in names):
            raise _make_refusal("would use largefiles")
        if with_lfs and any(changed[name].islfs() for name in names if name in changed):
            raise _make_refusal("would use LFS")


def refuse_incomplete(repo: localrepository, tr: transaction, first: int) -> None:
    """Raise Abort if a changeset from `first` on names content that is not here, or that no bundle would have, or has no date.

    No bundle of it could be made or applied, and all later events would wait. Mercurial looks only with `[server] validate`,
    and then at every file of some manifests (`tests/hg/master/test_incomplete.py`).
    """
    # Names and nodes of files, and of manifests without a name, that came with the push, and that another one has as its parent,
    # or a changeset that does not name the file. A bundle has the files that its changesets name.
    unknown: set[tuple[bytes, bytes]] = set()
    open_file = functools.lru_cache(_OPEN_FILES)(repo.file)
    try:
        for rev in range(first, len(repo)):
            changed: Any = repo[rev]
            _refuse_odd_date(changed)
            names = {b"", *changed.files()}
            for name, node in _find_entries(changed):  # refuses odd ones
                if name not in names and _has_come(open_file, tr, name, node, first):
                    unknown.add((name, node))
            for name in (b"", *changed.files()):
                unknown.update((name, parent) for parent in _find_unknown(repo, open_file, changed, name, first))
    except error.StorageError as problem:
        raise _lack(stringutil.forcebytestr(problem)) from problem
    # A revision may be linked to a changeset that does not have it: `hg verify` warns of it, and it does no harm.
    for rev in range(first, len(repo)) if unknown else ():
        names = {b"", *repo[rev].files()}
        unknown.difference_update(entry for entry in _find_entries(repo[rev]) if entry[0] in names)
    for name, node in unknown:
        raise _lack(b"%s@%s: in no changeset" % (name or b"00manifest", hex(node)))


def _refuse_odd_date(changed: Any) -> None:
    """Raise Abort for a date that Mercurial stores and cannot read or compute with: pages that show the changeset would fail."""
    try:
        is_date = all(abs(number) < _FARTHEST for number in changed.date())  # not so for nan
    except (IndexError, ValueError):
        is_date = False
    if not is_date:
        raise error.Abort(b"a changeset has a date that cannot be read: %s" % changed.hex())


def _find_entries(changed: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield a changeset's manifest, and the files in what is stored of it; raise Abort for what no Mercurial writes there."""
    yield b"", changed.manifestnode()
    for name, node, flag in changed._manifestdelta.iterentries():
        if flag == b"t":
            raise _make_refusal("would use tree manifests")
        if node == nullid:
            raise _lack(b"%s@%s: no node" % (name, hex(node)))
        if _LEADING_OUT.search(name):  # an archive would have it, and lead out of the folder where a client unpacks it
            raise error.Abort(b"a changeset has a file that no working directory can have: %s" % name[:_SHOWN])
        yield name, node


def _has_come(open_file: OpenFile, tr: transaction, name: bytes, node: bytes, first: int) -> bool:
    """Return whether a version of a file came with the push; raises StorageError if the file grew and has no such version."""
    file = b"data/%s.i" % name
    if file not in tr._newfiles and file not in tr._offsetmap:
        return False
    storage = open_file(name)
    return bool(storage.linkrev(storage.rev(node)) >= first)


def _find_unknown(repo: localrepository, open_file: OpenFile, changed: Any, name: bytes, first: int) -> Iterator[bytes]:
    """Yield parents that came with the push, and which the changeset that they are linked to does not have.

    Raises Abort or StorageError if what the changeset has of this name is not here, or has not its hash.
    """
    storage: Any = open_file(name) if name else repo.manifestlog.getstorage(b"")
    node = _find_node(changed, name)
    if node is None and not len(storage):
        raise _lack(b"%s: no version" % name)
    if node is None:
        return
    for parent in storage.parents(node):
        link = nullrev if parent == nullid else storage.linkrev(storage.rev(parent))
        if link >= first and _find_node(repo[link], name) != parent:
            yield parent
    # Mercurial stores what it is given without reading it. A manifest that is stored as a difference to its parent need not be
    # read: it is large, and a bundle takes the difference.
    rev = storage.rev(node)
    if storage.linkrev(rev) >= first and (name or storage.deltaparent(rev) not in storage.parentrevs(rev)):
        with contextlib.suppress(error.CensoredNodeError):
            storage.rawdata(node)
            if name:
                _refuse_odd_copy(storage, name, node)


def _refuse_odd_copy(storage: Any, name: bytes, node: bytes) -> None:
    """Raise Abort for a copy whose source no Mercurial writes: pages that follow it would fail, or read another repository."""
    try:
        copied = storage.renamed(node)
    except ValueError:
        copied = b"", b""
    if copied and (len(copied[1]) != len(nullid) or _LEADING_OUT.search(copied[0])):
        raise error.Abort(b"a file is a copy of what no file can be: %s@%s" % (name[:_SHOWN], hex(node)))


def _find_node(changed: Any, name: bytes) -> bytes | None:
    """Return the changeset's version of a file as far as it is stored with it; of no name, its manifest."""
    node: bytes | None = changed._manifestdelta.get(name) if name else changed.manifestnode()
    return node


def _lack(what: bytes) -> error.Abort:
    return error.Abort(
        b"the push lacks content that its changesets name: %s" % what,
        hint=b"run 'hg verify' in the repository that you push from",
    )


def handle_changegroup(handler: Callable[[Any, Any], None], operation: bundleoperation, part: unbundlepart) -> None:
    """Wrap the handler of changegroups; refuse tree manifests.

    Mercurial gives an empty repository the format of the first changegroup, at once and for good.
    """
    if b"treemanifest" in part.params and replicated(operation.repo) is not None:
        raise _make_refusal("would use tree manifests")
    handler(operation, part)


def _make_refusal(what: str, *, convert: bytes = b"convert it") -> error.Abort:
    return error.Abort(
        f"this repository {what}, which is not replicated".encode(),
        hint=convert + b", or keep it outside [vcsreplicator-roots]",
    )
