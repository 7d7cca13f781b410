# SPDX-License-Identifier: GPL-2.0-or-later
"""What the relay's user may not use, and the commands that give the right."""

import contextlib
import os
import shlex
import stat
from collections.abc import Sequence

from ...log.ownership import name_group, name_user
from ...status.wording import NAMED


def explain(folder: str, error: Exception) -> str:
    """Say why a job failed and, if another user's file is the reason, what to run."""
    denied = find_denied(folder, error)
    if denied is None:
        return str(error)
    reason, path = denied
    return f"{reason}: {path}; as root, run: {give_repositories([folder])}"


def give_repositories(folders: Sequence[str], owner: str | None = None) -> str:
    """Return the command that gives repositories to this user.

    Many are given by the folder that has them all. If a group may write in the folder above one, it gets this right in the
    repository too. `owner` names another user and the group that gets this right in any case.
    """
    quoted = shlex.join(folders if len(folders) <= NAMED else [os.path.commonpath(folders)])
    groups = filter(None, (_find_group(os.path.dirname(folder)) for folder in folders))
    return f"vcsreplicator rights {owner or ':'.join((name_user(os.geteuid()), *sorted(groups)[:1]))} {quoted}"


def explain_closed(folder: str) -> str | None:
    """Say that a group may write above a repository and not in it, and what to run.

    Returns None if it may, or no group may write above. Raises OSError.
    """
    group, store = _find_group(os.path.dirname(folder)), os.stat(os.path.join(folder, ".hg", "store"))
    if group is None or (name_group(store.st_gid) == group and store.st_mode & stat.S_IWGRP):
        return None
    return f"the group {group} may not write there, so it cannot push; as root, run: {give_repositories([folder])}"


def _find_group(folder: str) -> str | None:
    """Return the name of the group that may write in a folder; None if it may not."""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        return name_group(found.st_gid) if found.st_mode & stat.S_IWGRP else None
    return None


def find_denied(folder: str, error: Exception) -> tuple[str, str] | None:
    """Return why this user may not use a file in the folder, and the file."""
    if not isinstance(error, PermissionError) or not isinstance(error.filename, str | bytes):
        return None
    path = os.fsdecode(error.filename)
    return (error.strerror or str(error), path) if f"{path}{os.sep}".startswith(f"{folder}{os.sep}") else None
