# SPDX-License-Identifier: GPL-2.0-or-later
"""What a process that stands by costs: processor time, memory and wake-ups, for each service of which several may run.

One process of each service works, and another stands by for it, on one machine and with nothing to do. Measured as in `idle`.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.demo.supervisor import leashed
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from testing.bench.idle import make_row, read_usage
from testing.bench.measure import Row
from testing.builders.notifier.mailbox import Mailbox
from testing.services.existing import shared
from testing.services.kafka import Kafka
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

SERVICES = {
    "aggregator": ["aggregator"],
    "notifier": ["notifier"],
    "guardian": ["guardian", "watch"],
    "poller": ["poll"],
    "decoder": ["decode"],
}
# Seconds until caches are warm and threads have settled, and seconds that are measured.
SETTLE, MEASURED = 30.0, float(os.environ.get("BENCH_STANDBY_SECONDS", "150"))
CONFIG = """
log = "{log}"
[public.urls]
"" = "https://hg.example/"
[notifier]
state = "{folder}/notifier.db"
[notifier.lines]
type = "jsonlines"
file = "{folder}/lines"
[guardian]
management-url = "{management}"
broker-url = "{broker}"
smtp-url = "{mail}"
sender = "guardian@pulse.example"
operator = "operator@pulse.example"
[poll]
url = "{broker}"
repositories = ["http://127.0.0.1:{nobody}/x"]
state = "{folder}/poll.db"
[decode]
repeats = "{folder}/repeats.db"
[listen]
"""


def rows() -> list[Row]:
    with shared(RabbitMQ) as rabbitmq, tempfile.TemporaryDirectory() as folder, Mailbox() as mailbox:
        about = {"broker": rabbitmq.vhost(), "management": rabbitmq.management_url(), "mail": mailbox.url}
        found = _measure("embedded log", f"sqlite://{folder}/log.db", Path(folder), about)
        with shared(Kafka) as kafka:
            url = f"{kafka.url}?topic-prefix=bench-{time.time_ns()}."
            return found + _measure("Kafka", url, Path(folder), about)


def _measure(title: str, log_url: str, folder: Path, about: dict[str, str]) -> list[Row]:
    with open_log(log_url, creates=True) as log:
        log.create(topics())
    with contextlib.ExitStack() as opened:
        for name in SERVICES:
            opened.enter_context(_running(name, log_url, folder / f"{title} 1", about))
        pids = {
            name: opened.enter_context(_running(name, log_url, folder / f"{title} 2", about)).pid for name in SERVICES
        }
        time.sleep(SETTLE)
        began, before = time.monotonic(), {name: read_usage(pid) for name, pid in pids.items()}
        time.sleep(MEASURED)
        after = {name: read_usage(pid) for name, pid in pids.items()}
        seconds = time.monotonic() - began
    return [make_row(f"{title}: {name}", [before[name]], [after[name]], seconds) for name in SERVICES]


@contextlib.contextmanager
def _running(name: str, log_url: str, folder: Path, about: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service in a process group of its own, started cold as by an operator, and wait until it is ready."""
    folder.mkdir(exist_ok=True)
    config, output = folder / f"{name}.toml", folder / f"{name}.log"
    role, port = SERVICES[name][0], free_port()
    text = CONFIG.format(log=log_url, folder=folder, nobody=free_port(), **about)
    config.write_text(f'{text}{role} = "127.0.0.1:{port}"\n')
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", *SERVICES[name], "--config", str(config)]
    with output.open("wb") as lines:
        process = subprocess.Popen(leashed(words), stderr=lines, start_new_session=True)
    try:
        eventually(lambda: '"ready"' in output.read_text(), f"{output} says ready", timeout=60)
        yield process
    finally:
        process.terminate()
        process.wait(30)
