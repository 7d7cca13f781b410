# SPDX-License-Identifier: GPL-2.0-or-later
"""The functions by which Mercurial's bytes become text, and back without loss.

File names become text by `os.fsdecode`.
"""

from mercurial import encoding


def text(local: bytes) -> str:
    """Decode the local encoding (names, users); odd bytes become surrogate escapes."""
    try:
        utf8 = encoding.fromlocal(local)
    except Exception:
        # Mercurial aborts on bytes that the local encoding does not have.
        utf8 = local
    return bytes(utf8).decode("utf-8", "surrogateescape")


def local(value: str) -> bytes:
    """Encode text in Mercurial's local encoding, which keeps the rest beside it."""
    return encoding.tolocal(value.encode("utf-8", "surrogateescape"))


def utf8(value: bytes) -> str:
    """Decode UTF-8, odd bytes as surrogate escapes."""
    return value.decode("utf-8", "surrogateescape")
