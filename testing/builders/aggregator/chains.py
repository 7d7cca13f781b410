# SPDX-License-Identifier: GPL-2.0-or-later
"""Events for tests that need no repository: chains whose ids, sequences and digests fit together, and the mirrors' acks of them."""

import hashlib
from dataclasses import replace

from hgext.vcsreplicator.words import digest
from hgext.vcsreplicator.words.event import NULL_NODE, Changes, Event, MasterSettings, NodeSet, PushEntry, Tip, Type
from hgext.vcsreplicator.words.records import Ack


def identifier(*parts: object) -> str:
    """32 hexadecimal digits, always the same for the same parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class Chain:
    """The events of one repository, the first being its creation; `at` moves with each `next`."""

    def __init__(self, path: str, *, generation: int = 1, incarnation: int = 1) -> None:
        self.path = path
        self.generation = generation
        self.repository = identifier("repository", path, generation)
        self.incarnation = identifier("incarnation", path, generation, incarnation)
        self.events: list[Event] = []

    def next(self, kind: Type | None = None, *, changes: Changes | None = None, **members: object) -> Event:
        """The event after the newest one: a creation, then pushes of one changeset, unless another type is asked for."""
        seq = len(self.events) + 1
        last = self.events[-1] if self.events else None
        kind = kind or (Type.CHANGED if last else Type.CREATED)
        if changes is None:
            changes = pushed(seq) if kind is Type.CHANGED else Changes(added=None)
        event = Event(
            type=kind,
            repository=self.repository,
            incarnation=self.incarnation,
            path=self.path,
            generation=self.generation,
            seq=seq,
            id=identifier("event", self.incarnation, seq),
            previous=last.id if last else None,
            digest=digest.advance(last.digest if last else digest.START, kind, changes),
            time=1_700_000_000.0 + seq,
            source="serve",
            changes=changes,
            after=Tip(length=seq - 1, node=f"{seq:040x}" if seq > 1 else NULL_NODE),
            settings=MasterSettings(),
        )
        self.events.append(replace(event, **members) if members else event)  # type: ignore[arg-type]
        return self.events[-1]

    def take(self, count: int) -> list[Event]:
        """The next `count` events."""
        return [self.next() for _ in range(count)]

    def ack(self, mirror: str, applied: int, serving: int | None = None, *, time: float = 1.0) -> Ack:
        """The mirror at event `applied`, which serves as much unless `serving` is given."""
        event = self.events[applied - 1] if applied else None
        return Ack(
            mirror=mirror,
            repository=self.repository,
            incarnation=self.incarnation,
            applied=applied,
            serving=applied if serving is None else serving,
            event=event.id if event else "",
            digest=event.digest if event else digest.START,
            applied_at=time,
            served_at=time,
        )


def pushed(seq: int) -> Changes:
    """A push of one changeset."""
    node = f"{seq:040x}"
    return Changes(
        added=NodeSet(count=1, sha256=hashlib.sha256(bytes.fromhex(node)).hexdigest()),
        heads_added=(node,),
        push=PushEntry(id=seq, user="dana@example.com", date=1_700_000_000 + seq),
    )
