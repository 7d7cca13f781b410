# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker that is stopped acknowledges what is recorded."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hgext.vcsreplicator.words.retry import Backoff
from notifier.services.work import worker
from notifier.services.work.backlog import MessageBacklog, TakenMessage
from notifier.services.work.commandserver import HgFailed
from notifier.services.work.recording import read_message
from notifier.services.work.settings import WorkSettings
from testing.clock import HandClock
from testing.metrics import value_of

FAST = Backoff(first=0.02, longest=0.1)
PUSH = {"id": 1, "date": 1456826400, "user": "dana@example.com", "changesets": ["a" * 40]}
BODY = json.dumps({"type": "hg-push", "repository_id": 1, "pushes": [PUSH]}).encode()


REPOSITORIES = ("http://127.0.0.1:1/",)


class Stop(threading.Event):
    """A wish to stop that says when the worker has noticed it."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = threading.Event()

    def is_set(self) -> bool:
        if super().is_set():
            self.noticed.set()
        return super().is_set()


class Consumer:
    """A queue with one message."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        headers = {"source": "poll", "repository": "http://127.0.0.1:1/x"}
        self._messages = [SimpleNamespace(headers=headers, body=BODY, delivery_tag=7, dropped=0)]

    def receive(self, wait: float) -> list[Any]:
        taken, self._messages = self._messages, []
        return taken

    def acknowledge(self, tag: int) -> None:
        self.calls.append(tag)

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        """Drop the connection."""


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    made = Consumer()
    monkeypatch.setattr(worker, "QueueConsumer", lambda *arguments, **options: made)
    return made


@pytest.fixture
def record_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has what it is given happen instead of a recording."""
    return lambda act: monkeypatch.setattr(worker, "record_pushes", lambda *_: act())


@pytest.fixture
def reporter() -> Mock:
    """What is reported to people."""
    return Mock()


@pytest.fixture
def recorder(tmp_path: Path, reporter: Mock) -> Iterator[worker.PushRecorder]:
    settings = WorkSettings(
        url="amqp://127.0.0.1:1//",
        repositories=REPOSITORIES,
        clones=str(tmp_path / "clones"),
        database_url=f"sqlite:///{tmp_path}/x.db",
    )
    made = worker.PushRecorder(settings, Mock(), reporter, HandClock())
    made._parked = Mock(may_have_dead=False, load=lambda: [])
    yield made
    made.close()


def test_what_is_recorded_after_the_wish_to_stop_is_acknowledged(
    consumer: Consumer, recorder: worker.PushRecorder, record_by: Callable[[Callable[[], None]], None]
) -> None:
    stop = Stop()

    def record() -> None:
        stop.set()
        assert stop.noticed.wait(60)

    record_by(record)
    recorder.run(stop)
    assert consumer.calls == [7, "finish"]


def test_a_stopped_worker_waits_a_bounded_time_for_what_is_recorded(
    consumer: Consumer,
    recorder: worker.PushRecorder,
    monkeypatch: pytest.MonkeyPatch,
    record_by: Callable[[Callable[[], None]], None],
) -> None:
    stop, may_end = Stop(), threading.Event()

    def record() -> None:
        stop.set()
        assert may_end.wait(60)

    record_by(record)
    monkeypatch.setattr(worker, "SETTLING", 0.0)
    recorder.run(stop)
    assert consumer.calls == ["finish"]
    may_end.set()


def test_what_fails_after_the_wish_to_stop_counts_no_attempt(
    consumer: Consumer, recorder: worker.PushRecorder, reporter: Mock, record_by: Callable[[Callable[[], None]], None]
) -> None:
    """systemd's signal may end `hg` too: that is not the message's fault."""
    stop, [arrived] = Stop(), consumer.receive(0)
    repository, message = read_message(arrived.headers, arrived.body, REPOSITORIES)
    row = TakenMessage(row=3, body=BODY, repository=repository, message=message)
    recorder._parked = Mock(may_have_dead=False, load=lambda: [row.name], read=lambda name, most: [row])
    recorder._backlog = MessageBacklog(FAST, 0, 2)

    def record() -> None:
        stop.set()
        assert stop.noticed.wait(60)
        raise HgFailed("hg pull: exit code 255: killed!", 255)

    record_by(record)
    before = value_of(worker.FAILED)
    recorder.run(stop)
    assert value_of(worker.FAILED) == before
    assert recorder._parked.method_calls == []
    assert reporter.method_calls == []
    assert consumer.calls == ["finish"]
