# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles of events: exactly the changesets and markers of one event, as bundle2 with zstd.

Every changeset before the first is taken as known by the receiver, hidden ones included. All changesets of the bundle arrive
public; phases and bookmarks are not in it but in the event (`observe.move_phases`), because they may have moved on since.
"""

import base64
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mercurial import bundle2, changegroup, encoding, error, initialization, obsolete
from mercurial import ui as uimod
from mercurial.repo import factory

from ..outbox import Entry
from ..relay.sending import Bundle, ChangesetsGone
from ..words.digest import node_set
from . import requirement

COMPRESSION = b"ZS"
MARKERS_HEADER = bytes([obsolete._fm1version])


def chunks(repo: Any, first: int, last: int, markers: Iterable[bytes] = ()) -> Bundle:
    """The bundle of revisions `first` up to before `last`, and of these encoded markers, piece by piece."""
    repo = repo.unfiltered()
    bundler = bundle2.bundle20(repo.ui)
    bundler.setcompression(COMPRESSION)
    if last > first:
        _add_changesets(bundler, repo, first, last)
    encoded = b"".join(markers)
    if encoded:
        bundler.newpart(b"obsmarkers", data=MARKERS_HEADER + encoded)
    bundle, core = Bundle(()), bundler._getcorechunk
    bundler._getcorechunk = lambda: _counted(bundle, core())
    bundle.pieces = bundler.getchunks()
    return bundle


def apply(repo: Any, tr: Any, bundle: Any, source: bytes = b"replicate") -> None:
    """Adds what the bundle (a file object) holds to `repo` within `tr`."""
    from mercurial import exchange

    unbundler = exchange.readbundle(repo.ui, bundle, None)
    bundle2.applybundle(repo, unbundler, tr, source=source)


@dataclass(frozen=True, slots=True)
class OfRepository:
    """Bundles of a repository that is open already: a push that sends its own event."""

    repo: Any

    def chunks(self, folder: str, entry: Entry) -> Bundle:
        return entry_chunks(self.repo, entry)


class OfFolders:
    """Bundles of any repository on this machine, in a long-lived process. May be used by several threads at once.

    With `skip_hgrc` no configuration of the repositories themselves is read, by anything in this process from then on: opening one
    runs nobody's code. A process that also serves must not ask for it, because its repositories' own rules would be gone.
    """

    def __init__(self, *, skip_hgrc: bool) -> None:
        if skip_hgrc:
            encoding.environ[b"HGRCSKIPREPO"] = b"1"
        initialization.init()
        requirement.understand()
        self._ui = uimod.ui.load()
        self._ui.setconfig(b"ui", b"quiet", True)

    def chunks(self, folder: str, entry: Entry) -> Bundle:
        try:
            return entry_chunks(self.open(folder), entry)
        except (error.RepoError, OSError) as problem:
            raise ChangesetsGone(f"{folder}: cannot be opened: {problem}") from problem

    def open(self, folder: str) -> Any:
        """The repository, unfiltered, as it is on disk now."""
        return factory.repository(self._ui.copy(), os.fsencode(folder)).unfiltered()


def entry_chunks(repo: Any, entry: Entry) -> Bundle:
    """The bundle of an outbox entry; raises Gone unless exactly its changesets stand where it says."""
    last = entry.event.after.length
    changelog = repo.unfiltered().changelog
    if last > len(changelog):
        raise ChangesetsGone(f"{entry.event.path}: {len(changelog)} changesets, event {entry.event.seq} needs {last}")
    if node_set([changelog.node(rev) for rev in range(entry.first, last)]) != entry.event.changes.added:
        raise ChangesetsGone(f"{entry.event.path}: the changesets of event {entry.event.seq} are not where they were")
    return chunks(repo, entry.first, last, [base64.b64decode(marker) for marker in entry.markers])


def _counted(bundle: Bundle, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces before their compression, their bytes told to the bundle."""
    for piece in pieces:
        bundle.unpacked += len(piece)
        yield piece


def _add_changesets(bundler: Any, repo: Any, first: int, last: int) -> None:
    version = changegroup.safeversion(repo)
    changelog = repo.changelog
    nodes = [changelog.node(rev) for rev in range(first, last)]
    packer = changegroup.getbundler(version, repo)
    part = bundler.newpart(b"changegroup", data=packer.generate(range(first), nodes, False, b"replicate"))
    part.addparam(b"version", version)
    part.addparam(b"nbchanges", b"%d" % len(nodes), mandatory=False)
    part.addparam(b"targetphase", b"0")
