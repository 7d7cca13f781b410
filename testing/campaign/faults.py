# SPDX-License-Identifier: GPL-2.0-or-later
"""What may go wrong in a campaign, and a plan of it; pure."""

import enum
from dataclasses import dataclass
from random import Random


class Strike(enum.StrEnum):
    """A fault, of a process unless it says otherwise.

    A process is killed before or after a call, or with its machine, whose disk is lost. It stands still: by SIGSTOP (its clock goes
    on) or with its machine (its clock stands still). A write is refused, or applied without an answer.
    """

    KILL = "killed"
    KILL_AFTER = "killed after a write"
    LOSE_MACHINE = "lost with its disk"
    FREEZE = "stopped"
    SUSPEND = "suspended"
    REFUSE = "write refused"
    LOSE_ANSWER = "answer lost"
    CLOCK = "clock set"
    # Of the log.
    AWAY = "log away"
    LOSE_EVENTS = "newest events lost"
    # Of an operator, who takes it back, or of a user of the master.
    DEACTIVATE = "deactivated"
    DEACTIVATE_FOR = "deactivated for a repository"
    RULES = "other rules"
    KEY = "given a key"
    RENAME = "renamed"
    DELETE = "deleted"

    @property
    def needs_write(self) -> bool:
        return self in (Strike.KILL_AFTER, Strike.REFUSE, Strike.LOSE_ANSWER)


PROCESSES = ("relay", "mirror-alpha", "mirror-beta", "aggregator-1", "aggregator-2", "notifier-1", "notifier-2")
OF_PROCESSES = (
    Strike.KILL, Strike.KILL, Strike.KILL_AFTER, Strike.KILL_AFTER, Strike.FREEZE, Strike.SUSPEND,
    Strike.REFUSE, Strike.LOSE_ANSWER, Strike.LOSE_ANSWER, Strike.LOSE_MACHINE, Strike.CLOCK,
)  # fmt: skip
OF_LOG = (Strike.AWAY, Strike.LOSE_EVENTS)
OF_OPERATORS = (Strike.DEACTIVATE, Strike.DEACTIVATE_FOR, Strike.RULES, Strike.KEY)
OTHERS = (
    *OF_LOG,
    *OF_OPERATORS,
    Strike.RULES,
    Strike.RENAME,
    Strike.RENAME,
    Strike.DELETE,
    Strike.DELETE,
)
# Of a process of which the disk is all that has the history.
SPARED = {("relay", Strike.LOSE_MACHINE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """At a step, `strike` is armed for `who`; it falls at one of its next `calls`. `steps` is how long it lasts."""

    step: int
    strike: Strike
    who: str = ""
    calls: int = 1
    steps: int = 50

    def __str__(self) -> str:
        return f"step {self.step}: {self.who or 'all'}: {self.strike} (call {self.calls}, {self.steps} steps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One campaign: `steps` with faults, by chance from `seed`; then everything is healed."""

    seed: int
    steps: int
    faults: tuple[Fault, ...]


def draw(seed: int, *, steps: int = 500, faults: int = 12) -> Plan:
    """Return the plan of a seed."""
    chance = Random(f"{seed} faults")
    found = []
    for _ in range(faults):
        fault = _draw_one(chance, steps)
        if (fault.who, fault.strike) not in SPARED:
            found.append(fault)
    return Plan(seed=seed, steps=steps, faults=tuple(sorted(found, key=lambda fault: fault.step)))


def _draw_one(chance: Random, steps: int) -> Fault:
    step, calls = chance.randrange(20, steps), chance.randint(1, 12)
    if chance.random() < 0.7:
        strike, who = chance.choice(OF_PROCESSES), chance.choice(PROCESSES)
        lasts = chance.choice((5, 30, 150, 300))
        return Fault(step=step, strike=strike, who=who, calls=calls, steps=lasts)
    strike = chance.choice(OTHERS)
    who = "alpha" if strike in OF_OPERATORS else "log" if strike in OF_LOG else "master"
    return Fault(step=step, strike=strike, who=who, calls=calls, steps=chance.choice((5, 20, 60)))
