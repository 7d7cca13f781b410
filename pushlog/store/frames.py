# SPDX-License-Identifier: GPL-2.0-or-later
"""The frame around each record of an append-only file, as bytes.

`appendfile` reads and writes the files.

========  =====  ==================================================================
bytes     field  meaning
========  =====  ==================================================================
4         magic  the kind of file, given by its user
4         size   number of payload bytes, big endian
4         crc    CRC-32 over ``size`` and the payload, big endian
size      -      payload
4         size   again, so that the last record is found from the end of the file
========  =====  ==================================================================
"""

from __future__ import annotations

import os
import struct
import zlib

_HEAD = struct.Struct(">4sII")
_SIZE = struct.Struct(">I")
HEAD_BYTES = _HEAD.size
SIZE_BYTES = _SIZE.size
# Bytes of a record besides its payload.
FRAME_BYTES = HEAD_BYTES + SIZE_BYTES


class TornRecord(Exception):
    """A damaged frame in the committed part of a file."""

    def __init__(self, name: bytes, offset: int, reason: str):
        super().__init__(f"{os.fsdecode(name)}: damaged record at byte {offset}: {reason}")


class OlderCopy(Exception):
    """A file that lacks records which are known from elsewhere."""


class UnknownVersion(TornRecord):
    """A frame of another version: its magic differs in the last byte."""


class FramedPayload:
    """A payload, and where its frame begins and ends, which is the next one's start."""

    __slots__ = ("end", "payload", "start")

    def __init__(self, *, start: int, end: int, payload: bytes) -> None:
        self.start, self.end, self.payload = start, end, payload


def encode(magic: bytes, payload: bytes) -> bytes:
    size = _SIZE.pack(len(payload))
    return b"".join((magic, size, _SIZE.pack(zlib.crc32(payload, zlib.crc32(size))), payload, size))


def decode(name: bytes, magic: bytes, block: bytes, position: int, start: int) -> FramedPayload:
    """Return the record whose frame begins at ``position`` of ``block``.

    The frame begins at byte ``start`` of the file ``name``. Raises `TornRecord` unless a whole and undamaged frame stands there.
    """
    if len(block) - position < FRAME_BYTES:
        raise TornRecord(name, start, "shorter than a frame")
    found, size, crc = _HEAD.unpack_from(block, position)
    if found != magic:
        kind = UnknownVersion if found[:-1] == magic[:-1] else TornRecord
        raise kind(name, start, f"expected {magic!r}, got {found!r}")
    begin = position + HEAD_BYTES
    end = begin + size
    if end + SIZE_BYTES > len(block):
        raise TornRecord(name, start, f"{size} bytes announced, fewer found")
    payload = block[begin:end]
    size_at_end = block[end : end + SIZE_BYTES]
    if size_at_end != _SIZE.pack(size) or crc != zlib.crc32(payload, zlib.crc32(size_at_end)):
        raise TornRecord(name, start, "checksum differs")
    return FramedPayload(start=start, end=start + FRAME_BYTES + size, payload=payload)


def size_in_head(block: bytes, position: int) -> int:
    """Return the number of payload bytes that the head at ``position`` announces."""
    return int(_HEAD.unpack_from(block, position)[1])


def size_at_end(end: bytes) -> int:
    """Return the number of payload bytes that the last bytes of a frame announce."""
    return int(_SIZE.unpack(end)[0])
