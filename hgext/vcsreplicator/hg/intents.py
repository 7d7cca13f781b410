# SPDX-License-Identifier: GPL-2.0-or-later
"""Redo notes of what is no Mercurial transaction: strip, censor, delete, rename. Written before the act, removed after its event.

`ROOT/.vcsreplicator/intents/HASH.json`, one a repository, HASH being that of its wire path. Whoever comes first after a kill
finishes what it says: the next transaction of the repository, or the relay at its next look.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ..event import NodeSet
from ..shape import from_json, to_json
from .creation import NOTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """`kind` is that of the event to come. `folder` is where the repository is, `to` where it goes (rename, delete).

    Of a strip: its `roots`, the heads before and after, and what is removed. Of a censoring: `file` and `node`.
    """

    kind: str
    path: str
    folder: str
    to: str | None = None
    to_path: str | None = None
    roots: tuple[str, ...] = ()
    heads_before: tuple[str, ...] = ()
    heads_after: tuple[str, ...] = ()
    removed: NodeSet | None = None
    file: str | None = None
    node: str | None = None


def write(root: str, intent: Intent) -> None:
    """Makes the note durable."""
    file = _file(root, intent.path)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    temporary = f"{file}.{os.getpid()}"
    with open(temporary, "wb") as stream:
        stream.write(to_json(intent))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


def read(root: str, path: str) -> Intent | None:
    """The note about the repository at a wire path, if there is one."""
    try:
        with open(_file(root, path), "rb") as stream:
            return from_json(Intent, stream.read())
    except FileNotFoundError:
        return None


def remove(root: str, path: str) -> None:
    """The act and its event are done."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_file(root, path))


def all_of(root: str) -> Iterator[Intent]:
    """Every note below a root."""
    folder = os.path.join(root, NOTES, "intents")
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as stream:
                    yield from_json(Intent, stream.read())


def _file(root: str, path: str) -> str:
    name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(root, NOTES, "intents", name + ".json")
