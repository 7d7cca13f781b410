# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds what is wrong with repositories that a master already has.

It goes by the rules of the services that would find it later. The relay's say which formats are not replicated and how rights are
given; the master's say which names clients could not use.
"""

import contextlib
import enum
import grp
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.filesize import decimal

from ...outbox.folder import open_regular
from ...relay.reasons.rights import give_repositories
from ...relay.scan import find_repositories, may_hold_repositories
from ...status.wording import name_paths
from ...words.errors import MalformedEvent, Refused, counted, visible
from ...words.path import check_path, wire_path
from ...words.unexpected import describe
from .answers import HG

if TYPE_CHECKING:
    from ...hg.relaying import MasterRepositories

# Bytes of a repository's hgrc that are read.
_CODE_LIMIT = 1 << 20


class ProblemKind(enum.Enum):
    """A kind of problem, and what to do about it."""

    FORMAT = "convert each, or move it out of the root"
    NAME = "rename each, or move it out of the root"
    TWINS = "rename all but one"
    UNSERVED = "rename each: a mirror could not copy it, and would wait for it"
    RIGHTS = "give"
    HGRC = "read it, and as root replace it with a file of root's, mode 0644, that has only what you know"
    CODE = "read it, keep only what you know, and let root own it"
    READING = "let root read it, or move it out of the root"
    ROOM = "choose a folder on another disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Repositories with one problem."""

    kind: ProblemKind
    reason: str
    folders: tuple[str, ...]

    @property
    def is_mendable(self) -> bool:
        """Whether the remedy is a command."""
        return self.kind is ProblemKind.RIGHTS

    @property
    def remedy(self) -> str:
        if self.is_mendable:
            return give_repositories(self.folders, f"{HG}:{HG}")
        return str(self.kind.value)

    def __str__(self) -> str:
        return visible(
            f"{counted(len(self.folders), 'repository')} ({name_paths(self.folders)}): {self.reason}; {self.remedy}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The repositories of a root, with their bytes, and their problems."""

    folders: tuple[str, ...]
    size: int
    problems: tuple[Problem, ...]

    @property
    def replicable(self) -> int:
        """How many repositories the relay will announce."""
        kept = (each.folders for each in self.problems if each.kind in (ProblemKind.FORMAT, ProblemKind.NAME))
        return len(set(self.folders).difference(*kept))


def examine(root: str, copies: str | None) -> Examination:
    """Look at all repositories of a master's root, and change nothing.

    `copies` is the folder of a mirror on this machine.
    """
    # Most verbs do not need Mercurial.
    from ...hg.relaying import MasterRepositories

    unreadable: list[OSError] = []
    folders = tuple(sorted(find_repositories(root, unreadable.append)))
    opener, groups = MasterRepositories({root: ""}, "hg://setup"), dict[tuple[ProblemKind, str], list[str]]()
    for folder in folders:
        try:
            found = [*_examine_content(folder, opener), *_examine_use(folder, root)]
        except Exception as failure:  # accounts may write there
            found = [(ProblemKind.FORMAT, f"cannot be opened: {describe(failure)}".replace(folder, "FOLDER"))]
        for problem in found:
            groups.setdefault(problem, []).append(folder)
    for error in filter(may_hold_repositories, unreadable if os.path.isdir(root) else ()):
        groups.setdefault((ProblemKind.READING, f"cannot be read: {error.strerror}"), []).append(str(error.filename))
    size = sum(map(_measure, folders))
    if copies is not None and size > (room := _find_room(copies)):
        groups[ProblemKind.ROOM, f"{decimal(size)}, and the disk of {copies} has room for {decimal(room)}"] = [root]
    problems = [Problem(kind=kind, reason=reason, folders=tuple(names)) for (kind, reason), names in groups.items()]
    return Examination(folders=folders, size=size, problems=(*problems, *_list_names(root)))


def _examine_content(folder: str, opener: "MasterRepositories") -> Iterator[tuple[ProblemKind, str]]:
    """Yield why a repository cannot be replicated, and what its hgrc runs."""
    try:
        opener.refuse_format(folder)
    except (Refused, OSError) as error:
        yield ProblemKind.FORMAT, str(error).replace(folder, "FOLDER")
    hgrc = f"{folder}/.hg/hgrc"
    if os.path.islink(hgrc):
        yield ProblemKind.CODE, "its hgrc is a link, to a file that others may own"
        return
    with contextlib.suppress(OSError), open(hgrc, "rb", opener=open_regular) as file:
        found = os.fstat(file.fileno())
        if found.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield ProblemKind.HGRC, "its hgrc does not count, because users other than root may have written it"
        if opener.runs_code(file.read(_CODE_LIMIT)):
            yield ProblemKind.CODE, "its hgrc has hooks or extensions, which run in each push if root owns it"


def _examine_use(folder: str, root: str) -> Iterator[tuple[ProblemKind, str]]:
    """Yield why clients cannot use a repository."""
    try:
        if path := wire_path(folder, {root: ""}):
            check_path(path)
        else:
            yield ProblemKind.NAME, "the root itself is a repository, which has no name below it"
    except MalformedEvent as error:
        yield ProblemKind.NAME, f"mirrors cannot have the name: {str(error).rpartition(': ')[2]}"
    if not _is_given(folder):
        yield ProblemKind.RIGHTS, f"the group {HG} may not write all of it, as the relay and pushes must"


def _list_names(root: str) -> Iterator[Problem]:
    """Yield the repositories whose names the master would refuse at a creation."""
    from ...hg.master import twins

    roots = {root: ""}
    if unserved := twins.find_unserved(roots):
        reason = "web servers have their own files at static/"
        yield Problem(kind=ProblemKind.UNSERVED, reason=reason, folders=tuple(unserved))
    for folders in twins.find_all(roots):
        reason = "their names differ only in case or Unicode"
        yield Problem(kind=ProblemKind.TWINS, reason=reason, folders=tuple(folders))


def _is_given(folder: str) -> bool:
    """Return whether the group of HG may write all that a push writes."""
    try:
        group = grp.getgrnam(HG).gr_gid
    except KeyError:
        return False
    places = [folder, f"{folder}/.hg", f"{folder}/.hg/store"]
    shared = stat.S_ISGID | stat.S_IWGRP
    if any(found.st_gid != group or found.st_mode & shared != shared for found in map(os.lstat, places)):
        return False
    with os.scandir(places[-1]) as entries:
        inside = [entry.stat(follow_symlinks=False) for entry in entries]
    return all(found.st_gid == group and found.st_mode & stat.S_IWGRP for found in inside)


def _measure(folder: str) -> int:
    """Count the bytes of the files in a repository's store."""
    total, stack = 0, [os.path.join(folder, ".hg", "store")]
    while stack:  # `os.walk` recurses, and fails in folders within a thousand folders
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _find_room(folder: str) -> int:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free
