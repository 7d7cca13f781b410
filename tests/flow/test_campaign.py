# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults strike at random under load, and every promise is kept: see `testing/faults/campaign/`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.faults.campaign.history import of_kind
from testing.faults.campaign.judge import is_late, judge
from testing.faults.campaign.page import make_table
from testing.faults.campaign.running import Plan, run
from testing.faults.campaign.table import BROKERS, FAULTS

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

SEED = int(os.environ.get("VCSREPLICATOR_TEST_SEED", "20260"))
PLAIN = [fault for fault in FAULTS if fault.is_plain]
Told = Callable[[object], None]


def keeps_every_promise(plan: Plan, folder: Path, told: Told) -> None:
    """Run a campaign that finds no violation, and print what happened."""
    seen = run(plan, folder)
    told(make_table([seen]))
    assert [each for each in judge(seen) if not is_late(each)] == []
    assert len(of_kind(seen, "struck")) >= plan.strikes
    assert of_kind(seen, "pushed")
    assert of_kind(seen, "looked")


@pytest.mark.timeout(900)
def test_whatever_is_killed_every_push_is_told_once_in_order_and_in_time(tmp_path: Path, told: Told) -> None:
    keeps_every_promise(Plan(seed=SEED, faults=PLAIN, strikes=6, pause=0.7, is_whole=False), tmp_path, told)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_kills_under_load(tmp_path: Path, told: Told) -> None:
    keeps_every_promise(Plan(seed=SEED, faults=PLAIN, strikes=300, pause=4.0, is_whole=False), tmp_path, told)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_minutes_of_every_kind_of_fault(tmp_path: Path, told: Told) -> None:
    keeps_every_promise(Plan(seed=20261122, seconds=300.0), tmp_path, told)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kind_of_fault_of_three_brokers(tmp_path: Path, told: Told) -> None:
    keeps_every_promise(Plan(seed=SEED, faults=BROKERS, strikes=len(BROKERS)), tmp_path, told)
