# SPDX-License-Identifier: GPL-2.0-or-later
"""Poller: what 5,000 repositories cost with one question a minute each.

The host is a small server in another process; nine of ten answers are 304. The broker is real.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hgext.vcsreplicator.log.opening import open_log
from testing.bench.measure import Row
from testing.builders.notifier.notices import with_topics
from testing.services.rabbitmq import RabbitMQ

REPOSITORIES = 5000
INTERVAL = 60.0
# Seconds until all repositories were asked once, and of each sample.
WARM, SAMPLE, SAMPLES = INTERVAL + 5, 10.0, 5
TICK = os.sysconf("SC_CLK_TCK")
HOST = f"""
import random, threading
from testing.builders.master.pushhost import PushHost
with PushHost() as host:
    for number in range({REPOSITORIES}):
        host.push(f"r{{number}}")
    print(host.port, flush=True)
    while not threading.Event().wait({INTERVAL} / {REPOSITORIES} * 10):
        host.push(f"r{{random.randrange({REPOSITORIES})}}")
        host.targets.clear()
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name, RabbitMQ() as broker:
        folder = Path(name)
        host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
        assert host.stdout is not None
        port = int(host.stdout.readline())
        urls = ", ".join(f'"http://127.0.0.1:{port}/r{number}"' for number in range(REPOSITORIES))
        file, url = folder / "v.toml", f"sqlite://{folder}/log.db"
        with open_log(url, creates=True) as log:
            with_topics(log)
        file.write_text(
            f'log = "{url}"\n'
            f'[poll]\nurl = "{broker.url}"\nrepositories = [{urls}]\nstate = "{folder}/poll.db"\ninterval = {INTERVAL}\n'
        )
        command = [sys.executable, "-m", "hgext.vcsreplicator.cli", "poll", "-c", str(file)]
        poller = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            time.sleep(WARM)
            samples = []
            for _ in range(SAMPLES):
                before = processor_seconds(poller.pid)
                time.sleep(SAMPLE)
                assert poller.poll() is None
                samples.append((processor_seconds(poller.pid) - before) / SAMPLE)
        finally:
            for process in (poller, host):
                process.terminate()
                process.wait()
    note = f"{REPOSITORIES / INTERVAL:.0f} questions a second"
    return [Row(name=f"{REPOSITORIES} repositories", unit="cores", samples=samples, note=note)]


def processor_seconds(pid: int) -> float:
    """Return what the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK
