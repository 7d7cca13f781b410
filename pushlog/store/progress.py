# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's bar for work on a whole pushlog, on a terminal alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from mercurial.ui import ui as Ui

from . import database, entry
from .connections import sqlite3
from .storage import Pushlog

_Item = TypeVar("_Item")


def show_pushes(ui: Ui, topic: bytes, connection: sqlite3.Connection, last: int) -> Iterator[entry.Push]:
    """Yield the pushes of a database up to the id ``last``; show a progress bar."""
    with ui.makeprogress(topic, unit=b"pushes", total=last) as progress:
        for push in database.pushes(connection, 0, last):
            progress.update(push.id)
            yield push


def show_facts(log: Pushlog, topic: bytes) -> Iterator[entry.Fact]:
    """Yield the facts of the file, and show the progress; `TornRecord` at damage."""
    with log.repo.ui.makeprogress(topic, unit=b"bytes", total=log.file.tail()) as progress:
        for record in log.file.records():
            progress.update(record.start)
            yield log.fact_of(record)


def show_count(ui: Ui, topic: bytes, items: Iterable[_Item], total: int | None = None) -> Iterator[_Item]:
    """Yield the items, one for each push, and show how many there were.

    ``total`` is None if it is not known.
    """
    with ui.makeprogress(topic, unit=b"pushes", total=total) as progress:
        for done, item in enumerate(items, 1):
            progress.update(done, total=max(done, total) if total else None)
            yield item
