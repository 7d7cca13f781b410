# SPDX-License-Identifier: GPL-2.0-or-later
"""The pair of functions by which Mercurial's bytes become text, and back without loss."""

import os
from typing import Any

from mercurial import encoding


def text(local: bytes) -> str:
    """What Mercurial holds in the local encoding (names, users, descriptions), as text; odd bytes become surrogate escapes."""
    try:
        utf8 = encoding.fromlocal(local)
    except Exception:  # Mercurial aborts on bytes that the local encoding does not have
        utf8 = local
    return bytes(utf8).decode("utf-8", "surrogateescape")


def local(value: str) -> bytes:
    """The same in Mercurial's local encoding; what that cannot show is kept beside it by Mercurial."""
    return encoding.tolocal(value.encode("utf-8", "surrogateescape"))  # type: ignore[no-any-return]


def path(name: bytes) -> str:
    """A file name as text, as the operating system's functions take it."""
    return os.fsdecode(name)


def utf8(value: Any) -> Any:
    """UTF-8 bytes as text, odd bytes as surrogate escapes; None stays None."""
    return None if value is None else value.decode("utf-8", "surrogateescape")
