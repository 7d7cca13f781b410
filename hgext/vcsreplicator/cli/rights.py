# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator rights`: gives repositories to a user, in folders to which others may write.

They may put a link in place of a file or folder at any time: each is opened without following one, and changed as it was opened.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

import click

from ..outbox.folder import open_below
from ..words.errors import Refused, visible

# Has 1 where an account can link no file that it may not write; systemd writes it.
_PROTECTED = Path("/proc/sys/fs/protected_hardlinks")
# What Mercurial reads settings from, in `.hg`.
_SETTINGS = ("hgrc", "hgrc-not-shared")
_IS_NO_FILE = (errno.ELOOP, errno.ENOENT, errno.ENXIO)


@click.command()
@click.argument("owner", metavar="USER[:GROUP]")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path())
def command(owner: str, folders: tuple[str, ...]) -> None:
    """Give repositories, or folders of repositories, to USER.

    Run it as root. With GROUP, this group gets the right to write. A repository's hgrc stays as it is: root must own it.
    No link is followed, so other users may write there meanwhile.
    """
    name, _, shared = owner.partition(":")
    user, group = _find_user(name), _find_group(shared) if shared else -1
    for folder in folders:
        try:
            give_repository("/", os.path.abspath(folder), user, group, is_shared=bool(shared))
        except OSError as error:
            raise Refused(f"rights: {folder}: {error.strerror}; expected a folder without a link above it") from error
    click.echo(f"{len(folders)} folder{'s' * (len(folders) > 1)} given to {owner}")


def _find_user(name: str) -> int:
    with contextlib.suppress(KeyError):
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    raise Refused(f"rights: {name}: expected a user of this machine")


def _find_group(name: str) -> int:
    with contextlib.suppress(KeyError):
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    raise Refused(f"rights: {name}: expected a group of this machine")


def give_repository(root: str, folder: str, user: int, group: int, *, is_shared: bool = True) -> None:
    """Give a repository below `root` to a user and a group, which may write all but its hgrc if `is_shared`.

    The group -1 leaves the present one. The hgrc stays as it is: it counts only if root owns it, and no account could write it
    before. Raises OSError, also where a link is in place of a folder above the repository, and Refused if its folders are too
    deep, or accounts may make hard links to files of root.
    """
    if _PROTECTED.exists() and _PROTECTED.read_text("ascii").strip() == "0":
        raise Refused("accounts may make hard links to files of others; run first: sysctl -w fs.protected_hardlinks=1")
    with open_below(root, PurePath(folder).relative_to(root).parts) as place:
        try:
            for path, _, names, inside in os.fwalk(".", dir_fd=place):  # without links
                os.fchown(inside, user, group)
                if is_shared:
                    os.fchmod(inside, stat.S_IMODE(os.fstat(inside).st_mode) | 0o2070)
                is_control = path.endswith("/.hg") or (path == "." and folder.endswith("/.hg"))
                for name in names:
                    if not (is_control and name in _SETTINGS):
                        _give_file(inside, name, user, group, is_shared=is_shared)
        except RecursionError:
            raise Refused(f"{visible(folder)}: its folders are too deep; remove them, then repeat this") from None


def _give_file(folder: int, name: str, user: int, group: int, *, is_shared: bool) -> None:
    for file, found in _open_file(folder, name):
        mode = found.st_mode & 0o777
        os.fchown(file, user, group)
        if is_shared:
            os.fchmod(file, mode | (0o070 if mode & 0o111 else 0o060))


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
