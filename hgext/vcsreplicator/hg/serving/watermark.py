# SPDX-License-Identifier: GPL-2.0-or-later
"""The watermark, up to which a mirror may show a repository.

`.hg/replicated-watermark` has one line of five words: `1 SEQ LENGTH TIP PUSH` and a line feed. The first word is the version of
the format. SEQ is the event that was released, LENGTH the number of changesets after it (hidden ones included), TIP the node of the
last of them, PUSH the newest push id, `-` without one. Events apply and release in order, so what is not released is a suffix of
the changelog.

Beside it: `.hg/replicated-bookmarks`, the bookmarks of the release in Mercurial's own format, and `.hg/replicated-data`, the
compatible form for other tools: a canonical CBOR map with `heads` (20 bytes each, newest first) and `last_push_id`. The line of
`.hg/replicated-settings` is `1 SEQ PUBLISHING EXCHANGE`: the master's settings for clients, each `yes`, `no` or `-` (not known),
which count with a watermark of this SEQ alone. They have a file of their own because a web server of a former release, which still
runs during an upgrade, would show nothing by a watermark with more words.

Each file is replaced by a rename, and the time of the watermark moves on by at least 2 s at each, because Mercurial's web server
looks at whole seconds. They are not synced to disk: after a power cut a mirror finds them old, damaged or newer than the store, and
writes them again.
"""

import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from mercurial import repoview
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex
from mercurial.revlogutils import constants
from mercurial.utils import cborutil

from ...outbox.folder import open_regular, read_file
from ...words.errors import Diverged, counted
from ...words.event import NULL_NODE, UNKNOWN_SETTINGS, ClientSettings
from .. import observe

if TYPE_CHECKING:
    from pushlog.store.appendfile import Folder

WATERMARK = b"replicated-watermark"
BOOKMARKS = b"replicated-bookmarks"
SETTINGS = b"replicated-settings"
DATA = b"replicated-data"

# The contents of the files.
_FORMAT = re.compile(rb"1 (\d{1,18}) (\d{1,10}) ([0-9a-f]{40}) (\d{1,18}|-)\n")
_SETTINGS_FORMAT = re.compile(rb"1 (\d{1,18}) (yes|no|-) (yes|no|-)\n")
_WORDS = {True: b"yes", False: b"no", None: b"-"}
_MEANINGS = {word: meaning for meaning, word in _WORDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The limit of what may be shown: event `seq`."""

    seq: int
    length: int
    tip: str
    push_id: int | None

    def fits(self, repo: localrepository) -> bool:
        """Return whether the changelog begins as it did when the watermark was written."""
        return observe.begins_with(repo, self.length, self.tip)

    def fits_store(self, store: "Folder") -> bool:
        """Return the same without opening the repository, as far as the changelog's last shown entry says.

        A power cut may leave the file shorter, or with zeros at its end. A changelog in one file, as an older Mercurial made
        it, counts as whole. Raises PermissionError if this user may not read it.
        """
        if not self.length:
            return True
        entry = constants.INDEX_ENTRY_V1
        try:
            with open(store.join(b"00changelog.i"), "rb", opener=open_regular) as file:
                if (
                    constants.INDEX_HEADER.unpack(file.read(constants.INDEX_HEADER.size))[0]
                    & constants.FLAG_INLINE_DATA
                ):
                    return True
                file.seek((self.length - 1) * entry.size)
                start, size, *_, node = entry.unpack(file.read(entry.size))
            # The format's number stands in the first entry where others have the start of their data.
            end = (start >> 16 if self.length > 1 else 0) + size
            return bytes(node).hex() == self.tip and os.stat(store.join(b"00changelog.d")).st_size >= end
        except PermissionError:
            raise
        except (OSError, struct.error):
            return False


def read_watermark(folder: "Folder") -> Watermark | None:
    """Return the watermark in a `.hg`, or None if it is missing or damaged.

    With None, nothing is shown.
    """
    try:
        found = _FORMAT.fullmatch(read_file(folder.join(WATERMARK)))
    except OSError:
        return None
    if found is None:
        return None
    seq, length, tip, push = found.groups()
    push_id = None if push == b"-" else int(push)
    return Watermark(seq=int(seq), length=int(length), tip=tip.decode("ascii"), push_id=push_id)


def write_watermark(
    repo: localrepository,
    watermark: Watermark,
    *,
    settings: ClientSettings | None = None,
    moved: Mapping[str, str | None] = MappingProxyType({}),
    bookmarks: bytes | None = None,
) -> None:
    """Show the repository up to the watermark from the next request on.

    Its length, tip and push id are the mirror's own after that event. The bookmarks of the release are the present ones, except
    for `moved`, which names where they were at the event; or the lines `bookmarks`. The settings for clients are `settings`; None
    keeps the settings of the former watermark, if it is of the same event, and otherwise they are not known.

    Only the process that applies the repository's events may call this. A repeat is harmless, and so is a kill
    anywhere: the watermark itself is one rename, files written before it show nothing more, files written after it lag behind.
    Before a strip, write a lower watermark first. Raises Diverged if the watermark does not fit the changelog, OSError if the
    files cannot be written; then the former release stays.
    """
    repo, length, tip = repo.unfiltered(), watermark.length, watermark.tip
    if not watermark.fits(repo):
        raise Diverged(
            f"{os.fsdecode(repo.root)}: event {watermark.seq} left {counted(length, 'changeset')} up to {tip}, which are not here"
        )
    push = b"-" if watermark.push_id is None else b"%d" % watermark.push_id
    _write_bookmarks(repo, length, moved, bookmarks)
    if settings is not None:
        words = watermark.seq, _WORDS[settings.publishing], _WORDS[settings.exchange]
        _replace(repo, SETTINGS, b"1 %d %s %s\n" % words)
    _replace(repo, WATERMARK, b"1 %d %d %s %s\n" % (watermark.seq, length, tip.encode(), push))
    _replace(repo, DATA, b"".join(_encode_compatible(_list_heads(repo, length), watermark.push_id)))


def count_shown(repo: localrepository, watermark: Watermark | None) -> int:
    """Count the changesets that a watermark shows: none if it does not fit."""
    return 0 if watermark is None or not watermark.fits(repo) else watermark.length


def lower_watermark(repo: localrepository, length: int) -> None:
    """Show at most the first `length` changesets, before a strip removes the rest."""
    former = read_watermark(repo.vfs)
    if former is not None and count_shown(repo, former) > length:
        _move_to(repo, former, length)


def raise_watermark(repo: localrepository, length: int) -> None:
    """Show the first `length` changesets again, after a strip."""
    former = read_watermark(repo.vfs)
    if former is not None and count_shown(repo, former) == former.length < length:
        _move_to(repo, former, length)


def _move_to(repo: localrepository, former: Watermark, length: int) -> None:
    tip = hex(repo.unfiltered().changelog.node(length - 1)).decode() if length else NULL_NODE
    # Not the present bookmarks, which may be of events that are not released.
    shown = replace(former, length=length, tip=tip)
    write_watermark(repo, shown, settings=None, bookmarks=read_bookmarks(repo.vfs))


def read_settings(folder: "Folder", watermark: Watermark | None) -> ClientSettings:
    """Read the settings for clients that belong to a watermark.

    Those of another release, of a former version of this program, or in a damaged file are not known.
    """
    try:
        found = _SETTINGS_FORMAT.fullmatch(read_file(folder.join(SETTINGS)))
    except OSError:
        return UNKNOWN_SETTINGS
    if found is None or watermark is None or int(found[1]) != watermark.seq:
        return UNKNOWN_SETTINGS
    return ClientSettings(publishing=_MEANINGS[found[2]], exchange=_MEANINGS[found[3]])


def read_bookmarks(folder: "Folder") -> bytes:
    """Read the bookmarks of the release, a line each: node, blank, name in UTF-8.

    Raises OSError if something else than a file has their name.
    """
    return read_file(folder.join(BOOKMARKS), limit=-1)


def shows_present_bookmarks(repo: localrepository) -> bool:
    """Return whether the bookmarks of the release are the present ones."""
    return set(_read_present_bookmarks(repo).splitlines()) == set(read_bookmarks(repo.vfs).splitlines())


def _read_present_bookmarks(repo: localrepository) -> bytes:
    present = repo.svfs if b"bookmarksinstore" in repo.requirements else repo.vfs
    return read_file(present.join(b"bookmarks"), limit=-1)


def _write_bookmarks(repo: localrepository, length: int, moved: Mapping[str, str | None], given: bytes | None) -> None:
    """Write the release's bookmarks; those on unreleased changesets as shown before."""
    now, former = _read_present_bookmarks(repo) if given is None else given, read_bookmarks(repo.vfs)
    if moved:
        now = _moved_back(now, moved)
    if length < len(repo.changelog):
        now = b"".join(_released_bookmarks(repo, length, now, former))
    if now != former:
        _replace(repo, BOOKMARKS, now)


def _moved_back(now: bytes, moved: Mapping[str, str | None]) -> bytes:
    """Put bookmarks back to where they were at an earlier event; None removes one.

    Each checkpoint has only the bookmarks that its event moved, since all of them may be megabytes.
    """
    marks = {line[41:]: line[:40] for line in now.splitlines()}
    for name, node in moved.items():
        mark = name.encode("utf-8", "surrogateescape")
        if node is None:
            marks.pop(mark, None)
        else:
            marks[mark] = node.encode()
    return b"".join(b"%s %s\n" % (marks[mark], mark) for mark in sorted(marks))


def _released_bookmarks(repo: localrepository, length: int, now: bytes, former: bytes) -> Iterator[bytes]:
    before = {line[41:]: line for line in former.splitlines(keepends=True)}
    revision = repo.changelog.index.get_rev
    for line in now.splitlines(keepends=True):
        number = revision(bin(line[:40]))
        if number is not None and number < length:
            yield line
        elif line[41:] in before:
            yield before[line[41:]]


def _list_heads(repo: localrepository, length: int) -> list[bytes]:
    """List the released heads that clients see, newest first; null in an empty one."""
    changelog = repo.changelog
    hidden = repoview.filterrevs(repo, b"served") | frozenset(range(length, len(changelog)))
    return [changelog.node(number) for number in reversed(changelog.index.headrevs(hidden))]


def _encode_compatible(heads: list[bytes], push_id: int | None) -> Iterator[bytes]:
    """Encode the compatible form as `cborutil` does, but 50,000 heads in one step."""
    yield b"\xa2\x45heads"
    yield cborutil.encodelength(cborutil.MAJOR_TYPE_ARRAY, len(heads))
    yield b"\x54" + b"\x54".join(heads) if heads else b""
    yield b"\x4clast_push_id"
    yield from cborutil.streamencode(push_id)


def _replace(repo: localrepository, name: bytes, content: bytes) -> None:
    """Replace a file in one step, with a time at least 2 s later."""
    final = repo.vfs.join(name)
    temporary = final + b".new"
    with open(temporary, "wb") as file:
        file.write(content)
    mode = repo.store.createmode
    if mode is not None:
        os.chmod(temporary, mode)
    try:
        earliest = int(os.stat(final).st_mtime) + 2
    except FileNotFoundError:
        earliest = 0
    changed = os.stat(temporary)
    if changed.st_mtime < earliest:
        os.utime(temporary, (changed.st_atime, earliest))
    os.rename(temporary, final)
