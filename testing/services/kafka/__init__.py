# SPDX-License-Identifier: GPL-2.0-or-later
"""A real Kafka: one KRaft broker, its jars from Maven Central by the `pom.xml` beside this file."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from hgext.vcsreplicator.demo.ports import free_port
from testing.services import guard
from testing.services.cache import cached
from testing.services.process import PATIENCE, Service, ServiceMissing, needed
from testing.waiting import eventually

POM = Path(__file__).with_name("pom.xml")

# A JVM that starts fast and stays small, for tests and not for throughput.
JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
# A broker's new objects have room from the start, in large pages: to ask for memory and clear it is a tenth of what it computes.
ROOM = ("-Xms64m", "-Xmn48m", "-XX:+UseTransparentHugePages")

# What a formatted disk begins with, and the classes of a broker as Java maps them into memory: half of a start is reading them.
BOOTSTRAP, ARCHIVE = "bootstrap.checkpoint", "classes.jsa"

# What a single broker needs, fewer files for internal topics (a start of 1 s instead of 3), and a cleaner that compacts soon.
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",  # 128 MB by default, of which the kernel clears each page at a start
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",  # else one that took too long ends up to 10 s later
    "broker.session.timeout.ms": "2000",  # else a restarted broker is locked out for 9 s by its former self
    "broker.heartbeat.interval.ms": "300",
    "metadata.max.idle.interval.ms": "0",  # else it writes twice a second that nothing happened, a third of what an idle one costs
}


class Kafka(Service):
    """One broker. `bootstrap` is its `host:port`, `url` what `open_log` takes; topics are never created by accident."""

    name = "kafka"

    def __init__(
        self, *, properties: Mapping[str, str] | None = None, cluster: str | None = None, memory: str = "512m"
    ) -> None:
        super().__init__()
        self.data = self.folder / "data"
        self._controller_port = free_port()
        self._cluster, self._memory = cluster or cluster_id(), memory
        self._properties = {
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            **PROPERTIES,
            **(properties or {}),
        }

    def alter(self, topic: str, settings: Mapping[str, str]) -> None:
        """Give the topic these settings, and the default of each other one.

        A broker learns of it after the controller has answered.
        """
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:

            def is_set() -> bool:
                found = admin.describe_configs([ConfigResource("topic", topic, list(settings))], config_filter="all")
                return {name: each["value"] for name, each in found["topic"][topic].items()} == settings

            admin.alter_configs([ConfigResource("topic", topic, dict(settings))])
            eventually(is_set, f"{topic} has {settings}")

    def set_largest(self, topic: str, limit: int) -> None:
        """Let the topic take records of at most so many bytes from now on."""
        self.alter(topic, {"max.message.bytes": str(limit)})

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    def command(self) -> Sequence[str]:
        settings = self.folder / "server.properties"
        if not settings.exists():
            settings.write_text("".join(f"{key}={value}\n" for key, value in self.make_settings().items()))
            self._format(settings)
        return [*self._java(), "kafka.Kafka", str(settings)]

    def _java(self) -> list[str]:
        return [*java(self._memory), f"-XX:SharedArchiveFile={prepared() / ARCHIVE}"]

    def _format(self, settings: Path) -> None:
        """Do what Kafka's tool does, which takes as long as a start: what it writes is the same but for the names."""
        self.data.mkdir(exist_ok=True)
        shutil.copy(prepared() / BOOTSTRAP, self.data)
        names = {"version": "1", "cluster.id": self._cluster, "node.id": self._properties["node.id"]}
        names["directory.id"] = cluster_id()
        (self.data / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in names.items()))

    def make_settings(self) -> dict[str, str]:
        return {
            **self._properties,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
        }

    def copy(self) -> None:
        """Copy its data as a crash of now would leave it."""
        self.pause()
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.data, self.folder / "copy")
        self.resume()

    def restore(self) -> None:
        """Kill it, and start it again with the copy: it forgot what it confirmed since."""
        self.kill()
        shutil.rmtree(self.data)
        (self.folder / "copy").rename(self.data)
        self.start()

    def clear(self) -> None:
        """Be without topics and groups, and stand still until it is woken: an idle broker computes for a thirtieth of the time."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        if not self.running:
            raise ServiceMissing(f"{self.name} was stopped")
        self.wake()
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        try:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
                admin.delete_topics([name for name in admin.list_topics() if not name.startswith("__")])
                admin.delete_groups([group["group_id"] for group in admin.list_groups()])
        except KafkaError as error:
            raise ServiceMissing(f"{self.name} cannot be cleared: {error!r}") from error
        self.pause()

    def wake(self) -> None:
        """Go on, and return once topics can be made: after it stood still, its controller takes the broker for dead at first."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic
        from kafka.errors import InvalidReplicationFactorError, KafkaError

        def makes_topics() -> bool:
            try:
                admin.create_topics([NewTopic("awake", 1, 1)])
            except InvalidReplicationFactorError:
                return False
            admin.delete_topics(["awake"])
            return True

        self.resume()
        self.wait_until_ready()
        try:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
                eventually(makes_topics, f"{self.name} makes topics", timeout=PATIENCE)
        except (KafkaError, AssertionError) as error:
            raise ServiceMissing(f"{self.name} does not wake: {error!r}") from error

    def answers(self) -> bool:
        """The port opens before the broker serves: ask what a client asks first, and look for a broker in the answer."""
        from kafka import KafkaAdminClient  # 0.1 s, in each run of tests
        from kafka.errors import KafkaError

        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            pass
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=2_000)
            try:
                return bool(admin.describe_cluster()["brokers"])
            finally:
                admin.close()
        except KafkaError:
            return False


class FirstBroker(Kafka):
    """The first broker with these jars, which leaves in a folder what later ones use."""

    def __init__(self, kept: Path) -> None:
        super().__init__()
        self._kept = kept

    def _java(self) -> list[str]:
        return [*java(self._memory), f"-XX:ArchiveClassesAtExit={self._kept / ARCHIVE}"]

    def _format(self, settings: Path) -> None:
        tool = [*java(self._memory), "kafka.tools.StorageTool", "format", "-c", str(settings), "-t", self._cluster]
        result = subprocess.run(tool, capture_output=True, text=True, cwd=self.folder)
        if result.returncode:
            raise ServiceMissing(f"kafka cannot be prepared: {result.stderr.strip() or result.stdout.strip()}")
        shutil.copy(self.data / BOOTSTRAP, self._kept)

    def close(self) -> None:
        """End it without haste, so that it writes its classes."""
        if self._guard is not None:
            guard.signal_all(self._guard.pid, signal.SIGTERM)
            self._guard.wait(PATIENCE)
        super().close()


def cluster_id() -> str:
    """A new one: 16 bytes, the first not one that makes the text begin with a dash, which would be an option."""
    return urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def java(memory: str) -> list[str]:
    """The start of a command of Kafka's."""
    return [needed("java", "default-jre-headless"), f"-Xmx{memory}", *JAVA, *ROOM, "-cp", f"{jars()}/*"]


def prepared() -> Path:
    """The folder with what all brokers have in common: the head of a formatted disk, and the classes as Java maps them.

    Java maps those of this installation and of jars at this place, and silently reads all others again.
    """
    installation = Path(needed("java", "default-jre-headless")).resolve()
    made_for = hashlib.sha256(f"{jars()} {installation} {installation.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    return cached(f"{jars().name}-prepared-{made_for}", _prepare)


def _prepare(folder: Path) -> None:
    """Use the first broker as tests do: what it has not read is not among its classes."""
    from hgext.vcsreplicator.log import NOTICES, NewRecord, topics
    from hgext.vcsreplicator.log.opening import open_log

    with FirstBroker(folder) as broker:
        with open_log(broker.url, creates=True) as log:
            log.create(topics(partitions=1))
            with closing(log.transactor("first")) as transactor:
                records = [NewRecord(topic=NOTICES, key="first", value=b"first")]
                transactor.commit(records, group="first", positions={(NOTICES, 0): 0})
            with closing(log.reader({(NOTICES, 0): 0})) as reader:
                eventually(lambda: reader.poll(1.0), "the first record")
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_topics([name for name in admin.list_topics() if not name.startswith("__")])


def jars() -> Path:
    """The folder with Kafka's jars, downloaded by Maven on first use and whenever the `pom.xml` changes."""
    fingerprint = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    return cached(f"kafka-{fingerprint}", download_jars)


def download_jars(folder: Path) -> None:
    maven = [needed("mvn", "maven"), "-B", "-q", "-f", str(POM)]
    result = subprocess.run(
        [*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
        env={"MAVEN_OPTS": " ".join(JAVA), **os.environ},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line]
        raise ServiceMissing(f"Kafka could not be downloaded by {' '.join(maven)}: {' '.join(lines[:1])}")
