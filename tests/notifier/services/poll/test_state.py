# SPDX-License-Identifier: GPL-2.0-or-later
"""How far a poller followed outlives its machine, and the file of an earlier release."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.log import WATCHES, NewRecord
from hgext.vcsreplicator.words.errors import Fenced, Unavailable
from notifier.services.poll.following import Followed
from notifier.services.poll.settings import PollSettings
from notifier.services.poll.state import PollState, open_state
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics
from testing.clock import HandClock


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    with_topics(made)
    return made


def opened(log: MemoryLog, **changed: Any) -> PollState:
    keys = {"url": "amqp://h", "repositories": ("http://h/x",), "state": "/none/poll.db", **changed}
    return open_state(PollSettings(**keys), log, HandClock())


def test_another_machine_goes_on_where_a_poller_was(log: MemoryLog) -> None:
    first = opened(log)
    x, y = first.add(["x", "y"], 0)
    moved = Followed(number=y.number, url="y", last=7, tip="t")
    first.advance([moved])
    second = opened(log)
    z, again = second.add(["z", "y"], 0)
    anew = second.begin_anew(x)
    assert again == moved
    assert (anew.url, anew.last, len({x.number, y.number, z.number, anew.number})) == ("x", 0, 4)
    assert opened(log).add(["x", "y", "z"], 0) == [anew, moved, z]
    with pytest.raises(Fenced):
        first.advance([moved])


def test_pollers_of_two_sources_share_a_log(log: MemoryLog) -> None:
    first, second = opened(log), opened(log, source="other")
    [x] = first.add(["x"], 0)
    first.advance([Followed(number=x.number, url="x", last=7)])
    assert second.add(["x"], 0) == [Followed(number=1, url="x")]


def test_a_number_that_the_log_may_not_have_is_given_to_no_other(log: MemoryLog) -> None:
    first = opened(log)
    log.fail_commits = [True]
    with pytest.raises(Unavailable):
        first.add(["x"], 0)
    [x, y] = first.add(["x", "y"], 0)
    assert (x.number, y.number) == (1, 2)
    assert opened(log).add(["x", "y"], 0) == [x, y]


def test_the_file_of_an_earlier_poller_is_taken_over_once(log: MemoryLog, tmp_path: Path) -> None:
    path = str(tmp_path / "poll.db")
    with closing(sqlite3.connect(path)) as file:
        file.executescript("""
            CREATE TABLE repositories (number INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT NOT NULL UNIQUE,
                last INTEGER NOT NULL, tip TEXT NOT NULL DEFAULT '');
            INSERT INTO repositories VALUES (4, 'x', 7, 't'), (9, 'y', -1, '');
        """)
    state = opened(log, state=path)
    [x, y, z] = state.add(["x", "y", "z"], 0)
    assert (x, y.last, z.number) == (Followed(number=4, url="x", last=7, tip="t"), -1, 10)
    later = Followed(number=4, url="x", last=8, tip="u")
    state.advance([later])
    assert opened(log, state=path).add(["x"], 0) == [later]


def test_a_strangers_number_leaves_one_for_each_new_repository(log: MemoryLog) -> None:
    [x] = opened(log).add(["x"], 0)
    false = b'{"last":0,"number":%d,"url":"false"}' % (2**63 - 1)
    log.append([NewRecord(topic=WATCHES, key="poll/poll/false", value=false)])
    new = [opened(log).add([url], 0)[0] for url in "yz"]
    assert [each.number for each in (x, *new)] == [1, 2, 3]
    assert opened(log).add(["x", "y", "z"], 0) == [x, *new]


def test_a_repository_whose_record_is_damaged_is_not_followed(log: MemoryLog) -> None:
    log.append([NewRecord(topic=WATCHES, key="poll/poll/x", value=b'{"number":"one","url":"x"}')])
    log.append([NewRecord(topic=WATCHES, key="poll/poll/y", value=b'{"number":3,"url":"other","last":1}')])
    with structlog.testing.capture_logs() as lines:
        found = opened(log).add(["x", "y"], 0)
    assert found == [Followed(number=3, url="y", last=1)]
    assert [(line["log_level"], line["repository"]) for line in lines] == [("error", "x")]
