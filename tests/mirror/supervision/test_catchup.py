# SPDX-License-Identifier: GPL-2.0-or-later
"""Readers of single repositories: so many at a time, the others in turn."""

from typing import Any

import pytest

from hgext.vcsreplicator.mirror.notes import Detached
from hgext.vcsreplicator.mirror.supervision import catchup
from hgext.vcsreplicator.mirror.supervision.catchup import LIMIT, CatchUpReaders
from hgext.vcsreplicator.mirror.supervision.following import Following, Phase
from hgext.vcsreplicator.words.records import Reason


class Reader:
    """A reading thread that only keeps what it was made with."""

    running: list["Reader"]

    def __init__(self, log: Any, start: Any, report: Any, *, follows: str, run: int) -> None:
        self.start_at, self.follows, self.run = start, follows, run

    def start(self) -> "Reader":
        Reader.running.append(self)
        return self

    def stop(self) -> None:
        Reader.running.remove(self)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> CatchUpReaders:
    Reader.running = []
    monkeypatch.setattr(catchup, "Source", Reader)
    return CatchUpReaders(Any, lambda arrived: None)  # type: ignore[arg-type]


def detached(number: int) -> Following:
    name = f"{number:032x}"
    note = Detached(repository=name, path=name, partition=1, offset=number, reason=Reason.LOCKED, note="", since=0.0)
    return Following(id=name, path=name, phase=Phase.WAITING, note=note)


def test_no_more_than_the_limit_read_at_a_time_and_the_others_follow_in_turn(readers: CatchUpReaders) -> None:
    waiting = [detached(number) for number in range(LIMIT + 3)]
    for following in waiting:
        readers.start(following)
        assert following.phase is Phase.CATCHING_UP
    assert [reader.follows for reader in Reader.running] == [following.id for following in waiting[:LIMIT]]
    readers.stop(waiting[LIMIT])  # which only waits
    readers.stop(waiting[0])
    assert [reader.follows for reader in Reader.running] == [
        following.id for following in (*waiting[1:LIMIT], waiting[LIMIT + 1])
    ]


def test_a_repository_that_starts_again_has_one_reader_from_its_resume_point(readers: CatchUpReaders) -> None:
    following = detached(7)
    readers.start(following)
    readers.start(following)
    [reader] = Reader.running
    assert (reader.run, reader.start_at) == (2, {("events", 1): 7})
    readers.close()
    assert Reader.running == []
