# SPDX-License-Identifier: GPL-2.0-or-later
"""What a pusher waits for after the commit."""

from types import SimpleNamespace
from typing import Any

import pytest

from hgext.vcsreplicator.hg.master import reporting
from hgext.vcsreplicator.words.event import Type


class Clock:
    """Time that passes only while a push waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Line:
    """A relay that lets the push wait for so many seconds for the first answer, and for as long as it likes for the second."""

    def __init__(self, clock: Clock, seconds: float, is_sent: bool | None = True, failure: str | None = None) -> None:
        self._clock, self._seconds, self._is_sent, self.failure = clock, seconds, is_sent, failure
        self.is_full = False
        self.patience: list[float] = []

    def wait_until_sent(self, *, patience: float) -> bool | None:
        self.patience.append(patience)
        self._clock.now += self._seconds
        return self._is_sent

    def wait_until_announced(self, event: object, *, patience: float) -> bool:
        self.patience.append(patience)
        self._clock.now += patience
        return False

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that reports take."""
    clock = Clock()
    monkeypatch.setattr(reporting, "time", clock)
    return clock


def test_both_answers_together_take_no_longer_than_the_timeout(clock: Clock) -> None:
    read = list[bytes]()
    captured: Any = SimpleNamespace(
        repo=SimpleNamespace(
            ui=SimpleNamespace(status=read.append, _buffers=[], fout=None, ferr=None),
            replication_settings=SimpleNamespace(acknowledge="mirrors", patience=5.0, relay="/relay", relay_pause=30.0),
        ),
        written=[SimpleNamespace(event=SimpleNamespace(type=Type.CHANGED))],
        committed=clock.now,
    )
    line: Any = Line(clock, 2.0)
    reporting.report(captured, line)
    assert line.patience == [5.0, 3.0]
    assert read == [
        b"recorded push in replication log in 2.000s\n",
        b"not on all mirrors after 5.0s: mirrors get it later, and it is announced then\n",
    ]


@pytest.mark.parametrize(
    ("kind", "is_sent", "failure", "line_read"),
    [
        (Type.CHANGED, False, None, b"replication log not reachable: the push is kept and will be sent\n"),
        (Type.CHANGED, None, None, b"relay not reachable: the push is kept and will be sent\n"),
        (Type.CREATED, None, None, b"relay not reachable: the event is kept and will be sent\n"),
        (
            Type.CREATED,
            False,
            "Permission denied",
            b"the relay may not write here (Permission denied): the event is kept and will be sent\n",
        ),
        (
            Type.CHANGED,
            False,
            "Permission denied",
            b"the relay may not write here (Permission denied): the push is kept and will be sent\n",
        ),
    ],
    ids=["log", "relay", "no push", "rights, no push", "rights"],
)
def test_the_pusher_reads_whether_log_relay_or_rights_are_missing(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    kind: Type,
    is_sent: bool | None,
    failure: str | None,
    line_read: bytes,
) -> None:
    read = list[bytes]()
    monkeypatch.setattr(reporting, "Outbox", lambda _vfs: SimpleNamespace(fork=lambda: None))
    captured: Any = SimpleNamespace(
        repo=SimpleNamespace(
            ui=SimpleNamespace(warn=read.append, _buffers=[], fout=None, ferr=None),
            svfs=None,
            replication_settings=SimpleNamespace(acknowledge="log", patience=5.0, relay="/relay", relay_pause=30.0),
        ),
        written=[SimpleNamespace(event=SimpleNamespace(type=kind))],
        committed=clock.now,
    )
    line: Any = Line(clock, 2.0, is_sent, failure)
    reporting.report(captured, line)
    assert read == [line_read]
    if failure is not None:
        line.is_full = True
        reporting.report(captured, line)
        assert read[1].startswith(b"the relay cannot send (%s): the " % failure.encode())
