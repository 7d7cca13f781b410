# SPDX-License-Identifier: GPL-2.0-or-later
"""Campaigns in one process: every promise is kept under every fault (docs/architecture.md)."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator.decisions import repository as decisions
from hgext.vcsreplicator.log import NOTICES, NewRecord, topics
from testing.campaign import master
from testing.campaign.aggregator import Aggregator
from testing.campaign.faults import OF_MASTER, Fault, Plan, Strike, draw
from testing.campaign.history import Kind
from testing.campaign.log import ProcessLog, SteppedLog
from testing.campaign.process import Process
from testing.campaign.stage import PATHS, Stage
from testing.campaign.world import describe, minimise, run
from testing.clock import HandClock
from testing.seeds import marked_more

# Campaigns of `make test`, and those that `make test-all` adds.
SEEDS = [*marked_more(range(1, 7)), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(7, 400))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_whatever_fails(seed: int) -> None:
    result = run(draw(seed))
    assert not result.violations, describe(run(minimise(result.plan)))


@pytest.mark.slow
def test_a_seed_does_the_same_in_every_process() -> None:
    script = "from testing.campaign.world import *; print(*run(draw(3)).history, sep='\\n')"
    script = "from testing.campaign.faults import draw\n" + script
    texts = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_the_opening_of_a_transactor_is_seen_as_a_write() -> None:
    log, seen = ProcessLog(SteppedLog(HandClock(), lambda record: None), 1, lambda call: lambda: None), list[str]()
    log.on_commit = lambda identity, turn, positions: seen.append(identity)
    log.transactor("destination-lines")
    assert seen == ["destination-lines"]


def test_a_process_that_is_ended_while_it_stands_still_writes_nothing() -> None:
    class Ending(Stage):
        def run(self, steps: int) -> None:
            writer.end()

        def end_service(self) -> None: ...

        def start_master(self, master: object, mirror: object) -> None: ...

    class Writer(Process):
        def begin(self) -> None: ...

        def step(self) -> None:
            self.log.append([NewRecord(topic=NOTICES, key="x", value=b"")])

    stage = Ending(Plan(seed=1, steps=1, faults=()))
    stage.log.create(topics())
    writer = Writer(stage, "writer", Path())
    writer.go()
    writer.arm(Strike.FREEZE, calls=1, steps=1)
    writer.go()
    assert stage.log.records(NOTICES) == []


def test_a_release_without_acks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "is_served", lambda ack, held: True)
    result = run(Plan(seed=1, steps=120, faults=()))
    assert any("early:" in each for each in result.violations), result.violations


def test_notices_lost_before_anyone_read_them_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    owed = list[int]()
    monkeypatch.setattr(Aggregator, "owe", lambda self, notices: owed.append(len(notices)))
    steps = range(200, 700, 20)
    faults = [Fault(step=step, strike=Strike.LOSE_NOTICES, who="log", calls=step // 10) for step in steps]
    result = run(Plan(seed=1, steps=700, faults=tuple(faults)))
    assert len(owed) > 5
    assert not result.violations, describe(result)


def replace_master(strike: Strike, *, rivals: bool, seed: int = 5) -> Plan:
    fault = Fault(step=60, strike=strike, who="master", calls=int(rivals), steps=500)
    return Plan(seed=seed, steps=200, faults=(fault,))


@pytest.mark.parametrize("strike", OF_MASTER)
def test_a_mirror_becomes_the_master_and_all_goes_on(strike: Strike) -> None:
    result = run(replace_master(strike, rivals=False))
    assert [each.who for each in result.history if each.kind is Kind.DECLARED], describe(result)
    assert not result.violations, describe(result)


def test_a_former_master_that_is_not_fenced_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "fork_of_former", lambda newest, source: None)
    plans = (replace_master(Strike.CUT_MASTER, rivals=False, seed=seed) for seed in range(20))
    assert any("two masters:" in each for plan in plans for each in run(plan).violations)


def test_of_two_promotions_one_wins_and_the_other_says_so() -> None:
    history = run(replace_master(Strike.LOSE_MASTER, rivals=True)).history
    [winner] = [each.who for each in history if each.kind is Kind.DECLARED]
    assert any(f"refused: {winner} was promoted meanwhile" in str(each) for each in history)


def test_a_promotion_that_looked_before_another_was_recorded_is_refused() -> None:
    """The other one is recorded after this one has read the reports, and before it reads who is master."""
    faults = [
        Fault(step=105, strike=Strike.FREEZE, who="mirror-alpha", calls=1, steps=5),
        Fault(step=266, strike=Strike.KILL, who="mirror-alpha", calls=7, steps=5),
        Fault(step=282, strike=Strike.LOSE_MASTER, who="master", calls=1, steps=700),
        Fault(step=282, strike=Strike.KILL, who="operator-alpha", calls=44, steps=20),
        Fault(step=282, strike=Strike.KILL, who="operator-beta", calls=18, steps=20),
        Fault(step=282, strike=Strike.FREEZE, who="operator-beta", calls=10, steps=20),
        Fault(step=307, strike=Strike.KILL, who="mirror-beta", calls=5, steps=150),
    ]
    result = run(Plan(seed=282, steps=500, faults=tuple(faults)))
    assert len([each for each in result.history if each.kind is Kind.DECLARED]) == 1
    assert not result.violations, describe(result)


@pytest.mark.more
def test_a_failure_is_shown_with_its_seed_and_its_fewest_faults() -> None:
    faults = [Fault(step=30, strike=Strike.KILL, who="relay"), Fault(step=40, strike=Strike.AWAY)]
    plan = Plan(seed=5, steps=50, faults=tuple(faults))
    smallest = minimise(plan, fails=lambda plan: faults[1] in plan.faults)
    assert smallest == replace(plan, faults=(faults[1],))
    shown = describe(run(smallest))
    assert "make faults SEED=5" in shown
    assert "step 40: all: log away" in shown


@pytest.mark.more
def test_what_operators_ask_for_takes_effect_and_is_taken_back() -> None:
    faults = [Fault(step=30, strike=strike, who="alpha", steps=60) for strike in (Strike.RULES, Strike.DEACTIVATE_FOR)]
    seen = [each for each in run(Plan(seed=2, steps=80, faults=tuple(faults))).history if each.kind is Kind.GATING]
    alpha = [(each.names, bool(each.spared)) for each in seen if each.who == "alpha"]
    assert alpha[0] == alpha[-1] == (PATHS, False)
    assert (("a", "c", "d"), True) in alpha
