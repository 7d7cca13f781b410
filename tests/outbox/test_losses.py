# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the log still has what an outbox sent, and which events cannot be sent again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import EVENTS, NewRecord, Record, topics
from hgext.vcsreplicator.outbox.entry import NewestEvent, before_first_event, new_id
from hgext.vcsreplicator.outbox.file import Outbox, SentMark
from hgext.vcsreplicator.outbox.folder import Store
from hgext.vcsreplicator.outbox.losses import EventPlace, find_standing, has_lost, has_seen, send_again
from hgext.vcsreplicator.words import digest
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.wire import ID
from testing.builders.aggregator.states import some_state, state_of
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, Transaction, following

EVENT = "e" * 32
NEWEST = NewestEvent(
    repository="a" * 32, incarnation="b" * 32, path="x", generation=1, seq=5, id=EVENT, digest="d" * 64
)
SENT = SentMark(seq=5, id=EVENT, segment=1, end=1)
STATE = some_state(
    repository=NEWEST.repository,
    incarnation=NEWEST.incarnation,
    seq=5,
    event=EVENT,
    digest=NEWEST.digest,
    released=0,
    noticed=0,
    roster=0,
)


class Box(Outbox):
    """An outbox with these answers, of which `first` is the oldest event that is kept."""

    def __init__(self, sent: SentMark | None = SENT, first: int | None = 4) -> None:
        super().__init__(Store("/nowhere"))
        self._sent, self._first = sent, first

    def newest(self) -> NewestEvent:
        return NEWEST

    def sent(self) -> SentMark | None:
        return self._sent

    def send_again(self) -> int | None:
        return self._first


def test_an_event_stands_only_where_the_log_put_it(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(topics())
    records = [NewRecord(topic=EVENTS, key="x", value=b"", headers={ID: name}) for name in ("f" * 32, EVENT)]
    partition, offset = log.append(records, timeout=1)[-1]

    def stands(event: str, at: int) -> bool:
        return find_standing(log, {partition: EventPlace(id=event, offset=at)}) == {partition}

    assert stands(EVENT, offset)
    assert not stands("c" * 32, offset)
    assert [stands(EVENT, at) for at in (-1, offset - 1, offset + 1)] == [False, False, False]
    for place, lost in [((partition, offset), False), ((partition, offset + 1), True), ((partition, None), True)]:
        assert has_lost(log, Box(replace(SENT, partition=place[0], offset=place[1])), None) is lost


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (STATE, True),
        (replace(STATE, event="c" * 32), False),
        (replace(STATE, seq=6, event="c" * 32), True),
        (replace(STATE, seq=4), False),
        (replace(STATE, seq=6, incarnation="c" * 32), False),
        (None, False),
    ],
)
def test_a_marker_without_a_place_is_lost_unless_its_event_was_seen(state: RepositoryState | None, seen: bool) -> None:
    assert has_seen(state, Box(), SENT) is seen
    assert has_lost(MemoryLog(), Box(), state) is not seen


@pytest.mark.parametrize(
    ("state", "lost"),
    [(STATE, False), (replace(STATE, seq=4), True), (replace(STATE, incarnation="c" * 32), True), (None, False)],
)
def test_an_event_that_expired_unseen_is_lost_unless_its_state_may_be(
    state: RepositoryState | None, lost: bool
) -> None:
    log = MemoryLog()
    log.create(topics())
    partition, offset = log.append([NewRecord(topic=EVENTS, key="x", value=b"", headers={ID: EVENT})], timeout=1)[0]
    box = Box(replace(SENT, partition=partition, offset=offset))
    assert not has_lost(log, box, state)
    log.expire(EVENTS, partition)
    assert has_lost(log, box, state) is lost


@pytest.mark.parametrize("seen", [0, 1, None])
def test_an_event_of_a_replaced_history_is_lost_only_with_its_record(tmp_path: Path, seen: int | None) -> None:
    old = following(before_first_event("x", 1), 2)
    before = replace(NewestEvent.of(old[-1].event), incarnation=new_id(), seq=0, id="", digest=digest.START)
    box = Outbox(Folder(str(tmp_path)))
    box.append(Transaction(), [*old, *following(before, 1)])
    event, sent = old[-1].event, list(box.kept())[1].sent()
    log = MemoryLog()
    log.create(topics())
    partition, offset = log.append([NewRecord(topic=EVENTS, key="x", value=b"", headers={ID: event.id})])[0]
    state = None if seen is None else state_of(old[seen].event)

    def is_lost(**place: int) -> bool:
        box.mark_sent(replace(sent, **place))
        return has_lost(log, box, state)

    assert not is_lost(), "an adoption leaves the mark so, also behind an event that the log never had"
    assert not is_lost(partition=partition, offset=offset)
    assert is_lost(partition=partition, offset=offset + 1)
    log.expire(EVENTS, partition)
    assert not is_lost(partition=partition, offset=offset)
    assert is_lost(partition=partition, offset=offset + 1)


@pytest.mark.parametrize(("seen", "missing"), [(None, (1, 3)), (1, (2, 3)), (2, (3, 3)), (3, None), (5, None)])
def test_events_that_were_neither_seen_nor_kept_are_named(seen: int | None, missing: tuple[int, int] | None) -> None:
    assert send_again(Box(), None if seen is None else replace(STATE, seq=seen)) == missing


def test_where_nothing_is_kept_nothing_is_named() -> None:
    assert send_again(Box(first=None), None) is None


def test_a_mark_of_the_present_history_needs_an_aggregator_that_saw_it(tmp_path: Path) -> None:
    box = Outbox(Folder(str(tmp_path)))
    box.append(Transaction(), following(before_first_event("x", 1), 2))
    box.mark_sent(next(box.unsent()).sent())
    assert has_lost(MemoryLog(), box, None)


def test_only_an_event_that_retention_removed_stands_unread() -> None:
    log = MemoryLog()
    log.create(topics())
    partition, offset = log.append([NewRecord(topic=EVENTS, key="x", value=b"", headers={ID: EVENT})])[0]
    wanted = {partition: EventPlace(id="c" * 32, offset=offset)}
    assert find_standing(log, wanted, beginnings={}) == set()
    log.expire(EVENTS, partition)
    assert find_standing(log, wanted) == {partition}


class OneByOne(MemoryLog):
    def collect(
        self, positions: dict[tuple[str, int], int], active: Sequence[tuple[str, int]], limit: int
    ) -> list[Record]:
        return super().collect(positions, active, 1)


def test_events_that_a_log_shows_one_by_one_all_stand() -> None:
    log = OneByOne()
    log.create(topics(partitions=2))
    log.append([NewRecord(topic=EVENTS, key="x", value=b"", headers={ID: EVENT}, partition=at) for at in (0, 1)])
    assert find_standing(log, {at: EventPlace(id=EVENT, offset=0) for at in (0, 1)}) == {0, 1}
