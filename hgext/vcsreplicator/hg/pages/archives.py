# SPDX-License-Identifier: GPL-2.0-or-later
"""Names of files in zip archives, which must be text.

Mercurial fails in the middle of an archive at a name that is not UTF-8.
"""

import re
from collections.abc import Callable
from typing import Any

from pushlog import seams


def install() -> None:
    """Wrap the adding of a file to a zip archive, or raise MissingSeam."""
    seams.wrap("mercurial.archival", "zipit.addfile", _add_file)


def _add_file(orig: Callable[..., None], archive: Any, name: bytes, mode: int, islink: bool, data: bytes) -> None:
    """Add a file under a name that is UTF-8.

    Else bytes beyond ASCII become such as `%FF`, and `~` follows if another file has that name. Files come sorted by their bytes,
    so a file that has this name in the repository is in the archive already.
    """
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        name = re.sub(rb"[\x80-\xff]", lambda byte: b"%%%02X" % ord(byte[0]), name)
        while name.decode("ascii") in archive.z.NameToInfo:
            name += b"~"
    orig(archive, name, mode, islink, data)
