# SPDX-License-Identifier: GPL-2.0-or-later
"""Archives of any changeset: the names of files in them, which must be text in zip archives, and their time.

Mercurial fails in the middle of an archive at a name that is not UTF-8, and at a date for which the format has no room.
"""

import re
from collections.abc import Callable
from typing import Any

from mercurial.localrepo import localrepository

from pushlog import seams

# The last second that each format has room for.
_LATEST = 2**31 - 1


def install() -> None:
    """Wrap the making of an archive, and the adding of a file to a zip archive, or raise MissingSeam."""
    seams.wrap("mercurial.archival", "archive", _make)
    seams.wrap("mercurial.archival", "zipit.addfile", _add_file)


def _make(
    orig: Callable[..., int],
    repo: localrepository,
    dest: Any,
    node: bytes | None,
    kind: bytes,
    decode: bool = True,
    match: Any = None,
    prefix: bytes = b"",
    mtime: float | None = None,
    subrepos: bool | None = False,
) -> int:
    """Make an archive, with the nearest time to the changeset's date that each format has room for."""
    wanted = mtime or repo[node].date()[0]
    return orig(repo, dest, node, kind, decode, match, prefix, min(max(1, wanted), _LATEST), subrepos)


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
