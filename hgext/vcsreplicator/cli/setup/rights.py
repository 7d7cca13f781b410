# SPDX-License-Identifier: GPL-2.0-or-later
"""The rights on repositories that root gives, in folders to which others may write.

They may put a link in place of a file or folder at any time: each is opened without following one, and changed as it was opened.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import PurePath

from ...outbox.folder import open_below
from ...words.errors import Refused, visible

_IS_NO_FILE = (errno.ELOOP, errno.ENOENT, errno.ENXIO)


def give_repository(root: str, folder: str, user: int, group: int) -> None:
    """Give a repository below `root` to a user and a group, with the right to write all but its hgrc.

    An hgrc that other accounts may have written stays theirs: Mercurial runs the hooks of one whose owner it trusts. Raises
    OSError, also where a link is in place of a folder above the repository, and Refused if its folders are too deep.
    """
    with open_below(root, PurePath(folder).relative_to(root).parts) as place:
        try:
            for path, _, names, inside in os.fwalk(".", dir_fd=place):  # without links
                os.fchown(inside, user, group)
                os.fchmod(inside, stat.S_IMODE(os.fstat(inside).st_mode) | 0o2070)
                for name in names:
                    _give_file(inside, name, user, group, is_hgrc=name == "hgrc" and path.endswith("/.hg"))
        except RecursionError:
            raise Refused(
                f"setup: {visible(folder)}: its folders are too deep; remove them, then repeat setup"
            ) from None


def _give_file(folder: int, name: str, user: int, group: int, *, is_hgrc: bool) -> None:
    for file, found in _open_file(folder, name):
        mode = found.st_mode & 0o777
        if not is_hgrc or (found.st_uid == 0 and not mode & 0o022):
            os.fchown(file, user, group)
        os.fchmod(file, mode & ~0o022 if is_hgrc else mode | (0o070 if mode & 0o111 else 0o060))


def close_hgrc(root: str, folder: str) -> None:
    """Let only its owner write the hgrc of a repository below `root`; raises OSError as above."""
    with open_below(root, PurePath(folder, ".hg").relative_to(root).parts) as place:
        for file, found in _open_file(place, "hgrc"):
            os.fchmod(file, found.st_mode & 0o777 & ~0o022)


def _open_file(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a file and what it was; nothing for a link, a pipe, or what is gone."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in _IS_NO_FILE:
            raise
        return
    try:
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode):
            yield file, found
    finally:
        os.close(file)
