# SPDX-License-Identifier: GPL-2.0-or-later
"""Outboxes that are written without Mercurial."""

from collections.abc import Callable
from typing import Any

from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds, NewestEvent, next_event
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.words.event import Changes, MasterSettings, Tip, Type


class Folder(Store):
    """A store that can be written to, as Mercurial's vfs."""

    def __call__(self, name: bytes, mode: bytes) -> Any:
        """Opens a file of it."""
        return open(self.join(name), mode.decode())


class Transaction:
    """One that always commits."""

    def add(self, name: bytes, offset: int) -> None:
        """Nothing is undone."""


class PlainPort:
    """The relay's port to repositories that need nothing of Mercurial; counts the rounds."""

    # Returns what is reported of an act that cannot be finished in a root.
    unfinished: Callable[[str], str] | None = None

    def __init__(self) -> None:
        self.rounds = 0

    def finish(self, root: str) -> list[str]:
        self.rounds += 1
        return [] if self.unfinished is None else [self.unfinished(root)]

    def recover(self, folder: str) -> bool:
        raise AssertionError(folder)

    def announce(self, folder: str) -> bool:
        raise AssertionError(folder)

    def place(self, folder: str) -> tuple[str, int] | None:
        return None

    def is_changed_outside(self, folder: str) -> bool | None:
        return False

    def find_refusal(self, folder: str) -> str | None:
        return None

    def make_bundle(self, folder: str, entry: Entry) -> Bundle:
        raise AssertionError(folder)


def following(before: NewestEvent, count: int) -> list[Entry]:
    """Make `count` entries that follow `before`, with new identifiers."""
    made = []
    for _ in range(count):
        event = next_event(
            before,
            Type.CHANGED,
            time=1.0,
            source="serve",
            changes=Changes(added=None),
            after=Tip(length=0, node="0" * 40),
            settings=MasterSettings(),
        )
        made.append(Entry(event=event, needs=MirrorNeeds.NOTHING))
        before = NewestEvent.of(event)
    return made
