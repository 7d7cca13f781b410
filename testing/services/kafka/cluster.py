# SPDX-License-Identifier: GPL-2.0-or-later
"""Three brokers of Kafka that keep three copies of everything, so that one may die or hang.

with KafkaCluster() as cluster:
    cluster.brokers[cluster.leader("state")].pause()
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient

from hgext.vcsreplicator.demo.ports import free_port
from testing.services.kafka import Kafka, cluster_id

# As docs/log.md recommends; nothing else is made shorter that decides how long an outage takes.
PROPERTIES = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
}


class Member(Kafka):
    """One of several brokers, broker and controller in one."""

    def __init__(self, number: int, ports: Mapping[int, int], cluster: str) -> None:
        voters = ",".join(f"{member}@127.0.0.1:{port}" for member, port in ports.items())
        super().__init__(
            properties={**PROPERTIES, "node.id": str(number), "controller.quorum.voters": voters},
            cluster=cluster,
            memory="256m",
        )
        self._controller_port = ports[number]


class KafkaCluster:
    """`brokers` by their ids, `url` what `open_log` takes: it names all brokers in order and asks for three copies.

    Their data is in `folders`, each on a disk of its own perhaps, or in their own.
    """

    def __init__(self, folders: Mapping[int, Path] | None = None) -> None:
        ports = {number: free_port() for number in (1, 2, 3)}
        cluster = cluster_id()
        self.brokers = {number: Member(number, ports, cluster) for number in ports}
        for number, folder in (folders or {}).items():
            self.brokers[number].data = folder

    @property
    def url(self) -> str:
        return self.url_of(*self.brokers)

    def url_of(self, *numbers: int) -> str:
        """The same with these brokers, in this order, as the first to ask."""
        addresses = ",".join(self.brokers[number].bootstrap for number in numbers)
        return f"kafka://{addresses}?replication-factor=3&min-insync-replicas=2"

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads this partition."""
        with KafkaAdminClient(bootstrap_servers=self._bootstrap()) as admin:
            [described] = admin.describe_topics([topic])
        [leader] = [entry["leader_id"] for entry in described["partitions"] if entry["partition_index"] == partition]
        return int(leader)

    def coordinator(self, kind: str, name: str) -> int:
        """The broker that coordinates this "group" or "transaction"."""
        with KafkaAdminClient(bootstrap_servers=self._bootstrap()) as admin:
            return int(admin._manager.run(admin._find_coordinator_id, name, kind))

    def controller(self) -> int:
        """The broker that is the active controller."""
        with KafkaAdminClient(bootstrap_servers=self._bootstrap()) as admin:
            [quorum] = admin.describe_metadata_quorum()["topics"][0]["partitions"]
        return int(quorum["leader_id"])

    def is_in_sync(self) -> bool:
        """Whether each partition has all its copies, as an administrator makes sure of before the next broker stops."""
        with KafkaAdminClient(bootstrap_servers=self._bootstrap()) as admin:
            partitions = [entry for topic in admin.describe_topics() for entry in topic["partitions"]]
        return all(len(entry["isr_nodes"]) == len(entry["replica_nodes"]) for entry in partitions)

    def _bootstrap(self) -> list[str]:
        return [broker.bootstrap for broker in self.brokers.values()]

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.brokers)) as starting:  # none answers before two run
                for started in [starting.submit(broker.start) for broker in self.brokers.values()]:
                    started.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all brokers and remove their data."""
        for broker in self.brokers.values():
            broker.close()
