# SPDX-License-Identifier: GPL-2.0-or-later
"""Redo notes of acts that are no Mercurial transaction: strip, delete, rename.

A note is written before the act and removed after its event. It is the file `ROOT/.vcsreplicator/intents/HASH.json`, one per
repository; HASH is that of the repository's wire path. After a kill, the next transaction of the repository or the relay's next
round finishes the act. A note names its repository by id, so it does not concern another repository at the same path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from mercurial import error

from ...outbox.entry import NewestEvent
from ...outbox.folder import open_regular
from ...words.errors import MalformedEvent, quote_value
from ...words.event import NodeSet, Type
from ...words.path import wire_path
from ...words.shape import from_json, to_json
from ...words.value import Value
from . import creation

# Bytes of the largest note: a strip in a repository with about 1,400,000 heads.
LIMIT = 64 * 1024 * 1024


# Names of acts, by the type of their event.
_ACTS = {Type.STRIPPED.value: b"strip", Type.DELETED.value: b"deletion", Type.RENAMED.value: b"rename"}


class Intent(Value):
    """An act under way.

    `kind` is the type of its event, which follows event `seq` of `repository`, at `path` below its root. `folder` is where the
    repository is, `to` where it goes (rename, delete); `to_path` and `to_root` are the wire path and the root there. Of a strip:
    its `roots`, the heads it adds and removes, all heads after it, the removed changesets, where the bookmarks on those go, the
    temporary bundles that earlier strips left, whether it makes a `backup` (it does where that is None), and the obsolescence
    `markers` that it deletes, in base64 of their binary form.
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
    former_bundles: tuple[str, ...] | None = None
    backup: bool | None = None
    markers: tuple[str, ...] | None = None

    def concerns(self, newest: NewestEvent | None) -> bool:
        return newest is not None and newest.repository == self.repository


def write(root: str, intent: Intent) -> None:
    """Make the note durable; raises Abort if it could not be read again."""
    content = to_json(intent)
    if len(content) > LIMIT:
        raise error.Abort(b"this repository has too many heads or markers for a %s" % act_of(intent))
    creation.write_note(root, "intents", creation.intent_file(root, intent.path), content)


def read(root: str, path: str) -> Intent | None:
    """Read the note about a wire path, if there is one; raises Abort for a bad one."""
    file = creation.intent_file(root, path)
    try:
        return load(file)
    except FileNotFoundError:
        return None
    except MalformedEvent as problem:
        raise unusable(file, problem) from problem


def unusable(file: str, problem: MalformedEvent) -> error.Abort:
    """Return the refusal of changes while a note cannot be used."""
    return error.Abort(
        f"{file}: {problem}".encode(), hint=b"look at what became of this repository, then remove that file"
    )


def act_of(intent: Intent) -> bytes:
    return _ACTS.get(intent.kind, intent.kind.encode(errors="replace"))


def load(file: str) -> Intent:
    """Read the note in a file; raises OSError, MalformedEvent."""
    with open(file, "rb", opener=open_regular) as stream:
        return from_json(Intent, stream.read(LIMIT + 1), limit=LIMIT)


def confine(intent: Intent, root: str, roots: Mapping[str, str]) -> None:
    """Raise MalformedEvent for a note that names a folder outside the roots.

    `roots` maps them to the prefixes of their wire paths. Users who may write to one root can write a note there, and must not move
    folders elsewhere by it, nor into a repository, nor to a name that mirrors would get wrong.
    """
    for member in ("folder", "to", "to_root"):
        _check_name(member, getattr(intent, member) or "")
    known = [os.path.realpath(each) for each in roots]
    if intent.to_root is not None and os.path.realpath(intent.to_root) not in known:
        raise MalformedEvent(
            f"Intent.to_root: expected a root of [vcsreplicator-roots], got {quote_value(intent.to_root)}"
        )
    aside = os.path.join(os.path.realpath(root), creation.NOTES, creation.DELETED)
    is_deletion = intent.kind == Type.DELETED.value
    if intent.to_root is not None and not is_deletion:
        known = [os.path.realpath(intent.to_root)]
    allowed = [aside] if is_deletion else known
    for member, place, below in (("folder", intent.folder, [os.path.realpath(root)]), ("to", intent.to, allowed)):
        if place is not None and not any(os.path.realpath(place).startswith(each.rstrip("/") + "/") for each in below):
            raise MalformedEvent(
                f"Intent.{member}: expected a folder below {' or '.join(below)}, got {quote_value(place)}"
            )
    if intent.to is None or is_deletion:
        return
    path = wire_path(os.path.realpath(intent.to), {os.path.realpath(each): roots[each] for each in roots})
    if path is None or path != intent.to_path or not {".hg", creation.NOTES}.isdisjoint(path.split("/")):
        raise MalformedEvent(
            f"Intent.to_path: expected a wire path, that of {quote_value(intent.to)}, got {quote_value(intent.to_path)}"
        )


def _check_name(member: str, name: str) -> None:
    """Raise MalformedEvent for a text that no file can have as its name.

    The calls of the system raise ValueError for it.
    """
    try:
        is_name = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise MalformedEvent(f"Intent.{member}: expected the name of a folder, got {quote_value(name)}")


def remove(root: str, path: str) -> None:
    """Remove the note of an act whose event is written."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(creation.intent_file(root, path))


def files(root: str) -> list[str]:
    """List the files of all notes below a root."""
    folder = os.path.join(root, creation.NOTES, "intents")
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(".json")]
