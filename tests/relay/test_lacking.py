# SPDX-License-Identifier: GPL-2.0-or-later
"""What `check` says of a master whose relay is down."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, SERVICES, topics
from hgext.vcsreplicator.outbox.entry import before_first_event
from hgext.vcsreplicator.outbox.file import Fork, Outbox, outbox_of
from hgext.vcsreplicator.relay import lacking
from hgext.vcsreplicator.relay.lacking import find_lacking, find_trouble
from hgext.vcsreplicator.status import SILENT
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, Transaction, following
from testing.builders.master.pushing import RECORDED, Master, new_master, running_relay
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def prepared() -> Iterator[tuple[Master, MemoryLog]]:
    """Two repositories, each with two events that the log has; the relay is stopped."""
    log = new_log()
    with new_master("acknowledge-timeout = 60") as master:
        with running_relay(master.settings(), log):
            for name in ("one", "two"):
                master.create(name)
                master.commit(name, "a")
                assert RECORDED in master.push(name)
        yield master, log


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
    """What is wrong with each repository, by its name, after so many seconds."""
    findings = find_lacking([str(master.root)], log, time.time() + after)
    assert all(finding.is_urgent for finding in findings)
    texts = [finding.text.partition(": ") for finding in findings]
    return {os.path.basename(folder): text for folder, _, text in texts}


def test_a_log_that_has_all_that_was_sent_is_not_named(master: Master, log: MemoryLog) -> None:
    assert found(master, log, after=SILENT + 1) == {}


def test_a_loss_that_no_mirror_has_is_named_while_the_relay_is_down(master: Master, log: MemoryLog) -> None:
    log.lose(EVENTS, 0, 1)
    assert list(found(master, log)) == ["two"]
    log.append(log.records(EVENTS)[:1])  # another record in its place
    assert "the log has lost its newest event" in found(master, log)["two"]


def test_events_that_wait_in_an_outbox_are_named_after_a_while(master: Master, log: MemoryLog) -> None:
    master.outbox("one").send_again()
    assert found(master, log, after=SILENT - 30) == {}
    assert "does the relay run?" in found(master, log, after=SILENT + 60)["one"]


def test_a_repository_that_refuses_pushes_is_named_at_once(master: Master, log: MemoryLog) -> None:
    master.outbox("one").set_fork(Fork(reason="another history"))
    assert "refuses pushes: another history; bring back" in found(master, log)["one"]
    [trouble] = find_lacking([str(master.root)], log, time.time())
    assert abs(trouble.since - time.time()) < 60


@pytest.mark.parametrize("damaged", ["outbox.0001.log", "outbox.sent"])
def test_an_outbox_that_cannot_be_read_is_named(master: Master, log: MemoryLog, damaged: str) -> None:
    store = master.root / "one" / ".hg" / "store"
    (store / "outbox.sent").unlink()
    if damaged == "outbox.sent":
        (store / "outbox.sent").mkdir()
    else:
        (store / damaged).write_bytes(b"damaged")
    [finding] = find_lacking([str(master.root)], log, time.time())
    assert "its outbox cannot be read" in finding.text


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["outbox.0001.log", "outbox.sent", "outbox.fork", "journal"])
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    store = tmp_path / ".hg" / "store"
    store.mkdir(parents=True)
    if name != "outbox.0001.log":
        Outbox(Folder(str(store))).append(Transaction(), following(before_first_event("a", 1), 1))
    os.mkfifo(store / name)
    trouble = find_trouble(str(tmp_path), outbox_of(str(tmp_path)), 1.0, "")
    assert trouble is not None
    assert f"its outbox cannot be read: [Errno 22] Not a file: '{store / name}'" in trouble.text


def troubles(log: MemoryLog) -> list[str] | None:
    """What the relay last reported."""
    reports = [from_json(ServiceReport, record.value or b"") for record in log.records(SERVICES)]
    return [trouble.text for trouble in reports[-1].troubles] if reports else None


def test_a_running_relay_reports_what_waits_and_what_refuses(
    master: Master, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lacking.find_trouble.__kwdefaults__, "patience", 0.0)
    with running_relay(master.settings(scan=0.05), log):
        assert eventually(lambda: troubles(log) == [])
        with master.outbox("one").sending(wait=True):
            master.outbox("one").send_again()
            waiting = (
                f"{master.root}/one: events wait in its outbox: another process sends its events, or is about to strip"
            )
            eventually(lambda: any(text.startswith(waiting) for text in troubles(log) or ()))
        eventually(lambda: troubles(log) == [])
        master.outbox("two").set_fork(Fork(reason="another history"))
        [text] = eventually(lambda: troubles(log))
        assert text.startswith(f"{master.root}/two: refuses pushes: another history; ")
