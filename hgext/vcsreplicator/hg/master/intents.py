# SPDX-License-Identifier: GPL-2.0-or-later
"""Redo notes of what is no Mercurial transaction: strip, delete, rename. Written before the act, removed after its event.

`ROOT/.vcsreplicator/intents/HASH.json`, one a repository, HASH being that of its wire path. Whoever comes first after a kill
finishes what it says: the next transaction of the repository, or the relay at its next look. A note speaks of one repository by
its id: another one at the same path has nothing to do with it.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping

from mercurial import error

from ...outbox import NewestEvent
from ...words.errors import MalformedEvent
from ...words.event import NodeSet, Type
from ...words.shape import from_json, to_json
from ...words.value import Value
from . import creation

LIMIT = 64 * 1024 * 1024
"""The largest note, bytes: a strip in a repository with about 1,400,000 heads."""


class Intent(Value):
    """`kind` is that of the event to come, behind event `seq` of `repository`, which is at `path` below its root.

    `folder` is where the repository is, `to` where it goes (rename, delete); `to_path` and `to_root` say what that is to the
    replication. Of a strip: its `roots`, the heads it adds and removes, all heads after it, what is removed, and where the
    `bookmarks` on that go.
    """

    kind: str
    repository: str
    seq: int
    path: str
    folder: str
    to: str | None = None
    to_path: str | None = None
    to_root: str | None = None
    roots: tuple[str, ...] = ()
    heads_added: tuple[str, ...] = ()
    heads_removed: tuple[str, ...] = ()
    heads_after: tuple[str, ...] = ()
    removed: NodeSet | None = None
    bookmarks: Mapping[str, str] | None = None

    def concerns(self, level: NewestEvent | None) -> bool:
        """Whether a repository that stands there is the one of this note."""
        return level is not None and level.repository == self.repository


def write(root: str, intent: Intent) -> None:
    """Makes the note durable; raises Abort for one that could not be read again."""
    content = to_json(intent)
    if len(content) > LIMIT:
        raise error.Abort(b"this repository has too many heads to %s anything" % intent.kind.encode())
    creation.write_note(root, "intents", file_of(root, intent.path), content)


def read(root: str, path: str) -> Intent | None:
    """The note about the repository at a wire path, if there is one; raises Abort if it cannot be read."""
    file = file_of(root, path)
    try:
        return load(file)
    except FileNotFoundError:
        return None
    except MalformedEvent as problem:
        raise error.Abort(
            f"{file}: {problem}".encode(),
            hint=b"look at what became of this repository, then remove that file",
        ) from problem


def load(file: str) -> Intent:
    """The note in a file; raises FileNotFoundError, MalformedEvent."""
    with open(file, "rb") as stream:
        return from_json(Intent, stream.read(LIMIT + 1), limit=LIMIT)


def confine(intent: Intent, root: str, roots: Iterable[str]) -> None:
    """Raises MalformedEvent for a note that names a folder outside the roots: whoever may write to a root can write a note."""
    known = [os.path.realpath(each) for each in roots]
    if intent.to_root is not None and os.path.realpath(intent.to_root) not in known:
        raise MalformedEvent(f"Intent.to_root: expected a root of [vcsreplicator-roots], got {intent.to_root!r}")
    aside = os.path.join(os.path.realpath(root), creation.NOTES, creation.DELETED)
    allowed = [aside] if intent.kind == Type.DELETED.value else known
    for member, place, below in (("folder", intent.folder, [os.path.realpath(root)]), ("to", intent.to, allowed)):
        if place is not None and not any(os.path.realpath(place).startswith(each.rstrip("/") + "/") for each in below):
            raise MalformedEvent(f"Intent.{member}: expected a folder below {' or '.join(below)}, got {place!r}")


def remove(root: str, path: str) -> None:
    """The act and its event are done."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file_of(root, path))


def files(root: str) -> list[str]:
    """The files of all notes below a root."""
    folder = os.path.join(root, creation.NOTES, "intents")
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".json")]


def file_of(root: str, path: str) -> str:
    """Where the note about a wire path stands."""
    return os.path.join(root, creation.NOTES, "intents", creation.name_of(path) + ".json")
