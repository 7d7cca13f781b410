# SPDX-License-Identifier: GPL-2.0-or-later
"""A notifier of the campaign: its real turns, couriers and state; a receiver that answers by chance.

What is played is the service around them (`publishing.publisher`), whose threads wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hgext.vcsreplicator.log import SERVICES, Log
from hgext.vcsreplicator.log.standby import POLL, Presence
from hgext.vcsreplicator.log.turns import BEAT, Turns
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Fenced, ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import NOTIFIER_KEY
from hgext.vcsreplicator.words.retry import Backoff
from notifier.delivery.destination import ALL_TYPES, DeliveryOutcome
from notifier.delivery.window import Delivery, Patience
from notifier.destinations.state import StateDatabase
from notifier.messages.public import PublicSettings
from notifier.publishing.courier import Courier, _DeliveryLoop
from notifier.publishing.decoding import NoticeDecoder
from notifier.publishing.position import StoredPosition
from notifier.publishing.requests import SharedRequests
from notifier.publishing.settings import NotifierSettings
from testing.campaign.history import Kind, Seen
from testing.campaign.log import Call
from testing.campaign.process import Process
from testing.campaign.stage import Stage

PUBLIC = PublicSettings(urls={"": "https://hg.example/"})
DESTINATIONS = ("lines", "hooks")


class Receiver:
    """Settings and destination in one: the other side of a destination, which answers by chance."""

    types = ALL_TYPES
    start_at = "beginning"
    patience = Patience(in_flight=4, retry=Backoff(first=0.1, longest=1.0))

    def __init__(self, name: str, notifier: Notifier) -> None:
        self._name, self._notifier = name, notifier
        self._unanswered: list[tuple[Delivery, ReplicationError | None]] = []

    def open(self, name: str, clock: Clock, log: Log) -> Receiver:
        self._unanswered = []
        return self

    def start(self) -> None:
        """Connecting never fails."""

    def submit(self, delivery: Delivery) -> None:
        """The message arrives at once, or never; what the notifier hears of it is another matter."""
        log, stage = self._notifier.log, self._notifier.stage
        log.call(lambda: None, Call.ELSEWHERE)
        luck = 1.0 if stage.is_calm else self._notifier.chance.random()
        if luck > 0.1:
            self._see(Kind.DELIVERED, delivery)
        error = None if luck > 0.15 else Unavailable("no answer")
        self._unanswered.append((delivery, error))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        is_calm, chance = self._notifier.stage.is_calm, self._notifier.chance
        answered = [each for each in self._unanswered if is_calm or chance.random() < 0.6]
        self._unanswered = [each for each in self._unanswered if each not in answered]
        for delivery, error in answered:
            if error is None and self._counts(delivery):
                self._see(Kind.CONFIRMED, delivery)
        return [DeliveryOutcome(number=delivery.number, error=error) for delivery, error in answered]

    def close(self) -> None:
        pass

    def _counts(self, delivery: Delivery) -> bool:
        """Whether it is of a notice that was read since the log last lost some: then all come again."""
        return self._notifier._loops[self._name].window._entries[delivery.number].placed

    def _see(self, kind: Kind, delivery: Delivery) -> None:
        message, stage = delivery.message, self._notifier.stage
        stage.see(
            Seen(
                step=stage.step,
                kind=kind,
                who=self._name,
                repository=message.repository,
                seq=message.seq,
                path=message.repo_url.rsplit("/", 1)[-1],
                generation=stage.generation_of(message.repository, message.seq),
                offset=message.offset,
                life=self._notifier.log.life,
                own=self._notifier.clock.monotonic(),
            )
        )


class Notifier(Process):
    """Stands by for some destinations, and delivers to the others; its state is in its folder."""

    pace = 4

    def __init__(self, stage: Stage, name: str, folder: Path) -> None:
        super().__init__(stage, name, folder)
        self._opened = contextlib.ExitStack()

    def begin(self) -> None:
        self.free()
        self._opened = contextlib.ExitStack()
        receivers = {name: Receiver(name, self) for name in DESTINATIONS}
        file = str(self.folder / f"{self.name}.db")
        self._settings = NotifierSettings(public=PUBLIC, destinations=receivers, state=file, takeover_after=2.0)
        decoder, requests = NoticeDecoder(PUBLIC), SharedRequests(self.log)
        self._couriers = {
            name: Courier(
                name,
                receiver,
                self._settings,
                self.log,
                self.clock,
                stop=self.stop,
                decoder=decoder,
                requests=requests,
                chance=self.chance.random,
            )
            for name, receiver in receivers.items()
        }
        instance = f"{self.name} {self.life}"
        self._turns = Turns(
            self.log,
            set(receivers),
            instance,
            topic=SERVICES,
            kind=NOTIFIER_KEY,
            patience=2.0,
            stop=self.stop,
            clock=self.clock,
        )
        self._presence = Presence(self.log, f"{NOTIFIER_KEY}{self.name}", instance, self.clock)
        self._reported_at = float("-inf")
        self._at_work: list[str] = []
        self._positions: dict[str, StoredPosition] = {}
        self._loops: dict[str, _DeliveryLoop] = {}
        self._resting: dict[str, float] = {}

    def step(self) -> None:
        now = self.clock.monotonic()
        if now - self._reported_at >= BEAT or self._presence._changed.is_set():
            self._presence._changed.clear()
            self._presence._append(self._presence._describe())
            self._reported_at = now
        elif not self._at_work or self.chance.random() < 0.2:
            self._at_work += sorted(self._turns.find_turns())
            self._presence.report(self._at_work, interval=BEAT)
            if not self._at_work:
                self.rest(POLL / 4)
        else:
            name = self.chance.choice(self._at_work)
            if now >= self._resting.get(name, now):
                self._work(name)

    def _work(self, name: str) -> None:
        """One turn of a courier, as `_keep_at_work` lets it run."""
        try:
            if name not in self._positions:
                self._positions[name] = StoredPosition(name, self.log, self.clock)
            if name not in self._loops:
                self._open(name)
            else:
                self._loops[name].turn()
        except Fenced:
            self._loops.pop(name, None)
            self._positions.pop(name)
            self._at_work.remove(name)
            self._turns.lose(name)
            self._presence.report(self._at_work, interval=BEAT)
        except ReplicationError:
            self._loops.pop(name, None)
            self._resting[name] = self.clock.monotonic() + 0.3

    def _open(self, name: str) -> None:
        courier, position = self._couriers[name], self._positions[name]
        position.check()
        destination = courier.settings.open(name, self.clock, self.log)
        state = StateDatabase(self._settings.state)
        self._opened.callback(state.close)
        loop = _DeliveryLoop(courier, destination, state, position)
        loop.orders.carry_out_requests()
        loop.connect()
        self._loops[name] = loop

    def free(self) -> None:
        self._opened.close()

    def lose_folder(self) -> None:
        for file in self.folder.glob(f"{self.name}.db*"):
            file.unlink()
