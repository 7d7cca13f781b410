# SPDX-License-Identifier: GPL-2.0-or-later
"""What `check` says of a master whose relay is down."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, topics
from hgext.vcsreplicator.outbox.file import Fork
from hgext.vcsreplicator.relay import lacking
from hgext.vcsreplicator.relay.lacking import REPORT, find_lacking, read_report, write_report
from hgext.vcsreplicator.status import SILENT
from hgext.vcsreplicator.status.findings import Finding
from testing.builders.memorylog import MemoryLog
from testing.builders.pushing import Master, running_relay
from testing.waiting import eventually

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
    master.outbox("one").set_fork(Fork(reason="another history"))
    assert found(master, log, after=SILENT + 60)["one"].endswith(": another history")


@pytest.mark.parametrize("damaged", ["outbox.0001.log", "outbox.sent"])
def test_an_outbox_that_cannot_be_read_is_named(master: Master, log: MemoryLog, damaged: str) -> None:
    store = master.root / "one" / ".hg" / "store"
    (store / "outbox.sent").unlink()
    if damaged == "outbox.sent":
        (store / "outbox.sent").mkdir()
    else:
        (store / damaged).write_bytes(b"damaged")
    [finding] = find_lacking([str(master.root)], log, time.time())
    assert finding.level == 1
    assert "its outbox cannot be read" in finding.text


def test_a_running_relay_reports_what_waits_and_a_stopped_one_nothing(
    master: Master, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lacking, "SILENT", 0.0)
    settings = master.settings(scan=0.05)
    with running_relay(settings, log):
        eventually(lambda: read_report(settings.socket, time.monotonic()))
        assert read_report(settings.socket, time.monotonic()).listed() == []
        with master.outbox("one").sending(wait=True):
            master.outbox("one").send_again()
            [finding] = eventually(lambda: read_report(settings.socket, time.monotonic()).listed())
        assert finding.text.startswith(f"{master.root}/one: events wait in its outbox for ")
        assert finding.text.endswith("see the relay's log lines")
        eventually(lambda: not read_report(settings.socket, time.monotonic()).findings)
        assert stat.S_IMODE(os.stat(settings.socket + REPORT).st_mode) == 0o640
    assert read_report(settings.socket, time.monotonic()) is None


def test_a_report_names_the_worst_and_counts_the_rest(tmp_path: Path) -> None:
    socket = str(tmp_path / "relay.sock")
    Path(socket).touch()
    found = [Finding(level=1 + (number == 50), text=str(number)) for number in range(100)]
    write_report(socket, found, 1000.0)
    listed = read_report(socket, 1000.0).listed()
    assert [finding.text for finding in (listed[0], listed[-1])] == ["50", "80 more repositories wait"]
    assert len(listed) == 21


@pytest.mark.parametrize("age", [-1.0, 121.0], ids=["another boot", "silent"])
def test_a_report_of_another_time_is_none(tmp_path: Path, age: float) -> None:
    socket = str(tmp_path / "relay.sock")
    Path(socket).touch()
    write_report(socket, [], 1000.0)
    assert read_report(socket, 1000.0 + 120) is not None
    assert read_report(socket, 1000.0 + age) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"at": 1e999, "count": 0, "findings": []}', b"[" * 100_000])
def test_a_report_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "relay.sock.report").write_bytes(content)
    assert read_report(str(tmp_path / "relay.sock"), 1000.0) is None
