# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators who put a mirror in the master's place: real `promote` and `handover`, over a model of the repositories.

Between any two calls of a verb the others go on, and the verb may be killed; then the operator runs it again. An operator takes the
other mirror if the first remains refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click

from hgext.vcsreplicator.cli import handover, promote
from hgext.vcsreplicator.hg.master.creation import NOTES
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.mirror.checkpoint import Checkpoint
from hgext.vcsreplicator.mirror.comparison import PARTS, Fingerprint
from hgext.vcsreplicator.mirror.jobs import promotion
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.outbox.file import Fork
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.errors import BadConfig, Refused
from hgext.vcsreplicator.words.event import Event
from hgext.vcsreplicator.words.roster import Verb
from testing.builders.aggregator.chains import Chain
from testing.campaign.faults import Strike
from testing.campaign.history import Kind, Seen
from testing.campaign.log import Call
from testing.campaign.master import SILENT, Master, Relay
from testing.campaign.mirror import Mirror
from testing.campaign.process import Process
from testing.campaign.stage import Outbox, Stage

PROMOTE, HANDOVER = (verb.command.callback.__wrapped__ for verb in (promote, handover))
# Refusals after which an operator tries the other mirror.
TRIES = 12


class Operator(Process):
    """An operator at the machine of a mirror, who stands in for the file of settings, too; works once `call` was called."""

    def __init__(self, stage: Stage, name: str, folder: Path, mirror: Mirror, other: Mirror, relay: Relay) -> None:
        super().__init__(stage, name, folder)
        self._mirrors, self._old, self.file = [mirror, other], relay, name
        self._handover = folder / f"{name}.handover"
        self._strike_of, self._is_handed, self._refusals = Strike.LOSE_MASTER, False, 0
        # What `promote` has made so far.
        self.made = Master(stage, "")
        self.is_stopped = True

    def call(self, strike: Strike) -> None:
        """Begin to replace the master, or go on to hand it over."""
        self._strike_of, self.is_stopped = strike, False

    @property
    def mirror(self) -> Mirror:
        return self._mirrors[0]

    @property
    def settings(self) -> MirrorSettings:
        return self.mirror.settings

    def begin(self) -> None:
        """Nothing is kept but what the operator knows."""

    def step(self) -> None:
        try:
            if self._strike_of in (Strike.LOSE_MASTER, Strike.CUT_MASTER):
                self._promote(None)
            elif not self._is_handed:
                self._hand_over()
            else:
                self._promote(str(self._handover))
        except (Refused, BadConfig) as error:
            self.stage.see_fault(f"refused: {error}", self.name)
            self._take_refusal(str(error))

    def _hand_over(self) -> None:
        """Close the master; if that shall be undone, take it back once."""
        self._old.is_stopped = False
        relay = RelaySettings(socket="/x", source=self._old.master.source, roots={str(self._old.root): ""})
        with self._playing(relay):
            HANDOVER(self, output=str(self._handover), undo=False, wait=2.0)
            if self._strike_of is Strike.UNDO_HANDOVER:
                HANDOVER(self, output=None, undo=True, wait=2.0)
                self._strike_of = Strike.HAND_OVER
                self.rest(3.0)
                return
        self._is_handed = self.stage.is_handed_over = True
        self.stage.end_service()

    def _promote(self, handed: str | None) -> None:
        self.mirror.end()
        source = f"hg://{self.mirror.mirror}"
        if self.made.source != source:
            self.made = Master(self.stage, source)
        with self._playing(RelaySettings(socket="/x", source=source, roots={self.settings.root: ""})):
            Path(self.settings.root, NOTES).mkdir(exist_ok=True)  # as the first generation that is noted makes it
            PROMOTE(self, self.mirror.mirror, is_check=False, handed=handed, yes=True, wait=30.0)
        self.stage.see(Seen(step=self.stage.step, kind=Kind.DECLARED, who=source))
        self.is_stopped = True
        self.stage.start_master(self.made, self.mirror)

    def _take_refusal(self, reason: str) -> None:
        self._refusals += 1
        self.rest(self.chance.uniform(2.0, 6.0))
        if self._strike_of in (Strike.HAND_OVER, Strike.UNDO_HANDOVER):
            pass
        elif self.stage.source != self._old.master.source or not (self.made.outboxes or self.stage.is_master_away):
            self.is_stopped = True  # there is a master again
            if self.made.outboxes:
                self.mirror.lose_folder()
                self.stage.ask(self.mirror.mirror, Verb.ACTIVATE)
        elif self.made.outboxes:
            pass
        elif self._refusals % TRIES == 0:
            self.mirror.is_stopped = False
            self._mirrors.reverse()
        if f"the relay of {self._old.master.source}" in reason and any(
            seen.kind is Kind.PROMOTED for seen in self.stage.history
        ):
            self._old.end()  # as the refusal says; the promotion is recorded
        if "not handed over" in reason or "void" in reason:
            self._is_handed = False
        self.mirror.is_stopped = False

    def _pass_gate(self, life: int) -> Callable[[Call], Callable[[], None]]:
        """The others go on before each call of a verb."""
        gate = super()._pass_gate(life)

        def wait(kind: Call) -> Callable[[], None]:
            self._pause(0.0)
            return gate(kind)

        return wait

    def _pause(self, seconds: float) -> None:
        end, before = self.clock.monotonic() + seconds, self.is_frozen
        self.is_frozen = True
        self.stage.run(1)
        while self.clock.monotonic() < end:
            self.stage.run(1)
        self.is_frozen = before

    @contextmanager
    def _playing(self, relay: RelaySettings) -> Iterator[None]:
        """The verbs' border is this model for a while; another operator may work meanwhile, and ends before this one goes on."""
        pause = self._pause

        class SteppedFollower(Follower):
            def __init__(follower, log: Log) -> None:
                super().__init__(log, self.clock)

            def present(follower, pause: Callable[[float], object] = pause) -> float:
                return super().present(pause)

        shared = {"log_of": lambda _config: self.log, "relay_of": lambda _config: relay, "Follower": SteppedFollower}
        played: list[tuple[object, dict[str, Any]]] = [
            (promotion, {"SILENT": SILENT}),
            (click, {"echo": lambda *_texts, **_options: None}),
            (time, {"sleep": pause}),
            (promote, {**shared, **self._model_mirror()}),
            (handover, {**shared, **self._model_old(relay)}),
        ]
        with ExitStack() as stack:
            for module, names in played:
                stack.enter_context(mock.patch.multiple(module, **names))
            yield

    def _model_mirror(self) -> dict[str, Any]:
        """What `promote` reads and makes on the mirror's machine."""
        mirror = self.mirror
        copies = {each.folder: fingerprint(each.checkpoint) for each in mirror.list_copies() if each.checkpoint}
        return {
            "mirror_settings": lambda _config, _name: self.settings,
            "MasterRepositories": lambda _roots, _source: SimpleNamespace(open=os.path.basename),
            "_find_here": lambda _settings: {
                each.checkpoint.repository: each for each in mirror.list_copies() if each.checkpoint
            },
            "read_copy": lambda _opener, folder: copies[folder],
            "read_generation": lambda _root, path: self.made.generations.get(path, 0),
            "note_generation": lambda _root, path, number: self.made.generations.update({path: number}),
            "take_hgrc": self._act_here,
            "keep_drafts": self._act_here,
            "continue_outbox": self._continue_outbox,
        }

    def _model_old(self, relay: RelaySettings) -> dict[str, Any]:
        """What `handover` reads and closes on the old master's machine."""
        old = self._old.master

        def list_folders(root: str, *_reports: object) -> list[str]:
            """The repositories below the old master's root, or the deleted ones whose deletion is not sent."""
            is_root = root in relay.roots
            return [
                f"{root}/{name}"
                for name, box in old.outboxes.items()
                if (not box.is_deleted if is_root else box.is_deleted and box.has_unsent())
            ]

        def open_outbox(folder: str) -> Outbox:
            return old.outboxes[os.path.basename(folder)]

        return {
            "MasterRepositories": lambda _roots, _source: SimpleNamespace(open=open_outbox),
            "find_repositories": list_folders,
            "outbox_of": open_outbox,
            "close_outbox": self._close_outbox,
            "read_handed": lambda _opener, folder: (fingerprint(open_outbox(folder).newest()), None),
        }

    def _act_here(self, *_arguments: object) -> None:
        self.log.call(lambda: None, Call.ELSEWHERE)

    def _close_outbox(self, box: Outbox, wanted: Fork) -> bool:
        self._act_here()
        if not box.has_unsent() and box.fork() is None:
            box.set_fork(wanted)
        return box.fork() == wanted

    def _continue_outbox(self, _path: str, checkpoint: Checkpoint, logged: Event | None) -> None:
        """Begin an outbox with the checkpoint's event, unless one was begun; the events before it are in the log."""
        self._act_here()
        assert logged is None or logged.id == checkpoint.id
        if checkpoint.repository in self.made.outboxes:
            return
        chain = Chain(checkpoint.path, generation=checkpoint.generation)
        chain.repository, chain.incarnation = checkpoint.repository, checkpoint.incarnation
        chain.events = self.stage.events_until(checkpoint.repository, checkpoint.seq, checkpoint.id)
        outbox = Outbox(chain, skipped=checkpoint.seq - 1)
        outbox.places = [checkpoint.offset]
        self.made.outboxes[checkpoint.repository] = outbox


def fingerprint(event: Event | Checkpoint) -> Fingerprint:
    """Of a copy at this event, as far as the model has one."""
    names = dict.fromkeys(PARTS, "") | {name: getattr(event, name) for name in ("repository", "incarnation", "seq")}
    return Fingerprint(**{**names, "id": event.id, "digest": event.digest, "length": event.seq})
