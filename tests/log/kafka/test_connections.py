# SPDX-License-Identifier: GPL-2.0-or-later
"""A broker that hangs: it accepts connections and never answers. The others go on, and no client waits for it twice."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from hgext.vcsreplicator.log import EVENTS, NOTICES, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.kafka import broker, connections
from hgext.vcsreplicator.log.kafka import reader as readers
from hgext.vcsreplicator.log.kafka.adapter import KafkaLog
from hgext.vcsreplicator.log.kafka.transactor import KafkaTransactor
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.cluster import Cluster
from testing.faults.delay import BehindProxy, DelayingProxy
from testing.services.kafka import Kafka
from testing.services.kafka.cluster import KafkaCluster
from testing.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.services]
T = TypeVar("T")


class Mute:
    """A server that accepts connections, counts them, and says nothing until it `speaks` for another."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self._server.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self.accepted.append(self._server.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self.accepted:
            connection.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    with closing(Mute()) as server:
        yield server


def patiently(act: Callable[[], T]) -> T:
    """What a service does: try again while the log is unavailable."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return act()
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_address_that_hangs_fails_no_attempt_and_is_left_alone(
    kafka: Kafka, mute: Mute, unique_name: str, unknown: connections.HangingBrokers
) -> None:
    address = ("127.0.0.1", mute.port)
    url = f"kafka://127.0.0.1:{mute.port},{kafka.url.removeprefix('kafka://')}?topic-prefix={unique_name}."
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))

        def attempt() -> None:
            assert isinstance(log, KafkaLog)
            log.broker.drop_admin()
            log.ends(NOTICES)

        def found_out() -> bool:
            attempt()
            return unknown.doubtful(address)

        eventually(found_out, "found out")
        before = len(mute.accepted)
        for _ in range(12):
            attempt()
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            for number in range(3):
                log.append([NewRecord(topic=NOTICES, key="x", value=b"%d" % number)])
                assert [record.value for record in reader.poll(30)] == [b"%d" % number]
        assert len(mute.accepted) - before <= 6, "only who asks after it connects"


def test_a_new_client_asks_the_only_broker_again_after_it_hung(
    kafka: Kafka, unique_name: str, unknown: connections.HangingBrokers
) -> None:
    port = urlsplit(kafka.url).port
    assert port is not None
    found_by = f"kafka://localhost:{port}?topic-prefix={unique_name}."
    unknown.add(("127.0.0.1", port))
    with open_log(found_by, creates=True) as log:
        log.create(topics(partitions=1))


def test_a_new_client_names_the_only_broker_while_it_hangs(
    own_service: Callable[[Callable[[], BehindProxy]], BehindProxy], unknown: connections.HangingBrokers
) -> None:
    with DelayingProxy(delay=0.0) as proxy:
        kafka = own_service(lambda: BehindProxy(proxy))
        unknown.add(("127.0.0.1", proxy.port))
        proxy.requests.clear()
        with open_log(kafka.url) as log, pytest.raises(Unavailable, match=f"127.0.0.1:{proxy.port} does not answer"):
            log.ends(NOTICES)


def test_a_broker_that_hangs_fails_an_append_in_the_time_given(
    own_service: Callable[[type[Kafka]], Kafka],
    unknown: connections.HangingBrokers,
    told: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "LONE_SUSPICION", connections.SUSPICION)  # as where there are several
    kafka = own_service(Kafka)
    found: list[float] = []
    add = unknown.add
    monkeypatch.setattr(unknown, "add", lambda address: (found.append(time.monotonic()), add(address)))
    address = ("127.0.0.1", kafka.port)
    with open_log(kafka.url) as log:
        log.create(topics(partitions=1))
        with closing(log.reader({(NOTICES, 0): 0})) as reader:

            def found_out() -> bool:
                try:
                    assert reader.poll(0.2) == []
                except Unavailable:
                    pass
                return address in unknown

            def hang_and_return(value: bytes) -> float:
                """How many seconds it hung until that was known."""
                reader.poll(0.1)
                kafka.pause()
                start = time.monotonic()
                found.clear()
                eventually(found_out, "found out")
                took = found[0] + connections.SUSPICION - start  # by then all have left it
                with pytest.raises(Unavailable):
                    log.ends(NOTICES)
                kafka.resume()
                patiently(lambda: log.append([NewRecord(topic=NOTICES, key="x", value=value)]))
                while not (records := patiently(lambda: reader.poll(1))):
                    pass
                assert [record.value for record in records] == [value]
                assert address not in unknown
                return took

            times = [hang_and_return(b"%d" % number) for number in range(2)]
        monkeypatch.setattr(connections, "LONE_SUSPICION", 1000.0)  # so that nothing but the time given ends the append
        kafka.pause()
        start = time.monotonic()
        with pytest.raises(Unavailable):
            log.append([NewRecord(topic=NOTICES, key="x", value=b"during")], timeout=1)
        assert time.monotonic() - start < 10
        kafka.resume()
    told(f"a broker that hangs is known after {times[0]:.1f} and {times[1]:.1f} s")
    assert min(times) < 5, "promised; one of two, because this machine may stand still too"


def test_an_idle_reader_of_one_broker_asks_after_nothing(
    kafka: Kafka, unique_name: str, unknown: connections.HangingBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "TROUBLE", 0.0)
    looks: list[float] = []
    look = connections.Connections._look_at_requests
    monkeypatch.setattr(connections.Connections, "_look_at_requests", lambda self: (looks.append(1.0), look(self))[1])
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        log.close()  # the administration has a client too
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            reader.poll(1.0)
            looks.clear()
            assert reader.poll(2 * readers.QUIET_FETCH[True]) == []
    assert len(looks) <= 4
    assert not unknown._probed


def test_a_coordinator_out_of_reach_is_looked_up_again_at_a_commit(kafka: Kafka, unique_name: str) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        with closing(log.transactor("single")) as transactor:
            assert isinstance(transactor, KafkaTransactor)
            for number in (1, 2):
                assert transactor._producer is not None
                # As if the broker that coordinates them had been another one, which hangs.
                transactor._producer._transaction_manager._consumer_group_coordinator = 99
                message = NewRecord(topic=STATE, key="x", value=b"%d" % number)
                transactor.commit([message], group="g", positions={(EVENTS, 0): number})
                assert log.stored("g", EVENTS) == {0: number}


def test_a_slow_answer_alone_makes_no_broker_suspect_for_good(
    kafka: Kafka, unique_name: str, suspicious: connections.HangingBrokers
) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        log.create(topics(partitions=1))
        with closing(log.reader({(NOTICES, 0): 0})) as reader:
            probed = suspicious._probed
            eventually(lambda: reader.poll(0.2) == [] and bool(probed), "probed")
            log.append([NewRecord(topic=NOTICES, key="x", value=b"1")])
            assert [record.value for record in reader.poll(30)] == [b"1"]
    assert ("127.0.0.1", urlsplit(kafka.url).port) not in suspicious


# Three brokers take ten seconds of a processor; what one hanging address costs shows above, in two.
@pytest.mark.slow
def test_what_others_lead_goes_on_while_one_of_three_brokers_hangs(unknown: connections.HangingBrokers) -> None:
    with KafkaCluster() as cluster, open_log(cluster.url, creates=True) as log:
        patiently(lambda: log.create(topics(partitions=6)))
        leaders = {partition: cluster.leader(EVENTS, partition) for partition in range(6)}
        hung = leaders[0]
        others = [partition for partition, leader in leaders.items() if leader != hung]
        assert others
        with closing(log.reader({(EVENTS, partition): 0 for partition in leaders})) as reader:
            transactor = patiently(lambda: log.transactor("single"))
            write(log, others, b"before")
            read(reader.poll, len(others))
            cluster.brokers[hung].pause()
            eventually(lambda: reader.poll(0.2) == [] and known(cluster, hung, unknown), "found out")
            write(log, list(leaders), b"during")
            assert sorted(read(reader.poll, len(leaders))) == sorted(leaders)

            def commit() -> None:
                transactor.renew()
                transactor.commit([NewRecord(topic=STATE, key="x", value=b"1")], group="g", positions={(EVENTS, 0): 1})

            patiently(commit)
            assert patiently(lambda: log.stored("g", EVENTS)) == {0: 1}
            transactor.close()


@pytest.mark.slow
def test_a_partition_whose_only_copy_is_away_costs_the_others_no_client(
    unknown: connections.HangingBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "OLD", 3600.0)
    with KafkaCluster() as cluster:
        url = cluster.url.replace("replication-factor=3&min-insync-replicas=2", "replication-factor=1")
        with open_log(url, creates=True) as log:
            assert isinstance(log, KafkaLog)
            patiently(lambda: log.create(topics(partitions=6)))
            leaders = {partition: cluster.leader(EVENTS, partition) for partition in range(6)}
            [there, *_] = [partition for partition, leader in leaders.items() if leader != leaders[0]]
            cluster.brokers[leaders[0]].kill()
            eventually(lambda: "no broker leads" in why_not(log, 0), "Kafka knows that it has no leader", timeout=60)
            patiently(lambda: log.ends(EVENTS, [there]))
            admin = log.broker.ask("which client", lambda admin: admin)
            for _ in range(20):
                assert "no broker leads events, partition 0" in why_not(log, 0)
                assert log.ends(EVENTS, [there]) == {there: 0}
            assert log.broker.ask("which client", lambda admin: admin) is admin
            cluster.brokers[leaders[0]].start()
            eventually(lambda: not why_not(log, 0), "it leads again", timeout=60)


def why_not(log: Log, partition: int) -> str:
    """Why the partition does not answer; nothing if it does."""
    try:
        log.ends(EVENTS, [partition])
    except Unavailable as error:
        return str(error)
    return ""


def known(cluster: KafkaCluster, number: int, unknown: connections.HangingBrokers) -> bool:
    return ("127.0.0.1", cluster.brokers[number].port) in unknown


def write(log: Log, partitions: list[int], value: bytes) -> None:
    """One record into each, each by itself: those of healthy brokers first."""
    for partition in reversed(partitions):
        patiently(
            lambda partition=partition: log.append([NewRecord(topic=EVENTS, key="x", value=value, partition=partition)])
        )


def read(poll: Callable[[float], list], count: int) -> list[int]:
    """The partitions of the next records, each once: an append that was repeated may stand twice."""
    found: set[int] = set()
    deadline = time.monotonic() + 120
    while len(found) < count:
        found |= {record.partition for record in patiently(lambda: poll(1))}
        assert time.monotonic() < deadline
    return sorted(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["hangs", "is killed"])
@pytest.mark.parametrize("victim", ["leader of state", "leader of notices", "transactions", "positions", "first named"])
def test_notices_come_soon_though_one_of_three_brokers_stays_away(
    tmp_path: Path, told: Callable[[object], None], victim: str, fault: str
) -> None:
    with KafkaCluster() as kafka, Cluster(tmp_path, "--log", kafka.url) as cluster:
        clone = cluster.create("x")
        cluster.commit(clone, "a")
        cluster.push(clone)
        eventually(lambda: len(cluster.lines()) >= 2, "the first notices", timeout=120)
        before = len(cluster.lines())
        cluster.commit(clone, "b")
        number = {
            "leader of state": lambda: kafka.leader(STATE),
            "leader of notices": lambda: kafka.leader(NOTICES),
            "transactions": lambda: kafka.coordinator("transaction", "aggregator"),
            "positions": lambda: kafka.coordinator("group", "aggregator"),
            "first named": lambda: 1,
        }[victim]()
        broker = kafka.brokers[number]
        broker.pause() if fault == "hangs" else broker.kill()
        start = time.monotonic()
        cluster.push(clone)
        eventually(lambda: len(cluster.lines()) > before, "a notice", timeout=120)
        took = time.monotonic() - start
        told(f"{victim} {fault}: first notice after {took:.1f} s")
        assert took < 17, "promised, of which Kafka takes six to move what the broker led"
