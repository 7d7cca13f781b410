# SPDX-License-Identifier: GPL-2.0-or-later
"""What the supervisor knows, alone: repositories with their places, and acks that are written when they differ."""

from dataclasses import replace
from typing import cast

import pytest

from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.notes import Detached, Notes
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.supervision.state import State
from hgext.vcsreplicator.mirror.supervision.values import Phase
from hgext.vcsreplicator.mirror.writer import AckWriter
from hgext.vcsreplicator.words.records import Ack, Reason
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.mirror.lives import put
from testing.clock import HandClock

FIRST, SECOND = "1" * 32, "2" * 32


class Written:
    """The acks that were written, tombstones as None."""

    def __init__(self) -> None:
        self.acks: list[Ack | None] = []

    def sign(self, ack: Ack) -> Ack:
        return replace(ack, signature="signed")

    def ack(self, key: str, value: bytes | None) -> None:
        assert key.startswith("alpha/")
        self.acks.append(None if value is None else from_json(Ack, value))


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def state(written: Written) -> State:
    settings = MirrorSettings(name="alpha", root="/root")
    return State(settings, cast(Notes, None), cast(AckWriter, written), HandClock(), {0: 0})


def note(reason: Reason) -> Detached:
    return Detached(repository=SECOND, path="Q", partition=0, offset=0, reason=reason, note="why", since=0.0)


def test_an_ack_is_written_only_if_it_differs(state: State, written: Written) -> None:
    following = state.table.get_or_add(FIRST, "q")
    state.acks.send(following)
    assert written.acks == []  # nothing was ever known of it
    put(following, checkpoint=replace(before_first(FIRST, "3" * 32, "q", 1), seq=4))
    for _ in range(2):
        state.acks.send(following)
    assert [ack.applied for ack in written.acks if ack] == [4]
    state.acks.send_again(following)
    assert len(written.acks) == 2
    state.acks.withdraw(FIRST)
    assert written.acks[2:] == [None]


def test_no_more_is_acked_as_served_than_is_applied(state: State, written: Written) -> None:
    following = state.table.get_or_add(FIRST, "q")
    put(following, checkpoint=replace(before_first(FIRST, "3" * 32, "q", 1), seq=4), serving=9)
    state.acks.send(following)
    assert [ack.serving for ack in written.acks if ack] == [4]


def test_only_an_ack_that_a_notice_may_wait_for_is_signed(state: State, written: Written) -> None:
    following = state.table.get_or_add(FIRST, "q")
    for applied, serving, noticed in ((4, 3, 3), (4, 4, 3), (5, 4, 3), (6, 4, 4)):
        checkpoint = replace(before_first(FIRST, "3" * 32, "q", 1), seq=applied)
        put(following, checkpoint=checkpoint, serving=serving, noticed=noticed)
        state.acks.send(following)
    assert [ack.signature for ack in written.acks if ack] == [None, "signed", "signed", None]


def test_what_is_served_since_an_unknown_time_is_since_its_applying(state: State, written: Written) -> None:
    following = state.table.get_or_add(FIRST, "q")
    put(following, checkpoint=replace(before_first(FIRST, "3" * 32, "q", 1), seq=4, time=7.0))
    state.acks.send(following)
    put(following, served_at=9.0)
    state.acks.send(following)
    assert [ack.served_at for ack in written.acks if ack] == [7.0, 9.0]


@pytest.mark.parametrize(("phase", "detached"), [(Phase.STREAM, None), (Phase.JOINING, "gap"), (Phase.WAITING, "gap")])
def test_an_ack_names_the_reason_until_the_repository_is_in_the_stream(
    state: State, written: Written, phase: Phase, detached: str | None
) -> None:
    following = state.table.get_or_add(SECOND, "Q")
    put(following, note=note(Reason.GAP), phase=phase)
    state.acks.send(following)
    assert [ack.detached for ack in written.acks if ack] == [detached]


@pytest.mark.parametrize(
    ("reason", "phase", "due"),
    [(Reason.REFUSED, Phase.WAITING, [SECOND]), (Reason.REFUSED, Phase.HEALING, []), (Reason.FORK, Phase.WAITING, [])],
)
def test_a_place_that_becomes_free_is_tried_by_those_it_kept_out(
    state: State, reason: Reason, phase: Phase, due: list[str]
) -> None:
    first, second = state.table.get_or_add(FIRST, "q"), state.table.get_or_add(SECOND, "q")
    put(second, phase=phase, note=note(reason))
    state.vacate(second)
    assert list(state.agenda.take_due()) == []
    state.vacate(first)
    assert list(state.agenda.take_due()) == due


def test_a_loop_over_the_repositories_may_remove_them(state: State) -> None:
    for name in (FIRST, SECOND):
        state.table.get_or_add(name, name)
    for following in state.table:
        state.table.remove(following)
    assert list(state.table) == []
