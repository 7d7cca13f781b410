# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles of events, as bundle2 with zstd.

A bundle holds exactly the changesets and markers of one event. The receiver must have every changeset before the first, hidden ones
included. All changesets of the bundle arrive public: the event carries phases and bookmarks (`observe.move_phases`), which may have
moved since.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator

from mercurial import bundle2, changegroup, encoding, error, obsolete
from mercurial import ui as uimod
from mercurial.localrepo import localrepository

from pushlog import versions

from ..outbox.bundles import Bundle, ChangesetsGone
from ..outbox.entry import Entry
from ..outbox.folder import open_regular, refuse_endless_files, refuse_repository_pipes
from ..words.digest import node_set
from ..words.errors import counted
from . import requirement
from .trusted import rule

COMPRESSION = b"ZS"
MARKERS_HEADER = bytes([obsolete._fm1version])


def make_bundle(repo: localrepository, first: int, last: int, markers: Iterable[bytes] = ()) -> Bundle:
    """Make the bundle of revisions `first` up to before `last`, and of these markers."""
    repo = repo.unfiltered()
    bundler = bundle2.bundle20(repo.ui)
    bundler.setcompression(COMPRESSION)
    if last > first:
        _add_changesets(bundler, repo, first, last)
    encoded = b"".join(markers)
    if encoded:
        bundler.newpart(b"obsmarkers", data=MARKERS_HEADER + encoded)
    bundle, core = Bundle(()), bundler._getcorechunk
    bundler._getcorechunk = lambda: _count_bytes(bundle, core())
    bundle.pieces = bundler.getchunks()
    return bundle


def find_set_aside(repo: localrepository) -> list[bytes]:
    """Find the files in which strips keep the changesets that they must add again."""
    import glob

    return sorted(glob.glob(os.path.join(glob.escape(repo.path), b"strip-backup", b"*-temp.hg")))


def add_again(repo: localrepository, name: bytes) -> None:
    """Add the changesets that an interrupted strip set aside in a file."""
    from mercurial import exchange

    with open(name, "rb", opener=open_regular) as file, repo.lock(), repo.transaction(b"strip") as tr:
        bundle2.applybundle(repo, exchange.readbundle(repo.ui, file, None), tr, source=b"strip")
    repo.invalidateall()


class RepositoryOpener:
    """Opens repositories by their folders, for one job each.

    Several threads may use it at once.

    With `skip_hgrc` this process no longer reads any repository's own configuration, so that opening one runs none of its code,
    and what it writes runs no hook of the machine's. A process that also serves must not set it, because that would drop the
    access rules of its repositories.
    """

    def __init__(self, *, skip_hgrc: bool) -> None:
        if skip_hgrc:
            encoding.environ[b"HGRCSKIPREPO"] = b"1"
        versions.initialize()
        requirement.understand()
        rule.install(is_service=True)
        self._ui = uimod.ui.load()
        self._ui.setconfig(b"ui", b"quiet", True)
        # The servers' Mercurial may have parts in Rust, and this process none: it is slower, and right.
        for name in (b"revlog.persistent-nodemap", b"dirstate-v2", b"fileindex"):
            self._ui.setconfig(b"storage", name + b".slow-path", b"allow")
        self._ui.callhooks = not skip_hgrc

    def make_bundle(self, folder: str, entry: Entry) -> Bundle:
        """Make the bundle of an entry in `folder`'s repository; raises ChangesetsGone."""
        try:
            return make_entry_bundle(self.open(folder), entry)
        except (error.RepoError, OSError) as problem:
            raise ChangesetsGone(f"{folder}: cannot be opened: {problem}") from problem

    def open(self, folder: str) -> localrepository:
        """Open the repository, unfiltered, as it is on disk now.

        Raises OSError where a pipe lies, or a file that no memory holds.
        """
        refuse_repository_pipes(folder)
        refuse_endless_files(folder)
        return versions.factory.repository(self._ui.copy(), os.fsencode(folder)).unfiltered()


def make_entry_bundle(repo: localrepository, entry: Entry) -> Bundle:
    """Make the bundle of an entry.

    Raises ChangesetsGone unless the entry's changesets are in the repository at their revision numbers.
    """
    last = entry.event.after.length
    changelog = repo.unfiltered().changelog
    if last > len(changelog):
        raise ChangesetsGone(
            f"{entry.event.path}: {counted(len(changelog), 'changeset')}, event {entry.event.seq} needs {last}"
        )
    if node_set([changelog.node(rev) for rev in range(entry.first, last)]) != entry.event.changes.added:
        raise ChangesetsGone(f"{entry.event.path}: the changesets of event {entry.event.seq} are not where they were")
    return make_bundle(repo, entry.first, last, [base64.b64decode(marker) for marker in entry.markers])


def _count_bytes(bundle: Bundle, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the uncompressed pieces, and add their sizes to `bundle.unpacked`."""
    for piece in pieces:
        bundle.unpacked += len(piece)
        yield piece


def _add_changesets(bundler: bundle2.bundle20, repo: localrepository, first: int, last: int) -> None:
    version = changegroup.safeversion(repo)
    changelog = repo.changelog
    nodes = [changelog.node(rev) for rev in range(first, last)]
    packer = changegroup.getbundler(version, repo)
    # Without the common revisions, whose versions of files it would leave out: after a power cut a file may have a version of a
    # changeset that was rolled back, whose number is another's by now (`tests/hg/replica/test_power_cut.py`).
    part = bundler.newpart(b"changegroup", data=packer.generate(set(), nodes, False, b"replicate"))
    part.addparam(b"version", version)
    part.addparam(b"nbchanges", b"%d" % len(nodes), mandatory=False)
    part.addparam(b"targetphase", b"0")
