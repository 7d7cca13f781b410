# SPDX-License-Identifier: GPL-2.0-or-later
"""What only the log on Kafka promises: an encrypted and authenticated way in, topics as documented, stock group offsets."""

import contextlib
import gc
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import MessageSizeTooLargeError, NotLeaderForPartitionError
from kafka.net import inet
from kafka.producer.transaction_manager import (
    AddOffsetsToTxnHandler,
    ProducerIdAndEpoch,
    TransactionManager,
    TransactionState,
    TxnOffsetCommitHandler,
)
from kafka.serializer import Serializer
from kafka.structs import OffsetAndMetadata

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import (
    ERRORS,
    EVENTS,
    LATEST,
    NOTICES,
    OPEN,
    SERVICES,
    STATE,
    Log,
    NewRecord,
    Reader,
    Topic,
    Transactor,
    topics,
)
from hgext.vcsreplicator.log.kafka import adapter, broker
from hgext.vcsreplicator.log.kafka.adapter import KafkaLog
from hgext.vcsreplicator.log.kafka.clients import Admin, close_producer, wait
from hgext.vcsreplicator.log.kafka.connections import Connections
from hgext.vcsreplicator.log.kafka.options import parse
from hgext.vcsreplicator.log.kafka.transactor import KafkaTransactor
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.owned import OwnedRecords
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.relay.mastership import claim, read_master
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.status.follower import look_at_topics
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, Rejected, Rewound, Unavailable
from hgext.vcsreplicator.words.records import MasterRecord
from testing.builders.certificates import certificate
from testing.checks.requests import TRANSACTIONAL, watch_requests
from testing.clock import HandClock
from testing.services.cache import CHECKOUT
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services]


@pytest.fixture
def log(kafka: Kafka, unique_name: str) -> Iterator[Log]:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=2))
        yield log


@pytest.fixture
def admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    yield client
    client.close()


class GuardedKafka(Kafka):
    """Has a second way in, over TLS and with a password; its certificate is `certificate`."""

    def __init__(self) -> None:
        super().__init__()
        self.guarded_port = free_port()
        self.certificate = certificate(self.folder, "broker", "IP:127.0.0.1")

    def make_settings(self) -> dict[str, str]:
        settings = super().make_settings()
        store = self.folder / "store.pem"
        store.write_text(self.certificate.with_suffix(".key").read_text() + self.certificate.read_text())
        guarded = f",SASL_SSL://127.0.0.1:{self.guarded_port}"
        return settings | {
            "listeners": settings["listeners"] + guarded,
            "advertised.listeners": settings["advertised.listeners"] + guarded,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_hg="s3cret";'
            ),
        }

    @property
    def guarded_url(self) -> str:
        return (
            f"kafka://127.0.0.1:{self.guarded_port}?security_protocol=SASL_SSL&ssl_cafile={self.certificate}"
            "&sasl_mechanism=PLAIN&sasl_plain_username=hg"
        )


def test_a_guarded_broker_lets_in_the_password_and_names_mistakes(
    own_service: Callable[[type[GuardedKafka]], GuardedKafka], tmp_path: Path
) -> None:
    kafka = own_service(GuardedKafka)
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    password.chmod(0o600)
    with open_log(f"{kafka.guarded_url}&sasl_plain_password_file={password}") as log:
        log.create(topics())
        transactor = log.transactor("single")
        transactor.commit([NewRecord(topic=NOTICES, key="x", value=b"1")], group="group", positions={(NOTICES, 0): 1})
        transactor.close()
        reader = log.reader({(NOTICES, 0): 0})
        assert [record.value for record in reader.poll(30)] == [b"1"]
        reader.close()
        password.write_text("former")
        with open_log(f"{kafka.guarded_url}&sasl_plain_password_file={password}") as early:
            with pytest.raises(Unavailable, match="authentication failed"):
                early.partitions(NOTICES)
            password.write_text("s3cret\n")  # it is corrected while the service runs
            early.append([NewRecord(topic=NOTICES, key="x", value=b"2")])
    for mistake, expected in {
        kafka.guarded_url + "&sasl_plain_password=wrong": "authentication failed; check user and password",
        kafka.guarded_url.replace("ssl_cafile", "client_id"): "ssl_cafile: .*certificate verify failed",
    }.items():
        with open_log(mistake, creates=True) as log, pytest.raises(Unavailable, match=expected) as caught:
            log.partitions(EVENTS)
        assert "password=" not in str(caught.value)


def test_installations_with_different_prefixes_do_not_meet(kafka: Kafka, log: Log, unique_name: str) -> None:
    log.acknowledge("group", NOTICES, {0: 3})
    with open_log(f"{kafka.url}?topic-prefix={unique_name}-other.") as other:
        with pytest.raises(BadConfig):
            other.partitions(NOTICES)
        other.create(topics(partitions=2))
        assert other.stored("group", NOTICES) == {}
        one, two = log.transactor("single"), other.transactor("single")
        one.commit([NewRecord(topic=NOTICES, key="x", value=b"not fenced")])
        one.close()
        two.close()


def test_only_who_makes_all_topics_makes_the_one_of_the_transactors(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        assert log.create([Topic(name="hg-push")]) == ["hg-push"]
        assert set(log.broker.describe()) == {"hg-push"}  # of a user to whom ACLs hide all others
        log.create(topics())
        assert broker.OWNERS in log.broker.describe()


def test_a_transactor_waits_for_brokers_that_may_be_starting(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.&replication-factor=3") as log:
        with pytest.raises(Unavailable, match="option replication-factor"):
            log.transactor("one")
        with pytest.raises(BadConfig, match="option replication-factor"):
            log.create(topics())


def test_topics_are_kept_as_documented(log: Log, admin: KafkaAdminClient, unique_name: str) -> None:
    def settings(topic: str) -> dict[str, str]:
        resource = ConfigResource("topic", f"{unique_name}.{topic}")
        [[described]] = [kind.values() for kind in admin.describe_configs([resource]).values()]
        return {name: entry["value"] for name, entry in described.items()}

    state, events = settings("state"), settings("events")
    assert (state["cleanup.policy"], state["segment.bytes"]) == ("compact", str(16 * 1024 * 1024))
    assert (events["cleanup.policy"], events["retention.ms"]) == ("delete", str(30 * 24 * 3600 * 1000))
    assert state["max.message.bytes"] == events["max.message.bytes"] == str(8 * 1024 * 1024)


def test_a_broker_has_the_settings_that_the_page_names(admin: KafkaAdminClient) -> None:
    [block] = re.findall(
        r"^```properties\n(.*?)^```$", (CHECKOUT / "docs/log.md").read_text(), re.MULTILINE | re.DOTALL
    )
    named = {line.partition("=")[0] for line in block.splitlines()}
    found = admin.describe_configs([ConfigResource("broker", "1")], config_filter="all")
    [[described]] = [kind.values() for kind in found.values()]
    assert len(named) == 8
    assert named <= set(described)


def test_stock_clients_see_the_positions_of_a_group(kafka: Kafka, log: Log, unique_name: str) -> None:
    log.acknowledge("mirror-a", NOTICES, {0: 3})
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=f"{unique_name}.mirror-a")
    assert consumer.committed(TopicPartition(f"{unique_name}.{NOTICES}", 0)) == 3
    consumer.close()


@pytest.mark.parametrize("new", [0, 1, 5], ids=["empty", "as long", "longer"])
def test_a_running_reader_notices_that_a_topic_was_made_anew(
    log: Log, admin: KafkaAdminClient, unique_name: str, new: int
) -> None:
    log.append([NewRecord(topic=NOTICES, key="x", value=b"old")])
    reader = log.reader({(NOTICES, 0): 0})
    while not reader.poll(1):
        pass
    admin.delete_topics([f"{unique_name}.{NOTICES}"])
    while NOTICES not in (made := log.create(topics(partitions=2))):
        pass
    assert made == [NOTICES]
    for _ in range(new):
        eventually(lambda: appended(log, b"new"), "appended")
    eventually(lambda: rewound(reader), "noticed")
    reader.close()


def test_readers_and_writers_name_a_topic_that_is_gone(log: Log, admin: KafkaAdminClient, unique_name: str) -> None:
    record = NewRecord(topic=NOTICES, key="x", value=b"old")
    log.append([record])
    reader, transactor = log.reader({(NOTICES, 0): 0}), log.transactor("writer")
    while not reader.poll(1):
        pass
    admin.delete_topics([f"{unique_name}.{NOTICES}"])
    where = f"topic {unique_name}.{NOTICES} is missing, or hidden from this user by its ACLs"
    text = f"{where}; if that lasts, run: vcsreplicator topics create"

    def is_named(act: Callable[[], object]) -> bool:
        try:
            act()
        except Unavailable as error:
            return str(error).endswith(text)
        return False

    def commit() -> None:
        transactor.renew()
        transactor.commit([record])

    acts = (lambda: log.ends(NOTICES), lambda: log.append([record], timeout=2.0), commit, lambda: reader.poll(1))
    for act in acts:
        eventually(lambda act=act: is_named(act), "named")
    reader.close()
    transactor.close()


def appended(log: Log, value: bytes) -> bool:
    try:
        return bool(log.append([NewRecord(topic=NOTICES, key="x", value=value)]))
    except Unavailable:
        return False


def rewound(reader: Reader) -> bool:
    """Whether it says so; a record of the new topic may come before, because Kafka's fetch names topics, not their ids."""
    try:
        reader.poll(1)
    except Unavailable:
        pass
    except Rewound:
        return True
    return False


class Nothing(Serializer):
    """Leaves out a value that says so; the client refuses to do it by itself."""

    def serialize(self, topic: str, headers: Any, data: bytes) -> bytes | None:
        return None if data == b"nothing" else data


class Raw(str):
    """The name of a header that is not UTF-8, as any client may write it."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def test_what_any_client_may_write_is_handed_out_and_stops_no_reader(kafka: Kafka, log: Log, unique_name: str) -> None:
    topic = f"{unique_name}.{NOTICES}"
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, value_serializer=Nothing())
    for record in (
        {"value": b"1", "headers": [(Raw("x"), b"")]},
        {"value": b"nothing"},
        {"key": b"\xff", "value": b"2", "headers": [("x", b"1"), ("x", b"\xff")]},
        {"value": b"3"},
    ):
        producer.send(topic, **record).get(timeout=60)
    producer.close()
    reader, records = log.reader({(NOTICES, 0): 0}), []
    while len(records) < 4:
        records += reader.poll(30)
    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert reader.positions() == {(NOTICES, 0): 4}
    reader.close()
    unreadable, empty, odd, good = records
    assert (unreadable.value or b"").startswith(b"unreadable: ")
    assert (unreadable.key, empty.key, empty.value) == (None, None, None)
    assert (odd.key, odd.value, odd.headers) == ("\udcff", b"2", {"x": "\udcff"})
    assert good.value == b"3"


def test_a_time_that_no_clock_shows_is_a_date_all_the_same(
    kafka: Kafka, log: Log, admin: KafkaAdminClient, unique_name: str
) -> None:
    topic = f"{unique_name}.{NOTICES}"
    admin.delete_topics([topic])
    eventually(lambda: topic not in {found["name"] for found in admin.describe_topics()}, "deleted")
    ours = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1, "configs": ours}})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for timestamp in (2**62, 1):
        producer.send(topic, value=b"1", timestamp_ms=timestamp).get(timeout=60)
    producer.close()
    reader, records = log.reader({(NOTICES, 0): 0}), []
    while len(records) < 2:
        records += reader.poll(30)
    reader.close()
    assert [record.time for record in records] == [LATEST, 0.001]


def test_a_batch_that_unpacks_to_more_than_a_message_is_refused(kafka: Kafka, log: Log, unique_name: str) -> None:
    def send(size: int) -> None:
        packing = KafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type="gzip", max_request_size=2**28)
        with contextlib.closing(packing) as producer:
            producer.send(f"{unique_name}.{NOTICES}", bytes(size)).get(timeout=60)

    with pytest.raises(MessageSizeTooLargeError):
        send(50_000_000)
    send(1_000_000)
    reader = log.reader({(NOTICES, 0): 0})
    assert [len(record.value or b"") for record in reader.poll(30)] == [1_000_000]
    reader.close()


def shut_out(kafka: Kafka, topic: str, number: int) -> None:
    """Write a record under the number of another producer and the last epoch, which makes that one's own epoch an old one."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True)) as producer:
        manager = producer._transaction_manager
        eventually(manager.has_producer_id, "a number")
        manager.set_producer_id_and_epoch(ProducerIdAndEpoch(number, 2**15 - 2))
        producer.send(topic, key=b"x", value=b"x").get(timeout=60)


@pytest.mark.parametrize("topic", sorted(OPEN))
def test_no_writer_of_an_open_topic_shuts_a_transactor_out(
    kafka: Kafka, log: Log, unique_name: str, topic: str
) -> None:
    transactor = log.transactor("single")
    assert isinstance(transactor, KafkaTransactor)
    transactor.commit([NewRecord(topic=STATE, key="x", value=b"1")])
    producer = transactor._producer
    assert producer is not None
    shut_out(kafka, f"{unique_name}.{topic}", producer._transaction_manager.producer_id_and_epoch.producer_id)
    messages = [NewRecord(topic=name, key="x", value=b"2") for name in (STATE, topic, NOTICES)]
    places = transactor.commit(messages)
    transactor.close()
    with contextlib.closing(log.transactor("single")) as newer:
        newer.commit(messages)
    for name, (partition, offset) in zip((STATE, topic, NOTICES), places, strict=True):
        with contextlib.closing(log.reader({(name, partition): offset})) as reader:
            assert reader.poll(30)[0].value == b"2"


@pytest.mark.parametrize("topic", sorted(OPEN))
def test_no_writer_of_an_open_topic_shuts_another_writer_out(
    kafka: Kafka, log: Log, unique_name: str, topic: str
) -> None:
    with contextlib.closing(KafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True)) as latest:
        manager = latest._transaction_manager
        eventually(manager.has_producer_id, "a number")
        for number in range(1, 10):  # a broker gives numbers in order
            shut_out(kafka, f"{unique_name}.{topic}", manager.producer_id_and_epoch.producer_id + number + 9)
    assert log.append([NewRecord(topic=topic, key="y", value=b"y")], timeout=10)


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def attempts(url: str) -> Iterator[Callable[[], object]]:
    """What each kind of client is opened for, on a log that was reached before."""
    log = KafkaLog(parse(url))
    yield lambda: log.partitions(ERRORS)
    log.broker._partitions.update({EVENTS: 1, NOTICES: 1})
    reader = log.reader({(EVENTS, 0): 0})
    yield lambda: reader.poll(0.01)
    yield lambda: log.append([NewRecord(topic=NOTICES, key="x", value=b"1")])
    yield lambda: log.broker.new_producer(transactional_id="single")


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["away", "mute", "mute over TLS"])
def test_an_outage_leaves_no_threads_and_no_sockets_behind(way: str, mute: str) -> None:
    server = "127.0.0.1:1" if way == "away" else mute
    protocol = "SSL" if way == "mute over TLS" else "PLAINTEXT"
    open_files = Path("/proc/self/fd")
    for attempt in attempts(f"kafka://{server}?bootstrap_timeout_ms=20&security_protocol={protocol}"):
        before = threading.active_count(), len(list(open_files.iterdir()))
        gc.disable()  # nothing waits for a collection
        try:
            for _ in range(10):
                with pytest.raises(Unavailable, match="no answer; are the brokers up and reachable"):
                    attempt()
            assert (threading.active_count(), len(list(open_files.iterdir()))) == before
        finally:
            gc.enable()


def test_sockets_that_did_not_connect_are_closed_though_still_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, resolve, connect = [], socket.getaddrinfo, socket.socket

    def make(*kind: int) -> socket.socket:
        made.append(connect(*kind))
        return made[-1]

    monkeypatch.setattr(inet.KafkaNetSocket, "socket", lambda _, *kind: make(*kind))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *named, **given: 2 * resolve(*named, **given))
    attempt = next(attempts("kafka://127.0.0.1:1?bootstrap_timeout_ms=20"))
    with pytest.raises(Unavailable, match="no answer; are the brokers up and reachable"):
        attempt()
    assert len(made) > 1
    assert {tried.fileno() for tried in made} == {-1}


class UnverifyingKafka(Kafka):
    """Takes positions of a transaction that does not know of them, so that no end of it reaches them."""

    def __init__(self) -> None:
        super().__init__(properties={"transaction.partition.verification.enable": "false"})


def leave_hanging(transactor: Any, positions: dict[TopicPartition, OffsetAndMetadata], group: str) -> None:
    """What the death of a broker in the middle of a transaction left, once: positions that wait for an end which never comes."""
    manager = transactor._producer._transaction_manager
    enqueue = manager._enqueue_request

    def enqueue_unannounced(handler: Any) -> None:
        if isinstance(handler, AddOffsetsToTxnHandler):
            manager._pending_txn_offset_commits.update(handler.offsets)
            known = manager._pending_txn_offset_commits
            handler = TxnOffsetCommitHandler(manager, handler.group_metadata, known, handler._result)
        enqueue(handler)

    manager._enqueue_request = enqueue_unannounced
    transactor._producer.begin_transaction()
    wait(transactor._producer, lambda _: manager.send_offsets_to_transaction(positions, group), time.monotonic() + 60)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("again", "group"), [("renewed", "single"), ("started again", "another")])
def test_positions_that_a_broker_left_hanging_are_readable_again(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka],
    monkeypatch: pytest.MonkeyPatch,
    again: str,
    group: str,
) -> None:
    with open_log(own_service(UnverifyingKafka).url, creates=True) as log:
        log.create(topics(partitions=2))
        transactor = log.transactor("single", group=group)
        transactor.commit([], group=group, positions={(EVENTS, 0): 5, (EVENTS, 1): 3})
        assert log.stored(group, EVENTS) == {0: 5, 1: 3}
        leave_hanging(transactor, {TopicPartition(EVENTS, 0): OffsetAndMetadata(7, "", -1)}, group)
        transactor.close()
        with monkeypatch.context() as impatient:
            impatient.setattr(broker, "COORDINATOR_PATIENCE", 0.5)
            with pytest.raises(Unavailable, match="UnstableOffsetCommit"):
                log.stored(group, EVENTS)
        if again == "renewed":
            transactor.renew()
        else:
            transactor = log.transactor("single", group=group)
        assert log.stored(group, EVENTS) == {0: 7, 1: 3}, "as the last transaction ended that the broker knows"
        transactor.commit([], group=group, positions={(EVENTS, 0): 9})
        assert log.stored(group, EVENTS) == {0: 9, 1: 3}
        transactor.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("again", ["renewed", "started again"])
@pytest.mark.parametrize("ended", ["committed", "aborted"])
def test_a_transaction_that_a_broker_left_open_ends_as_its_other_parts(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka], again: str, ended: str
) -> None:
    """Its readers would stop in front of it until the next record, and a new owner would take its notices for unwritten."""
    with open_log(own_service(UnverifyingKafka).url, creates=True) as log:
        log.create(topics(partitions=1))
        transactor: Any = log.transactor("single")
        known, left = NewRecord(topic=STATE, key="x", value=b"known"), NewRecord(topic=NOTICES, key="x", value=b"left")
        producer = transactor._producer
        if ended == "committed":
            transactor.commit([known])
        else:
            producer.begin_transaction()
            producer.send(**transactor._broker.plan(known))
            producer.abort_transaction()
        leave_open(transactor, left)
        transactor.close()
        assert read_all(log, STATE) == ([b"known"] if ended == "committed" else [])
        assert read_all(log, NOTICES) == []
        if again == "renewed":
            transactor.renew()
        else:
            transactor = log.transactor("single")
        assert read_all(log, NOTICES) == ([b"left"] if ended == "committed" else [])
        transactor.commit([NewRecord(topic=NOTICES, key="y", value=b"next")])
        assert read_all(log, NOTICES)[-1:] == [b"next"]
        transactor.close()


def test_a_promotion_that_a_broker_left_open_is_seen_at_once(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of `services` would stop in front of it until the next promotion: relays, aggregators, `check`."""
    wanted = MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://old",), time=1.0)
    with open_log(own_service(UnverifyingKafka).url, creates=True) as log:
        log.create(topics(partitions=1))
        begin = log.transactor

        def begin_and_leave_open(identity: str) -> Transactor:
            transactor: Any = begin(identity)
            transactor.commit([NewRecord(topic=STATE, key="x", value=b"known")])
            monkeypatch.setattr(transactor, "commit", lambda records: leave_open(transactor, records[0]))
            return transactor

        monkeypatch.setattr(log, "transactor", begin_and_leave_open)
        claim(log, wanted, None)
        assert read_master(log) == wanted


@pytest.mark.sample(1)
@pytest.mark.parametrize("expected", [False, True], ids=["commit", "expected commit"])
def test_an_abort_after_a_broker_was_killed_undoes_nothing_that_was_committed(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka], *, expected: bool
) -> None:
    kafka = own_service(UnverifyingKafka)
    with open_log(kafka.url, creates=True) as log:
        log.create(topics(partitions=1))
        transactor: Any = log.transactor("single")
        transactor.commit([NewRecord(topic=STATE, key="x", value=b"known")])
        leave_open(transactor, NewRecord(topic=NOTICES, key="x", value=b"left"))
        forget_open(transactor)
        kafka.kill()
        kafka.start()
        if expected:
            transactor.expect([NOTICES])
            time.sleep(0.5)  # the broker may take it
        with pytest.raises(Unavailable):
            transactor.commit([NewRecord(topic=NOTICES, key="x", value=b"refused")], newest={(NOTICES, 0): 1000})
        transactor.renew()
        assert read_all(log, NOTICES) == [b"left"]
        transactor.close()


@pytest.mark.sample(1)
def test_a_commit_expected_before_a_broker_was_killed_undoes_nothing(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka],
) -> None:
    """Its caller would not learn that what it committed before is gone: nothing fails."""
    kafka = own_service(UnverifyingKafka)
    with open_log(f"{kafka.url}?transaction_timeout_ms=60000", creates=True) as log:  # it may start slowly
        log.create(topics(partitions=1))
        transactor: Any = log.transactor("single")
        transactor.commit([NewRecord(topic=STATE, key="x", value=b"known")])
        leave_open(transactor, NewRecord(topic=NOTICES, key="x", value=b"left"))
        forget_open(transactor)
        transactor.expect([NOTICES])
        time.sleep(0.5)  # the broker takes it
        kafka.kill()
        kafka.start()
        transactor.commit([NewRecord(topic=STATE, key="y", value=b"next")])
        assert read_all(log, NOTICES) == [b"left"]
        assert read_all(log, STATE) == [b"known", b"next"]
        transactor.close()


def test_records_of_aborted_transactions_are_known(log: Log) -> None:
    transactor: Any = log.transactor("single")
    before, undone, after = (NewRecord(topic=NOTICES, key="x", value=each) for each in (b"before", b"undone", b"after"))
    transactor.commit([before])
    transactor._producer.begin_transaction()
    position = transactor._producer.send(**transactor._broker.plan(undone)).get(timeout=60).offset
    transactor._producer.abort_transaction()
    transactor.commit([after])
    eventually(lambda: read_all(log, NOTICES) == [b"before", b"after"], "readers see the commit")
    assert [each.value for each in log.undone(NOTICES, 0)] == [b"undone"]
    assert log.undone(NOTICES, position + 1) == []
    transactor.close()


@pytest.mark.sample(1)
def test_a_notice_that_a_successors_abort_undoes_is_known(
    own_service: Callable[[type[UnverifyingKafka]], UnverifyingKafka],
) -> None:
    """An aggregator died after a broker was killed, and before it ended the transaction that it expected."""
    kafka = own_service(UnverifyingKafka)
    with open_log(f"{kafka.url}?transaction_timeout_ms=60000", creates=True) as log:
        log.create(topics(partitions=1))
        transactor: Any = log.transactor("single")
        transactor.commit([NewRecord(topic=STATE, key="x", value=b"known")])
        leave_open(transactor, NewRecord(topic=NOTICES, key="x", value=b"left"))
        forget_open(transactor)
        transactor.expect([NOTICES])
        time.sleep(0.5)  # the broker takes it
        kafka.kill()
        kafka.start()
        with contextlib.closing(log.transactor("single")):
            assert read_all(log, STATE) == [b"known"]
            assert read_all(log, NOTICES) == []
            assert [each.value for each in log.undone(NOTICES, 0)] == [b"left"]
        transactor.close()


def leave_open(transactor: Any, record: NewRecord) -> None:
    """What the death of a broker leaves: a record of a transaction that counts as ended."""
    producer = transactor._producer
    producer.begin_transaction()
    producer._transaction_manager._partitions_in_transaction.add(TopicPartition(record.topic, 0))
    producer.send(**transactor._broker.plan(record)).get(timeout=60)


def forget_open(transactor: Any) -> None:
    """Let the client believe that what `leave_open` wrote is committed."""
    manager = transactor._producer._transaction_manager
    manager._current_state = TransactionState.READY
    manager._partitions_in_transaction.clear()


def read_all(log: Log, topic: str) -> list[bytes | None]:
    return [record.value for record in read_records(log, find_beginnings(log, topic))]


def test_ends_are_asked_of_the_leader_that_answered_the_last_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.ends(EVENTS)
    requests = watch_requests(monkeypatch)
    log.append([NewRecord(topic=EVENTS, key="x", value=b"", partition=1)])
    requests.clear()
    assert log.ends(EVENTS) == {0: 0, 1: 1}
    assert requests == ["ListOffsets"]


def test_a_question_that_waits_for_its_broker_delays_no_other(log: Log) -> None:
    assert isinstance(log, KafkaLog)
    used: list[Any] = []
    is_asked, may_answer = threading.Event(), threading.Event()

    def wait_for_broker(admin: Any) -> None:
        used.append(admin)
        is_asked.set()
        assert may_answer.wait(60)
        assert not admin._closed

    waiting = threading.Thread(target=log.broker.ask, args=("wait", wait_for_broker))
    waiting.start()
    assert is_asked.wait(60)
    assert log.ends(EVENTS) == {0: 0, 1: 0}
    with pytest.raises(Unavailable):
        log.broker.ask("fail", lambda admin: admin.nothing())
    assert log.ends(EVENTS) == {0: 0, 1: 0}
    may_answer.set()
    waiting.join(60)
    eventually(lambda: used[0]._closed, "a client that was replaced is closed by its last user")


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has no connection be open from now on, as far as is known: so who leads is asked."""
    return lambda: monkeypatch.setattr(Connections, "is_connected", lambda *_: False)


def client_of(log: KafkaLog) -> KafkaAdminClient:
    """The client that the next question uses."""
    return log.broker.ask("which client", lambda admin: admin)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_question_about_a_leaderless_partition_frees_its_client(
    log: Log, monkeypatch: pytest.MonkeyPatch, cut: Callable[[], None], *, is_old: bool
) -> None:
    assert isinstance(log, KafkaLog)
    monkeypatch.setattr(broker, "OLD", 0.0 if is_old else 3600.0)
    log.ends(EVENTS)
    admin, ordinary = client_of(log), KafkaAdminClient._async_get_leader_for_partitions
    lone, asked = log.broker.partition(EVENTS, 1), list[set[TopicPartition]]()

    async def find_leaders(self: Any, partitions: set[TopicPartition]) -> dict[int, set[TopicPartition]]:
        asked.append(partitions)
        return {**await ordinary(self, partitions - {lone}), **({-1: {lone}} if lone in partitions else {})}

    monkeypatch.setattr(KafkaAdminClient, "_async_get_leader_for_partitions", find_leaders)
    cut()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"no broker leads .*\.events, partition 1"):
            log.ends(EVENTS)
        assert log.ends(EVENTS, [0]) == {0: 0}
    assert (client_of(log) is admin) is not is_old
    assert len(asked) == 4, "each question was asked once"


def test_many_threads_ask_at_once_with_one_client(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    made, failed, connect = list[type](), list[Unavailable](), broker.connect
    log.ends(EVENTS)
    monkeypatch.setattr(
        broker, "connect", lambda options, kind, **ours: made.append(kind) or connect(options, kind, **ours)
    )

    def ask() -> None:
        for _ in range(50):
            try:
                log.ends(EVENTS, [0])
            except Unavailable as error:
                failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, made) == ([], []), "the client that there was is used by all"


def test_a_report_that_the_log_does_not_take_ends_no_other_append(
    kafka: Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        assert isinstance(log, KafkaLog)
        log.create(topics(partitions=2))
        closed: list[KafkaProducer] = []
        report = NewRecord(topic=SERVICES, key="relay", value=b"")
        event = NewRecord(topic=EVENTS, key="x", value=b"")
        for record in (event, report):
            log.append([record])
        close = adapter.close_producer
        monkeypatch.setattr(adapter, "close_producer", lambda producer: (closed.append(producer), close(producer)))

        def append_until_late() -> None:
            for _ in range(100):  # the log may answer before this thread goes on
                log.append([report], timeout=0.0)

        with pytest.raises(Unavailable):
            append_until_late()
        log.broker.new_producer = Mock(side_effect=AssertionError("its producer was dropped"))  # type: ignore[method-assign]
        log.append([event])
        assert len(closed) == 1


def test_a_leader_that_does_not_lead_any_more_is_looked_up_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.ends(EVENTS)
    ordinary, answers = Admin._list_partition_offsets_process_response, [NotLeaderForPartitionError()]

    def answer(response: Any) -> Any:
        if answers:
            raise answers.pop()
        return ordinary(response)

    monkeypatch.setattr(Admin, "_list_partition_offsets_process_response", staticmethod(answer))
    requests = watch_requests(monkeypatch)
    assert log.ends(EVENTS) == {0: 0, 1: 0}
    assert requests == ["ListOffsets", "Metadata", "ListOffsets"]


def test_a_leader_to_which_no_connection_is_left_is_looked_up_again(
    log: Log, monkeypatch: pytest.MonkeyPatch, cut: Callable[[], None]
) -> None:
    log.ends(EVENTS)
    cut()
    requests = watch_requests(monkeypatch)
    assert log.ends(EVENTS) == {0: 0, 1: 0}
    assert requests == ["Metadata", "ListOffsets"]


def test_records_that_are_appended_together_are_one_request(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([NewRecord(topic=NOTICES, key="x", value=b"")])
    requests = watch_requests(monkeypatch)
    for count in (1, 2, 50):
        requests.clear()
        records = [
            NewRecord(topic=topic, key="x", value=bytes(100)) for topic in (NOTICES, EVENTS) for _ in range(count)
        ]
        log.append(records)
        assert requests.count("Produce") == 1


def test_records_that_are_committed_together_are_one_request(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(log.transactor("single")) as transactor:
        transactor.commit([NewRecord(topic=NOTICES, key="x", value=b"")])
        requests = watch_requests(monkeypatch)
        for count in (1, 2, 50):
            requests.clear()
            transactor.commit(records_of_two_topics(count))
            check_one_produce(requests)


def test_they_are_one_request_though_it_takes_long_to_hand_them_over(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = KafkaProducer.send

    def send(producer: KafkaProducer, *given: object, **named: object) -> object:
        time.sleep(0.01)  # a busy machine; the answer to AddPartitionsToTxn comes meanwhile
        return ordinary(producer, *given, **named)

    monkeypatch.setattr(KafkaProducer, "send", send)
    with contextlib.closing(log.transactor("single")) as transactor:
        for _ in range(5):
            requests = watch_requests(monkeypatch)
            transactor.commit(records_of_two_topics(10))
            check_one_produce(requests)


def records_of_two_topics(count: int) -> list[NewRecord]:
    return [NewRecord(topic=topic, key="x", value=bytes(100)) for topic in (NOTICES, ERRORS) for _ in range(count)]


def check_one_produce(requests: Sequence[str]) -> None:
    found = [request for request in requests if request in TRANSACTIONAL]
    assert found[-3:] == ["AddPartitionsToTxn", "Produce in transaction", "EndTxn"], found
    assert set(found[:-3]) <= {"AddPartitionsToTxn"}, "asked again while the last transaction ends"


def test_a_commit_follows_its_records_while_the_caller_sleeps(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    ordinary = TransactionManager.begin_commit

    def begin_commit(manager: TransactionManager) -> object:
        threads.append(threading.current_thread())
        return ordinary(manager)

    monkeypatch.setattr(TransactionManager, "begin_commit", begin_commit)
    with contextlib.closing(log.transactor("single")) as transactor:
        transactor.commit(records_of_two_topics(3))
    assert [thread is threading.current_thread() for thread in threads] == [False]


def test_nothing_is_committed_if_one_record_is_refused(log: Log) -> None:
    refused = NewRecord(topic=STATE, key=None, value=b"a compacted topic needs a key")
    with contextlib.closing(log.transactor("single")) as transactor:
        transactor.commit(records_of_two_topics(1))
        end = eventually(lambda: log.ends(NOTICES)[0], "Kafka's marker of the first commit")
        with pytest.raises(Rejected):
            transactor.commit([*records_of_two_topics(2), refused])
        transactor.renew()
        with contextlib.closing(log.reader({(NOTICES, 0): end})) as reader:
            transactor.commit([NewRecord(topic=NOTICES, key="x", value=b"next")])
            found = eventually(lambda: reader.poll(1.0), "the next record")
    assert [record.value for record in found] == [b"next"]


def test_a_transactor_fenced_while_it_prepared_says_so_at_its_commit(log: Log) -> None:
    with contextlib.closing(log.transactor("one")) as older, contextlib.closing(log.transactor("one")):
        older.expect([NOTICES])
        eventually(older._producer._transaction_manager.has_fatal_error, "the broker refused to prepare")  # type: ignore[attr-defined]
        older.expect([NOTICES])
        with pytest.raises(Fenced):
            older.commit([NewRecord(topic=NOTICES, key="x", value=b"old")])


def test_nothing_is_prepared_that_the_broker_would_soon_give_up(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.&transaction_timeout_ms=6000") as log:
        log.create(topics(partitions=2))
        with contextlib.closing(log.transactor("one")) as transactor:
            transactor.expect([NOTICES])
            assert not transactor._producer._transaction_manager.has_partitions_to_add()  # type: ignore[attr-defined]
            assert not transactor._is_open  # type: ignore[attr-defined]
            transactor.commit([NewRecord(topic=NOTICES, key="x", value=b"")])


def owner_of(log: KafkaLog) -> OffsetAndMetadata:
    """The epoch and the name of the owner of the identity "one"."""
    group, partition = log.broker.full("transactor-one"), log.broker.partition(broker.OWNERS, 0)
    found = log.broker.ask("who came last", lambda admin: admin.list_group_offsets({group: [partition]}))
    return found[group][partition]


def test_an_older_owner_that_came_back_fences_only_older_ones(log: Log) -> None:
    assert isinstance(log, KafkaLog)
    older = log.transactor("one")
    owner = owner_of(log)
    newest = log.transactor("one")
    log.broker.store("transactor-one", {(broker.OWNERS, 0): owner})
    newest.renew()
    newest.commit([NewRecord(topic=NOTICES, key="x", value=b"1")])
    with pytest.raises(Fenced):
        older.renew()
    newer = log.transactor("one")
    with pytest.raises(Fenced):
        newest.renew()
    newer.close()


def test_of_two_simultaneous_instances_the_owner_goes_on(log: Log) -> None:
    assert isinstance(log, KafkaLog)
    first = log.transactor("one")
    epoch = owner_of(log).offset
    second = log.transactor("one")
    both = OffsetAndMetadata(epoch, owner_of(log).metadata, -1)  # as if both had read the same owner
    log.broker.store("transactor-one", {(broker.OWNERS, 0): both})
    with pytest.raises(Fenced):
        first.renew()
    second.renew()
    second.commit([NewRecord(topic=NOTICES, key="x", value=b"1")])
    second.close()


def test_a_new_instance_is_the_owner_before_the_older_is_fenced(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(log, KafkaLog)
    log.transactor("one").close()
    before = owner_of(log)
    requests = watch_requests(monkeypatch)
    log.transactor("one").close()
    assert owner_of(log).offset > before.offset
    assert requests.index("OffsetCommit") < requests.index("InitProducerId")


def test_an_older_instance_that_begins_late_fences_no_newer_one(log: Log) -> None:
    """Whether a newer one took over was asked before it did: what it has read then must be all that the older one wrote."""
    older, newer = log.transactor("one"), list[Transactor]()
    assert isinstance(log, KafkaLog)
    begin = log.broker.new_producer

    def begin_late(**options: Any) -> KafkaProducer:
        log.broker.new_producer = begin  # type: ignore[method-assign]
        newer.append(log.transactor("one"))
        return begin(**options)

    log.broker.new_producer = begin_late  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        older.renew()
    with pytest.raises(Unavailable):
        newer[0].commit([NewRecord(topic=NOTICES, key="x", value=b"1")])
    newer[0].renew()
    newer[0].commit([NewRecord(topic=NOTICES, key="x", value=b"2")])
    newer[0].close()


def test_an_older_instance_is_fenced_though_kafka_forgot_the_record_of_it(log: Log) -> None:
    """A week after it began, unless `offsets.retention.minutes` says otherwise."""
    assert isinstance(log, KafkaLog)
    log.transactor("one").close()
    older = log.transactor("one")
    log.broker.ask("forget", lambda admin: admin.delete_groups([log.broker.full("transactor-one")]))
    newer = log.transactor("one")
    for _ in range(2):
        with pytest.raises(Fenced):
            older.renew()
    newer.commit([NewRecord(topic=NOTICES, key="x", value=b"1")])
    newer.close()


def test_what_is_committed_behind_an_open_transaction_is_waited_for(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes over reads what its predecessor owed, though another one died in the middle of a transaction."""
    monkeypatch.setattr(broker, "OPEN_PATIENCE", 0.1)
    with contextlib.closing(OwnedRecords(log, STATE, "x/", "one", HandClock())) as owned:
        assert isinstance(log, KafkaLog)
        with leaving_open(log, "other", NewRecord(topic=STATE, key="y/a", value=b"never")):
            owned.write({"a": b"1"})
            with pytest.raises(Unavailable, match="a transaction of another process is open"):
                OwnedRecords(log, STATE, "x/", "one", HandClock())
        log.transactor("other").close()
        with contextlib.closing(OwnedRecords(log, STATE, "x/", "one", HandClock())) as next_owner:
            assert next_owner.values == {"a": b"1"}


def test_a_topic_whose_readers_wait_for_an_open_transaction_is_found(
    log: Log, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "OPEN_PATIENCE", 0.1)
    assert isinstance(log, KafkaLog)
    picture = Picture()
    with leaving_open(log, "other", NewRecord(topic=SERVICES, key="x", value=b"never")):
        look_at_topics(log, picture)
        [said] = picture.held_up
        assert f"topic {unique_name}.services: a transaction of another process is open" in said
    log.transactor("other").close()
    look_at_topics(log, picture)
    assert not picture.held_up


@contextlib.contextmanager
def leaving_open(log: KafkaLog, identity: str, record: NewRecord) -> Iterator[None]:
    """What the death of a process in the middle of a commit leaves until the broker gives the transaction up."""
    producer = log.broker.new_producer(transactional_id=log.broker.full(identity))
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(**log.broker.plan(record)).get(60)
    yield
    close_producer(producer)
