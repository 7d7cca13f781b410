# SPDX-License-Identifier: GPL-2.0-or-later
"""What the relay's user may not use, and the commands that give the right."""

import contextlib
import os
import shlex
import stat
from collections.abc import Sequence

from ...log.ownership import name_own_user
from ...status.wording import NAMED


def explain(folder: str, error: Exception) -> str:
    """Say why a job failed and, if another user's file is the reason, what to run."""
    denied = find_denied(folder, error)
    if denied is None:
        return str(error)
    reason, path = denied
    return f"{reason}: {path}; as root, run: {give_repositories([folder])}"


def give_repositories(folders: Sequence[str]) -> str:
    """Return the command that gives repositories to this user.

    Many are given by the folder that has them all. If a group may write in the folder above one, it gets this right in the
    repository too, but not on its hgrc: that has hooks.
    """
    if len(folders) > NAMED:
        top = shlex.quote(os.path.commonpath(folders))
        quoted, take_back = top, f"find {top} -path '*/.hg/hgrc' -exec chmod g-w {{}} +"
    else:
        quoted = " ".join(map(shlex.quote, folders))
        take_back = f"chmod -f g-w {' '.join(f'{shlex.quote(folder)}/.hg/hgrc' for folder in folders)}"
    rights = (
        f" && chmod -R g+rwX {quoted} && {take_back}"
        if any(map(_is_shared, {os.path.dirname(folder) for folder in folders}))
        else ""
    )
    return f"chown -R {name_own_user()} {quoted}{rights}"


def _is_shared(folder: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(os.stat(folder).st_mode & stat.S_IWGRP)
    return False


def find_denied(folder: str, error: Exception) -> tuple[str, str] | None:
    """Return why this user may not use a file in the folder, and the file."""
    if not isinstance(error, PermissionError) or not isinstance(error.filename, str | bytes):
        return None
    path = os.fsdecode(error.filename)
    return (error.strerror or str(error), path) if f"{path}{os.sep}".startswith(f"{folder}{os.sep}") else None
