# SPDX-License-Identifier: GPL-2.0-or-later
"""Ids in SQLite: remembered for their time at least, forgotten at last, through all the tables that they pass."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from notifier.services.decode import repeats
from notifier.services.decode.repeats import SqliteIds
from testing.clock import HandClock

REMEMBER = 1000.0


@pytest.fixture(autouse=True)
def few_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_FRESH", 10)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(now=1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[SqliteIds]:
    with closing(SqliteIds(str(tmp_path / "repeats.db"), REMEMBER, clock)) as opened:
        yield opened


def named(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16) for number in numbers]


def test_ids_are_known_when_they_are_fresh_and_when_they_have_moved(store: SqliteIds, tmp_path: Path) -> None:
    for number in range(25):
        store.remember(named(number))
    assert store.known(named(*range(30))) == set(named(*range(25)))
    with closing(sqlite3.connect(tmp_path / "repeats.db")) as other:
        assert other.execute("SELECT count(*) FROM fresh").fetchone() == (5,)


def test_more_ids_than_one_statement_names_are_found(store: SqliteIds) -> None:
    store.remember(named(*range(1200)))
    assert store.known(named(*range(0, 2400, 2))) == set(named(*range(0, 1200, 2)))


@pytest.mark.parametrize("begin", range(0, 1500, 100))
def test_an_id_is_known_for_its_time_and_forgotten_half_as_long_after_it(
    store: SqliteIds, clock: HandClock, begin: int
) -> None:
    clock.advance(begin)
    [first] = named(1)
    store.remember([first])
    since = clock.now()
    while clock.now() - since < REMEMBER:
        assert store.known([first]) == {first}
        store.remember(named(int(clock.now())))
        clock.advance(50)
    clock.advance(REMEMBER / 2)
    assert store.known([first]) == set()


def test_after_a_long_pause_all_is_forgotten_and_new_ids_are_kept(store: SqliteIds, clock: HandClock) -> None:
    store.remember(named(*range(15)))
    clock.advance(100 * REMEMBER)
    assert store.known(named(*range(15))) == set()
    store.remember(named(1))
    clock.advance(REMEMBER)
    assert store.known(named(1, 2)) == set(named(1))


def test_a_clock_that_goes_back_forgets_nothing(store: SqliteIds, clock: HandClock) -> None:
    store.remember(named(*range(15)))
    clock.advance(-3 * REMEMBER)
    store.remember(named(20))
    assert store.known(named(*range(15), 20)) == set(named(*range(15), 20))


def test_a_clock_that_was_far_ahead_does_not_keep_ids_until_then(store: SqliteIds, clock: HandClock) -> None:
    clock.advance(1000 * REMEMBER)
    store.remember(named(1))
    clock.advance(-1000 * REMEMBER)
    store.remember(named(2))
    for _ in range(8):
        clock.advance(REMEMBER / 4)
        store.remember([])
    assert store.known(named(1, 2)) == set()
