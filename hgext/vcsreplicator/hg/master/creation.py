# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository comes into being: `hg init` and clones of every kind, locally or from afar.

Mercurial makes a repository's folder first and opens it afterwards; the opening is where its first event is written. Killed in
between, the repository has no event yet: the relay's scan, or the first transaction, announces it then.

Generations count the repositories that have lived at one path, so that a new one is not taken for the old. The count survives the
repository in `ROOT/.vcsreplicator/generations/`, one small file a path; written before the event, so a kill leaves at most a gap.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from typing import Any

from .. import settings

NOTES = ".vcsreplicator"
DELETED = "deleted"  # below it
TRANSACTION = b"vcsreplicator-created"

_created: set[bytes] = set()


def note_creation(original: Callable[..., Any], ui: Any, path: bytes, *arguments: Any, **keywords: Any) -> Any:
    """Wraps `localrepo.createrepository`: remembers which repositories this process made (`tests/hg/master/init.t`).

    Settings or a name that cannot be right are refused before there is anything on disk.
    """
    configured = settings.role(ui)
    if configured is settings.MachineRole.MASTER:
        _refuse_name(settings.read(ui), os.fsdecode(os.path.realpath(path)))
    result = original(ui, path, *arguments, **keywords)
    _created.add(os.path.realpath(path))
    return result


def _refuse_name(configuration: settings.ExtensionSettings, folder: str) -> None:
    """Raises ConfigError or Abort for a folder that no mirror could have beside what it has."""
    path = configuration.wire_path(folder)
    if path is not None:
        from . import twins  # which most processes of a master do not need

        twins.refuse(path, folder, configuration.roots)


def just_created(repo: Any) -> bool:
    """Whether this process made the repository and has not asked yet."""
    root = os.path.realpath(repo.root)
    if root not in _created:
        return False
    _created.discard(root)
    return True


def next_generation(root: str, path: str) -> int:
    """Takes the next generation of a wire path below a root folder, durably."""
    generation = generation_of(root, path) + 1
    set_generation(root, path, generation)
    return generation


def generation_of(root: str, path: str) -> int:
    """How many repositories have lived at this path; 0 for none."""
    with contextlib.suppress(FileNotFoundError, ValueError), open(_file(root, path), encoding="utf-8") as file:
        return int(file.readline())
    return 0


def set_generation(root: str, path: str, generation: int) -> None:
    """Stores the count, with the path for people to read."""
    content = f"{generation}\n{path}\n".encode("utf-8", "surrogateescape")
    write_note(root, "generations", _file(root, path), content)


def write_note(root: str, kind: str, file: str, content: bytes) -> None:
    """Replaces a file of `ROOT/.vcsreplicator/KIND` durably, for everybody who may write to the root."""
    make_folder(root, kind)
    temporary = f"{file}.{os.getpid()}"
    with open(temporary, "wb") as stream:
        match_mode(stream.fileno(), root)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def make_folder(root: str, kind: str) -> str:
    """`ROOT/.vcsreplicator/KIND`, there for everybody who may write to the root."""
    for folder in (os.path.join(root, NOTES), os.path.join(root, NOTES, kind)):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            match_mode(folder, root)
    return os.path.join(root, NOTES, kind)


def match_mode(made: str | int, folder: str) -> None:
    """Lets whoever may read or write `folder` do so with what was just made in it, whatever the umask says."""
    like, now = os.stat(folder).st_mode, os.stat(made).st_mode
    wanted = like & (0o2777 if stat.S_ISDIR(now) else 0o666)
    if stat.S_IMODE(now) != wanted:
        os.chmod(made, wanted)


def name_of(path: str) -> str:
    """A wire path as a file name."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _file(root: str, path: str) -> str:
    return os.path.join(root, NOTES, "generations", name_of(path))
