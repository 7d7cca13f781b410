# SPDX-License-Identifier: GPL-2.0-or-later
"""The owner of files and folders that an administrator may be the first to make.

Root may run any verb, and files that it makes must stay usable for the services, which run as other users: they belong to the owner
of their folder. That owner could replace a new file by a link, so no link is followed.
"""

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from ..words.errors import BadConfig

# What ends a journal of SQLite that names another file; ours never do.
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def give_to_owner(made: int, folder: str | Path) -> None:
    """If this process is root's, give an open file to the owner of `folder`.

    The file was just made there. Files of other users' processes stay their own. Raises OSError.
    """
    if os.geteuid() == 0:
        owner = os.stat(folder)
        os.fchown(made, owner.st_uid, owner.st_gid)


def close_to_others(*paths: str | Path) -> None:
    """Take files, such as those of an earlier release, from other users.

    Only their owner can; others leave them as they are. What a link names stays as it is: the user of a service may put one there,
    and the process may be root's. The files are not opened for reading, because closing one gives up SQLite's locks on it.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                mode = os.fstat(place).st_mode
                if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
                    os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(mode) & ~stat.S_IRWXO)
            finally:
                os.close(place)


def make_file(path: str | Path, mode: int = 0o640) -> None:
    """Make an empty file with this mode less the umask, if it is missing.

    It is for the owner of the folder. Raises OSError.
    """
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    try:
        give_to_owner(made, Path(path).parent)
    finally:
        os.close(made)


def make_folder(path: str | Path, mode: int | None = None, *, is_private: bool = True) -> None:
    """Make a folder with this mode, for the owner of its parent folder.

    Without `mode` the umask decides, and about other users `is_private`: they may do nothing. Raises OSError, FileExistsError if
    it is there.
    """
    os.mkdir(path, 0o770 if is_private else 0o777)
    with _open_folder(path) as made:
        give_to_owner(made, os.path.dirname(path))
        if mode is not None:
            os.fchmod(made, mode)


def make_folders(path: str | Path) -> None:
    """Make a folder, and those above it that are missing.

    Each is for the owner of its parent folder, and the last is closed to other users. Raises OSError.
    """
    missing = [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            make_folder(folder, is_private=folder == Path(path))


def set_mode(path: str | Path, mode: int) -> None:
    """Set the mode of a folder; raises OSError, also for a link to one."""
    with _open_folder(path) as folder:
        os.fchmod(folder, mode)


@contextlib.contextmanager
def _open_folder(path: str | Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def refuse_foreign_journal(database: str | Path) -> None:
    """Raise BadConfig if the journal beside a database names another file.

    SQLite would remove that file with the rights of this process, and the owner of the folder may be another user. Raises OSError.
    """
    # SQLite follows a link to the database, and looks for the journal there.
    journal = f"{os.path.realpath(database)}-journal"
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(journal, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            end = os.fstat(opened).st_size
            if os.pread(opened, len(_JOURNAL_MAGIC), max(0, end - len(_JOURNAL_MAGIC))) == _JOURNAL_MAGIC:
                raise BadConfig(f"{journal}: names another file, which SQLite would remove; remove the journal")
        finally:
            os.close(opened)


def write_making(path: str) -> str:
    """Return what to type to make an empty file that the services can use.

    Root may type it too. The file is for this process' user; if that is root, for the owner of the folder.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with contextlib.suppress(OSError):
            folder = os.stat(os.path.dirname(path))
            user, group = folder.st_uid, folder.st_gid
    return f"install -o {name_user(user)} -g {name_group(group)} -m 640 /dev/null {shlex.quote(path)}"


def name_own_user() -> str:
    """Return this process's user and group as `chown` takes them."""
    return f"{name_user(os.geteuid())}:{name_group(os.getegid())}"


def name_user(user: int) -> str:
    """Return the name of a user, or its number if it has no name here."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def name_group(group: int) -> str:
    """Return the name of a group, or its number if it has no name here."""
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def name_owner(path: str) -> str:
    """Return what to type if another user owns the file, as the end of a message.

    Of a file that cannot be seen, the folder that leads to it counts. Empty if the owner is root or this user.
    """
    for place in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):
            owner = os.stat(place).st_uid
            break
    else:
        return ""
    if owner in (0, os.geteuid()):
        return ""
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"'#{owner}'"
    return f"; run it as its owner: sudo -u {name} ..."
