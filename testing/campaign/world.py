# SPDX-License-Identifier: GPL-2.0-or-later
"""All actors of a campaign, the order in which they step, and what was seen."""

import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeVar
from unittest import mock

import structlog

from hgext.vcsreplicator.aggregator import completeness
from hgext.vcsreplicator.aggregator import standby as aggregator_standby
from hgext.vcsreplicator.aggregator.decisions.membership import list_records
from hgext.vcsreplicator.log import NOTICES, ROSTER, ROSTER_REQUESTS, SERVICES, NewRecord, topics
from hgext.vcsreplicator.log import standby as log_standby
from hgext.vcsreplicator.mirror.supervision import catchup
from hgext.vcsreplicator.words.records import RELAY_KEY
from hgext.vcsreplicator.words.roster import Mirror as Member
from hgext.vcsreplicator.words.roster import MirrorState, Roster, RosterRequest, Verb
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json, try_json
from notifier.publishing.position import group
from testing.campaign.aggregator import Aggregator
from testing.campaign.faults import OF_MASTER, OF_OPERATORS, TOPICS, Fault, Plan, Strike
from testing.campaign.history import Kind, Seen, check
from testing.campaign.master import Master, Relay
from testing.campaign.mirror import Mirror, SteppedSource
from testing.campaign.notifier import DESTINATIONS, Notifier
from testing.campaign.process import Process
from testing.campaign.promotion import Operator
from testing.campaign.stage import PARTITIONS, PATHS, Stage

T = TypeVar("T")

# Steps that everything gets, after the last fault, to settle.
SETTLE = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was seen in a campaign, and the violations."""

    plan: Plan
    history: list[Seen]
    violations: list[str]


class World(Stage):
    """One installation: a master, two mirrors, two aggregators, two notifiers."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan)
        self._chance = Random(f"{plan.seed} order")
        self._log_back_at, self._cut_until, self._faults = 0, 0, list(plan.faults)
        # By step, what takes back an operator's request.
        self._taken_back: list[tuple[int, RosterRequest]] = []
        self.log.create(topics(partitions=PARTITIONS))
        members = tuple(Member(name=name, state=MirrorState.ACTIVE) for name in ("alpha", "beta"))
        self.log.append(list_records(Roster(version=1, mirrors=members)))
        self._folder = folder
        master = Master(self, "hg://old")
        self.source, self.outboxes = master.source, master.outboxes
        for path in PATHS[:3]:
            master.create(path)
        # The masters to which users push, the newest one last.
        self.reached = [master]
        self.relay = Relay(self, "relay", folder, master)
        self.mirrors = [Mirror(self, f"mirror-{name}", folder / name) for name in ("alpha", "beta")]
        self.operators = [
            Operator(self, f"operator-{mine.mirror}", folder, mine, other, self.relay)
            for mine, other in (self.mirrors, self.mirrors[::-1])
        ]
        self.aggregators = [Aggregator(self, f"aggregator-{number}", folder) for number in (1, 2)]
        for each, rival in zip(self.aggregators, self.aggregators[::-1], strict=True):
            each.rival = rival
        self.processes: list[Process] = [
            self.relay,
            *self.mirrors,
            *self.operators,
            *self.aggregators,
            *(Notifier(self, f"notifier-{number}", folder) for number in (1, 2)),
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            self._pass_time()
            while self._faults and self._faults[0].step <= self.step and not self.is_calm:
                self._begin(self._faults.pop(0))
            if not self.is_calm and self._chance.random() < 0.08:
                for master in self._chance.sample(self.reached, min(1, len(self.reached))):
                    master.push()
            able = [process for process in self.processes if process.can_step]
            if able:
                process = self._chance.choice(able)
                for _ in range(process.pace if self.is_calm else 1):
                    process.go()

    def settle(self) -> None:
        """Heal everything, and go on until nothing is left to do."""
        self.is_calm, self.is_log_away = True, False
        self.log.fail_commits.clear()
        for process in self.processes:
            process.disarm()
        self._take_back(self._taken_back)
        end = self.step + SETTLE
        while self.step < end and not self._is_settled():
            self.run(25)
        for mirror in self.mirrors:
            self._see_end(mirror)
        if not self._has_roster():
            self.see(Seen(step=self.step, kind=Kind.FORGOTTEN, who=ROSTER))

    def close(self) -> None:
        for process in self.processes:
            process.free()

    def _pass_time(self) -> None:
        seconds = self._chance.choice((0.01, 0.02, 0.05, 0.1))
        self.clock.advance(seconds)
        for process in self.processes:
            if not process.is_clock_still:
                process.clock.advance(seconds)
        if self.is_log_away and self.step >= self._log_back_at:
            self.is_log_away = False
        if self.relay.is_cut and self.step >= self._cut_until:
            self._end_cut()
        self._take_back([each for each in self._taken_back if each[0] <= self.step])

    def _begin(self, fault: Fault) -> None:
        match fault.strike:
            case Strike.CLOCK:
                process = next(each for each in self.processes if each.name == fault.who)
                process.clock.set_back(3600.0 if fault.calls % 2 else -3600.0)
            case Strike.AWAY:
                self.is_log_away, self._log_back_at = True, self.step + fault.steps
            case strike if strike in TOPICS:
                self._lose_records(TOPICS[strike], fault.calls)
            case strike if strike in OF_OPERATORS:
                self._change_roster(fault)
            case Strike.RENAME:
                for master in self.reached[-1:]:
                    master.rename()
            case Strike.DELETE:
                for master in self.reached[-1:]:
                    master.delete()
            case strike if strike in OF_MASTER:
                self._replace_master(fault)
            case strike:
                process = next(each for each in self.processes if each.name == fault.who)
                process.arm(strike, calls=fault.calls, steps=fault.steps)
                return
        self.see_fault(fault.strike, fault.who)

    def _lose_records(self, topic: str, chance: int) -> None:
        """Lose the newest records of a partition.

        Notices only if every destination has stored that it sent them, or if the aggregator at work remembers them.
        """
        count = 1 + chance % 5
        if topic == NOTICES:
            stored = [self.log.stored(group(name), NOTICES).get(0, 0) for name in DESTINATIONS]
            lost = self.log.records(NOTICES)[-count:]
            is_some_left = len(self.log.records(NOTICES)) > count
            remembering = [each for each in self.aggregators if is_some_left and each.is_remembering(lost)]
            if not remembering and min(stored) < self.log.ends(NOTICES)[0]:
                return
            for each in remembering:
                each.owe(lost)
        self.log.lose(topic, chance % self.log.partitions(topic), count)
        self.see(Seen(step=self.step, kind=Kind.LOST, who=topic))

    def _replace_master(self, fault: Fault) -> None:
        """Have operators replace the master, at times two at once if it does not hand over.

        `promote` refuses to replace one of which the log has nothing yet.
        """
        if not any(record.key == f"{RELAY_KEY}{self.source}" for record in self.log.records(SERVICES)):
            return
        self.is_master_away = fault.strike in (Strike.LOSE_MASTER, Strike.CUT_MASTER)
        if fault.strike is Strike.LOSE_MASTER:
            self.relay.end()
            self.reached.clear()
        elif fault.strike is Strike.CUT_MASTER:
            self.relay.is_cut, self._cut_until = True, self.step + fault.steps
        first = self._chance.choice((0, 1))
        for operator in self.operators if self.is_master_away and fault.calls % 2 else [self.operators[first]]:
            operator.call(fault.strike)

    def _end_cut(self) -> None:
        if not any(seen.kind is Kind.PROMOTED for seen in self.history):
            self.is_master_away = False
        self.relay.is_cut = False

    def end_service(self) -> None:
        """The old master's relay and servers are stopped."""
        self.relay.end()
        self.reached.clear()

    def start_master(self, master: Master, mirror: Process) -> None:
        """Start what a promoted master needs; users push to it."""
        self.source, self.is_master_away = master.source, False
        for name, outbox in self.outboxes.items():
            if outbox.is_deleted and not outbox.has_unsent() and name not in master.outboxes:
                master.outboxes[name] = outbox
        self.outboxes = master.outboxes
        self.reached.append(master)
        self.mirrors = [each for each in self.mirrors if each is not mirror]
        self.processes.append(Relay(self, f"relay-{mirror.name}", self._folder, master))

    def _change_roster(self, fault: Fault) -> None:
        """Ask for a change of the roster, and later for the state before it."""
        verb, back, rules, repository, key = Verb.DEACTIVATE, Verb.ACTIVATE, None, None, None
        if fault.strike is Strike.DEACTIVATE_FOR:
            if not self.outboxes:
                return  # no repository is made yet
            repository = [*self.outboxes][fault.calls % len(self.outboxes)]
        elif fault.strike is Strike.RULES:
            verb, back = Verb.RULES, Verb.RULES
            rules = Rules(include=tuple(f"path:{path}" for path in PATHS if path != PATHS[fault.calls % len(PATHS)]))
        elif fault.strike is Strike.KEY:
            verb, back, key = Verb.ADD_KEY, Verb.REMOVE_KEY, self.mirrors[0].find_key()
        wanted = RosterRequest(
            id=f"{self.step} {fault.strike}", verb=verb, mirror=fault.who, repository=repository, rules=rules, key=key,
            who="dana", time=self.clock.now(), reason="campaign",
        )  # fmt: skip
        self._ask(wanted)
        after = replace(wanted, id=f"{wanted.id}, taken back", verb=back, rules=rules and Rules())
        self._taken_back.append((self.step + fault.steps, after))

    def _take_back(self, due: list[tuple[int, RosterRequest]]) -> None:
        for each in [*due]:
            self._taken_back.remove(each)
            is_promoted = each[1].mirror not in [mirror.mirror for mirror in self.mirrors]
            if not is_promoted or each[1].verb is not Verb.ACTIVATE:
                self._ask(each[1])

    def _ask(self, request: RosterRequest) -> None:
        self.log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])

    def _see_end(self, mirror: Mirror) -> None:
        for name, outbox in self.outboxes.items():
            here = mirror.disk[name][0] if name in mirror.disk else None
            if here is None and outbox.is_deleted:
                continue
            seq, digest = (here.seq, here.digest) if here else (0, "")
            seen = Seen(step=self.step, kind=Kind.ENDED, who=mirror.mirror, repository=name, seq=seq, digest=digest)
            self.see(seen)

    def _is_settled(self) -> bool:
        """Whether both mirrors have, and both destinations stored, all that was accepted."""
        end = self.log.ends(NOTICES)[0]
        stored = [self.log.stored(group(name), NOTICES).get(0, 0) for name in DESTINATIONS]
        count = sum(len(outbox.chain.events) for outbox in self.outboxes.values())
        are_done = not self.relay.is_cut and all(operator.is_stopped for operator in self.operators)
        return (
            are_done
            and self._has_roster()
            and min(stored) == end
            and (end >= count or self._count_delivered() >= len(DESTINATIONS) * count)
            and all(
                (name not in mirror.disk if outbox.is_deleted else mirror.serves(name) == outbox.chain.events[-1].seq)
                for mirror in self.mirrors
                for name, outbox in self.outboxes.items()
            )
        )

    def _has_roster(self) -> bool:
        """Whether the topic has all decisions that it ever had."""
        found = [try_json(Roster, record.value) for record in self.log.records(ROSTER)]
        return self.decided <= {each.request.id for roster in found if roster for each in roster.recent}

    def _count_delivered(self) -> int:
        """Return how many messages arrived, repeats left out: the log may have lost notices of some."""
        delivered = (seen for seen in self.history if seen.kind is Kind.DELIVERED)
        return len({(seen.who, seen.repository, seen.seq) for seen in delivered})


def run(plan: Plan) -> Result:
    """Run one campaign; the same plan does the same each time."""
    before = random.getstate()
    random.seed(plan.seed)
    with (
        tempfile.TemporaryDirectory(prefix="campaign-") as folder,
        structlog.testing.capture_logs(),
        mock.patch.object(catchup, "Source", SteppedSource),
        mock.patch.object(aggregator_standby, "is_gone", is_gone_here),
        mock.patch.object(log_standby, "is_gone", is_gone_here),
        # Threads would cost much, and their order would not be repeatable.
        mock.patch.object(completeness, "ask_aside", ask_at_once),
    ):
        world = World(plan, Path(folder))
        try:
            with mock.patch.object(time, "monotonic", world.clock.monotonic):
                world.run(plan.steps)
                world.settle()
        finally:
            world.close()
            random.setstate(before)
    return Result(plan=plan, history=world.history, violations=check(world.history, DESTINATIONS))


def is_gone_here(instance: str) -> bool:
    """All processes are on other machines: a standby cannot see their end."""
    return False


def ask_at_once(name: str, ask: Callable[[], T]) -> Future[T]:
    """Answer at once, in place of `log.aside.ask_aside`; the process may be killed at that."""
    answer = Future[T]()
    try:
        answer.set_result(ask())
    except Exception as error:
        answer.set_exception(error)
    return answer


def minimise(plan: Plan, *, fails: Callable[[Plan], bool] = lambda plan: bool(run(plan).violations)) -> Plan:
    """Drop faults one by one while the plan still fails."""
    for fault in plan.faults:
        smaller = replace(plan, faults=tuple(each for each in plan.faults if each is not fault))
        if fails(smaller):
            plan = smaller
    return plan


def describe(result: Result, *, last: int = 40) -> str:
    """Return how to repeat a failure, its faults, the `last` things seen before the first violation, and the violations."""
    first = int(result.violations[0].split()[0]) if result.violations else result.history[-1].step
    before = [seen for seen in result.history if seen.step <= first and seen.kind is not Kind.WROTE]
    lines = [f"seed {result.plan.seed}, repeat it: make faults SEED={result.plan.seed}", *map(str, result.plan.faults)]
    return "\n".join([*lines, "", *map(str, before[-last:]), "", *result.violations[:10]])
