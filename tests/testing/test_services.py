# SPDX-License-Identifier: GPL-2.0-or-later
"""The services that other tests stand on: they answer, survive what they should, and leave nothing behind."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from amqp.exceptions import NotAllowed
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kombu import Connection

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from testing.services.aws import Aws
from testing.services.cache import CHECKOUT, cached
from testing.services.existing import Existing, own, shared
from testing.services.guard import descendants
from testing.services.kafka import ARCHIVE, Kafka, jars, prepared
from testing.services.keeper import Keeper, ask
from testing.services.postgresql import PostgreSQL
from testing.services.process import Service, ServiceMissing, needed
from testing.services.rabbitmq import RabbitMQ, RabbitMQOfTest, TlsRabbitMQ

OwnService = Callable[[type[Service]], Service]
KINDS = [Kafka, RabbitMQ, PostgreSQL, Aws]

STARTS_AND_WAITS = """
import sys, time
from testing.services.{module} import {kind}
from testing.services.guard import descendants
service = {kind}().start()
print(service.folder, service.guard_pid, *descendants(service.guard_pid), flush=True)
time.sleep(600)
"""


@pytest.mark.sample(1, keep=("PostgreSQL",))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.services
def test_a_killed_test_run_leaves_no_process_and_no_folder(kind: type[Service]) -> None:
    script = STARTS_AND_WAITS.format(module=kind.name, kind=kind.__name__)
    with subprocess.Popen([sys.executable, "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        try:
            folder, *processes = run.stdout.readline().split()
            ends = set()
            for process in processes:
                with suppress(ProcessLookupError):  # the service's own, for a moment
                    ends.add(os.pidfd_open(int(process)))
        finally:
            run.send_signal(signal.SIGKILL)
    left = set(ends)
    while left and (ended := select.select(left, [], [], 30)[0]):
        left -= set(ended)
    assert len(ends) >= 2
    assert not left
    assert not Path(folder).exists()
    for end in ends:
        os.close(end)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_service_is_silent_and_answers_again_when_resumed(
    kind: type[Service], own_service: OwnService
) -> None:
    service = own_service(kind)
    service.pause()
    try:
        answered = service.answers()
    except OSError:
        answered = False
    assert not answered
    service.resume()
    service.wait_until_ready()


@pytest.mark.slow
def test_kafka_killed_keeps_what_it_acknowledged(own_service: Callable[[type[Kafka]], Kafka]) -> None:
    kafka = own_service(Kafka)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics([NewTopic("kept", 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")
    producer.send("kept", b"value").get(60)
    kafka.kill()
    producer.close(0)
    kafka.restart()
    consumer = KafkaConsumer("kept", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    assert next(consumer).value == b"value"
    consumer.close()


# Its database's process that writes what was decided does nothing, as on a loaded machine, until a caller waits for it.
BUSY = """
sys:suspend(mnesia_recover), spawn(fun() -> (fun Wait() ->
    {messages, Messages} = process_info(whereis(mnesia_recover), messages),
    case [waits || {'$gen_call', _, sync} <- Messages] of
        [] -> timer:sleep(10), Wait();
        _ -> sys:resume(mnesia_recover)
    end
end)() end)
"""


@pytest.mark.slow
def test_rabbitmq_killed_keeps_what_it_confirmed(own_service: Callable[[type[RabbitMQ]], RabbitMQ]) -> None:
    rabbitmq = own_service(RabbitMQ)
    rabbitmq.evaluate(" ".join(BUSY.split()))
    with Connection(rabbitmq.url, transport_options={"confirm_publish": True}) as connection:
        queue = connection.SimpleQueue("kept")
        queue.put("value")
        queue.close()
        rabbitmq.kill()
    rabbitmq.restart()
    with Connection(rabbitmq.url) as connection:
        queue = connection.SimpleQueue("kept")
        assert queue.get(timeout=60).payload == "value"
        queue.close()


def test_a_virtual_host_is_empty_and_apart(rabbitmq: Any) -> None:
    for url in (rabbitmq.vhost(), rabbitmq.vhost()):
        with Connection(url) as connection:
            queue = connection.SimpleQueue("same")
            assert queue.qsize() == 0
            queue.put("mine")
            queue.close()


def test_the_virtual_hosts_of_a_test_end_with_it_and_no_others(shared_rabbitmq: Any, rabbitmq: Any) -> None:
    kept = rabbitmq.vhost()
    with closing(RabbitMQOfTest(shared_rabbitmq)) as broker:
        removed = [broker.vhost(), broker.vhost()]
        left = Connection(removed[0])
        left.SimpleQueue("left").put("value")
    for url in removed:
        with pytest.raises(NotAllowed, match="not found"), Connection(url) as connection:
            connection.connect()
    with pytest.raises(left.connection_errors):
        left.drain_events(timeout=60)
    with Connection(kept) as connection:
        connection.connect()


def test_a_missing_program_is_one_line_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ServiceMissing) as missing:
        needed("nosuchprogram", "its-package")
    assert "nosuchprogram" in str(missing.value)
    assert "its-package" in str(missing.value)
    assert "\n" not in str(missing.value)


@pytest.mark.slow
@pytest.mark.services
def test_a_broker_of_a_copied_cache_maps_the_classes_of_its_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (jars(), prepared()):
        shutil.copytree(each, tmp_path / each.name)
    monkeypatch.setenv("VCSREPLICATOR_CACHE", str(tmp_path))
    with Kafka() as broker:
        [java] = descendants(broker.guard_pid)
        assert str(prepared() / ARCHIVE) in Path(f"/proc/{java}/maps").read_text()


@pytest.mark.slow
@pytest.mark.services
def test_settings_that_kafka_refuses_are_an_error_that_says_why() -> None:
    with pytest.raises(ServiceMissing, match="not a number"), Kafka(properties={"node.id": "not a number"}):
        pass


def test_a_service_that_ends_at_start_shows_what_it_printed() -> None:
    class Broken(Aws):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "import sys; sys.exit('no such moon')"]

    with pytest.raises(ServiceMissing, match=r"aws ended while starting[\s\S]*no such moon"), Broken():
        pass


def test_an_environment_variable_points_to_a_service_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCSREPLICATOR_TEST_KAFKA", "kafka.example:9092")
    with shared(Kafka) as kafka:
        assert kafka == Existing(url="kafka://kafka.example:9092")
        assert kafka.bootstrap == "kafka.example:9092"


@pytest.mark.processes
def test_workers_of_one_run_share_one_service_that_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VCSREPLICATOR_TEST_AWS", raising=False)

    def worker(_: int) -> str:
        with shared(Aws) as aws:
            return aws.url

    with Keeper({"aws": Aws}), ThreadPoolExecutor(3) as workers:
        [url] = set(workers.map(worker, range(3)))
        address = ("127.0.0.1", urlsplit(url).port)
        socket.create_connection(address, 10).close()  # no worker ended it
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 10)


@pytest.mark.processes
def test_a_worker_hears_why_a_service_of_its_run_does_not_start() -> None:
    class Broken(Aws):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "import sys; sys.exit('no such moon')"]

    with Keeper({"aws": Broken}), pytest.raises(ServiceMissing, match="no such moon"):
        ask("aws", "url")


class Sleeping(Aws):
    """Starts at once, and can be cleared while it runs."""

    def command(self) -> list[str]:
        return ["sleep", "600"]

    def answers(self) -> bool:
        return bool(descendants(self.guard_pid))

    def clear(self) -> None:
        if not self.running:
            raise ServiceMissing("it was killed")


@pytest.mark.processes
def test_a_service_is_lent_to_one_at_a_time_and_then_to_the_next() -> None:
    with Keeper({"sleeping": Sleeping}):
        first, second = ask("sleeping", "lend"), ask("sleeping", "lend")
        addresses = [ask(name, "url") for name in (first, second)]
        assert addresses[0] != addresses[1]
        ask(second, "take_back")
        again = ask("sleeping", "lend")
        assert ask(again, "url") == addresses[1]


@pytest.mark.processes
def test_workers_share_one_rabbitmq_with_tls_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VCSREPLICATOR_TEST_AMQP", raising=False)
    with (
        Keeper({kind.name: Sleeping for kind in (RabbitMQ, TlsRabbitMQ)}),
        shared(RabbitMQ) as plain,
        shared(TlsRabbitMQ) as tls,
    ):
        assert plain.url == tls.url


@pytest.mark.processes
def test_a_service_that_was_killed_is_not_lent_again() -> None:
    with Keeper({"sleeping": Sleeping}):
        name = ask("sleeping", "lend")
        address = ask(name, "url")
        ask(name, "kill")
        ask(name, "take_back")
        assert ask(ask("sleeping", "lend"), "url") != address


@pytest.mark.services
def test_a_broker_that_a_test_gives_back_has_nothing_of_it(own_service: Callable[[type[RabbitMQ]], RabbitMQ]) -> None:
    broker = own_service(RabbitMQ)
    with Connection(broker.vhost()) as connection:
        connection.SimpleQueue("left").put("value")
        broker.block_publishers()
        broker.clear()
        broker.wake()
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=60)
    left = "{rabbit_vhost:list_names(), rabbit_alarm:get_alarms(), rabbit_networking:connections()}"
    assert broker.evaluate(f'{left} =:= {{[<<"/">>], [], []}}') == "{ok, true}"


@pytest.mark.slow
@pytest.mark.services
def test_a_returned_rabbitmq_stands_still_until_it_is_lent_again() -> None:
    with Keeper({"rabbitmq": RabbitMQ}):
        with own(RabbitMQ) as broker, Connection(broker.url) as connection:
            connection.SimpleQueue("left").put("value")
            folder, port = broker.folder, broker.port
        with socket.create_connection(("127.0.0.1", port), timeout=2) as asking:
            asking.sendall(b"AMQP\x00\x00\x09\x01")
            with pytest.raises(TimeoutError):
                asking.recv(1)
        with own(RabbitMQ) as again, Connection(again.url) as connection:
            assert again.folder == folder
            queue = connection.SimpleQueue("next")
            queue.put("value")
            assert queue.get(timeout=60).payload == "value"


@pytest.mark.slow
@pytest.mark.services
def test_a_returned_kafka_is_empty_and_works_when_it_is_lent_again() -> None:
    with Keeper({"kafka": Kafka}):
        with own(Kafka) as broker, open_log(broker.url, creates=True) as log:
            log.create(topics(partitions=1))
            log.acknowledge("group", "events", {0: 0})
            broker.copy()
            folder = broker.folder
        assert not (folder / "copy").exists()
        threading.Event().wait(2.5)  # longer than the broker's session
        with own(Kafka) as again, KafkaAdminClient(bootstrap_servers=again.bootstrap) as admin:
            assert again.folder == folder
            assert [name for name in admin.list_topics() if not name.startswith("__")] == []
            assert admin.list_groups() == []
            admin.create_topics([NewTopic("next", 1, 1)])


def test_a_download_that_fails_is_tried_again_from_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VCSREPLICATOR_CACHE", str(tmp_path))

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise ServiceMissing("the line was cut")

    with pytest.raises(ServiceMissing):
        cached("thing", fails)
    assert [path.name for path in cached("thing", lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]
