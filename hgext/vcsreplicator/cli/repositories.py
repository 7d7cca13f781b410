# SPDX-License-Identifier: GPL-2.0-or-later
"""The present picture of the log, and the repositories and events that arguments name."""

from collections.abc import Iterator

from ..log import EVENTS, Log, Record, partition_of
from ..log.table import read_records
from ..status import Follower, Picture
from ..words import wire
from ..words.errors import Refused, Rejected
from ..words.event import Event
from ..words.levels import RepositoryState


def read_picture(log: Log) -> Picture:
    """Read the picture as of now."""
    follower = Follower(log)
    try:
        return follower.update()
    finally:
        follower.close()


def find_repository(picture: Picture, named: str, *, is_living: bool = False) -> RepositoryState:
    """Find the repository with this id or path.

    Of several that have had the path, it is the newest that is not deleted, or else the newest; with `is_living` deleted ones do
    not count. Raises Refused if there is none.
    """
    found = [
        state
        for state in picture.states.values()
        if named.strip("/") in (state.path, state.repository) and not (is_living and state.deleted)
    ]
    if not found:
        raise Refused(f"repository {named}: neither a path nor an id that the log knows")
    return max(found, key=lambda state: (state.repository == named, not state.deleted, state.generation))


def is_wanted(event: Event, push: int | None, seq: int | None) -> bool:
    """Whether this is the event of that push, or with that number; without both every event is."""
    entry = event.changes.push
    return (push is None or (entry is not None and entry.id == push)) and (seq is None or event.seq == seq)


def find_event(log: Log, state: RepositoryState, push: int | None, seq: int | None) -> tuple[Event, Record] | None:
    """Read the wanted event where it first appears; without push and number the newest."""
    found: tuple[Event, Record] | None = None
    partition = partition_of(state.repository, log.partitions(EVENTS))
    for record in read_key(log, EVENTS, partition, state.repository):
        try:
            event = wire.decode(record.value or b"").event
        except Rejected:
            continue
        # A repeat of the same event does not count; an event of a newer history does.
        if is_wanted(event, push, seq) and (found is None or found[0].id != event.id):
            found = (event, record)
    return found


def read_key(log: Log, topic: str, partition: int, key: str) -> Iterator[Record]:
    """Yield each record of this key that has a value, up to the present end."""
    records = read_records(log, {(topic, partition): log.beginnings(topic)[partition]})
    return (record for record in records if record.key == key and record.value)
