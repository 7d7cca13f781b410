# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the log under test lives: a file of SQLite, or topics of a real Kafka."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient, TopicPartition

from hgext.vcsreplicator.log import EVENTS, NOTICES, STATE, NewRecord, Topic
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
from hgext.vcsreplicator.words.clock import SystemClock
from testing.services.kafka import Kafka

PARTITIONS = 4
TOPICS = (
    Topic(name=EVENTS, partitions=PARTITIONS, retention=1000.0),
    Topic(name=NOTICES),
    Topic(name=STATE, compacted=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where a log lives, and how a test makes it vanish, come back and forget."""

    url: str
    vanish: Callable[[], object]
    come_back: Callable[[], object]
    forget: Callable[[str, int, int], None]  # topic, partition, the first offset to keep
    copy: Callable[[], None]  # as of now; on Kafka only of a broker of the test's own
    restore: Callable[[], None]


class Later(SystemClock):
    """The machine's clock, most of an hour ahead: longer than any retention used here, and no pause that does not count."""

    def now(self) -> float:
        return super().now() + 3000


def sqlite_storage(folder: Path) -> Storage:
    path = folder / "log.db"

    def forget(topic: str, partition: int, offset: int) -> None:
        with SqliteLog(path, clock=Later()) as log:
            while log.beginnings(topic)[partition] < offset:
                log.append([NewRecord(topic=NOTICES, key="x", value=b"")])

    return Storage(
        url=f"sqlite://{path}",
        vanish=lambda: folder.rename(folder.with_name("away")),
        come_back=lambda: folder.with_name("away").rename(folder),
        forget=forget,
        copy=lambda: copy_database(path, folder / "copy"),
        restore=lambda: copy_database(folder / "copy", path),
    )


def copy_database(source: Path, target: Path) -> None:
    """In one step: what has the former target open keeps that."""
    fresh = target.with_name("fresh")
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(fresh)) as new:
        old.backup(new)
    for beside in ("-wal", "-shm"):
        target.with_name(target.name + beside).unlink(missing_ok=True)
    fresh.rename(target)


def kafka_storage(kafka: Kafka, prefix: str) -> Storage:
    def forget(topic: str, partition: int, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.delete_records({TopicPartition(f"{prefix}.{topic}", partition): offset})
        admin.close()

    return Storage(
        url=f"{kafka.url}?topic-prefix={prefix}.",
        vanish=lambda: kafka.kill(),
        come_back=lambda: kafka.restart(),
        forget=forget,
        copy=lambda: kafka.copy(),
        restore=lambda: kafka.restore(),
    )
