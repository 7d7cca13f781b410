# SPDX-License-Identifier: GPL-2.0-or-later
"""Payloads: unpacked within a limit, and read as JSON. Pure."""

import json
import zlib
from typing import Any

import zstandard

from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.shape import parse

from .rejection import DecodingError, ErrorType

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

# zlib's word for a stream with the header and trailer of gzip.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS

# Members of a gzip stream, and frames of a zstd stream: each costs a copy of what follows it.
_MOST_PARTS = 100

# Bytes of a window that a zstd stream may ask for.
_ZSTD_WINDOW = 8 * 1024 * 1024

# Bytes of a zstd stream unpacked at a time: a block of 4 bytes becomes at most 128 KiB, so these at most 8 MiB.
_ZSTD_FED = 256


def unpack(payload: bytes, largest: int) -> bytes:
    """Return the content of a gzip or zstd stream, any other payload as it is.

    Raises DecodingError for a broken stream, and for content of more than `largest` bytes; it does not unpack the rest then.
    """
    content = payload
    try:
        if payload.startswith(_GZIP):
            content = _unpack_gzip(payload, largest)
        elif payload.startswith(_ZSTD):
            content = _unpack_zstd(payload, largest)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise DecodingError(ErrorType.COMPRESSION, "payload: broken gzip or zstd stream") from error
    if len(content) > largest:
        raise DecodingError(ErrorType.SIZE, f"payload: more than {largest} bytes")
    return content


def read_object(content: bytes, largest: int) -> dict[str, Any]:
    """Read a JSON object; raises DecodingError for any other content."""
    try:
        found = parse(content, "payload", limit=largest)
    except MalformedEvent as error:
        raise DecodingError(ErrorType.JSON, "payload: not JSON") from error
    if not isinstance(found, dict):
        raise DecodingError(ErrorType.JSON, "payload: expected a JSON object")
    return found


def write_object(content: dict[str, Any]) -> bytes:
    """Return an object as a line of ASCII JSON; DecodingError if nested too deep."""
    try:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError as error:
        raise DecodingError(ErrorType.JSON, "payload: nested too deep") from error


def _unpack_gzip(payload: bytes, largest: int) -> bytes:
    """Unpack all members of a gzip stream, at most one byte more than `largest`."""
    content, parts = b"", 0
    while payload and len(content) <= largest:
        parts = _count_part(parts)
        member = zlib.decompressobj(_GZIP_WINDOW)
        content += member.decompress(payload, largest + 1 - len(content))
        if not member.eof and len(content) <= largest:
            raise EOFError("cut short")
        payload = member.unused_data.lstrip(b"\0")  # zeros that fill a block, as gzip itself allows
    return content


def _unpack_zstd(payload: bytes, largest: int) -> bytes:
    """Unpack all frames of a zstd stream, at most one byte more than `largest`."""
    content, parts = bytearray(), 0
    while payload and len(content) <= largest:
        parts = _count_part(parts)
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj(read_across_frames=False)
        view, fed = memoryview(payload), 0
        while fed < len(view) and not frame.eof and len(content) <= largest:
            content += frame.decompress(view[fed : fed + _ZSTD_FED])
            fed += _ZSTD_FED
        if not frame.eof and len(content) <= largest:
            raise EOFError("cut short")
        payload = frame.unused_data + payload[fed:] if frame.eof else b""
    return bytes(content[: largest + 1])


def _count_part(parts: int) -> int:
    if parts == _MOST_PARTS:
        raise DecodingError(ErrorType.COMPRESSION, f"payload: more than {_MOST_PARTS} gzip members or zstd frames")
    return parts + 1
