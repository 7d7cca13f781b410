# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers that take too long, played by hand: which count as slow, and which are killed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.pool import Lane
from hgext.vcsreplicator.mirror.supervision.watch import REPLACEMENT_LIMITS, START_SLOW
from testing.builders.aggregator.chains import Chain
from testing.builders.mirror.supervising import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics(partitions=1))
        bench = Bench(tmp_path, log)
        bench.settings = replace(bench.settings, slow_after=50.0, hung_after=100.0)
        bench.start({0: 0})
        yield bench
        bench.close()


def test_a_worker_that_starts_is_slow_sooner_than_one_that_works(bench: Bench) -> None:
    bench.read(Chain("r").next())
    starting = bench.pool.idle(Lane.LIGHT)
    starting.is_ready = False
    bench.pool.workers.append(starting)
    bench.passes(round(START_SLOW) + 3)
    assert [worker.is_slow for worker in bench.pool.workers] == [False, True]


def test_workers_that_are_slow_stay_so_and_no_more_than_the_limit_are(bench: Bench) -> None:
    limit = REPLACEMENT_LIMITS[Lane.LIGHT]
    bench.read(*(Chain(f"r{number}").next() for number in range(limit + 2)))
    for seconds in (52, 1, 1):
        bench.passes(seconds)
        assert sum(worker.is_slow for worker in bench.pool.workers) == limit


def test_small_work_is_ended_in_time_though_it_makes_progress(bench: Bench) -> None:
    bench.read(Chain("r").next())
    [worker] = bench.pool.given
    for second in range(103):
        bench.pool.used[id(worker)] = float(second)
        bench.passes(1)
    assert bench.pool.killed == [worker]


def test_a_repair_that_hangs_is_replaced_at_once(bench: Bench) -> None:
    bench.pool.limits[Lane.REPAIR] = 1
    bench.break_down()
    bench.passes(3)
    [worker] = [worker for worker in bench.pool.given if worker.busy.heal]
    bench.passes(60)
    assert not worker.is_slow
    bench.passes(60)
    assert (worker.is_slow, bench.pool.killed) == (True, [worker])
