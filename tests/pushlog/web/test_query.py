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
    return query.parse(given_values, NOW)


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
    assert parse(node=page).page == number


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
        ("two weeks ago", NOW - 14 * 86400),
        ("36h ago", NOW - 36 * 3600),
        ("3d ago", NOW - 3 * 86400),
        ("5 min ago", NOW - 300),
        ("5m ago", NOW - 300),
        ("6 months ago", 1684102400),
        ("tomorrow", NOW - NOW % 86400 + 86400),
        ("2023-11-14 22:13:20.123456", NOW),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20.5Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
        ("2023-11-14 23:13:20 01:00", NOW),
        ("2023-11-14 20:13:20 -0200", NOW),
        ("2023/11/14 22:13:20", NOW),
        ("2023/11/14", NOW - NOW % 86400),
        ("20231114", NOW - NOW % 86400),
        ("Nov 14, 2023", NOW - NOW % 86400),
        ("14 November 2023 22:13", NOW - 20),
        ("november 14 2023 22:13:20", NOW),
        ("Tue, 14 Nov 2023 22:13:20 GMT", NOW),
        ("Tuesday, 14-Nov-23 22:13:20 GMT", NOW),
        ("Tue, 14 Nov 2023 23:13:20 +0100", NOW),
    ],
)
def test_dates(text, seconds, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    dates.time.tzset()
    assert dates.parse(text, NOW) == seconds


@pytest.mark.parametrize(
    "text",
    ["2024-02-31", "2023-02-29", "2024-02-00", "2024-04-31", "2024-00-01", "2024-13-01", "0000-01-01",
     "2024-02-28 24:00", "20241301", "2024-02-28 10:60", "2024-02-28 10:00:61"],
)  # fmt: skip
def test_a_date_that_no_calendar_has_is_refused(text):
    with pytest.raises(ValueError, match=r"cannot read the date .*no such time"):
        dates.parse(text, NOW)


def test_the_last_day_of_a_february_is_a_date(monkeypatch):
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


numbers = st.none() | st.integers(-1, 12)
bounds = st.one_of(
    st.none(),
    st.builds(lambda number: query.Bound(kind="id", value=number), st.integers(-1, 12)),
    st.builds(lambda number: query.Bound(kind="change", text=f"change of {number}"), st.integers(0, 12)),
    st.builds(lambda date: query.Bound(kind="date", value=date), st.integers(-1, 400)),
)
users = st.lists(st.sampled_from(["a", "b", "c", "it's <b>", "", "'; drop table pushlog; --"]), max_size=3)


@given(
    start=bounds, after=numbers, end=bounds, names=users, limit=numbers, pushes=st.lists(st.integers(0, 10), max_size=4)
)  # fmt: skip
def test_a_window_finds_exactly_its_pushes(connection, start, after, end, names, limit, pushes):
    named = []

    def push_id_of(parameter, text):
        named.append(parameter)
        return int(text.removeprefix("change of "))

    asked = query.Query(
        start=start,
        after_id=after,
        end=end,
        users=tuple(names),
        changesets=tuple(f"change of {number}" for number in pushes),
    )
    window = query.window(asked, push_id_of, limit)

    def number_of(bound):
        return bound.value if bound.kind == "id" else int(bound.text.removeprefix("change of "))

    def is_after_start(push):
        if start is None or start.kind == "date":
            return (start is None or push.date > start.value) and (after is None or push.id > after)
        return push.id > number_of(start)

    def is_before_end(push):
        if end is None:
            return True
        return push.date < end.value if end.kind == "date" else push.id <= number_of(end)

    wanted = [
        push.id
        for push in PUSHES
        if is_after_start(push)
        and is_before_end(push)
        and (not names or push.user in names)
        and (limit is None or push.id <= limit)
        and (not pushes or push.id in pushes)
    ]
    filled = [push.id for push in PUSHES if push.nodes]
    ascending = [number for (number,) in connection.execute(*query.select_ids(window))]
    newest = [number for (number,) in connection.execute(*query.select_newest_ids(window))]
    assert ascending == [number for number in wanted if number in filled]
    assert newest == wanted[::-1]
    assert connection.execute(*query.count(window)).fetchone() == (len(wanted),)
    changes = {"fromchange": start, "tochange": end}
    ends = [name for name, bound in changes.items() if bound is not None and bound.kind == "change"]
    assert named[: len(ends)] == ends
    assert set(named[len(ends) :]) == ({"changeset"} if pushes else set())


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        (parse(startID="5", endID="9"), "INTEGER PRIMARY KEY"),
        (parse(startdate="5"), "pushlog_date"),
        (parse(user="a"), "pushlog_user"),
        (parse(user="a", startID="3"), "pushlog_user"),
        (parse(changeset=["1", "2"]), "INTEGER PRIMARY KEY"),
    ],
)
def test_a_window_is_found_by_an_index(connection, asked, index):
    sql, arguments = query.select_ids(query.window(asked, lambda _parameter, name: int(name), None))
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


@pytest.mark.parametrize(
    "payload",
    [
        *(b'{"deleted":"1"}', b'{"deleted":NaN}', b'{"deleted":1.5}', b'{"deleted":true}', b'{"deleted":9223372036854775808}'),
        *(b'{"id":1,"user":3,"date":0,"nodes":[]}', b'{"id":1,"user":"","date":"0","nodes":[]}', b"[" * 3000),
        *(b'{"id":1,"user":"","date":0,"nodes":"ab"}', b'{"id":1,"user":"","date":0,"nodes":[[]]}'),
        b'{"id":[],"user":"","date":0,"nodes":[]}',
    ],
)  # fmt: skip
def test_a_fact_of_another_form_is_refused(payload):
    with pytest.raises(ValueError, match="not a fact about a push"):
        decode(payload)


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


@pytest.mark.parametrize("zone", ["+9999999999", "-9999999999", "+" + "9" * 30])
def test_a_date_in_no_zone_is_refused(zone):
    with pytest.raises(ValueError, match="cannot read the date"):
        dates.parse(f"Mon, 05 Jan 2015 10:20:30 {zone}", 0)


@pytest.mark.parametrize("text", ["Jan 99999999999, 2015 10:20", "Mon, 05 Jan " + "9" * 30 + " 10:20:30 GMT"])
def test_a_date_with_a_huge_number_is_refused(text):
    with pytest.raises(ValueError, match="cannot read the date"):
        dates.parse(text, 0)
