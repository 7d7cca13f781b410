# SPDX-License-Identifier: GPL-2.0-or-later
"""Each daemon loads the libraries of its own extra, and no client that only another one needs: measured in its process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log.opening import open_log
from testing.builders.notifier.notices import with_topics
from testing.waiting import eventually
from tests.house.test_layers import CLIENTS

pytestmark = pytest.mark.processes

# Runs a verb, and prints at the end what it loaded.
RUN = """
import atexit, sys
atexit.register(lambda: print(*sorted({name.partition(".")[0] for name in sys.modules})))
from hgext.vcsreplicator.cli import main
main()
"""
# All sections; what they need of others is away, which is no reason not to start.
CONFIG = """
log = "sqlite://{folder}/log.db"
[decode]
repeats = "{folder}/repeats.db"
[edge]
listen = "127.0.0.1:{port}"
queue = "{folder}/queue"
[poll]
url = "amqp://guest@127.0.0.1:1//"
repositories = ["http://127.0.0.1:1/x"]
state = "{folder}/poll.db"
[work]
url = "amqp://guest@127.0.0.1:1//"
repositories = ["http://127.0.0.1:1/"]
clones = "{folder}/clones"
database-url = "sqlite:///{folder}/work.db"
migrate = "at-start"
[guardian]
management-url = "http://guest@127.0.0.1:2"
broker-url = "amqp://guest@127.0.0.1:1//"
smtp-url = "smtp://127.0.0.1:1"
sender = "guardian@owners.example"
operator = "operator@owners.example"
state = "{folder}/guardian.db"
"""
# Client libraries, and the database driver. re2 is part of every installation.
OF_EXTRAS = {*CLIENTS, "psycopg"} - {"re2"}
BROKER = {"kombu", "amqp"}
# Verb → libraries that it loads. httpx unpacks with zstandard if that is there.
LOADED = {
    "decode": {"jsonschema", "maxminddb", "ua_parser", "zstandard"},
    "edge": {"httptools", "uvicorn", "uvloop"},
    "poll": BROKER | {"httpx", "zstandard"},
    "work": BROKER | {"alembic", "sentry_sdk", "sqlalchemy"},
    "guardian watch": BROKER,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("verb", LOADED)
def test_a_daemon_loads_no_client_of_another(verb: str, tmp_path: Path) -> None:
    file, said = tmp_path / "services.toml", tmp_path / "said"
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        with_topics(log)
    file.write_text(CONFIG.format(folder=tmp_path, port=free_port()))
    command = [sys.executable, "-P", "-c", RUN, *verb.split(), "-c", str(file)]
    with said.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        eventually(lambda: process.poll() is not None or '"ready"' in said.read_text(), f"{verb} is ready")
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said.read_text()
    assert OF_EXTRAS & set(printed.split()) == LOADED[verb]
