# SPDX-License-Identifier: GPL-2.0-or-later
"""What `check` says of a master whose relay is down."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, topics
from hgext.vcsreplicator.relay.lacking import find_lacking
from hgext.vcsreplicator.status import SILENT
from testing.builders.memorylog import MemoryLog
from testing.builders.pushing import Master, running_relay

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def prepared() -> Iterator[tuple[Master, MemoryLog]]:
    """Two repositories, each with two events that the log has; the relay is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="push-"))  # a socket's path may have 107 bytes
    master, log = Master(folder, f"relay = {folder}/relay.sock\nacknowledge-timeout = 60").set_up(), new_log()
    with running_relay(master.settings(), log):
        for name in ("one", "two"):
            master.create(name)
            master.commit(name, "a")
            assert "recorded push in replication log" in master.push(name)
    yield master, log
    shutil.rmtree(folder)


def new_log() -> MemoryLog:
    log = MemoryLog()
    log.create(topics(partitions=1))
    return log


@pytest.fixture
def log(prepared: tuple[Master, MemoryLog]) -> MemoryLog:
    log = new_log()
    log.restore(EVENTS, prepared[1].copied(EVENTS))
    return log


@pytest.fixture
def master(prepared: tuple[Master, MemoryLog], tmp_path: Path) -> Master:
    master = Master(tmp_path, "")
    shutil.copytree(prepared[0].root, master.root)
    return master


def found(master: Master, log: MemoryLog, after: float = 0.0) -> dict[str, str]:
    """The critical finding of each repository, by its name, after so many seconds."""
    findings = find_lacking([str(master.root)], log, time.time() + after)
    assert all(finding.level == 2 for finding in findings)
    texts = [finding.text.partition(": ") for finding in findings]
    return {os.path.basename(folder): text for folder, _, text in texts}


def test_a_log_that_has_all_that_was_sent_is_not_named(master: Master, log: MemoryLog) -> None:
    assert found(master, log, after=SILENT + 1) == {}


def test_a_loss_that_no_mirror_has_applied_is_named_while_the_relay_is_down(master: Master, log: MemoryLog) -> None:
    log.lose(EVENTS, 0, 1)
    assert list(found(master, log)) == ["two"]
    log.append(log.records(EVENTS)[:1])  # another record in its place
    assert "the log has lost its newest event" in found(master, log)["two"]


def test_events_that_wait_in_an_outbox_are_named_after_a_while(master: Master, log: MemoryLog) -> None:
    master.outbox("one").send_again()
    assert found(master, log, after=SILENT - 30) == {}
    assert "does the relay run?" in found(master, log, after=SILENT + 60)["one"]


def test_a_fork_is_named_as_the_cause_of_events_that_wait(master: Master, log: MemoryLog) -> None:
    master.outbox("one").send_again()
    master.outbox("one").set_fork("another history")
    assert found(master, log, after=SILENT + 60)["one"].endswith(": another history")


def test_an_outbox_that_cannot_be_read_is_named(master: Master, log: MemoryLog) -> None:
    store = master.root / "one" / ".hg" / "store"
    (store / "outbox.sent").unlink()
    (store / "outbox.0001.log").write_bytes(b"damaged")
    [finding] = find_lacking([str(master.root)], log, time.time())
    assert finding.level == 1
    assert "its outbox cannot be read" in finding.text
