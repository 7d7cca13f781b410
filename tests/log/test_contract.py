# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the log, sentence by sentence, for every adapter: SQLite, and Kafka on a real broker."""

import math
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kafka import KafkaAdminClient
from kafka.producer.transaction_manager import TransactionManager

from hgext.vcsreplicator.log import (
    EVENTS,
    LARGEST,
    NOTICES,
    STATE,
    Log,
    NewRecord,
    Reader,
    Record,
    Topic,
    Transactor,
    partition_of,
)
from hgext.vcsreplicator.log.kafka import transactor as kafka_transactor
from hgext.vcsreplicator.log.kafka.adapter import KafkaLog
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Fenced, Rejected, Rewound, Unavailable
from testing.builders.log.log_storage import PARTITIONS, TOPICS, Storage
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).with_name("programs.py")
Result = TypeVar("Result")
# Seconds after which something that must happen counts as not happening.
SOON = 60.0


@pytest.fixture
def reading(log: Log, opened: ExitStack) -> Callable[..., Reader]:
    """Opens readers: of all partitions of a topic from the beginning, or at positions."""

    def read(topic: str = EVENTS, positions: Mapping[tuple[str, int], int] | None = None) -> Reader:
        start = {(topic, number): 0 for number in range(log.partitions(topic))} if positions is None else positions
        reader = log.reader(start)
        opened.callback(reader.close)
        return reader

    return read


@pytest.fixture
def transacting(log: Log, opened: ExitStack) -> Callable[[str], Transactor]:
    def transact(identity: str = "single") -> Transactor:
        transactor = log.transactor(identity)
        opened.callback(transactor.close)
        return transactor

    return transact


def message(
    value: bytes | None, *, topic: str = EVENTS, key: str | None = "x", partition: int | None = None
) -> NewRecord:
    return NewRecord(topic=topic, key=key, value=value, partition=partition)


def read(reader: Reader, count: int, *, limit: int = 500) -> list[Record]:
    """The next `count` records."""
    deadline = time.monotonic() + SOON
    records: list[Record] = []
    while len(records) < count and time.monotonic() < deadline:
        records += reader.poll(1, limit=min(limit, count - len(records)))
    assert len(records) == count, [record.value for record in records]
    return records


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def quiet(reader: Reader) -> bool:
    """Whether nothing more comes, as far as can be seen: what is appended last is read last."""
    return reader.poll(0.3) == []


def patiently(act: Callable[[], Result]) -> Result:
    """What a service does: try again while the log is unavailable."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return act()
        except Unavailable:
            if time.monotonic() > deadline:
                raise


# Topics


def test_create_makes_the_missing_topics_and_names_them(storage: Storage, opened: ExitStack) -> None:
    log = opened.enter_context(open_log(storage.url, creates=True))
    assert log.create([TOPICS[0]]) == [EVENTS]
    assert log.create(TOPICS) == [NOTICES, STATE]
    assert log.create(TOPICS) == []


def test_create_refuses_a_topic_with_other_partitions_and_makes_none(log: Log) -> None:
    with pytest.raises(BadConfig, match=rf"{EVENTS}.*has {PARTITIONS} partitions, expected 5"):
        log.create([Topic(name="another"), Topic(name=EVENTS, partitions=5)])
    with pytest.raises(BadConfig, match="another"):
        log.partitions("another")


def test_a_divisible_topic_is_used_with_the_partitions_that_it_has(log: Log) -> None:
    assert log.create([Topic(name=EVENTS, retention=1000.0, is_divisible=True)]) == []
    [found] = log.compare([Topic(name=EVENTS, retention=1000.0, is_divisible=True)])
    assert [each.setting for each in found.differences] == []
    assert log.partitions(EVENTS) == PARTITIONS


def test_several_processes_may_create_the_same_topics_at_once(storage: Storage, opened: ExitStack) -> None:
    logs = [opened.enter_context(open_log(storage.url, creates=True)) for _ in range(3)]
    made: list[list[str]] = []
    threads = [threading.Thread(target=lambda log=log: made.append(log.create(TOPICS))) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for names in made for name in names) == sorted(topic.name for topic in TOPICS)


def test_partitions_are_as_created(log: Log) -> None:
    assert log.partitions(EVENTS) == PARTITIONS
    assert log.partitions(NOTICES) == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.partitions("unknown"),
        lambda log: log.append([message(b"", topic="unknown")]),
        lambda log: log.reader({("unknown", 0): 0}),
        lambda log: log.acknowledge("group", "unknown", {0: 0}),
        lambda log: log.stored("group", "unknown"),
        lambda log: log.groups("unknown"),
        lambda log: log.ends("unknown"),
        lambda log: log.beginnings("unknown"),
        lambda log: log.transactor("single").commit([message(b"", topic="unknown")]),
    ],
    ids=["partitions", "append", "reader", "acknowledge", "stored", "groups", "ends", "beginnings", "commit"],
)
def test_an_unknown_topic_is_a_mistake_of_the_configuration(log: Log, act: Callable[[Log], object]) -> None:
    with pytest.raises(BadConfig, match=r"unknown.*vcsreplicator topics"):
        act(log)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.append([message(b"", partition=PARTITIONS)]),
        lambda log: log.reader({(EVENTS, -1): 0}),
        lambda log: log.acknowledge("group", EVENTS, {PARTITIONS: 0}),
        lambda log: log.transactor("single").commit([], group="group", positions={(EVENTS, PARTITIONS): 0}),
    ],
    ids=["append", "reader", "acknowledge", "commit"],
)
def test_an_unknown_partition_is_a_mistake_of_the_configuration(log: Log, act: Callable[[Log], object]) -> None:
    with pytest.raises(BadConfig, match=f"no partition .*expected 0 to {PARTITIONS - 1}"):
        act(log)


# Append


def test_a_record_comes_out_as_it_went_in(log: Log, reading: Callable[..., Reader]) -> None:
    headers = {"id": "1-2", "subject": "näme/☃", "empty": ""}
    sent = NewRecord(topic=EVENTS, key="repo \udcff☃", value=bytes(range(256)), headers=headers, partition=2)
    before = time.time()
    [(partition, offset)] = log.append([sent])
    [record] = read(reading(), 1)
    assert (record.topic, record.partition, record.offset) == (EVENTS, partition, offset)
    assert (record.key, record.value, record.headers) == (sent.key, sent.value, headers)
    assert partition == 2
    assert before - 1 <= record.time <= time.time() + 1


def test_a_record_may_lack_a_key_or_a_value_but_not_both(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(None, topic=NOTICES), message(b"", topic=NOTICES, key=None)])
    assert [(record.key, record.value) for record in read(reading(NOTICES), 2)] == [("x", None), (None, b"")]
    with pytest.raises(Rejected, match="expected a key or a value"):
        log.append([message(None, topic=NOTICES, key=None)])


def test_the_key_decides_the_partition_and_an_explicit_partition_wins(log: Log) -> None:
    written = log.append([message(b"", key="a"), message(b"", key="b"), message(b"", key="a", partition=3)])
    expected = [partition_of("a", PARTITIONS), partition_of("b", PARTITIONS), 3]
    assert [partition for partition, _ in written] == expected


def test_append_keeps_the_order_within_a_partition(log: Log, reading: Callable[..., Reader]) -> None:
    expected = [b"%d" % number for number in range(300)]
    log.append([message(value) for value in expected[:150]])
    for value in expected[150:160]:
        log.append([message(value)])
    log.append([message(value) for value in expected[160:]])
    assert values(read(reading(), 300)) == expected


def test_append_of_nothing_does_nothing(log: Log) -> None:
    assert log.append([]) == []
    assert log.ends(EVENTS) == dict.fromkeys(range(PARTITIONS), 0)


def test_threads_may_append_at_once_and_each_keeps_its_order(log: Log, reading: Callable[..., Reader]) -> None:
    def work(name: str) -> None:
        for number in range(20):
            log.append([message(b"%d" % number, topic=NOTICES, key=name)])

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    records = read(reading(NOTICES), 60)
    for thread in threads:
        thread.join()
    for name in "abc":
        own = [record for record in records if record.key == name]
        assert values(own) == [b"%d" % number for number in range(20)]


def test_the_largest_message_passes_and_a_larger_one_is_rejected(log: Log, reading: Callable[..., Reader]) -> None:
    with pytest.raises(Rejected, match=f"expected at most {LARGEST}"):
        log.append([message(b"company", topic=NOTICES), message(b"." * LARGEST, topic=NOTICES)])
    log.append([message(b"." * (LARGEST - 1), topic=NOTICES)])
    [record] = read(reading(NOTICES), 1)
    assert len(record.value or b"") == LARGEST - 1


def test_a_compacted_topic_refuses_a_record_without_a_key(log: Log) -> None:
    with pytest.raises(Rejected, match="key"):
        log.append([message(b"1", topic=STATE, key=None)])


# Readers


def test_a_reader_starts_at_its_positions_and_reads_its_partitions_only(
    log: Log, reading: Callable[..., Reader]
) -> None:
    log.append([message(b"%d" % number, partition=number % 2) for number in range(8)])
    reader = reading(positions={(EVENTS, 1): 2})
    assert values(read(reader, 2)) == [b"5", b"7"]
    assert quiet(reader)


def test_a_reader_waits_for_what_comes(log: Log, reading: Callable[..., Reader]) -> None:
    reader = reading()
    assert reader.poll(0.1) == []
    timer = threading.Timer(0.2, lambda: log.append([message(b"late")]))
    timer.start()
    assert values(read(reader, 1)) == [b"late"]
    timer.join()


def test_a_reader_returns_at_most_its_limit_and_goes_on_after_it(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(b"%d" % number, topic=NOTICES) for number in range(5)])
    reader = reading(NOTICES)
    assert values(reader.poll(SOON, limit=2)) == [b"0", b"1"]
    assert reader.positions() == {(NOTICES, 0): 2}
    assert values(read(reader, 3)) == [b"2", b"3", b"4"]


def test_readers_do_not_know_of_each_other(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(b"1", topic=NOTICES), message(b"2", topic=NOTICES)])
    one, other = reading(NOTICES), reading(NOTICES)
    assert values(read(one, 2)) == [b"1", b"2"]
    assert values(read(other, 2)) == [b"1", b"2"]


def test_positions_are_right_at_every_step_over_transactions(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    transactor = transacting()
    for number in range(4):
        log.append([message(b"%d" % (3 * number), topic=NOTICES)])
        pair = [message(b"%d" % (3 * number + more), topic=NOTICES) for more in (1, 2)]
        transactor.commit(pair)
    reader = reading(NOTICES)
    for number in range(12):
        assert values(read(reader, 1, limit=1)) == [b"%d" % number]
        rest = reading(NOTICES, reader.positions())
        assert values(read(rest, 11 - number)) == [b"%d" % later for later in range(number + 1, 12)]
        assert quiet(rest)
        rest.close()


def test_a_reader_that_read_all_stands_at_the_ends(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    log.append([message(b"%d" % number, partition=number) for number in range(PARTITIONS)])
    transacting().commit([message(b"last", partition=0)])
    reader = reading()
    read(reader, PARTITIONS + 1)
    assert quiet(reader)
    assert reader.positions() == {(EVENTS, number): end for number, end in log.ends(EVENTS).items()}


def test_paused_partitions_are_silent_while_the_others_go_on(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(b"%d" % number, partition=number % 2) for number in range(6)])
    reader = reading()
    reader.pause([(EVENTS, 0)])
    assert values(read(reader, 3)) == [b"1", b"3", b"5"]
    assert quiet(reader)
    log.append([message(b"6", partition=0), message(b"7", partition=1)])
    assert values(read(reader, 1)) == [b"7"]
    assert reader.positions()[EVENTS, 0] == 0
    reader.resume([(EVENTS, 0)])
    assert values(read(reader, 4)) == [b"0", b"2", b"4", b"6"]


def test_pausing_in_the_middle_of_a_batch_loses_and_repeats_nothing(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(b"%d" % number, topic=NOTICES) for number in range(10)])
    reader = reading(NOTICES)
    assert values(read(reader, 3, limit=3)) == [b"0", b"1", b"2"]
    reader.pause([(NOTICES, 0)])
    assert quiet(reader)
    assert reader.positions() == {(NOTICES, 0): 3}
    reader.resume([(NOTICES, 0)])
    assert values(read(reader, 7)) == [b"%d" % number for number in range(3, 10)]


def test_wake_ends_a_running_poll(reading: Callable[..., Reader]) -> None:
    reader = reading()
    reader.poll(0)
    timer = threading.Timer(0.2, reader.wake)
    timer.start()
    assert reader.poll(3600) == []
    timer.join()


def test_wake_ends_the_next_poll_and_only_that(log: Log, reading: Callable[..., Reader]) -> None:
    reader = reading()
    reader.wake()
    assert reader.poll(3600) == []
    log.append([message(b"1")])
    assert values(read(reader, 1)) == [b"1"]


def test_a_position_before_the_beginning_is_expired_and_never_skipped(
    storage: Storage, log: Log, reading: Callable[..., Reader]
) -> None:
    log.append([message(b"%d" % number, partition=1) for number in range(5)])
    storage.forget(EVENTS, 1, 5)
    log.append([message(b"new", partition=1)])
    assert log.beginnings(EVENTS) == {0: 0, 1: 5, 2: 0, 3: 0}
    reader = reading(positions={(EVENTS, 1): 4})
    for _ in range(2):
        with pytest.raises(Expired):
            read(reader, 1)
    assert reader.positions() == {(EVENTS, 1): 4}
    assert values(read(reading(positions={(EVENTS, 1): 5}), 1)) == [b"new"]


def test_a_position_beyond_the_end_means_that_the_log_lost_records(log: Log, reading: Callable[..., Reader]) -> None:
    log.append([message(b"1", topic=NOTICES)])
    with pytest.raises(Rewound):
        read(reading(NOTICES, {(NOTICES, 0): 2}), 1)


def notices_rewound(reader: Reader) -> bool:
    """Whether the reader says in the end that the log lost records, without a record before."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        try:
            assert patiently(lambda: reader.poll(1)) == []
        except Rewound:
            return True
    return False


@pytest.mark.sample(1, keep=("sqlite-longer",))
@pytest.mark.parametrize("new", [0, 9, pytest.param(2, marks=pytest.mark.slow)], ids=["shorter", "longer", "as long"])
def test_a_running_reader_notices_that_the_log_was_restored_from_a_copy(
    fragile: Storage, opened: ExitStack, new: int
) -> None:
    log = opened.enter_context(open_log(fragile.url, creates=True))
    patiently(lambda: log.create(TOPICS))
    for number in range(2):
        log.append([message(b"%d" % number, topic=NOTICES)])
    fragile.copy()
    for number in range(2, 4):
        patiently(lambda number=number: log.append([message(b"%d" % number, topic=NOTICES)]))
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    assert values(read(reader, 4)) == [b"0", b"1", b"2", b"3"]
    fragile.restore()
    other = opened.enter_context(open_log(fragile.url, creates=True))
    for number in range(new):
        patiently(lambda number=number: other.append([message(b"new %d" % number, topic=NOTICES)]))
    assert notices_rewound(reader)
    other.append([message(b"more", topic=NOTICES) for _ in range(9)])
    with pytest.raises(Rewound):
        reader.poll(1)


@pytest.mark.sample(1, keep=("kafka",))
def test_a_running_reader_notices_a_loss_without_a_record_in_place(fragile: Storage, opened: ExitStack) -> None:
    log = opened.enter_context(open_log(fragile.url, creates=True))
    patiently(lambda: log.create(TOPICS))
    log.append([message(b"%d" % number, topic=NOTICES) for number in range(2)])
    fragile.copy()
    log.append([message(b"%d" % number, topic=NOTICES) for number in range(2, 4)])
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    read(reader, 4)
    fragile.restore()
    transactor = patiently(lambda: opened.enter_context(open_log(fragile.url, creates=True)).transactor("single"))
    opened.callback(transactor.close)
    for number in range(3):  # on Kafka the end of the first one stands there
        transactor.commit([message(b"new %d" % number, topic=NOTICES)])
    assert notices_rewound(reader)


@pytest.mark.sample(1, keep=("kafka",))
def test_a_running_reader_notices_the_loss_of_the_last_record_alone(fragile: Storage, opened: ExitStack) -> None:
    log = opened.enter_context(open_log(fragile.url, creates=True))
    patiently(lambda: log.create(TOPICS))
    log.append([message(b"0", topic=NOTICES)])
    fragile.copy()
    patiently(lambda: log.append([message(b"1", topic=NOTICES)]))
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    read(reader, 2)
    fragile.restore()
    assert notices_rewound(reader)


@pytest.mark.sample(1)
def test_a_running_reader_goes_on_in_a_copy_that_lacks_nothing(fragile: Storage, opened: ExitStack) -> None:
    log = opened.enter_context(open_log(fragile.url, creates=True))
    patiently(lambda: log.create(TOPICS))
    log.append([message(b"1", topic=NOTICES), message(b"2", topic=NOTICES)])
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    assert values(read(reader, 2)) == [b"1", b"2"]
    fragile.copy()
    fragile.restore()
    patiently(lambda: log.append([message(b"3", topic=NOTICES)]))
    found: list[Record] = []
    while not found:
        found = patiently(lambda: reader.poll(1))
    assert values(found) == [b"3"]


def test_records_of_another_process_are_read_in_order(
    storage: Storage, reading: Callable[..., Reader], log: Log, opened: ExitStack
) -> None:
    reader = reading()
    opened.enter_context(running("append", storage.url, "0"))
    assert values(read(reader, 20)) == [b"%d" % number for number in range(20)]


# Compaction


def test_a_compacted_topic_keeps_the_newest_value_of_each_key(log: Log, reading: Callable[..., Reader]) -> None:
    for number in range(10):
        log.append([message(b"%d" % number, topic=STATE, key=key) for key in "ab"])
    log.append([message(None, topic=STATE, key="b")])
    reader, newest = reading(STATE), {}
    while newest.get("b", b"") is not None:
        newest |= {record.key: record.value for record in reader.poll(1)}
    assert newest == {"a": b"9", "b": None}


# Transactions


def test_a_commit_appends_and_stores_positions(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    transactor = transacting()
    messages = [message(b"1", topic=NOTICES), message(b"2", partition=3), message(b"3", topic=STATE)]
    places = transactor.commit(messages, group="group", positions={(EVENTS, 1): 17, (NOTICES, 0): 4})
    found = [record for topic in (NOTICES, EVENTS, STATE) for record in read(reading(topic), 1)]
    assert values(found) == [b"1", b"2", b"3"]
    assert places == [(record.partition, record.offset) for record in found]
    assert (log.stored("group", EVENTS), log.stored("group", NOTICES)) == ({1: 17}, {0: 4})


def test_a_commit_may_store_positions_only_or_nothing(log: Log, transacting: Callable[..., Transactor]) -> None:
    transactor = transacting()
    assert transactor.commit([]) == []
    transactor.commit([], group="group", positions={(EVENTS, 0): 5})
    assert log.stored("group", EVENTS) == {0: 5}


@pytest.mark.parametrize("positions", [{}, {(EVENTS, 0): 5}], ids=["alone", "with positions"])
def test_a_commit_where_records_were_lost_writes_nothing(
    log: Log,
    reading: Callable[..., Reader],
    transacting: Callable[..., Transactor],
    positions: Mapping[tuple[str, int], int],
) -> None:
    transactor = transacting()
    [(_, first)] = transactor.commit([message(b"1", topic=NOTICES)], newest={(NOTICES, 0): -1})
    [_, (_, second)] = transactor.commit(
        [message(b"", topic=STATE), message(b"2", topic=NOTICES)], newest={(NOTICES, 0): first}
    )
    pair = [message(b"", topic=STATE), message(b"3", topic=NOTICES)]
    with pytest.raises(Unavailable, match=r"notices, partition 0: lost its records from \d+ on"):
        transactor.commit(pair, group="group", positions=positions, newest={(NOTICES, 0): second + 100})
    transactor.renew()
    transactor.commit([message(b"4", topic=NOTICES)], newest={(NOTICES, 0): second})
    assert values(read(reading(NOTICES), 3)) == [b"1", b"2", b"4"]
    assert log.stored("group", EVENTS) == {}


def test_a_commit_with_a_rejected_message_leaves_nothing(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    transactor = transacting()
    wrong = [message(b"1", topic=NOTICES), message(b"." * LARGEST, topic=NOTICES)]
    with pytest.raises(Rejected):
        transactor.commit(wrong, group="group", positions={(EVENTS, 0): 1})
    assert log.stored("group", EVENTS) == {}
    transactor.commit([message(b"2", topic=NOTICES)])
    assert values(read(reading(NOTICES), 1)) == [b"2"]


def test_a_newer_transactor_fences_the_older_of_its_identity_for_good(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    older, bystander, newer = transacting("one"), transacting("other"), transacting("one")
    for _ in range(2):
        with pytest.raises(Fenced, match="one"):
            older.commit([message(b"old", topic=NOTICES)], group="group", positions={(EVENTS, 0): 1})
    newer.commit([message(b"new", topic=NOTICES)])
    bystander.commit([message(b"other", topic=NOTICES)])
    assert values(read(reading(NOTICES), 2)) == [b"new", b"other"]
    assert log.stored("group", EVENTS) == {}


def test_a_commit_that_is_expected_holds_up_nobody_and_may_be_another_one(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    transactor = transacting()
    for number in range(3):
        transactor.expect([NOTICES])
        log.append([message(b"append %d" % number, topic=NOTICES)])
        assert values(read(reading(NOTICES), 2 * number + 1))[-1] == b"append %d" % number
        transactor.expect([NOTICES])
        pair = [message(b"%d" % number, topic=NOTICES), message(b"%d" % number, topic=EVENTS, partition=1)]
        transactor.commit(pair, group="group", positions={(EVENTS, 0): number})
    assert values(read(reading(EVENTS), 3)) == [b"0", b"1", b"2"]
    assert log.stored("group", EVENTS) == {0: 2}
    transactor.expect([NOTICES])
    assert transactor.commit([]) == []
    transactor.commit([], group="group", positions={(EVENTS, 0): 7})
    assert log.stored("group", EVENTS) == {0: 7}


def test_a_transactor_that_expects_a_commit_is_fenced_like_any_other(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    older = transacting("one")
    older.expect([NOTICES])
    newer = transacting("one")
    older.expect([NOTICES])
    for _ in range(2):
        with pytest.raises(Fenced, match="one"):
            older.commit([message(b"old", topic=NOTICES)])
        older.expect([NOTICES])
    newer.commit([message(b"new", topic=NOTICES)])
    assert values(read(reading(NOTICES), 1)) == [b"new"]


def test_a_transactor_that_begins_anew_takes_nothing_from_a_newer_one(
    log: Log, reading: Callable[..., Reader], transacting: Callable[..., Transactor]
) -> None:
    older = transacting()
    older.renew()
    older.commit([message(b"older", topic=NOTICES)])
    newer = transacting()
    for _ in range(2):
        with pytest.raises(Fenced):
            older.renew()
    newer.commit([message(b"newer", topic=NOTICES)])
    assert values(read(reading(NOTICES), 2)) == [b"older", b"newer"]


def test_an_instance_that_was_paused_finds_itself_fenced(
    storage: Storage, reading: Callable[..., Reader], transacting: Callable[..., Transactor], opened: ExitStack
) -> None:
    program = opened.enter_context(running("commit", storage.url))
    assert program.line() == "ready"
    assert program.ask("before") == "committed"
    program.pause()
    newer = transacting("single")
    program.resume()
    assert program.ask("stale") == "fenced"
    newer.commit([message(b"newer", topic=NOTICES)])
    assert values(read(reading(NOTICES), 2)) == [b"before", b"newer"]


def test_what_a_killed_transactor_left_open_is_never_seen(
    storage: Storage, log: Log, reading: Callable[..., Reader], opened: ExitStack
) -> None:
    """Consume, transform, produce, killed at random: nothing lost, nothing twice, nothing out of order."""
    copy_under_kills(storage, log, reading, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 7))
def test_what_a_killed_transactor_left_open_is_never_seen_in_many_runs(
    storage: Storage, log: Log, reading: Callable[..., Reader], seed: int
) -> None:
    copy_under_kills(storage, log, reading, kills=100, seed=seed)


def copy_under_kills(storage: Storage, log: Log, reading: Callable[..., Reader], *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    sent: list[tuple[int, bytes]] = []
    for _ in range(kills):
        fresh = [(chance.randrange(PARTITIONS), b"%d" % (len(sent) + more)) for more in range(chance.randrange(1, 40))]
        log.append([message(value, key=str(partition), partition=partition) for partition, value in fresh])
        sent += fresh
        with running("copy", storage.url) as program:
            program.line()  # ready: killed before, it would only have lost time
            for _ in range(chance.randrange(math.ceil(len(fresh) / 3))):
                program.line()
            time.sleep(chance.random() ** 2 * 0.03)  # chance decides where it dies
            program.kill()
    with running("copy", storage.url):
        copies = read(reading(NOTICES), len(sent))
    for partition in range(PARTITIONS):
        copied = [record.value for record in copies if record.key == str(partition)]
        assert copied == [value for number, value in sent if number == partition]
    assert log.ends(NOTICES)[0] >= len(sent)


# Members


def test_members_share_all_partitions_and_a_leaver_leaves_its_own(log: Log, opened: ExitStack) -> None:
    every = set(range(PARTITIONS))
    first = log.member("group", EVENTS)
    eventually(lambda: first.share() == every, "the only member has all")
    second = opened.enter_context(closing(log.member("group", EVENTS)))

    def is_divided() -> bool:
        shares = [second.share(), first.share()]
        is_whole = sorted(partition for share in shares for partition in share) == sorted(every)
        return is_whole and all(shares) == isinstance(log, KafkaLog)

    eventually(is_divided, "each partition has one member")
    known = [each for share in log.shares("group").values() for each in share]
    assert sorted(known) == ([(EVENTS, number) for number in every] if isinstance(log, KafkaLog) else [])
    first.close()
    eventually(lambda: second.share() == every, "the other has all")


def test_transactors_store_positions_of_a_group_with_members(
    log: Log, transacting: Callable[..., Transactor], opened: ExitStack
) -> None:
    member = opened.enter_context(closing(log.member("single", EVENTS)))
    eventually(member.share, "it has joined")
    transacting("single").commit([message(b"x", topic=NOTICES)], group="single", positions={(EVENTS, 1): 7})
    assert log.stored("single", EVENTS) == {1: 7}
    assert member.share() == set(range(PARTITIONS))


# Positions


def test_positions_of_a_group_are_levels_and_may_go_back(log: Log) -> None:
    log.acknowledge("group", EVENTS, {0: 5, 2: 7})
    log.acknowledge("group", EVENTS, {0: 3})
    assert log.stored("group", EVENTS) == {0: 3, 2: 7}


@pytest.mark.parametrize("is_transaction", [False, True], ids=["acknowledge", "commit"])
def test_metadata_stays_with_its_position_until_one_without_is_stored(
    storage: Storage, log: Log, transacting: Callable[..., Transactor], *, is_transaction: bool
) -> None:
    if is_transaction:
        places = {(EVENTS, 0): 5, (EVENTS, 2): 7}
        transacting("group").commit([], group="group", positions=places, metadata={(EVENTS, 2): "{}"})
    else:
        log.acknowledge("group", EVENTS, {0: 5, 2: 7}, metadata={2: "{}"})
    is_kept = not storage.url.startswith("sqlite")  # where positions go back with the records
    assert log.metadata("group", EVENTS) == ({2: "{}"} if is_kept else {})
    log.acknowledge("group", EVENTS, {2: 7})
    assert log.metadata("group", EVENTS) == {}
    assert log.stored("group", EVENTS) == {0: 5, 2: 7}


def test_a_group_without_positions_has_none(log: Log) -> None:
    log.acknowledge("group", EVENTS, {0: 5})
    assert log.stored("stranger", EVENTS) == {}
    assert log.stored("group", NOTICES) == {}


def test_all_groups_of_a_topic_are_listed_with_their_positions(log: Log) -> None:
    log.acknowledge("mirror-a", EVENTS, {0: 5})
    log.acknowledge("mirror-b", EVENTS, {0: 4, 1: 1})
    log.acknowledge("elsewhere", NOTICES, {0: 9})
    assert log.groups(EVENTS) == {"mirror-a": {0: 5}, "mirror-b": {0: 4, 1: 1}}


def test_records_and_positions_survive_the_log_being_closed(storage: Storage, log: Log, opened: ExitStack) -> None:
    log.append([message(b"1", topic=NOTICES)])
    log.acknowledge("group", NOTICES, {0: 1})
    log.close()
    again = opened.enter_context(open_log(storage.url, creates=True))
    assert again.stored("group", NOTICES) == {0: 1}
    assert again.ends(NOTICES) == {0: 1}


def test_ends_and_beginnings_of_every_partition(log: Log) -> None:
    assert log.beginnings(EVENTS) == log.ends(EVENTS) == dict.fromkeys(range(PARTITIONS), 0)
    log.append([message(b"1", partition=1), message(b"2", partition=1)])
    assert log.ends(EVENTS) == {0: 0, 1: 2, 2: 0, 3: 0}
    assert log.beginnings(EVENTS) == dict.fromkeys(range(PARTITIONS), 0)


def test_ends_and_beginnings_of_some_partitions(log: Log) -> None:
    log.append([message(b"1", partition=1), message(b"2", partition=1)])
    assert log.ends(EVENTS, [2, 1]) == {1: 2, 2: 0}
    assert log.beginnings(EVENTS, [1]) == {1: 0}
    assert log.ends(EVENTS, []) == {}
    with pytest.raises(BadConfig, match=f"partition {PARTITIONS}"):
        log.ends(EVENTS, [0, PARTITIONS])


# Going away and coming back


def test_everything_is_unavailable_while_the_log_is_away_and_heals(fragile: Storage, opened: ExitStack) -> None:
    log = opened.enter_context(open_log(fragile.url, creates=True))
    patiently(lambda: log.create(TOPICS))
    log.append([message(b"before", topic=NOTICES)])
    log.acknowledge("group", NOTICES, {0: 1})
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    read(reader, 1)
    transactor = log.transactor("single")
    opened.callback(transactor.close)

    fragile.vanish()
    for act in (
        lambda: log.append([message(b"lost?", topic=NOTICES)], timeout=1),
        lambda: log.acknowledge("group", NOTICES, {0: 2}),
        lambda: log.stored("group", NOTICES),
        lambda: log.ends(NOTICES),
        lambda: log.groups(NOTICES),
        lambda: transactor.commit([message(b"lost?", topic=NOTICES)]),
        lambda: log.transactor("another"),
        lambda: reader.poll(SOON),
    ):
        with pytest.raises(Unavailable):
            act()

    fragile.come_back()
    patiently(lambda: log.append([message(b"after", topic=NOTICES)]))
    patiently(lambda: log.acknowledge("group", NOTICES, {0: 2}))
    assert patiently(lambda: log.stored("group", NOTICES)) == {0: 2}
    seen: list[bytes | None] = []
    while b"after" not in seen:
        seen += values(patiently(lambda: reader.poll(1)))
    assert [value for value in seen if value != b"lost?"] == [b"after"]
    patiently(transactor.renew)
    patiently(lambda: transactor.commit([message(b"commit", topic=NOTICES)]))
    while b"commit" not in seen:
        seen += values(patiently(lambda: reader.poll(1)))


@pytest.mark.services
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_broker_killed_again_and_again_loses_and_misorders_nothing(
    own_service: Callable[[type[Kafka]], Kafka], opened: ExitStack, kills: int
) -> None:
    kafka = own_service(Kafka)
    log = opened.enter_context(open_log(kafka.url))
    patiently(lambda: log.create(TOPICS))
    program = opened.enter_context(running("append", kafka.url, "0"))
    acknowledged = 0
    for _ in range(kills):
        for _ in range(20):
            acknowledged = int(program.line())
        kafka.kill()
        kafka.restart()
    for _ in range(20):
        acknowledged = int(program.line())
    program.kill()
    check_first_appearances(log, acknowledged, opened)


def commit_again(transactor: Transactor) -> None:
    """Begin anew until one transaction fits into the little time that the broker gives to each."""

    def commit() -> None:
        transactor.renew()
        transactor.commit([message(b"again", topic=NOTICES)])

    patiently(commit)


@pytest.mark.services
def test_a_transaction_that_took_too_long_is_unclear_but_fences_nobody(
    kafka: Kafka, unique_name: str, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened.enter_context(open_log(f"{kafka.url}?transaction_timeout_ms=500&topic-prefix={unique_name}-"))
    log.create(TOPICS)
    transactor = patiently(lambda: log.transactor("single"))
    opened.callback(transactor.close)
    reader = log.reader({(NOTICES, 0): 0})
    opened.callback(reader.close)
    ordinary = TransactionManager.begin_commit

    def stall(manager: TransactionManager) -> Any:
        """As if this machine stood still before the end of the transaction, until the broker gave it up."""
        [sent] = log.append([message(b"afterwards", topic=NOTICES)])
        assert sent[1] > 0
        assert values(read(reader, 1)) == [b"afterwards"]
        return ordinary(manager)

    monkeypatch.setattr(TransactionManager, "begin_commit", stall)
    with pytest.raises(Unavailable):
        transactor.commit([message(b"too late", topic=NOTICES)])
    monkeypatch.undo()
    commit_again(transactor)
    assert values(read(reader, 1)) == [b"again"]


@pytest.mark.services
def test_a_commit_long_after_it_was_expected_is_unclear_but_fences_none(
    kafka: Kafka, unique_name: str, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_transactor, "EXPECTED_WITHIN", 0.1)
    log = opened.enter_context(open_log(f"{kafka.url}?transaction_timeout_ms=500&topic-prefix={unique_name}-"))
    log.create(TOPICS)
    transactor = patiently(lambda: log.transactor("single"))
    opened.callback(transactor.close)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    opened.callback(admin.close)

    def state() -> str:
        name = f"{unique_name}-single"
        return str(admin.describe_transactions([name])[name])

    transactor.expect([NOTICES])
    eventually(lambda: "Ongoing" in state(), "prepared")
    eventually(lambda: "Ongoing" not in state(), "given up by the broker")
    with pytest.raises(Unavailable):
        transactor.commit([message(b"too late", topic=NOTICES)])
    commit_again(transactor)
    with closing(log.reader({(NOTICES, 0): 0})) as reader:
        assert values(read(reader, 1)) == [b"again"]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_writer_killed_again_and_again_loses_and_misorders_nothing(
    storage: Storage, log: Log, opened: ExitStack, kills: int
) -> None:
    chance = random.Random(7)
    acknowledged = -1
    for _ in range(kills):
        with running("append", storage.url, str(acknowledged + 1)) as program:
            for _ in range(chance.randrange(1, 10)):
                acknowledged = int(program.line())
            program.kill()
            acknowledged = max([acknowledged, *map(int, program.rest())])
    check_first_appearances(log, acknowledged, opened)


def check_first_appearances(log: Log, acknowledged: int, opened: ExitStack) -> None:
    partition = partition_of("x", PARTITIONS)
    reader = log.reader({(EVENTS, partition): 0})
    opened.callback(reader.close)
    firsts: dict[int, None] = {}
    while acknowledged not in firsts:
        firsts |= dict.fromkeys(int(record.value or b"") for record in patiently(lambda: reader.poll(SOON)))
    numbers = list(firsts)
    assert numbers == list(range(len(numbers)))


class Program:
    """One of `log_programs`, in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(PROGRAMS), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=PROGRAMS.parents[2]
        )

    def line(self) -> str:
        """The next line it prints, however long that takes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program ended"
        return line.strip()

    def rest(self) -> list[str]:
        """All whole lines it had printed before it was killed."""
        assert self._process.stdout is not None
        return [line for line in self._process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]

    def ask(self, question: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        return self.line()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def running(*arguments: str) -> Program:
    return Program(*arguments)
