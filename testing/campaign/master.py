# SPDX-License-Identifier: GPL-2.0-or-later
"""A model of a master: its users, its outboxes, and the relay that sends from them.

The relay keeps the relay's promises by simple means: in order per repository, at least once, the sent mark after the append; and it
looks whether the log still has what was sent, and sends again from the first event that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from hgext.vcsreplicator.log import EVENTS, SERVICES, NewRecord, Reader, partition_of
from hgext.vcsreplicator.relay.mastership import fork_of_former, has_ended
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import PushEntry, Type
from hgext.vcsreplicator.words.records import MASTER_KEY, RELAY_KEY, MasterRecord, ServiceReport
from hgext.vcsreplicator.words.shape import to_json, try_json
from testing.builders.aggregator.chains import Chain, identifier, pushed
from testing.campaign.faults import Strike
from testing.campaign.history import Kind, Seen
from testing.campaign.log import Call
from testing.campaign.process import Process
from testing.campaign.stage import PATHS, Outbox, Stage

# Seconds between two looks whether the log lost events.
LOOK = 3.0
# Seconds between two reports, and after which a promotion takes a relay for ended (`status.SILENT`); a fifteenth of the product's.
REPORT, SILENT = 0.7, 4.0


class Master:
    """The repositories of one source, by their users' acts; `generations` counts those of each path."""

    def __init__(self, stage: Stage, source: str) -> None:
        self._stage, self.source, self._chance = stage, source, Random(f"{stage.plan.seed} users")
        self.outboxes: dict[str, Outbox] = {}
        self.generations: dict[str, int] = {}

    def create(self, path: str) -> None:
        chain = Chain(path, generation=self._occupy(path))
        # Another master may have made a repository there that nobody saw.
        chain.repository = identifier("repository", self.source, path, chain.generation)
        chain.incarnation = identifier("incarnation", self.source, path, chain.generation)
        self.outboxes[chain.repository] = Outbox(chain)
        self._accept(chain)

    def push(self) -> None:
        """A push, to a repository that still exists; a path without one gets another repository at times."""
        live = self._list_live()
        free = sorted(self.generations.keys() - {chain.path for chain in live})
        if free and self._chance.random() < 0.2:
            self.create(self._chance.choice(free))
        elif open_ := self._list_open():
            self._accept(self._chance.choice(open_), Type.CHANGED)

    def rename(self) -> None:
        """A repository gets a free path, perhaps one that another one had."""
        live = self._list_open()
        if live and (free := sorted({*PATHS} - {each.path for each in self._list_live()})):
            chain = self._chance.choice(live)
            before, chain.path = chain.path, self._chance.choice(free)
            chain.generation = self._occupy(chain.path)
            self._accept(chain, Type.RENAMED, detail={"from": before})

    def delete(self) -> None:
        if live := self._list_open():
            self._accept(self._chance.choice(live), Type.DELETED)

    def _list_live(self) -> list[Chain]:
        return [outbox.chain for outbox in self.outboxes.values() if not outbox.is_deleted]

    def _list_open(self) -> list[Chain]:
        """The repositories that take pushes."""
        return [each.chain for each in self.outboxes.values() if not each.is_deleted and each.fork() is None]

    def _occupy(self, path: str) -> int:
        self.generations[path] = self.generations.get(path, 0) + 1
        return self.generations[path]

    def _accept(self, chain: Chain, kind: Type = Type.CREATED, **members: object) -> None:
        seq = len(chain.events) + 1
        # Two masters that go on from one event make two events.
        changes = (
            replace(pushed(seq), push=PushEntry(id=seq, user=self.source, date=seq)) if kind is Type.CHANGED else None
        )
        event = chain.next(kind, changes=changes, id=identifier(self.source, chain.repository, seq), **members)
        if self._stage.source == self.source:
            self._stage.generations[event.repository, event.seq] = event.generation
        self._stage.see(
            Seen(
                step=self._stage.step,
                kind=Kind.ACCEPTED,
                who=self.source,
                repository=event.repository,
                seq=event.seq,
                digest=event.digest,
                path=event.path,
                generation=event.generation,
                is_deletion=event.type is Type.DELETED,
            )
        )


class Relay(Process):
    """Sends from the outboxes of its master; its memory is how far it got beyond the sent marks.

    Once another master was promoted, its repositories refuse pushes, and nothing of them is sent.
    """

    pace = 4

    def __init__(self, stage: Stage, name: str, folder: Path, master: Master) -> None:
        super().__init__(stage, name, folder)
        self.master, self.root, self.is_cut = master, folder / name, False
        self._newest: MasterRecord | None = None
        self._reader: Reader | None = None
        self._sent: dict[str, list[int]] = {}
        self._looked = 0.0

    def begin(self) -> None:
        self._sent = {name: [*outbox.places] for name, outbox in self.master.outboxes.items()}
        self._reported_at, self._newest, self._reader = float("-inf"), None, None

    def step(self) -> None:
        now = self.clock.monotonic()
        self._read_promotions()
        if now - self._reported_at >= REPORT:
            report = to_json(ServiceReport(time=self.clock.now(), version="1"))
            self.log.append([NewRecord(topic=SERVICES, key=f"{RELAY_KEY}{self.master.source}", value=report)])
            self._reported_at = now
        elif now - self._looked >= LOOK:
            self._look()
        elif waiting := [name for name, outbox in self.master.outboxes.items() if self._is_waiting(name, outbox)]:
            self._send(self.chance.choice(waiting))

    def _read_promotions(self) -> None:
        """Read all that the log has before anything is sent, as `relay.fork` follows it, and mark forks."""
        if self._reader is None:
            self._reader = self.log.reader({(SERVICES, 0): 0})
        for record in self._reader.poll(0.0):
            if record.key == MASTER_KEY:
                self._newest = try_json(MasterRecord, record.value) or self._newest
        fork = fork_of_former(self._newest, self.master.source)
        for outbox in self.master.outboxes.values():
            marked = outbox.fork()
            if marked != fork and (marked is None or has_ended(marked, self._newest, self.master.source)):
                outbox.set_fork(fork)

    def _strike(self, kind: Call) -> Callable[[], None]:
        """A relay that is stopped between its look and its append may send one batch more, as the decision says: none is here."""
        if self.is_cut:
            raise Unavailable("cut off")
        if kind is Call.WRITE:
            self.delay(Strike.FREEZE, Strike.SUSPEND)
        return super()._strike(kind)

    def _is_waiting(self, name: str, outbox: Outbox) -> bool:
        sent = self._sent.setdefault(name, [*outbox.places])
        return outbox.fork() is None and (len(sent) < len(outbox.kept) or sent != outbox.places)

    def _send(self, name: str) -> None:
        """Send a few events; what the step before sent is marked first."""
        sent, outbox = self._sent[name], self.master.outboxes[name]
        if sent != outbox.places:
            outbox.places = [*sent]
            return
        values = outbox.values[len(sent) : len(sent) + self.chance.randint(1, 3)]
        self.stage.by_value.update(zip(values, outbox.kept[len(sent) :], strict=False))
        headers = {wire.SOURCE: self.master.source}
        records = [NewRecord(topic=EVENTS, key=name, value=value, headers=headers) for value in values]
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
            partition, values = partition_of(name, count), self.master.outboxes[name].values
            for number, offset in enumerate(sent):
                if offset < 0:
                    continue  # not known of a promoted master's first event
                if offset >= ends[partition] or found[partition, offset] != values[number]:
                    del sent[number:]
                    break
