# SPDX-License-Identifier: GPL-2.0-or-later
"""What a new level of a mirror says about the one before it."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.decisions.levels import _takes_back
from hgext.vcsreplicator.log import ACKS
from hgext.vcsreplicator.words.records import Ack, MirrorHeartbeat
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.fed_aggregation import FedAggregation

CHAIN = Chain("x")
CHAIN.take(3)
FORMER = CHAIN.ack("alpha", 2, 1)


@pytest.mark.parametrize(
    ("level", "former", "takes_back"),
    [
        (None, None, False),
        (FORMER, None, False),
        (None, FORMER, True),
        (FORMER, FORMER, False),
        (CHAIN.ack("alpha", 3, 2), FORMER, False),
        (CHAIN.ack("alpha", 1, 1), FORMER, True),
        (CHAIN.ack("alpha", 2, 0), FORMER, True),
        (replace(FORMER, incarnation="c" * 32), FORMER, True),
    ],
)
def test_a_level_takes_back_only_what_it_does_not_repeat(
    level: Ack | None, former: Ack | None, takes_back: bool
) -> None:
    assert _takes_back(level, former) is takes_back


def test_of_the_processes_that_report_as_a_mirror_the_last_two_are_known() -> None:
    fed = FedAggregation("alpha")
    for instance in ("a", "b", "a", "c"):
        beat = MirrorHeartbeat(mirror="alpha", time=1.0, positions={}, version="1", instance=instance)
        fed.aggregation.levels.take(fed.record(ACKS, "alpha", to_json(beat)), fed.now)
    assert fed.aggregation.levels.list_namesakes() == {"alpha": {"a": 2, "c": 3}}


def test_a_doubted_level_is_recorded_once_with_its_mirror_and_event() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(2))
    fed.ack(chain.ack("alpha", 2))
    fed.aggregation.levels.doubt("alpha", chain.repository, 7, fed.now)
    fed.write()
    [error] = fed.errors
    assert (error.key, error.repository) == (f"alpha/{chain.repository}", chain.repository)
    assert (error.topic, error.partition, error.offset) == (ACKS, 0, 0)
    assert error.reason.startswith("x: alpha says that it has applied event 7, which is not in the log")


def test_the_serial_of_a_sealed_level_is_kept_for_the_state() -> None:
    fed, chain = FedAggregation("alpha"), Chain("x")
    fed.event(*chain.take(1))
    record = fed.record(ACKS, f"alpha/{chain.repository}", to_json(chain.ack("alpha", 1)))
    fed.aggregation.levels.take(record, fed.now, serial=7)
    fed.commit()
    assert fed.state(chain).serials == {"alpha": 7}
