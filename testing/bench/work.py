# SPDX-License-Identifier: GPL-2.0-or-later
"""Worker: pushes a second from a backlog, with repositories that are not cloned yet.

One push is one changeset and one message; 20 repositories with 100 pushes each. Broker, database and `hg serve` are real, on this
machine and its cores.
"""

import tempfile
import threading
import time
from pathlib import Path

from notifier.services.work import worker
from notifier.services.work.settings import Migrate, WorkSettings
from testing.bench.measure import Row
from testing.builders.notifier.working import HgHost, HgQueueSender, recorded
from testing.metrics import value_of
from testing.services.postgresql import PostgreSQL
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

REPOSITORIES, PUSHES = 20, 100
PATIENCE = 600.0


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name, RabbitMQ() as broker, PostgreSQL() as postgresql:
        folder = Path(name)
        with HgHost(folder / "host") as host:
            for number in range(REPOSITORIES):
                host.add(f"r{number}", PUSHES)
            sqlite = pushes_per_second(host, broker.url, f"sqlite:///{folder}/work.db", folder / "sqlite")
            server = pushes_per_second(host, broker.url, postgresql.database(), folder / "postgresql")
    return [
        Row(name="SQLite", unit="pushes/s", samples=[sqlite]),
        Row(name="PostgreSQL", unit="pushes/s", samples=[server]),
    ]


def pushes_per_second(host: HgHost, url: str, database: str, folder: Path) -> float:
    """Fill the queue, then work it off."""
    sender = HgQueueSender(url)
    for push in range(PUSHES):
        for number in range(REPOSITORIES):
            sender.send(number, host.url(f"r{number}"), {push + 1: [host.nodes[f"r{number}"][push]]})
    settings = WorkSettings(
        url=url,
        repositories=(host.root,),
        clones=str(folder / "clones"),
        database_url=database,
        migrate=Migrate.AT_START,
        prefetch=2 * REPOSITORIES * PUSHES,
    )
    stop, before = threading.Event(), value_of(worker.RECORDED)
    thread = threading.Thread(target=worker.run, args=(settings,), kwargs={"stop": stop, "ready": lambda: None})
    began = time.monotonic()
    thread.start()
    total = REPOSITORIES * PUSHES
    eventually(lambda: value_of(worker.RECORDED) - before >= total, "all pushes", timeout=PATIENCE)
    seconds = time.monotonic() - began
    stop.set()
    thread.join()
    sender.close()
    assert sum(map(len, recorded(database).values())) == total
    return total / seconds
