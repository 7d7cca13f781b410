# SPDX-License-Identifier: GPL-2.0-or-later
"""A model of a master: its users, its outboxes, and the relay that sends from them.

The relay keeps the relay's promises by simple means: in order per repository, at least once, the sent mark after the append; and it
looks whether the log still has what was sent, and sends again from the first event that is gone.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from hgext.vcsreplicator.log import EVENTS, NewRecord, partition_of
from hgext.vcsreplicator.words.event import Event, Type
from testing.builders.aggregator.chains import Chain
from testing.campaign.history import Kind, Seen
from testing.campaign.process import Process
from testing.campaign.stage import PATHS, Outbox, Stage

# Seconds between two looks whether the log lost events.
LOOK = 3.0


class Master:
    """The repositories, by their users' acts."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._chance = stage, Random(f"{stage.plan.seed} users")
        self._generations: dict[str, int] = {}
        for path in PATHS[:3]:
            self.create(path)

    def create(self, path: str) -> None:
        chain = Chain(path, generation=self._occupy(path))
        self._stage.outboxes[chain.repository] = Outbox(chain)
        self._accept(chain.next())

    def push(self) -> None:
        """A push, to a repository that still exists; a path without one gets another repository at times."""
        live = self._list_live()
        free = sorted(self._generations.keys() - {chain.path for chain in live})
        if free and self._chance.random() < 0.2:
            self.create(self._chance.choice(free))
        elif live:
            self._accept(self._chance.choice(live).next())

    def rename(self) -> None:
        """A repository gets a free path, perhaps one that another one had."""
        live = self._list_live()
        if live and (free := sorted({*PATHS} - {each.path for each in live})):
            chain = self._chance.choice(live)
            before, chain.path = chain.path, self._chance.choice(free)
            chain.generation = self._occupy(chain.path)
            self._accept(chain.next(Type.RENAMED, detail={"from": before}))

    def delete(self) -> None:
        if live := self._list_live():
            self._accept(self._chance.choice(live).next(Type.DELETED))

    def _list_live(self) -> list[Chain]:
        return [outbox.chain for outbox in self._stage.outboxes.values() if not outbox.is_deleted]

    def _occupy(self, path: str) -> int:
        self._generations[path] = self._generations.get(path, 0) + 1
        return self._generations[path]

    def _accept(self, event: Event) -> None:
        self._stage.see(
            Seen(
                step=self._stage.step,
                kind=Kind.ACCEPTED,
                who="master",
                repository=event.repository,
                seq=event.seq,
                digest=event.digest,
                path=event.path,
                generation=event.generation,
                is_deletion=event.type is Type.DELETED,
            )
        )


class Relay(Process):
    """Sends from the outboxes; its memory is how far it got beyond the sent marks."""

    def __init__(self, stage: Stage, name: str, folder: Path) -> None:
        super().__init__(stage, name, folder)
        self._sent: dict[str, list[int]] = {}
        self._looked = 0.0

    def begin(self) -> None:
        self._sent = {name: [*outbox.places] for name, outbox in self.stage.outboxes.items()}

    def step(self) -> None:
        if self.clock.monotonic() - self._looked >= LOOK:
            self._look()
        waiting = [name for name, outbox in self.stage.outboxes.items() if self._is_waiting(name, outbox)]
        if waiting:
            self._send(self.chance.choice(waiting))

    def _is_waiting(self, name: str, outbox: Outbox) -> bool:
        sent = self._sent.setdefault(name, [])
        return len(sent) < len(outbox.chain.events) or sent != outbox.places

    def _send(self, name: str) -> None:
        """Send a few events; what the step before sent is marked first."""
        sent, outbox = self._sent[name], self.stage.outboxes[name]
        if sent != outbox.places:
            outbox.places = [*sent]
            return
        values = outbox.values[len(sent) : len(sent) + self.chance.randint(1, 3)]
        records = [NewRecord(topic=EVENTS, key=name, value=value) for value in values]
        places = self.log.append(records)
        if sent and places[0][1] <= sent[-1]:
            self._looked = float("-inf")  # the log lost what was sent before
        sent += [offset for _, offset in places]

    def _look(self) -> None:
        """Forget what was sent from the first event on that the log lost."""
        count = self.log.partitions(EVENTS)
        ends = self.log.ends(EVENTS)
        self._looked = self.clock.monotonic()
        found = {(record.partition, record.offset): record.value for record in self.stage.log.records(EVENTS)}
        for name, sent in self._sent.items():
            partition, values = partition_of(name, count), self.stage.outboxes[name].values
            for number, offset in enumerate(sent):
                if offset >= ends[partition] or found[partition, offset] != values[number]:
                    del sent[number:]
                    break
