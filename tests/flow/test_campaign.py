# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything is killed at random under load, and every promise is kept: see `testing/faults/campaign.py`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from testing.faults.campaign import Plan, run

pytestmark = [pytest.mark.processes, pytest.mark.hunt]

SEED = int(os.environ.get("VCSREPLICATOR_TEST_SEED", "20260"))


LOGS = pytest.mark.parametrize("log", ["sqlite", pytest.param("kafka", marks=pytest.mark.services)])


Told = Callable[[object], None]


def keeps_every_promise(plan: Plan, folder: Path, told: Told) -> None:
    """Run a campaign that finds no violation, and print what happened."""
    result = run(plan, folder)
    told(result)
    assert not result.violations, str(result)
    assert result.kills.total() == plan.kills
    assert result.pushes
    assert result.tried == result.lines


@pytest.mark.timeout(900)
@pytest.mark.parametrize("log", ["sqlite", pytest.param("kafka", marks=[pytest.mark.services, pytest.mark.slow])])
def test_whatever_is_killed_every_push_is_told_once_in_order_and_in_time(
    log: Literal["sqlite", "kafka"], tmp_path: Path, told: Told
) -> None:
    keeps_every_promise(Plan(log=log, kills=6, seconds=2, seed=SEED, is_warm=True), tmp_path, told)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@LOGS
def test_three_hundred_kills_under_load(log: Literal["sqlite", "kafka"], tmp_path: Path, told: Told) -> None:
    keeps_every_promise(Plan(log=log, kills=300, seconds=600, seed=SEED), tmp_path, told)
