# SPDX-License-Identifier: GPL-2.0-or-later
"""What may go wrong in a campaign, and a plan of it; pure."""

import enum
from dataclasses import dataclass
from random import Random

from hgext.vcsreplicator.log import ACKS, EVENTS, NOTICES, ROSTER, STATE


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
    LOSE_ACKS = "newest acks lost"
    LOSE_STATE = "newest states lost"
    LOSE_ROSTER = "newest rosters lost"
    LOSE_NOTICES = "newest notices lost"
    # Of an operator, who takes it back, or of a user of the master.
    DEACTIVATE = "deactivated"
    DEACTIVATE_FOR = "deactivated for a repository"
    RULES = "other rules"
    KEY = "given a key"
    RENAME = "renamed"
    DELETE = "deleted"
    # Of the master, which operators replace by a mirror, or by two at once: its machine is lost, or is cut off and comes back; or
    # it is handed over, also after a first time that was undone.
    LOSE_MASTER = "lost, and replaced"
    CUT_MASTER = "cut off, and replaced"
    HAND_OVER = "handed over"
    UNDO_HANDOVER = "handed over, taken back, handed over"

    @property
    def needs_write(self) -> bool:
        return self in (Strike.KILL_AFTER, Strike.REFUSE, Strike.LOSE_ANSWER)


PROCESSES = ("relay", "mirror-alpha", "mirror-beta", "aggregator-1", "aggregator-2", "notifier-1", "notifier-2")
OF_PROCESSES = (
    Strike.KILL, Strike.KILL, Strike.KILL_AFTER, Strike.KILL_AFTER, Strike.FREEZE, Strike.SUSPEND,
    Strike.REFUSE, Strike.LOSE_ANSWER, Strike.LOSE_ANSWER, Strike.LOSE_MACHINE, Strike.CLOCK,
)  # fmt: skip
# The topic that loses its newest records.
TOPICS = {
    Strike.LOSE_EVENTS: EVENTS,
    Strike.LOSE_ACKS: ACKS,
    Strike.LOSE_STATE: STATE,
    Strike.LOSE_ROSTER: ROSTER,
    Strike.LOSE_NOTICES: NOTICES,
}
OF_LOG = (Strike.AWAY, *TOPICS)
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
OF_MASTER = (Strike.LOSE_MASTER, Strike.CUT_MASTER, Strike.HAND_OVER, Strike.UNDO_HANDOVER)
# Of a verb that an operator runs.
OF_OPERATORS_VERBS = (Strike.KILL, Strike.KILL, Strike.KILL_AFTER, Strike.REFUSE, Strike.LOSE_ANSWER, Strike.FREEZE)
OPERATORS = ("operator-alpha", "operator-beta")
# How many campaigns of all replace the master.
OFTEN = 0.25
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
    if chance.random() < OFTEN:
        found = [*filter(_may_precede_promotion, found), *_draw_promotion(chance, steps)]
    return Plan(seed=seed, steps=steps, faults=tuple(sorted(found, key=lambda fault: fault.step)))


def _may_precede_promotion(fault: Fault) -> bool:
    """Whether a fault leaves what a promotion needs: all that the log had is there, and on each mirror's disk."""
    return fault.strike not in (Strike.LOSE_EVENTS, Strike.LOSE_MACHINE, Strike.RULES)


def _draw_promotion(chance: Random, steps: int) -> list[Fault]:
    step = chance.randrange(steps // 5, steps * 3 // 5)
    strike, calls = chance.choice(OF_MASTER), chance.randrange(4)
    kills = [
        Fault(step=step, strike=chance.choice(OF_OPERATORS_VERBS), who=who, calls=chance.randint(1, 60), steps=20)
        for who in OPERATORS
        for _ in range(2)
    ]
    return [Fault(step=step, strike=strike, who="master", calls=calls, steps=chance.choice((200, 700, 1500))), *kills]


def _draw_one(chance: Random, steps: int) -> Fault:
    step, calls = chance.randrange(20, steps), chance.randint(1, 12)
    if chance.random() < 0.7:
        strike, who = chance.choice(OF_PROCESSES), chance.choice(PROCESSES)
        lasts = chance.choice((5, 30, 150, 300))
        return Fault(step=step, strike=strike, who=who, calls=calls, steps=lasts)
    strike = chance.choice(OTHERS)
    who = "alpha" if strike in OF_OPERATORS else "log" if strike in OF_LOG else "master"
    return Fault(step=step, strike=strike, who=who, calls=calls, steps=chance.choice((5, 20, 60)))
