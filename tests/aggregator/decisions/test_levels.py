# SPDX-License-Identifier: GPL-2.0-or-later
"""What a new level of a mirror says about the one before it."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.aggregator.decisions.levels import _takes_back
from hgext.vcsreplicator.words.records import Ack
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
    levels = FedAggregation("alpha").aggregation.levels
    for offset, instance in enumerate(["a", "b", "c", "b"]):
        levels._hear("alpha", instance, offset)
    assert levels.list_namesakes() == {"alpha": {"c": 2, "b": 3}}
