# SPDX-License-Identifier: GPL-2.0-or-later
"""Of several promotions, one wins."""

import pytest

from hgext.vcsreplicator.log import SERVICES, Log, NewRecord, topics
from hgext.vcsreplicator.relay import mastership
from hgext.vcsreplicator.relay.mastership import claim, read_master
from hgext.vcsreplicator.words.errors import Refused
from hgext.vcsreplicator.words.records import MASTER_KEY, MasterRecord
from testing.builders.log.memorylog import MemoryLog

ALPHA, BETA = (
    MasterRecord(source=f"hg://{name}", mirror=name, replaces=("hg://old",), time=1.0) for name in ("alpha", "beta")
)


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics())
    return log


def test_a_promotion_is_refused_if_another_one_was_recorded_meanwhile(log: MemoryLog) -> None:
    assert read_master(log) is None
    claim(log, ALPHA, None)
    with pytest.raises(Refused, match="hg://alpha was promoted meanwhile"):
        claim(log, BETA, None)
    assert read_master(log) == ALPHA
    claim(log, BETA, ALPHA)
    assert read_master(log) == BETA


def test_a_record_that_is_no_promotion_replaces_no_master_and_is_written_over(log: MemoryLog) -> None:
    log.append([NewRecord(topic=SERVICES, key=MASTER_KEY, value=b'{"replaces":"all"}')])
    assert read_master(log) is None
    claim(log, ALPHA, None)
    assert read_master(log) == ALPHA


def test_of_two_promotions_at_the_same_instant_one_is_recorded(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtake(log: Log) -> MasterRecord | None:
        """The other one begins and ends between the look of this one and its record."""
        known = read_master(log)
        monkeypatch.setattr(mastership, "read_master", read_master)
        claim(log, BETA, None)
        return known

    monkeypatch.setattr(mastership, "read_master", overtake)
    with pytest.raises(Refused, match="another promotion runs at the same time"):
        claim(log, ALPHA, None)
    assert read_master(log) == BETA
