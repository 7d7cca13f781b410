# SPDX-License-Identifier: GPL-2.0-or-later
"""Records that one process at a time writes, on each log, and on a log in memory that fails."""

from contextlib import closing

import pytest

from hgext.vcsreplicator.log import STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.owned import CHECK_EVERY, OwnedRecords
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.errors import Fenced, Unavailable
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


@pytest.fixture
def memory() -> MemoryLog:
    made = MemoryLog()
    made.create(topics())
    return made


def owned(log: Log, clock: HandClock | None = None) -> OwnedRecords:
    return OwnedRecords(log, STATE, "x/", "owner", clock or HandClock())


def of_log(log: Log) -> dict[str, bytes | None]:
    return {key: record.value for (_, key), record in read_table(log, STATE).records.items()}


@pytest.mark.processes
def test_who_opens_them_last_knows_all_and_alone_writes(log: Log) -> None:
    clock = HandClock()
    log.append([NewRecord(topic=STATE, key="y/a", value=b"other's")])
    with closing(owned(log, clock)) as first:
        first.write({"a": b"1", "b": b"2"})
        first.write({"a": None})
        with closing(owned(log)) as second:
            assert second.values == first.values == {"b": b"2"}
            clock.advance(CHECK_EVERY)
            with pytest.raises(Fenced):
                first.check()
            with pytest.raises(Fenced):
                first.write({"b": b"3"})
            second.write({"c": b"4"})
    assert of_log(log) == {"y/a": b"other's", "x/b": b"2", "x/c": b"4"}


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_may_not_be_written_goes_before_everything_else(memory: MemoryLog, is_taken: bool) -> None:
    records = owned(memory)
    memory.fail_commits = [is_taken]
    with pytest.raises(Unavailable):
        records.write({"a": b"1"})
    assert records.values == {"a": b"1"}
    records.check()
    assert of_log(memory) == {"x/a": b"1"}


def test_what_the_log_lost_is_written_again(memory: MemoryLog) -> None:
    clock = HandClock()
    records = owned(memory, clock)
    records.write({"a": b"1", "b": b"2"})
    copy = memory.copied(STATE)
    records.write({"a": b"3", "b": None, "c": b"4"})
    memory.restore(STATE, copy)
    clock.advance(CHECK_EVERY)
    records.check()
    assert of_log(memory) == {"x/a": b"3", "x/c": b"4"}
