# SPDX-License-Identifier: GPL-2.0-or-later
"""New repositories, and the notes that outlive a repository.

New repositories come from `hg init` and from clones of every kind, local or over a network. Mercurial makes a repository's folder
first and opens it afterwards; its first event is written when it is opened. Killed in between, the repository has no event yet: the
relay's next round, or the first transaction, announces it then.

Generations count the repositories that have lived at one path, so that a new one is not taken for the old. The count survives the
repository in `ROOT/.vcsreplicator/generations/`, one small file a path; written before the event is committed, so a kill leaves at
most a gap, for which a later repository at the path waits.
The file also says whether a repository was made at the path with this extension, and has no event yet. It is written before the
repository's folder, so that whoever announces the repository announces it as made; and a disk that is full refuses it before
anything is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mercurial.ui import ui as Ui

from ...outbox.folder import open_below, open_regular
from ...words.path import MAX_PATH
from .. import settings
from . import repository

# The folder of notes below a root.
NOTES = ".vcsreplicator"
# Below it, the folder of deleted repositories.
DELETED = "deleted"
TRANSACTION = repository.OWN + b"created"
# The third line of a path's count if a repository was made there that has no event yet.
MADE = "made"


def note_creation(original: Callable[..., Any], ui: Ui, path: bytes, *arguments: Any, **keywords: Any) -> Any:
    """Wrap `localrepo.createrepository`: note which repositories this process made.

    Proven by `tests/hg/master/init.t`. Invalid settings, and a name or a format that mirrors cannot have, are refused before
    anything is written.
    """
    is_master = settings.role(ui) == "master"
    with _reserve_name(ui, os.fsdecode(path), *arguments, **keywords) if is_master else contextlib.nullcontext():
        result = original(ui, path, *arguments, **keywords)
    repository.note_just_created(path)
    return result


def _reserve_name(
    ui: Ui, folder: str, createopts: Mapping[bytes, Any] | None = None, requirements: Collection[bytes] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Reserve a folder's path; raises ConfigError or Abort if mirrors cannot have it.

    The same goes for its format, which Mercurial chooses by `createopts`.
    """
    configuration = settings.read(ui)
    path = configuration.wire_path(folder)
    if path is None:
        return contextlib.nullcontext()
    # Most processes of a master do not need them.
    from . import formats, twins

    formats.refuse_created(ui, createopts, requirements)
    reserved = twins.reserved(ui, path, folder, configuration.roots)
    if os.path.lexists(os.path.join(folder, ".hg")):  # Mercurial refuses it
        return reserved
    return _noted(reserved, settings.root_of(configuration, folder), path)


@contextlib.contextmanager
def _noted(reserved: contextlib.AbstractContextManager[None], root: str, path: str) -> Iterator[None]:
    """Note that a repository is made at a reserved path."""
    with reserved:
        os.makedirs(root, exist_ok=True)
        _write_count(root, path, read_generation(root, path), is_made=True)
        yield


def read_generation(root: str, path: str) -> int:
    """Read the newest generation of a wire path below a root folder; 0 if none is noted."""
    with contextlib.suppress(ValueError):
        return max(0, int(_read_count(root, path)[0]))  # of a damaged file too, a number that fits into an event
    return 0


def note_generation(root: str, path: str, generation: int) -> None:
    """Note the newest generation of a wire path durably; a repository that was made there has its first event then."""
    _write_count(root, path, generation, is_made=False)


def was_made(root: str, path: str) -> bool:
    """Return whether the repository at a wire path below a root folder was made with this extension, if it has no event."""
    return _read_count(root, path)[2] == MADE


def _read_count(root: str, path: str) -> tuple[str, str, str]:
    """Read the first characters of three lines: the generation, the path, and MADE or nothing."""
    with (
        contextlib.suppress(FileNotFoundError, ValueError),
        open(_generation_file(root, path), encoding="utf-8", errors="replace", opener=open_regular) as noted,
    ):
        return noted.readline(18), noted.readline(MAX_PATH + 1), noted.readline(18).rstrip("\n")
    return "", "", ""


def _write_count(root: str, path: str, generation: int, *, is_made: bool) -> None:
    # With the path for people to read.
    lines = [str(generation), path, *([MADE] if is_made else [])]
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    write_note(root, "generations", _generation_file(root, path), content)


def _generation_file(root: str, path: str) -> str:
    return os.path.join(root, NOTES, "generations", name_of(path))


def write_note(root: str, kind: str, file: str, content: bytes) -> None:
    """Replace a file of `ROOT/.vcsreplicator/KIND` durably; others may do so too."""
    make_folder(root, kind)
    temporary = f"{file}.{os.getpid()}"
    with open(temporary, "wb", opener=open_regular) as stream:
        match_root_mode(stream.fileno(), root)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def make_folder(root: str, kind: str) -> str:
    """Make `ROOT/.vcsreplicator/KIND`, writable to those who may write to the root."""
    for folder in (os.path.join(root, NOTES), os.path.join(root, NOTES, kind)):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            with open_below(os.path.dirname(folder), [os.path.basename(folder)]) as made:  # it may be a link by now
                match_root_mode(made, root)
    return os.path.join(root, NOTES, kind)


def match_root_mode(made: int, folder: str) -> None:
    """Give readers and writers of `folder` the same rights to a file made in it."""
    like, now = os.stat(folder).st_mode, os.stat(made).st_mode
    wanted = like & (0o2777 if stat.S_ISDIR(now) else 0o666)
    if stat.S_IMODE(now) != wanted:
        os.chmod(made, wanted)


def intent_file(root: str, path: str) -> str:
    """Return the file of the note about an act under way at a wire path (`intents`)."""
    return os.path.join(root, NOTES, "intents", name_of(path) + ".json")


def name_of(path: str) -> str:
    """Return a file name that stands for a wire path."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]
