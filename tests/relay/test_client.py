# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a process waits for a relay that has just kept it waiting in vain, and what it takes for an answer."""

import socket
import uuid

import pytest

from hgext.vcsreplicator.relay.client import ANSWER_LIMIT, GLANCE, RelayLine, ask_within


class Relay:
    """A relay that takes so many seconds for an answer, of which it gives none after the patience."""

    def __init__(self) -> None:
        self.place, self.now, self.seconds = uuid.uuid4().hex, 100.0, 0.0
        self.waited: list[float] = []

    def answer(self, patience: float) -> bool:
        self.waited.append(min(self.seconds, patience))
        self.now += self.waited[-1]
        return self.seconds < patience

    def ask(self) -> bool:
        return ask_within(self.place, self.answer, patience=5.0, pause=30.0, clock=lambda: self.now)


def test_a_process_that_waited_in_vain_only_glances_for_a_while() -> None:
    relay = Relay()
    relay.seconds = 1000.0
    for _transaction in range(3):
        relay.ask()
    relay.now += 30.0
    relay.ask()
    assert relay.waited == [5.0, GLANCE, GLANCE, 5.0]


def test_the_first_answer_ends_the_pause() -> None:
    relay = Relay()
    relay.seconds = 1000.0
    relay.ask()
    relay.seconds = 0.004
    assert relay.ask()
    relay.seconds = 4.0
    assert relay.ask()
    assert relay.waited == [5.0, 0.004, 4.0]


def test_a_no_that_comes_at_once_begins_no_pause() -> None:
    relay = Relay()
    for _transaction in range(2):
        ask_within(relay.place, lambda _patience: False, patience=5.0, pause=30.0, clock=lambda: relay.now)
    relay.seconds = 4.0
    assert relay.ask()


def test_a_pause_for_one_relay_is_none_for_another() -> None:
    hanging, other = Relay(), Relay()
    hanging.seconds, other.seconds = 1000.0, 4.0
    hanging.ask()
    assert other.ask()


@pytest.mark.parametrize(
    "answer",
    [
        *(b"[" * 3000, b"{" + b" " * ANSWER_LIMIT + b"}", b"9" * 5000, b"7", b'"sent"', b"\xff", b"null", b"[]"),
        *(b'{"sent": "12", "announced": "12"}', b'{"sent": null}', b'{"sent": 13}{"sent": 13}'),
    ],
)
def test_an_answer_that_no_relay_gives_is_none(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        line = RelayLine(ours)
        line.report_commit(12)
        theirs.sendall(answer[:ANSWER_LIMIT] + b"\n")
        assert line.wait_until_sent(patience=5.0) is None
        theirs.sendall(answer[:ANSWER_LIMIT] + b"\n")
        assert not line.is_log_available(patience=5.0)
        line.close()


def test_an_answer_without_an_end_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        line = RelayLine(ours)
        line.report_commit(12)
        theirs.sendall(b"x" * (ANSWER_LIMIT + 1))
        assert line.wait_until_sent(patience=5.0) is None
        line.close()
