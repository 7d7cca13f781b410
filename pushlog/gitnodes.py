# SPDX-License-Identifier: GPL-2.0-or-later
"""The Git commit that a changeset was converted from, without reading the changeset again and again.

``.hg/cache/pushlog-git`` has one record of 24 bytes per revision: CRC-32 of changeset and Git hash, and the Git hash, zeros for
none. A record proves itself, so a strip, a crash or two writers at once cost a second look, never a wrong answer; the file may
be deleted at any time, and is not needed.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import Any

FILE = b"pushlog-git"
_RECORD = 24
_BLOCK_RECORDS = 4096
_NONE = bytes(20)


class GitNodes:
    """Git commits of the changesets of ``repo``; `save` keeps what had to be looked up."""

    def __init__(self, repo: Any):
        self._repo = repo.unfiltered()
        self._path = self._repo.cachevfs.join(FILE)
        self._block, self._block_number = b"", -1
        self._found: dict[int, bytes] = {}

    def of(self, revision: int, node: bytes) -> str | None:
        """40 hex digits, or None for a changeset that does not come from Git; ``node`` is the revision's hash."""
        record = self._record(revision)
        if len(record) == _RECORD and zlib.crc32(record[4:], zlib.crc32(node)) == int.from_bytes(record[:4], "big"):
            return None if record[4:] == _NONE else record[4:].hex()
        return self._look(revision, node)

    def save(self) -> None:
        """Keep what was looked up; without permission to write, do nothing."""
        if not self._found:
            return
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                for first, records in _runs(self._found):
                    os.pwrite(file, records, first * _RECORD)
            finally:
                os.close(file)
        self._found = {}

    def _record(self, revision: int) -> bytes:
        number, place = divmod(revision, _BLOCK_RECORDS)
        if number != self._block_number:
            self._block, self._block_number = self._read(number), number
        return self._block[place * _RECORD : (place + 1) * _RECORD]

    def _read(self, number: int) -> bytes:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(file, _BLOCK_RECORDS * _RECORD, number * _BLOCK_RECORDS * _RECORD)
        finally:
            os.close(file)

    def _look(self, revision: int, node: bytes) -> str | None:
        commit = self._repo[revision].extra().get(b"git_commit")
        value = _NONE
        if commit is not None:
            try:
                value = bytes.fromhex(commit.decode("ascii"))
            except ValueError:
                value = b""
            if len(value) != 20 or value == _NONE:
                return commit.decode("utf-8", "replace")
        self._found[revision] = zlib.crc32(value, zlib.crc32(node)).to_bytes(4, "big") + value
        return None if value == _NONE else value.hex()


def _runs(records: dict[int, bytes]) -> list[tuple[int, bytes]]:
    """(first revision, records) for every run of neighbours."""
    runs: list[tuple[int, list[bytes]]] = []
    for revision in sorted(records):
        if runs and runs[-1][0] + len(runs[-1][1]) == revision:
            runs[-1][1].append(records[revision])
        else:
            runs.append((revision, [records[revision]]))
    return [(first, b"".join(run)) for first, run in runs]
