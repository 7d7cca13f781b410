# SPDX-License-Identifier: GPL-2.0-or-later
"""The memory of a picture: `status` and the dashboard keep every level of every mirror."""

import gc
import tracemalloc

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.status.follower import read_picture
from testing.builders.aggregator.aggregating import fill_settled
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


def test_a_level_in_the_picture_takes_less_than_half_a_kilobyte() -> None:
    log, mirrors = MemoryLog(HandClock()), [f"mirror{number}" for number in range(10)]
    log.create(topics())
    fill_settled(log, [Chain(f"group/{number}") for number in range(100)], mirrors)
    tracemalloc.start()
    try:
        picture = read_picture(log)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(picture.acks) == 1000
    assert taken / 1000 < 500
