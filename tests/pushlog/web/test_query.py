# SPDX-License-Identifier: GPL-2.0-or-later
"""From parameters to SQL, without a repository: what is asked for is what is found, and nothing else."""

import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushlog.store import connections, database
from pushlog.store.entry import Deleted, Push, decode, encode
from pushlog.web import dates, query

NOW = 1_700_000_000


def parse(**parameters):
    given_values = {name: value if isinstance(value, list) else [value] for name, value in parameters.items()}
    return query.parse(given_values, "1", NOW)


def test_without_a_start_an_end_means_nothing():
    assert parse(endID="3", enddate="2020-01-01", tochange="tip").end is None
    assert parse(endID="x").is_paged


def test_with_a_user_an_end_counts():
    assert parse(user="a", endID="3").end == query.Bound(kind="id", value=3, text="3")


def test_dates_come_before_changesets_and_these_before_ids():
    assert parse(startID="1", fromchange="tip", startdate="0").start.kind == "date"
    assert parse(startID="1", fromchange="tip").start.kind == "change"
    assert parse(startID="0", endID="1", tochange="tip", enddate="0").end.kind == "date"


@pytest.mark.parametrize("name", ["startID", "startdate"])
@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "--1", "9" * 200, "\0"])
def test_what_cannot_be_read_is_refused_with_its_name(name, text):
    with pytest.raises(query.BadRequest, match=name):
        parse(**{name: text})


@pytest.mark.parametrize(("text", "version"), [(None, 1), ("1", 1), ("2", 2)])
def test_versions(text, version):
    assert query.parse_version({} if text is None else {"version": [text]}) == version


@pytest.mark.parametrize(
    ("page", "number"), [("2", 2), ("0", 1), ("x", 1), ("-1", 1), ("9" * 30, 1), ("²", 1), ("", 1)]
)
def test_a_page_that_is_no_number_is_the_first(page, number):
    assert query.parse({}, page, NOW).page == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-14 22:13:20", NOW),
        (" 2023-11-14  22:13 ", NOW - 20),
        ("2023-11-14 22", NOW - 800),
        ("1700000000", NOW),
        ("now", NOW),
        ("1 hour ago", NOW - 3600),
        ("2 Weeks ago", NOW - 14 * 86400),
        ("yesterday", NOW - NOW % 86400 - 86400),
        ("an hour ago", NOW - 3600),
        ("1 month ago", 1697321600),
        ("last year", 1668464000),
    ],
)
def test_dates(text, seconds, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    dates.time.tzset()
    assert dates.parse(text, NOW) == seconds


@pytest.mark.parametrize(
    "text",
    ["2024-02-31", "2023-02-29", "2024-02-00", "2024-04-31", "2024-00-01", "2024-13-01", "0000-01-01",
     "2024-02-28 24:00", "2024-02-28 10:60", "2024-02-28 10:00:61"],
)  # fmt: skip
def test_a_date_that_no_calendar_has_is_refused(text):
    with pytest.raises(ValueError, match=rf"cannot read the date {text}.*no such time"):
        dates.parse(text, NOW)


def test_the_last_day_of_a_february_is_a_date_and_so_is_the_day_before_a_first(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    dates.time.tzset()
    assert dates.parse("2024-02-29", NOW) == 1709164800
    assert dates.parse("yesterday", 1709251200) == 1709164800


@given(st.text())
def test_any_text_is_a_date_or_refused(text):
    with contextlib.suppress(ValueError, OverflowError):
        assert isinstance(dates.parse(text, NOW), int)


PUSHES = [
    Push(id=number, user=user, date=date, nodes=tuple(f"{number:038x}{place:02x}" for place in range(count)))
    for number, user, date, count in (
        (1, "a", 100, 1), (2, "b", 100, 2), (3, "a", 90, 0), (5, "c", 200, 1), (8, "it's <b>", 300, 3), (9, "", 0, 1),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def connection():
    with contextlib.closing(connections.in_memory()) as connection:
        for place, push in enumerate(PUSHES):
            database.insert_new(connection, push, lambda node, place=place: 10 * place + int(node[-2:], 16))
        yield connection


bounds = st.none() | st.integers(-1, 12)
date_bounds = st.none() | st.integers(-1, 400)
users = st.lists(st.sampled_from(["a", "b", "c", "it's <b>", "", "'; drop table pushlog; --"]), max_size=3)


@given(
    after=bounds, up_to=bounds, since=date_bounds, before=date_bounds, names=users, limit=bounds,
    pushes=st.none() | st.lists(st.integers(0, 10), max_size=4),
)  # fmt: skip
def test_a_window_finds_exactly_its_pushes(connection, after, up_to, since, before, names, limit, pushes):
    window = query.ResolvedQuery(
        after_id=after,
        up_to_id=up_to,
        after_date=since,
        before_date=before,
        users=tuple(names),
        pushes=None if pushes is None else tuple(pushes),
        limit=limit,
    )
    wanted = [
        push.id
        for push in PUSHES
        if (after is None or push.id > after)
        and (up_to is None or push.id <= up_to)
        and (since is None or push.date > since)
        and (before is None or push.date < before)
        and (not names or push.user in names)
        and (limit is None or push.id <= limit)
        and (pushes is None or push.id in pushes)
    ]
    filled = [push.id for push in PUSHES if push.nodes]
    ascending = [number for (number,) in connection.execute(*query.select_ids(window))]
    newest = [number for (number,) in connection.execute(*query.select_newest_ids(window))]
    assert ascending == [number for number in wanted if number in filled]
    assert newest == wanted[::-1]
    assert connection.execute(*query.count(window)).fetchone() == (len(wanted),)


@pytest.mark.parametrize(
    ("window", "index"),
    [
        (query.ResolvedQuery(after_id=5, up_to_id=9), "INTEGER PRIMARY KEY"),
        (query.ResolvedQuery(after_date=5), "pushlog_date"),
        (query.ResolvedQuery(users=("a",)), "pushlog_user"),
        (query.ResolvedQuery(users=("a",), after_id=3), "pushlog_user"),
        (query.ResolvedQuery(pushes=(1, 2)), "INTEGER PRIMARY KEY"),
    ],
)
def test_a_window_is_found_by_an_index(connection, window, index):
    sql, arguments = query.select_ids(window)
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments))
    assert index in plan
    assert "SCAN pushlog" not in plan


texts = st.text(st.characters(blacklist_categories=("Cs",)))
nodes = st.lists(st.text("0123456789abcdef", min_size=40, max_size=40), max_size=3)


@given(number=st.integers(1, 1 << 40), user=texts, date=st.integers(-(1 << 40), 1 << 40), names=nodes)
def test_a_fact_survives_the_file(number, user, date, names):
    push = Push(id=number, user=user, date=date, nodes=tuple(names))
    assert decode(encode(push)) == push
    assert decode(encode(Deleted(id=number))) == Deleted(id=number)


@given(st.binary())
def test_what_is_no_fact_is_refused(payload):
    with pytest.raises(ValueError):
        decode(payload)


@pytest.fixture
def memory():
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        yield memory


def test_facts_laid_over_the_tables_hide_them(connection, memory):
    connection.execute("COMMIT")
    connection.backup(memory)
    late = [Push(id=2, user="x", date=1, nodes=("f" * 40,)), Deleted(id=5), Push(id=10, user="y", date=2, nodes=())]
    database.overlay(memory, late, lambda _node: 99)
    database.overlay(memory, [Push(id=10, user="z", date=3, nodes=("e" * 40,))], lambda _node: 100)
    seen = list(database.pushes(memory, 0, database.last_id(memory)))
    assert [(push.id, push.user, len(push.nodes)) for push in seen] == [
        (1, "a", 1), (2, "x", 1), (3, "a", 0), (8, "it's <b>", 3), (9, "", 1), (10, "z", 1),
    ]  # fmt: skip
    assert database.push_id_of(memory, "f" * 40) == 2
