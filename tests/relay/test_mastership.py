# SPDX-License-Identifier: GPL-2.0-or-later
"""Of several promotions, one wins."""

from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import EVENTS, SERVICES, Log, NewRecord, topics
from hgext.vcsreplicator.outbox.file import FORMER
from hgext.vcsreplicator.relay.mastership import claim, fork_of_former, has_ended, read_master, take_back
from hgext.vcsreplicator.words import wire
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


def test_of_two_promotions_at_the_same_instant_one_is_recorded(log: MemoryLog) -> None:
    def overtake(_: object) -> None:
        """The other one begins and ends between the look of this one and its record."""
        log.before.clear()
        claim(log, BETA, None)

    log.before["commit"] = overtake
    with pytest.raises(Refused, match="another promotion runs at the same time"):
        claim(log, ALPHA, None)
    assert read_master(log) == BETA


def send(log: Log, source: str = "hg://alpha") -> tuple[int, int]:
    """An event, of the new master unless said otherwise."""
    [place] = log.append([NewRecord(topic=EVENTS, key="a" * 32, value=b"", headers={wire.SOURCE: source})])
    return place


def test_an_event_that_the_new_master_sends_meanwhile_leaves_it_the_master(log: MemoryLog) -> None:
    def send_first(_: str) -> None:
        log.before.clear()
        send(log)

    claim(log, ALPHA, None)
    log.before["transactor"] = send_first
    with pytest.raises(Refused, match="hg://alpha is the master and has sent events"):
        take_back(log, "hg://old", {})
    known = read_master(log)
    assert known is not None
    assert (known.source, known.replaces) == ("hg://alpha", ("hg://old",))


def test_events_of_the_new_master_up_to_the_newest_of_the_old_one_are_no_obstacle(log: MemoryLog) -> None:
    """It was the master once before."""
    claim(log, ALPHA, None)
    send(log)
    partition, offset = send(log, "hg://old")
    take_back(
        log, "hg://old", {partition: {offset, offset + 7}}
    )  # the log has lost records since, or an account wrote it
    known = read_master(log)
    assert known is not None
    assert (known.source, known.replaces) == ("hg://old", ("hg://alpha",))


@pytest.mark.parametrize("distance", [0, 10**15], ids=["of another master", "beyond the end"])
def test_a_false_mark_of_an_account_hides_no_event_of_the_new_master(log: MemoryLog, distance: int) -> None:
    claim(log, ALPHA, None)
    true = send(log, "hg://old")
    partition, offset = send(log)
    with pytest.raises(Refused, match="hg://alpha is the master and has sent events"):
        take_back(log, "hg://old", {partition: {true[1], offset + distance}})
    assert read_master(log) == ALPHA


def test_a_fork_of_a_promotion_that_a_restored_log_has_lost_stays() -> None:
    """Its newest promotion is the older one, of the master that was replaced."""
    fork = fork_of_former(replace(ALPHA, source="hg://beta", replaces=("hg://alpha", "hg://old")), "hg://alpha")
    assert fork is not None
    assert not has_ended(fork, ALPHA, "hg://alpha")
    assert not has_ended(fork, None, "hg://alpha")
    assert has_ended(fork, replace(ALPHA, replaces=("hg://beta", "hg://old")), "hg://alpha")


def test_a_pusher_reads_no_control_character_of_a_false_master() -> None:
    false = MasterRecord(source="hg://\x1b]0;x\x07" + "y" * 10_000, mirror="a", replaces=("hg://old",), time=1.0)
    fork = fork_of_former(false, "hg://old")
    assert fork is not None
    assert fork.reason.isprintable()
    assert fork.master == FORMER
    assert len(fork.reason) < 1000
