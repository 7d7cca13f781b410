# SPDX-License-Identifier: GPL-2.0-or-later
"""A process of the campaign, and what may strike it between two calls."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hgext.vcsreplicator.words.errors import Expired, Unavailable
from testing.campaign.faults import Strike
from testing.campaign.log import Call, Killed, ProcessLog
from testing.campaign.stage import Stage
from testing.clock import HandClock


class StillEvent(threading.Event):
    """An event that is never set, and at which no thread waits: time passes between steps only."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


@dataclass(slots=True)
class _Armed:
    """A strike that falls at the `calls`th call from now, of those that it can fall on."""

    strike: Strike
    calls: int
    steps: int


class Process(ABC):
    """One service on one machine, with a clock of its own; it has one life after the other.

    `begin` starts a life, `step` goes on with it; both may raise Killed. What a subclass keeps in memory it sets in `begin`.
    `pace` is how many of its steps it makes at a time once nothing fails any more.
    """

    pace = 1

    def __init__(self, stage: Stage, name: str, folder: Path) -> None:
        self.stage, self.name, self.folder = stage, name, folder
        self.clock, self.chance = HandClock(), Random(f"{stage.plan.seed} {name}")
        self.life, self.is_frozen, self.is_clock_still = 0, False, False
        self.stop = StillEvent()
        self.log: ProcessLog
        self._armed: list[_Armed] = []
        self._is_alive, self._rests_until, self._down_until = False, 0.0, 0
        # An operator stopped it.
        self.is_stopped = False

    @property
    def can_step(self) -> bool:
        return not self.is_frozen and not self.is_stopped and self.stage.step >= self._down_until

    def go(self) -> None:
        """One step, the first of which begins a life."""
        if self.clock.monotonic() < self._rests_until:
            return
        try:
            if not self._is_alive:
                self.life = self.stage.new_life()
                self.log = ProcessLog(self.stage.log, self.life, self._pass_gate(self.life))
                self.log.on_commit = self.stage.see_commit(self.clock, self.life)
                self._is_alive = True
                self.begin()
            else:
                self.step()
        except Killed:
            self.free()
        except (Unavailable, Expired):
            self.rest(0.5)

    @abstractmethod
    def begin(self) -> None:
        """Begin a life, with what the folder and the log have. Unavailable leaves it to `step` to go on."""

    @abstractmethod
    def step(self) -> None:
        """Go on with the present life."""

    def free(self) -> None:
        """Close what the ended life had open, without writing anything; does nothing if the log is all that it used."""
        return

    def lose_folder(self) -> None:
        """Lose what was on the machine's disk; does nothing if that is nothing."""
        return

    def rest(self, seconds: float) -> None:
        self._rests_until = self.clock.monotonic() + seconds

    def arm(self, strike: Strike, *, calls: int, steps: int) -> None:
        self._armed.append(_Armed(strike, calls, steps))

    def delay(self, *strikes: Strike) -> None:
        """Let none of these strikes fall at the next call."""
        for armed in self._armed:
            if armed.strike in strikes:
                armed.calls = max(armed.calls, 2)

    def end(self) -> None:
        """An operator, or the loss of the machine, ends the process; it begins no life until it is started."""
        self._is_alive, self.is_stopped = False, True
        self.free()

    def disarm(self) -> None:
        self._armed.clear()
        self._down_until, self._rests_until = 0, 0.0

    def _pass_gate(self, life: int) -> Callable[[Call], Callable[[], None]]:
        def gate(kind: Call) -> Callable[[], None]:
            if life != self.life or not self._is_alive:
                raise Killed
            after = self._strike(kind)
            if kind is not Call.ELSEWHERE and self.stage.is_log_away:
                raise Unavailable("the log does not answer")
            return after

        return gate

    def _strike(self, kind: Call) -> Callable[[], None]:
        due = []
        for armed in [*self._armed]:
            if kind is Call.WRITE or not armed.strike.needs_write:
                armed.calls -= 1
                if armed.calls <= 0:
                    self._armed.remove(armed)
                    due.append(armed)
        after: Callable[[], None] = _nothing
        for armed in due:
            self.stage.see_fault(armed.strike, self.name)
            match armed.strike:
                case Strike.KILL | Strike.LOSE_MACHINE:
                    self._end(armed)
                case Strike.KILL_AFTER:
                    after = lambda armed=armed: self._end(armed)  # type: ignore[misc] # noqa: E731
                case Strike.FREEZE | Strike.SUSPEND:
                    self._freeze(armed)
                case Strike.REFUSE:
                    raise Unavailable("not written")
                case Strike.LOSE_ANSWER:
                    after = _lose_answer
        return after

    def _end(self, armed: _Armed) -> None:
        self._is_alive, self._down_until = False, self.stage.step + armed.steps
        if armed.strike is Strike.LOSE_MACHINE:
            self.free()
            self.lose_folder()
        raise Killed

    def _freeze(self, armed: _Armed) -> None:
        """Let only the others go on for a while, in the middle of this call; they may end this process."""
        self.is_frozen, self.is_clock_still = True, armed.strike is Strike.SUSPEND
        self.stage.run(armed.steps)
        self.is_frozen = self.is_clock_still = False
        if not self._is_alive:
            raise Killed
        self.stage.see_fault("goes on", self.name)


def _nothing() -> None:
    pass


def _lose_answer() -> None:
    raise Unavailable("written, without an answer")
