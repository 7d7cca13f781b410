# SPDX-License-Identifier: GPL-2.0-or-later
"""The Git commits that changesets were converted from.

A cache saves reading a changeset repeatedly. ``.hg/cache/pushlog-git`` has one record of 24 bytes per revision: CRC-32 of changeset
and Git hash, and the Git hash, zeros for none. A record proves itself, so a strip, a crash or two writers at once cost a second
reading, never a wrong answer. The file may be deleted at any time. A pusher's text that is no hash counts as none.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

from mercurial import changelog
from mercurial.localrepo import localrepository
from mercurial.revlogutils import constants

from .. import versions
from ..store.appendfile import open_regular

FILE = b"pushlog-git"
# Bytes of a record.
_RECORD = 24
# Records of a block.
_BLOCK_RECORDS = 4096
# Blocks that are kept in memory.
_BLOCKS = 64
# Records that were looked up and are not in the file yet.
_MANY = 16 * _BLOCK_RECORDS
_NONE = bytes(20)
_COMMIT = re.compile(rb"[0-9a-fA-F]{40}\Z")
_ZSTD = b"\x28"
# Bytes of a text that is read together with others.
_BULK = 1 << 16
# Positions in an entry of a revlog's index.
_FLAGS_AND_START, _LENGTH, _TEXT_LENGTH, _BASE, _MODE = 0, 1, 2, 3, 10


class GitNodes:
    """Git commits of the changesets of ``repo``.

    `save` keeps the lookups. While ``are_many``, revisions that are not in the file are looked up with their neighbours: a tenth
    of the cost if most are asked for.
    """

    are_many = False

    def __init__(self, repo: localrepository):
        self._repo = repo.unfiltered()
        self._path = self._repo.cachevfs.join(FILE)
        self._blocks: dict[int, bytes] = {}
        self._found: dict[int, bytes] = {}

    def of(self, revision: int, node: bytes) -> str | None:
        """Return 40 hex digits, None for anything else; ``node`` is its hash here."""
        record = self._read_record(revision)
        if len(record) == _RECORD and zlib.crc32(record[4:], zlib.crc32(node)) == int.from_bytes(record[:4], "big"):
            return None if record[4:] == _NONE else record[4:].hex()
        return self._look_up(revision, node)

    def save_many(self) -> None:
        """Save once much was looked up, before the end of a long answer."""
        if len(self._found) >= _MANY:
            self.save()
            self._blocks.clear()

    def save(self) -> None:
        """Keep the lookups; without permission to write, do nothing."""
        if not self._found:
            return
        # Without O_TRUNC, and open() does not truncate a descriptor: all other records stay.
        flags = os.O_WRONLY | os.O_CREAT
        with contextlib.suppress(OSError), open(open_regular(self._path, flags), "wb", buffering=0) as file:
            for first, records in _group_runs(self._found):
                os.pwrite(file.fileno(), records, first * _RECORD)
        self._found = {}

    def _read_record(self, revision: int) -> bytes:
        if revision in self._found:
            return self._found[revision]
        number, place = divmod(revision, _BLOCK_RECORDS)
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) == _BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = self._read_block(number)
        return block[place * _RECORD : (place + 1) * _RECORD]

    def _read_block(self, number: int) -> bytes:
        with contextlib.suppress(OSError), open(self._path, "rb", buffering=0, opener=open_regular) as file:
            return os.pread(file.fileno(), _BLOCK_RECORDS * _RECORD, number * _BLOCK_RECORDS * _RECORD)
        return b""

    def _look_up(self, revision: int, node: bytes) -> str | None:
        if self.are_many and revision not in self._found:
            first = revision - revision % _BLOCK_RECORDS
            to_node = self._repo.changelog.node
            for number, text in texts(self._repo.changelog, first, first + _BLOCK_RECORDS):
                self._keep_record(number, to_node(number), commit_in(text))
        if not (self.are_many and revision in self._found):
            self._keep_record(revision, node, self._repo[revision].extra().get(b"git_commit"))
        value = self._found[revision][4:]
        return None if value == _NONE else value.hex()

    def _keep_record(self, revision: int, node: bytes, commit: bytes | None) -> None:
        """Keep a lookup; a pusher's text that is no hash counts as none."""
        value = bytes.fromhex(commit.decode("ascii")) if commit is not None and _COMMIT.match(commit) else _NONE
        self._found[revision] = zlib.crc32(value, zlib.crc32(node)).to_bytes(4, "big") + value


def texts(log: Any, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the texts of revisions `first` to before `end`, read at once.

    Each comes as (revision, text). Unusual ones are left out.
    """
    end, index = min(end, len(log)), log.index
    with log.reading():
        begin, stored, is_inline = versions.read_revisions(log, first, end - 1)
    data = memoryview(stored)
    frames: list[tuple[int, memoryview]] = []
    for revision in range(first, end):
        entry = index[revision]
        if entry[_FLAGS_AND_START] & 0xFFFF or entry[_BASE] != revision or entry[_MODE] != constants.COMP_MODE_INLINE:
            continue
        start = (entry[_FLAGS_AND_START] >> 16) - begin
        if is_inline:  # entries of the index lie between the texts
            start += (revision + 1) * index.entry_size
        chunk = data[start : start + entry[_LENGTH]]
        if entry[_TEXT_LENGTH] <= _BULK and bytes(chunk[:1]) == _ZSTD:
            frames.append((revision, chunk))
        else:
            yield revision, bytes(log.decompress(chunk))
    if frames:
        from mercurial import zstd

        whole = zstd.ZstdDecompressor().multi_decompress_to_buffer([chunk for _revision, chunk in frames])
        for (revision, _chunk), text in zip(frames, whole, strict=True):
            yield revision, text.tobytes()


def commit_in(text: bytes) -> bytes | None:
    """Return `git_commit` among the extras, in the third line of a changeset's text."""
    if b"git_commit:" not in text:
        return None
    words = text.split(b"\n", 3)[2].split(b" ", 2)
    return changelog.decodeextra(words[2]).get(b"git_commit") if len(words) == 3 else None


def _group_runs(records: dict[int, bytes]) -> list[tuple[int, bytes]]:
    """Return (first revision, records) for every run of neighbours."""
    runs: list[tuple[int, list[bytes]]] = []
    for revision in sorted(records):
        if runs and runs[-1][0] + len(runs[-1][1]) == revision:
            runs[-1][1].append(records[revision])
        else:
            runs.append((revision, [records[revision]]))
    return [(first, b"".join(run)) for first, run in runs]
