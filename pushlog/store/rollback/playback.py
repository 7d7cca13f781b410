# SPDX-License-Identifier: GPL-2.0-or-later
"""The rollback of a journal, only inside the repository, following no link.

Mercurial's own joins the names of the journal to the folder and opens what it finds there. This one does the same steps in the same
order, from folders that it holds open, one part of a name after the other: no account can put a link in the way between a check and
its use. First it looks at every file, and refuses a journal whole. The journal goes last, so a rollback that is killed is repeated.

Rule of this file: nothing is opened but by `held`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from mercurial import error, vfs
from mercurial.utils import stringutil

from . import journalled
from .held import Held
from .journalled import Cut, Saved, quote

if TYPE_CHECKING:
    from mercurial.vfs import abstractvfs

    Report = Callable[[bytes], None]
    # Names whose change must show in their times, each with its location, as Mercurial lists them.
    Watched = Iterable[tuple[bytes, bytes]]

JOURNAL = b"journal"
# The list of backups of a journal.
BACKUPS = b"%s.backupfiles"
# What an operator does about a journal that is refused.
HINT = b"it may be an attack: 'ls -l' shows whose it is; docs/push.md says what to do"


class Places:
    """The folders that a journal names, held open until `close`."""

    def __init__(self, store: abstractvfs, folders: Mapping[bytes, abstractvfs]) -> None:
        self.store = Held(store)
        self._by_location = {b"": self.store, b"store": self.store}
        if b"plain" in folders:
            self._by_location[b"plain"] = Held(folders[b"plain"])
        # That of the repository, where the transaction was made in a share of it.
        self._own = Held(vfs.vfs(os.path.dirname(self.store.base)))

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_problem: object) -> None:
        for folder in {*self._by_location.values(), self._own}:
            folder.close()

    def find(self, location: bytes, name: bytes) -> tuple[Held, bytes]:
        """Return the folder of a location, and the file's name in it; raises Abort."""
        if location not in self._by_location:
            raise error.Abort(b"it names a file in %s, which is no place of Mercurial's" % quote(location))
        folder, base = os.path.split(name)
        if (
            location == b"plain"
            and os.path.isabs(name)
            and os.path.realpath(folder) == os.path.realpath(self._own.base)
        ):
            return self._own, base
        return self._by_location[location], name


def read_saved(places: Places, journal: bytes) -> list[Saved]:
    """Read the list of backups of a journal, or raise Abort."""
    with _explain_refusal(places, journal):
        return journalled.parse_saved(places.store.read(BACKUPS % journal))


def roll_back(places: Places, journal: bytes, report: Report, watched: Watched | None) -> None:
    """Roll back an abandoned transaction, as its journal says.

    Raises Abort, having changed nothing, for a journal that no transaction of Mercurial writes.
    """
    with _explain_refusal(places, journal):
        cuts = journalled.parse_cuts(places.store.read(journal))
        saved = journalled.parse_saved(places.store.read(BACKUPS % journal))
        journalled.check(cuts, saved)
    play(places, journal, report, cuts, saved, watched)


def play(
    places: Places, journal: bytes, report: Report, cuts: Iterable[Cut], saved: Iterable[Saved], watched: Watched | None
) -> None:
    """Cut, restore and remove what a journal names, then remove the journal.

    Raises Abort, having changed nothing, if a name leads out of the repository or to what is no file; raises Abort or OSError
    where a step fails.
    """
    sizes, known = dict(cuts), frozenset(watched or ())
    lines = [line for line in saved if not journalled.is_share_name(*line[:3])]
    with _explain_refusal(places, journal):
        for name in sizes:
            places.store.check(name)
        for location, name, backup, _is_optional in lines:
            for each in filter(None, (name, backup)):
                folder, found = places.find(location, each)
                folder.check(found)
    # A file that is both restored and cut is restored first.
    whole = {line.name: line for line in lines if line.location != b"plain" and line.name and line.backup}
    done: dict[Saved, None] = {}
    for name, size in sorted(sizes.items()):
        if name in whole:
            _restore_line(places, whole[name], report, known)
            done[whole[name]] = None
        _cut_one(places.store, name, size, report, is_watched=(name, b"") in known)
    for line in lines:
        if line in done:
            continue
        try:
            _restore_line(places, line, report, known)
        except OSError as problem:
            # Files in the store are missing after a power cut only; a share may be gone, or closed to this user.
            if not line.is_optional or not (line.location == b"plain" or isinstance(problem, FileNotFoundError)):
                raise
        else:
            done[line] = None
    places.store.remove(BACKUPS % journal)
    places.store.remove(journal)
    for line in done:
        if line.name and line.backup:
            folder, backup = places.find(line.location, line.backup)
            with contextlib.suppress(OSError):
                folder.remove(backup)


def _cut_one(store: Held, name: bytes, size: int, report: Report, *, is_watched: bool) -> None:
    if not size:
        store.remove(name)
        return
    try:
        store.cut(name, size, is_watched=is_watched)
    except OSError:
        report(b"failed to truncate %s\n" % name)
        raise


def _restore_line(places: Places, line: Saved, report: Report, known: frozenset[tuple[bytes, bytes]]) -> None:
    location, name, backup, _is_optional = line
    folder, target = places.find(location, name or backup)
    if not name or not backup:
        folder.remove(target)
        return
    source, base = places.find(location, backup)
    if source is folder and folder.is_same(target, base):
        return  # a full disk has no room for another copy
    try:
        folder.restore(target, base, is_watched=(name, location) in known)
    except OSError as problem:
        report(b"failed to recover %s (%s)\n" % (name, stringutil.forcebytestr(problem)))
        raise


@contextlib.contextmanager
def _explain_refusal(places: Places, journal: bytes) -> Iterator[None]:
    """Say which journal is refused, and what to do."""
    try:
        yield
    except error.Abort as problem:
        text = b"%s: %s; it is not rolled back" % (places.store.join(journal), problem.message)
        raise error.Abort(text, hint=HINT) from problem
