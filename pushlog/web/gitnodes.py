# SPDX-License-Identifier: GPL-2.0-or-later
"""The Git commits that changesets were converted from.

Each changeset names its own. The texts of neighbours are read at once, in a tenth of the time: pages mostly ask for neighbours.
A pusher's text that is no hash counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mercurial import changelog
from mercurial.localrepo import localrepository
from mercurial.revlogutils import constants

from .. import versions

# Neighbours that are read at once.
_BLOCK = 64
# Blocks that are kept in memory.
_BLOCKS = 256
_COMMIT = re.compile(rb"[0-9a-fA-F]{40}\Z")
_NO_COMMIT = b"0" * 40
_ZSTD = b"\x28"
# Bytes of the largest text that is read together with others, and of a block on disk.
_LARGEST_TEXT, _LARGEST_BLOCK = 1 << 16, 1 << 22
# Positions in an entry of a revlog's index.
_FLAGS_AND_START, _LENGTH, _TEXT_LENGTH, _BASE, _MODE = 0, 1, 2, 3, 10


class GitNodes:
    """Git commits of the changesets of ``repo``, for one request."""

    def __init__(self, repo: localrepository):
        self._changelog = repo.unfiltered().changelog
        self._blocks: dict[int, dict[int, str | None]] = {}

    def of(self, revision: int) -> str | None:
        """Return 40 hex digits, None for anything else."""
        first = revision - revision % _BLOCK
        if first not in self._blocks:
            if len(self._blocks) == _BLOCKS:
                self._blocks.clear()
            read = texts(self._changelog, first, first + _BLOCK)
            self._blocks[first] = {number: commit_in(text) for number, text in read}
        block = self._blocks[first]
        if revision not in block:
            block[revision] = commit_in(self._changelog.revision(revision))
        return block[revision]


def texts(log: Any, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the texts of revisions `first` to before `end`, read at once.

    Each comes as (revision, text). Large and unusual ones are left out.
    """
    end, index = min(end, len(log)), log.index
    if log.end(end - 1) - log.start(first) > _LARGEST_BLOCK:
        return
    with log.reading():
        begin, stored, is_inline = versions.read_revisions(log, first, end - 1)
    data = memoryview(stored)
    frames: list[tuple[int, memoryview]] = []
    for revision in range(first, end):
        entry = index[revision]
        if entry[_FLAGS_AND_START] & 0xFFFF or entry[_BASE] != revision or entry[_MODE] != constants.COMP_MODE_INLINE:
            continue
        if entry[_TEXT_LENGTH] > _LARGEST_TEXT:
            continue
        start = (entry[_FLAGS_AND_START] >> 16) - begin
        if is_inline:  # entries of the index lie between the texts
            start += (revision + 1) * index.entry_size
        chunk = data[start : start + entry[_LENGTH]]
        if bytes(chunk[:1]) == _ZSTD:
            frames.append((revision, chunk))
        else:
            yield revision, bytes(log.decompress(chunk))
    if frames:
        from mercurial import zstd

        whole = zstd.ZstdDecompressor().multi_decompress_to_buffer([chunk for _revision, chunk in frames])
        for (revision, _chunk), text in zip(frames, whole, strict=True):
            yield revision, text.tobytes()


def commit_in(text: bytes) -> str | None:
    """Return `git_commit` among the extras, in the third line of a changeset's text."""
    if b"git_commit:" not in text:
        return None
    words = text.split(b"\n", 3)[2].split(b" ", 2)
    commit = changelog.decodeextra(words[2]).get(b"git_commit", b"") if len(words) == 3 else b""
    return commit.decode("ascii").lower() if _COMMIT.match(commit) and commit != _NO_COMMIT else None
