# SPDX-License-Identifier: GPL-2.0-or-later
"""The lines of a journal, and the names that they may have.

A rollback does what a journal says, with the rights of the account that rolls back; every account that may write to the store may
have written the journal. So only names count that Mercurial's transactions, and ours, write: their content is history and state,
and none of it is configuration or runs. The names are those of Mercurial 6.3 to 7.2 and the extensions that come with it; evolve
and topic add none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from mercurial import error

from ..appendfile import SIZE_DIGITS

# What Mercurial writes first into the list of backups.
_VERSION = b"2"
_STORE, _PLAIN = (b"", b"store"), b"plain"
# The end of the name of a temporary file that never exists: it tells `hg.master.recovery` the share of a transaction.
SHARE = b"/journal.share"

_REVLOG = rb"(?:00changelog|00manifest|(?:data|meta)(?:-s)?/.+)(?:\.[idn]|(?:-[0-9a-f]+)?\.(?:dat|idx|nd|sda))"
_IN_STORE = re.compile(
    rb"%s(?:\.tmpcensored)?|bookmarks|fileindex(?:-(?:list|meta|tree)\.[0-9a-f]+)?|fncache|narrowspec|obsstore|phaseroots|[^/]+\.log"
    % _REVLOG,
    re.DOTALL,
)
_BESIDE_STORE = re.compile(
    rb"bookmarks|branch|dirstate(?:\.[0-9a-f]+)?|dirstate-tracked-hint|histedit-state|largefiles/dirstate|narrowspec\.dirstate|rebasestate"
)
# Of a file: what was written before the commit. 6.3 also has copies of the working copy's state.
_TEMPORARY = re.compile(rb"(.+?)(?:\.(?:a|s|pending))?", re.DOTALL)
_OF_6_3 = re.compile(rb"(?:backup\.|journal\.|undo\.)?dirstate[.\w-]*")


class Cut(NamedTuple):
    """A file of the store, and its size before the transaction; of 0, it is removed."""

    name: bytes
    size: int


class Saved(NamedTuple):
    """A file that the transaction replaced, and its backup in the same folder.

    Without a backup the file was new, and is removed. Without a name, `backup` is that of a temporary file. `is_optional` where the
    rollback goes on if it cannot be restored.
    """

    location: bytes
    name: bytes
    backup: bytes
    is_optional: bool


def parse_cuts(content: bytes) -> list[Cut]:
    """Parse a journal, or raise Abort; a last line that a power cut tore is left out.

    Mercurial writes a line before it touches the file.
    """
    cuts = []
    for line in _split_lines(content):
        name, separator, size = line.partition(b"\0")
        if not separator or not size.isdigit() or len(size) > SIZE_DIGITS:
            raise error.Abort(b"its line %s is no name with a size" % quote(line))
        cuts.append(Cut(name, int(size)))
    return cuts


def parse_saved(content: bytes) -> list[Saved]:
    """Parse a list of backups, or raise Abort; a torn last line is left out."""
    version, *lines = _split_lines(content) or [_VERSION]
    if version != _VERSION:
        raise error.Abort(b"its list of backups is of version %s, expected %s" % (quote(version), _VERSION))
    saved = []
    for line in lines:
        location, name, backup, *rest = [*line.split(b"\0"), b"", b""]
        if len(rest) != 3:
            raise error.Abort(b"the line %s of its list is no backup" % quote(line))
        saved.append(Saved(location, name, backup, is_optional=True))
    return saved


def check(cuts: Iterable[Cut], saved: Iterable[Saved]) -> None:
    """Raise Abort for the first name that no transaction writes into a journal."""
    for cut in cuts:
        _accept(cut.name, _IN_STORE.fullmatch(cut.name))
    for location, name, backup, _is_optional in saved:
        if location != _PLAIN and location not in _STORE:
            raise error.Abort(b"it names a file in %s, which is no place of Mercurial's" % quote(location))
        known = _BESIDE_STORE if location == _PLAIN else _IN_STORE
        if not name:
            _accept(backup, is_share_name(location, name, backup) or _is_temporary(known, backup))
            continue
        folder, base = os.path.split(name)
        # A share writes the bookmarks of its repository under their absolute name. Which folder that is, `playback` checks.
        is_shared = location == _PLAIN and os.path.isabs(name) and base == b"bookmarks"
        _accept(name, is_shared or known.fullmatch(name))
        _accept(backup, not backup or backup in _list_backups(folder, base))


def is_share_name(location: bytes, name: bytes, backup: bytes) -> bool:
    """Return whether a line only tells in which share the transaction was made."""
    return location == _PLAIN and not name and backup.endswith(SHARE)


def quote(name: bytes) -> bytes:
    """Return the beginning of a name in ASCII, for a message."""
    return ascii(name[:200]).encode()


def _accept(name: bytes, found: object) -> None:
    if not found or b".." in name.split(b"/"):
        raise error.Abort(b"it names %s, which no transaction of Mercurial writes" % quote(name))


def _is_temporary(known: re.Pattern[bytes], backup: bytes) -> bool:
    named = _TEMPORARY.fullmatch(backup)
    if named and (known.fullmatch(backup) or known.fullmatch(named[1])):
        return True
    return known is _BESIDE_STORE and bool(_OF_6_3.fullmatch(backup))


def _list_backups(folder: bytes, base: bytes) -> list[bytes]:
    """List the names that a backup can have: before a commit, after it, and in 6.3."""
    made = [b"%s.backup.%s" % (journal, base) for journal in (b"journal", b"undo")]
    return [os.path.join(folder, name + end) for name in made for end in (b".bck", b"")]


def _split_lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")[:-1]
