# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guardian knows outlives its machine, and the file of an earlier release."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from hgext.vcsreplicator.log import WATCHES, NewRecord
from hgext.vcsreplicator.words.shape import LARGEST, to_json
from notifier.services.guardian.filling import Filling
from notifier.services.guardian.state import (
    GuardianState,
    QueueDeletion,
    QueueFilling,
    QueueReport,
    find_last_round,
    open_state,
)
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics
from testing.clock import HandClock
from testing.faults.system import System
from tests.notifier.services.guardian.conftest import some_settings

DELETION = QueueDeletion(queue="queue/bob/q", owner="bob@owners.example", messages=9)


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    with_topics(made)
    return made


def opened(log: MemoryLog, **changed: str) -> GuardianState:
    return open_state(some_settings(**{"state": "/none/guardian.db", **changed}), log, HandClock())


def a_report(number: int) -> QueueReport:
    return QueueReport(id=number, owner="a@owners.example", queue="queue/a/q", what="deleted", messages=1, time=1.0)


def write(log: MemoryLog, key: str, record: object) -> None:
    """What another writer of the topic does."""
    log.append([NewRecord(topic=WATCHES, key=f"guardian/{some_settings().name}/{key}", value=to_json(record))])


def test_another_machine_knows_all_that_a_guardian_recorded(log: MemoryLog) -> None:
    first = opened(log)
    for number, queue in enumerate(("queue/a/x", "queue/a/y", "queue/a/z")):
        first.record(queue, Filling.NEAR, ("a@owners.example", "near its limit", number), 7.0)
    first.record("queue/a/y", Filling.FINE, None, 8.0)
    first.forget(["queue/a/z"])
    first.begin_deletion(DELETION)
    first.end_round(9.0)
    first.forget_reports(first.reports()["a@owners.example"][:1])
    first.readdress(first.reports()["a@owners.example"][:1], "operator@pulse.example")
    second = opened(log)
    assert second.fillings() == {"queue/a/x": Filling.NEAR}
    assert second.deletions() == [DELETION]
    assert second.reports() == first.reports()
    assert {owner: [each.messages for each in found] for owner, found in second.reports().items()} == {
        "operator@pulse.example": [1],
        "a@owners.example": [2],
    }
    assert find_last_round(some_settings(), log) == 9.0


def test_guardians_of_two_virtual_hosts_share_a_log(log: MemoryLog) -> None:
    first, second = opened(log), opened(log, broker_url="amqp://guest@127.0.0.1:10/other")
    first.record("queue/a/x", Filling.NEAR, None, 7.0)
    second.end_round(9.0)
    assert second.fillings() == {}
    assert find_last_round(some_settings(), log) is None


def test_the_name_of_a_virtual_host_tells_brokers_apart(system: System) -> None:
    system.name_machine("here")
    urls = ("amqp://u@127.0.0.1:10//", "amqps://u@broker.example/a%2Fb", "amqp://u@broker.example")
    names = [some_settings(broker_url=url).name for url in urls]
    assert names == ["here:10/%2F", "broker.example:5671/a%2Fb", "broker.example:5672/%2F"]


def test_the_file_of_an_earlier_release_is_taken_over_once(log: MemoryLog, tmp_path: Path) -> None:
    path = str(tmp_path / "guardian.db")
    with closing(sqlite3.connect(path)) as file:
        file.executescript("""
            CREATE TABLE levels (queue TEXT PRIMARY KEY, level INTEGER NOT NULL);
            CREATE TABLE deletions (queue TEXT PRIMARY KEY, owner TEXT NOT NULL, messages INTEGER NOT NULL);
            CREATE TABLE reports (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, queue TEXT NOT NULL,
                what TEXT NOT NULL, messages INTEGER NOT NULL, time REAL NOT NULL);
            INSERT INTO levels VALUES ('queue/a/x', 2);
            INSERT INTO deletions VALUES ('queue/bob/q', 'bob@owners.example', 9);
            INSERT INTO reports VALUES (5, 'a@owners.example', 'queue/a/x', 'beyond its limit', 9, 7.0);
        """)
    for _ in range(2):
        with structlog.testing.capture_logs() as lines:
            state = opened(log, state=path)
        assert state.fillings() == {"queue/a/x": Filling.BEYOND}
        assert state.deletions() == [DELETION]
        report = QueueReport(
            id=5, owner="a@owners.example", queue="queue/a/x", what="beyond its limit", messages=9, time=7.0
        )
        assert state.reports() == {"a@owners.example": [report]}
        state.record("queue/b/x", Filling.FINE, None, 8.0)
    assert lines == []  # at the second start


def test_a_record_that_cannot_be_read_is_named_and_passed_over(log: MemoryLog) -> None:
    prefix = f"guardian/{some_settings().name}/"
    wrong = {
        "filling/q": b'{"queue":"q","filling":7}',
        "report/1": b'{"id":1,"owner":"a@x.example, b@y.example","queue":"q","what":"w","messages":1,"time":1.0}',
        "other/q": b"{}",
    }
    log.append([NewRecord(topic=WATCHES, key=f"{prefix}{key}", value=value) for key, value in wrong.items()])
    with structlog.testing.capture_logs() as lines:
        state = opened(log)
    assert (state.fillings(), state.reports()) == ({}, {})
    assert [(line["log_level"], line["key"]) for line in lines] == [("error", key) for key in wrong]


@pytest.mark.parametrize(
    ("key", "record"),
    [
        ("report/other", a_report(5)),
        ("deletion/queue/other", DELETION),
        ("filling/queue/other", QueueFilling(queue="queue/bob/q", filling=Filling.NEAR)),
    ],
    ids=["report", "deletion", "filling"],
)
def test_a_record_under_a_foreign_key_is_ignored(log: MemoryLog, key: str, record: object) -> None:
    """It would never be forgotten, because that goes by its own key: a mail in each round, without an end."""
    write(log, key, record)
    state = opened(log)
    assert (state.fillings(), state.reports(), state.deletions()) == ({}, {}, [])


def test_a_foreign_report_leaves_a_number_for_the_next(log: MemoryLog) -> None:
    write(log, f"report/{LARGEST}", a_report(LARGEST))
    opened(log).end_deletion(DELETION, "deleted", 7.0)
    assert [each.id for each in opened(log).reports()[DELETION.owner]] == [2]
