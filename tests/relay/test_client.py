# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a process waits for a relay that has just kept it waiting in vain."""

import uuid

from hgext.vcsreplicator.relay.client import GLANCE, ask_within


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


def test_a_process_that_waited_in_vain_only_glances_until_the_pause_is_over() -> None:
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
