# SPDX-License-Identifier: GPL-2.0-or-later
"""How a verb starts: what a verb that runs for long imports, and that closed standard streams stop none."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.service import EXIT_CONFIG
from testing.services.cache import CHECKOUT
from tests.house.test_units import values

pytestmark = pytest.mark.processes


def test_a_worker_loads_nothing_for_log_lines() -> None:
    load = "import sys, hgext.vcsreplicator.hg.replica.nursery; print('structlog' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", load], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("verb", ["aggregator", "guardian", "web"])
def test_a_service_does_not_load_what_colours_tracebacks(verb: str) -> None:
    load = f"import sys; from hgext.vcsreplicator.cli import verbs; verbs.program.get_command(None, {verb!r});"
    show = "import structlog, hgext.vcsreplicator.service; print([name for name in sys.modules if name.startswith('rich')])"
    done = subprocess.run([sys.executable, "-P", "-c", load + show], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_nursery_of_a_web_server_does_not_load_it_either(tmp_path: Path) -> None:
    load = "import sys; from hgext.vcsreplicator.cli import web_nursery; web_nursery.main()"
    show = "print(sorted({'mercurial.hgweb', 'rich', 'structlog'} & sys.modules.keys()))"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()  # so it forks nothing
    with theirs:
        words = [sys.executable, "-P", "-c", f"{load}; {show}", "0", str(tmp_path), "web", "60", str(2**32)]
        environment = {**os.environ, "HGRCPATH": os.devnull}
        done = subprocess.run(words, stdin=theirs, env=environment, stdout=PIPE, text=True, check=True)
    assert done.stdout == "['mercurial.hgweb', 'structlog']\n"


def test_a_service_runs_with_standard_error_closed(tmp_path: Path) -> None:
    url, file, address = f"sqlite://{tmp_path}/log.db", tmp_path / "x.toml", str(tmp_path / "notify")
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
    file.write_text(f'log = "{url}"\n')
    words = f"exec {sys.executable} -P -m hgext.vcsreplicator.cli aggregator -c {file} 2>&-"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        notified.settimeout(60.0)
        with subprocess.Popen(["/bin/sh", "-c", words], env={**os.environ, "NOTIFY_SOCKET": address}) as service:
            try:
                assert notified.recv(64) == b"READY=1"
                assert os.readlink(f"/proc/{service.pid}/fd/2") == os.devnull
            finally:
                service.terminate()
    assert service.returncode == 0


# An aggregator whose reading of the log lasts until a line comes.
LOADING = """
import sys
from hgext.vcsreplicator import service
from hgext.vcsreplicator.aggregator import standby
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import PENDING, topics
from testing.builders.log.memorylog import MemoryLog

class SlowLog(MemoryLog):
    def beginnings(self, topic, *arguments):
        if topic == PENDING:
            print("loading", flush=True)
            sys.stdin.readline()
        return super().beginnings(topic, *arguments)

log = SlowLog()
log.create(topics(partitions=1))
sys.exit(service.serve(lambda stop, ready: standby.run(AggregatorSettings(), log, stop=stop, ready=ready, host="one")))
"""


def test_systemd_waits_for_an_aggregator_that_loads_for_long(tmp_path: Path) -> None:
    """This process is in the place of systemd with `Type=notify`; how long it waits is in the unit."""
    address, words = str(tmp_path / "notify"), [sys.executable, "-c", LOADING]
    [limit] = values(CHECKOUT / "docs/systemd/vcsreplicator-aggregator.service", "TimeoutStartSec")
    assert float(limit) > 200, "systemd would end it, and it would load from the beginning"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        environment = {**os.environ, "NOTIFY_SOCKET": address, "PYTHONPATH": str(CHECKOUT)}
        with subprocess.Popen(words, env=environment, text=True, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as service:
            assert service.stdin
            assert service.stdout
            try:
                assert service.stdout.readline() == "loading\n"
                notified.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    notified.recv(64)
                service.stdin.close()
                notified.settimeout(60.0)
                assert notified.recv(64) == b"READY=1"
            finally:
                service.stdin.close()
                service.terminate()
                ended = service.wait(60)
    assert ended == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_file_of_a_child_takes_the_place_of_a_closed_stream(tmp_path: Path, number: int) -> None:
    answer = tmp_path / "answer"
    child = f"import os; found = os.readlink('/proc/self/fd/{number}'); open('{answer}', 'w').write(found)"
    code = "import subprocess, sys; from hgext.vcsreplicator.cli.verbs import _open_standard_streams; _open_standard_streams()"
    run = f"subprocess.run([sys.executable, '-c', {child!r}])"
    words = ["/bin/sh", "-c", f'exec {sys.executable} -P -c "$0" {number}>&-', f"{code}; {run}"]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    assert answer.read_text() == os.devnull


def test_a_verb_that_prints_a_table_ends_well_without_standard_output(tmp_path: Path) -> None:
    url, file = f"sqlite://{tmp_path}/log.db", tmp_path / "x.toml"
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
    file.write_text(f'log = "{url}"\n')
    words = f"exec {sys.executable} -P -m hgext.vcsreplicator.cli status -c {file} >&-"
    done = subprocess.run(["/bin/sh", "-c", words], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def end_of(folder: Path, text: str, *words: str) -> tuple[int, str]:
    """The exit code of a service that cannot start with this file, and the reason in its last line."""
    url, file = f"sqlite://{folder}/log.db", folder / "x.toml"
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
    file.write_text(f'log = "{url}"\n{text}')
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", *words, "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("{"), last
    return done.returncode, json.loads(last)["reason"].replace(str(file), "FILE")


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("aggregator",), ("verify", "alpha", "--continuous"), ("poll",)], ids=" ".join)
def test_a_port_in_use_is_named_with_file_and_key(tmp_path: Path, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        mirror = f'[mirror.alpha]\nroot = "{tmp_path}/alpha"\nmaster = "https://master.example/"\n'
        poll = f'[poll]\nrepositories = ["https://h.example/r"]\nurl = "amqps://u@b.example/"\nstate = "{tmp_path}/poll.db"\n'
        file = f'{mirror}{poll}[listen]\n{words[0]} = "{address}"\n'
        reason = f"FILE: listen.{words[0]}: {address} cannot be used: Address already in use"
        assert end_of(tmp_path, file, *words) == (1, reason)


def test_what_a_mirror_refuses_at_its_start_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mirror = f'[mirror.alpha]\nroot = "{tmp_path}/file/alpha"\nmaster = "https://master.example/"\n'
    code, reason = end_of(tmp_path, mirror, "mirror", "alpha")
    assert (code, reason.partition(": /")[0]) == (EXIT_CONFIG, "FILE: mirror.alpha.root")
