# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay compares an outbox with what the log has, before it continues any history."""

import threading
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import STATE, Log, NewRecord, topics
from hgext.vcsreplicator.outbox.entry import NewestEvent
from hgext.vcsreplicator.outbox.file import Outbox
from hgext.vcsreplicator.relay import fork
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.memorylog import MemoryLog

NEWEST = NewestEvent(
    repository="a" * 32, incarnation="b" * 32, path="x", generation=1, seq=1, id="c" * 32, digest="d" * 64
)


class Box(Outbox):
    """An outbox whose newest event is NEWEST, without a store."""

    def __init__(self) -> None:
        pass

    def newest(self) -> NewestEvent:
        return NEWEST


class Slow(MemoryLog):
    """A log whose topics cannot be read until it is awake."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def ends(self, topic: str) -> dict[int, int]:
        if not self.awake.is_set():
            raise Unavailable("asleep")
        return super().ends(topic)


def watch(log: Log, stop: threading.Event) -> fork.StateWatch:
    made = fork.StateWatch(log, stop)
    made.start()
    return made


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def test_nothing_is_judged_before_the_log_was_read(monkeypatch: pytest.MonkeyPatch, stop: threading.Event) -> None:
    monkeypatch.setattr(fork, "FIRST_READ", 0.0)
    log = Slow()
    log.create(topics())
    watching = watch(log, stop)
    with pytest.raises(Unavailable, match="not read yet"):
        watching.fork(Box())
    stop.set()
    watching.close()


def test_an_unreadable_state_hides_no_other(stop: threading.Event) -> None:
    log = MemoryLog()
    log.create(topics())
    golden = Path(__file__).parent / "golden" / "state.json"
    log.append(
        [
            NewRecord(topic=STATE, key="e" * 32, value=b"nonsense"),
            NewRecord(topic=STATE, key=NEWEST.repository, value=golden.read_bytes()),
        ]
    )
    watching = watch(log, stop)
    found = watching.fork(Box())
    assert found is not None
    assert "has its event 7" in found.reason
    stop.set()
    watching.close()


def test_the_watch_ends_at_once_however_long_it_waits_for_records(
    monkeypatch: pytest.MonkeyPatch, stop: threading.Event
) -> None:
    monkeypatch.setattr(fork, "POLL", 3600.0)
    log = MemoryLog()
    log.create(topics())
    watching = watch(log, stop)
    stop.set()
    watching.close()
    assert not watching._thread.is_alive()
