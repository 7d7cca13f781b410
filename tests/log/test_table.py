# SPDX-License-Identifier: GPL-2.0-or-later
"""A topic read to its end: on SQLite, on a real Kafka with its transaction markers, and on a log that loses records meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from hgext.vcsreplicator.log import EVENTS, NOTICES, STATE, Log, NewRecord, Record
from hgext.vcsreplicator.log.table import (
    FIRST_POLL,
    ReadStopped,
    find_beginnings,
    find_oldest_time,
    read_on,
    read_records,
    read_table,
)
from hgext.vcsreplicator.words.errors import Expired, Rewound
from testing.builders.log.log_storage import PARTITIONS, TOPICS, Storage
from testing.builders.log.losinglog import LosingLog
from testing.builders.log.markedlog import MarkedLog
from testing.builders.log.memorylog import MemoryLog

pytestmark = pytest.mark.processes


def put(log: Log, *pairs: tuple[str, bytes | None], topic: str = STATE) -> None:
    log.append([NewRecord(topic=topic, key=key, value=value) for key, value in pairs])


def values(records: Iterator[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_a_table_has_the_newest_value_of_each_key_in_the_order_written(log: Log) -> None:
    put(log, ("a", b"old"), ("b", b"1"), ("a", b"new"))
    table = read_table(log, STATE)
    assert [(key, record.value) for (_, key), record in table.records.items()] == [("b", b"1"), ("a", b"new")]
    assert table.value(STATE, "a") == b"new"
    assert table.value(STATE, "c") is None


def test_a_key_that_is_written_again_moves_behind_the_others(log: Log) -> None:
    put(log, ("a", b"old"), ("b", b"1"), ("a", b"new"), topic=NOTICES)  # where nothing is compacted, as yet
    assert [key for _, key in read_table(log, NOTICES).records] == ["b", "a"]


def test_a_key_that_a_tombstone_removed_is_not_in_the_table(log: Log) -> None:
    put(log, ("a", b"1"), ("b", b"2"), ("a", None))
    assert [key for _, key in read_table(log, STATE).records] == ["b"]


def test_records_without_a_key_are_not_in_a_table(log: Log) -> None:
    log.append([NewRecord(topic=NOTICES, key=None, value=b"1"), NewRecord(topic=NOTICES, key="a", value=b"2")])
    assert [key for _, key in read_table(log, NOTICES).records] == ["a"]


def test_an_empty_topic_is_an_empty_table_and_can_be_followed(log: Log) -> None:
    table = read_table(log, STATE)
    assert table.records == {}
    put(log, ("a", b"1"))
    assert values(read_records(log, table.positions)) == [b"1"]


def test_one_table_may_be_of_several_topics_that_have_the_same_keys(log: Log) -> None:
    put(log, ("a", b"state"))
    put(log, ("a", b"notice"), topic=NOTICES)
    table = read_table(log, STATE, NOTICES)
    assert (table.value(STATE, "a"), table.value(NOTICES, "a")) == (b"state", b"notice")


def test_a_transaction_at_the_end_is_read_whole(log: Log) -> None:
    with closing(log.transactor("single")) as transactor:
        for number in range(3):
            transactor.commit([NewRecord(topic=STATE, key=f"{number}", value=b"%d" % number)])
        transactor.renew()  # readers may see a commit late, but not later than this
        table = read_table(log, STATE)
        assert [record.value for record in table.records.values()] == [b"0", b"1", b"2"]
        transactor.commit([NewRecord(topic=STATE, key="3", value=b"3")])
        transactor.renew()
    assert values(read_records(log, table.positions)) == [b"3"]


def test_every_record_of_all_partitions_is_read_tombstones_included(log: Log) -> None:
    log.append(
        [NewRecord(topic=EVENTS, key="x", value=b"%d" % part, partition=part) for part in range(PARTITIONS)]
        + [NewRecord(topic=EVENTS, key="x", value=None, partition=0)]
    )
    found = values(read_records(log, find_beginnings(log, EVENTS)))
    assert sorted(found, key=str) == sorted([None, b"0", b"1", b"2", b"3"], key=str)


def test_a_reader_is_read_on_again_and_again(log: Log) -> None:
    with closing(log.reader(find_beginnings(log, NOTICES))) as reader:
        for number in range(3):
            put(log, ("x", b"%d" % number), topic=NOTICES)
            assert values(read_on(log, reader)) == [b"%d" % number]
        assert values(read_on(log, reader)) == []


def test_a_position_before_the_beginning_is_expired(storage: Storage, log: Log) -> None:
    log.append([NewRecord(topic=EVENTS, key="x", value=b"", partition=0) for _ in range(2)])
    storage.forget(EVENTS, 0, 1)
    with pytest.raises(Expired):
        list(read_records(log, {(EVENTS, 0): 0}))


def test_a_reading_that_is_stopped_gives_no_part_for_the_whole(log: Log) -> None:
    put(log, ("a", b"1"))
    stop = threading.Event()
    stop.set()
    with pytest.raises(ReadStopped):
        read_table(log, STATE, stop=stop)


# A log that loses records while it is read


def test_a_log_that_loses_its_newest_record_is_read_to_its_earlier_end() -> None:
    log = MemoryLog()
    log.create(TOPICS)
    put(log, ("x", b"0"), ("x", b"1"), topic=NOTICES)
    losing = LosingLog(log=log, topic=NOTICES)
    assert values(read_records(losing, {(NOTICES, 0): 0})) == [b"0"]  # type: ignore[arg-type]
    assert losing.asked == 2


def test_the_marker_of_a_transaction_at_the_end_is_waited_for_briefly() -> None:
    marked = MarkedLog()
    assert values(read_records(marked, {(NOTICES, 0): 0})) == [b"{}"]  # type: ignore[arg-type]
    assert marked.waits == [0.0, FIRST_POLL]


def test_a_reader_at_the_end_sees_a_log_that_lost_records() -> None:
    log = MemoryLog()
    log.create(TOPICS)
    put(log, ("x", b"0"), ("x", b"1"), topic=NOTICES)
    reader = log.reader({(NOTICES, 0): 0})
    assert values(read_on(log, reader)) == [b"0", b"1"]
    log.lose(NOTICES, 0, 1)
    with pytest.raises(Rewound):
        list(read_on(log, reader))


def test_what_is_committed_meanwhile_does_not_keep_a_reader_for_ever() -> None:
    log = MemoryLog()
    log.create(TOPICS)
    put(log, ("x", b"0"), topic=NOTICES)
    count = 0
    for _ in read_records(log, {(NOTICES, 0): 0}):
        put(log, ("x", b"more"), topic=NOTICES)
        count += 1
    assert count == 1


def test_the_oldest_time_is_that_of_the_oldest_record_of_all_partitions(log: Log) -> None:
    assert find_oldest_time(log, EVENTS) is None
    for partition in (2, 0, 2, 0):
        log.append([NewRecord(topic=EVENTS, key="x", value=b"1", partition=partition)])
    times = [record.time for record in read_records(log, find_beginnings(log, EVENTS))]
    assert find_oldest_time(log, EVENTS) == min(times)
