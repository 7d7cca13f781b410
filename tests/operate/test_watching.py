# SPDX-License-Identifier: GPL-2.0-or-later
"""What `status --watch` writes to a pipe, and what `trace` says of a `sync`."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.reports import ServiceReporter
from hgext.vcsreplicator.words.records import ServiceTrouble
from testing.builders.cluster import Cluster
from testing.waiting import eventually
from testing.warm import warm_starts

pytestmark = pytest.mark.processes


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`vcsreplicator status --watch` of a log without repositories, with a pipe as its output."""
    (tmp_path / "x.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n')
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "status", "--watch", "--config"]
    with (
        warm_starts(),
        subprocess.Popen(
            [*words, str(tmp_path / "x.toml")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        yield process
        process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it writes up to the line with these words."""
    assert process.stdout is not None
    text = ""
    while words not in text:
        line = process.stdout.readline()
        assert line, f"it ended: {text}"
        text += line
    return text


def test_a_watch_through_a_pipe_writes_each_view_as_lines(watching: subprocess.Popen[str], tmp_path: Path) -> None:
    first = read_until(watching, "mirror")
    assert "repositories" in first
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        trouble = ServiceTrouble(text="no room", since=time.time())
        ServiceReporter(log, "relay hg://master").report([trouble], now=time.time())
    later = read_until(watching, "no room")
    assert "\x1b" not in first + later
    watching.send_signal(signal.SIGINT)
    _, complaint = watching.communicate(timeout=60)
    assert (watching.returncode, complaint.strip()) == (130, "")


def test_a_watch_ends_without_a_word_when_its_reader_is_gone(watching: subprocess.Popen[str]) -> None:
    read_until(watching, "mirror")
    assert watching.stdout is not None
    assert watching.stderr is not None
    watching.stdout.close()
    assert watching.wait(60) == 141
    assert watching.stderr.read() == ""


def test_a_trace_of_a_sync_says_that_there_is_nothing_to_deliver(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        clone = cluster.create("red")
        cluster.commit(clone, "one")
        cluster.push(clone)
        cluster.hg("-R", cluster.repository("red"), "replicatesync", on_master=True)
        said = eventually(
            lambda: (text := cluster.cli("trace", "red").stdout) and "notice written" in text and text, every=0.5
        )
        assert "event 3 (sync)" in said
        assert "lines: nothing to deliver: it gets no message of this event (sync)" in said
        assert "passed" not in said
        pushed = eventually(
            lambda: (text := cluster.cli("trace", "red", "--push", "1").stdout) and "lines: passed" in text and text,
            every=0.5,
        )
        assert "event 2 (changed)" in pushed
        told = json.loads(cluster.cli("trace", "red", "--push", "1", "--json").stdout)
        assert (told["path"], told["event"], told["type"], told["push"]["id"]) == ("red", 2, "changed", 1)
        assert told["destinations"] == {"lines": "passed"}
        assert told["steps"][0]["what"] == "committed on the master"
        cluster.stop("relay")
        cluster.hg("-R", cluster.repository("red"), "replicatesync", "--config", "vcsreplicator.log=", on_master=True)
        told = json.loads(cluster.cli("trace", "red", "--json").stdout)
        assert (told["event"], told["steps"][1]["at"], told["destinations"]) == (4, None, {})
        assert told["steps"][1]["what"].startswith("waits in the outbox")
