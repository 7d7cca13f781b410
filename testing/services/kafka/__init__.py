# SPDX-License-Identifier: GPL-2.0-or-later
"""A real Kafka: one KRaft broker, its jars from Maven Central by the `pom.xml` beside this file."""

import hashlib
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from testing.services.cache import cached
from testing.services.process import Service, ServiceMissing, free_port, needed

POM = Path(__file__).with_name("pom.xml")

# A JVM that starts fast and stays small; the broker is for tests, not for throughput.
JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

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
    "log.cleaner.backoff.ms": "500",
    "broker.session.timeout.ms": "2000",  # else a restarted broker is locked out for 9 s by its former self
    "broker.heartbeat.interval.ms": "300",
}


class Kafka(Service):
    """One broker. `bootstrap` is its `host:port`, `url` what `open_log` takes; topics are never created by accident."""

    name = "kafka"

    def __init__(
        self, *, properties: Mapping[str, str] | None = None, cluster: str | None = None, memory: str = "512m"
    ) -> None:
        super().__init__()
        self._controller_port = free_port()
        self._cluster, self._memory = cluster or cluster_id(), memory
        self._properties = {
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            **PROPERTIES,
            **(properties or {}),
        }

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    def command(self) -> Sequence[str]:
        java = [needed("java", "default-jre-headless"), f"-Xmx{self._memory}", *JAVA, "-cp", f"{jars()}/*"]
        settings = self.folder / "server.properties"
        if not settings.exists():
            settings.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
            self._format([*java, "kafka.tools.StorageTool", "format", "-c", str(settings)])
        return [*java, "kafka.Kafka", str(settings)]

    def _format(self, storage_tool: Sequence[str]) -> None:
        result = subprocess.run([*storage_tool, "-t", self._cluster], capture_output=True, text=True, cwd=self.folder)
        if result.returncode:
            raise ServiceMissing(f"kafka refuses its settings: {result.stderr.strip() or result.stdout.strip()}")

    def _settings(self) -> dict[str, str]:
        return {
            **self._properties,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
        }

    def answers(self) -> bool:
        """The port opens before the broker serves: ask what a client asks first, and look for a broker in the answer."""
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


def cluster_id() -> str:
    """A new one: 16 bytes, the first not one that makes the text begin with a dash, which would be an option."""
    return urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def jars() -> Path:
    """The folder with Kafka's jars, downloaded by Maven on first use and whenever the `pom.xml` changes."""
    fingerprint = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    return cached(f"kafka-{fingerprint}", download_jars)


def download_jars(folder: Path) -> None:
    maven = [needed("mvn", "maven"), "-B", "-q", "-f", str(POM)]
    result = subprocess.run(
        [*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], capture_output=True, text=True
    )
    if result.returncode:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line]
        raise ServiceMissing(f"Kafka could not be downloaded by {' '.join(maven)}: {' '.join(lines[:1])}")
