# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict reading: what is not exactly the shape is refused, with the member's address."""

import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.records import Ack, AggregatorHeartbeat, MirrorHeartbeat, Notice
from hgext.vcsreplicator.words.roster import RosterRequest
from hgext.vcsreplicator.words.shape import EARLIEST, LATEST, extensible, from_json, parse, read, to_json
from testing.builders.aggregator.chains import Chain


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    inner: Inner | None
    items: tuple[Inner, ...] = ()
    colour: Colour = Colour.RED
    table: Mapping[str, int] | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"name": 5}', "Outer.name: expected text, got 5"),
        ("{}", "Outer: member 'name' is missing"),
        ('{"name": "x", "other": 1}', "Outer: unknown member 'other'"),
        ('{"name": "x", "inner": {"number": true}}', "Outer.inner.number: expected a whole number, got True"),
        ('{"name": "x", "inner": {"number": 1.0}}', "Outer.inner.number: expected a whole number, got 1.0"),
        ('{"name": "x", "inner": {"number": 9223372036854775808}}', "Outer.inner.number: expected a number of 64 bits"),
        ('{"name": "x", "items": {}}', "Outer.items: expected a list"),
        ('{"name": "x", "items": [1]}', "Outer.items: expected an object, got 1"),
        ('{"name": "x", "colour": "blue"}', "Outer.colour: expected one of red, got 'blue'"),
        ('{"name": "x", "table": {"a": "b"}}', "Outer.table.a: expected a whole number"),
        ('{"name": "x", "flag": 1}', "Outer.flag: expected true or false"),
        ('{"name": NaN}', "Outer: not JSON: NaN is not allowed"),
        ("[" * 100_000, "Outer: not JSON"),
        ("nonsense", "Outer: not JSON"),
        ('{"name": "x", "name": "y"}', "Outer: not JSON: member 'name' stands twice"),
        ('{"name": "x", "inner": {"number": 1, "n\\u0075mber": 2}}', "Outer: not JSON: member 'number' stands twice"),
        pytest.param(
            "{" + ",".join(f'"{n}":0' for n in [0, *range(100_000)]) + "}",
            "Outer: not JSON: member '0' stands twice",
            id="many members",
        ),
        ("5", "Outer: expected an object, got 5"),
    ],
)
def test_what_is_not_the_shape_is_refused_with_its_address(text: str, complaint: str) -> None:
    with pytest.raises(MalformedEvent) as caught:
        from_json(Outer, text.encode())
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    "number",
    ["1e999", "-1e999", "1" * 400, "1" * 5000, "1" * 1_000_000, "-" + "9" * 400, "0." + "1" * 5000, "NaN", "-Infinity"],
    ids=lambda text: f"{text[:8]} of {len(text)}",
)
@pytest.mark.parametrize("where", ["time", "roster", "later"])
def test_a_number_without_bounds_is_refused_wherever_it_stands(number: str, where: str) -> None:
    members = {"time": "1", "roster": "1", "held": "1", where: number}
    text = "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"
    with pytest.raises(MalformedEvent):
        from_json(AggregatorHeartbeat, text.encode())


@pytest.mark.parametrize("value", [10**400, -(10**5000), 2**63], ids=range(3))
def test_a_number_without_bounds_is_refused_in_what_another_parser_read(value: int) -> None:
    for member in ("number", "share"):
        with pytest.raises(MalformedEvent, match=rf"Inner\.{member}: expected"):
            read(Inner, {"number": 1, "share": 1.0, member: value})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_time_is_finite_for_every_parser(value: float) -> None:
    with pytest.raises(MalformedEvent, match=r"AggregatorHeartbeat\.time: expected a number from 0"):
        read(AggregatorHeartbeat, {"time": value, "roster": 1, "held": 1})


def examples() -> list[tuple[object, str]]:
    """A record of each kind that the log takes from elsewhere, and a member of it that is a time."""
    chain = Chain("x")
    [event] = chain.take(1)
    return [
        (event, "time"),
        (chain.ack("alpha", 1), "applied_at"),
        (MirrorHeartbeat(mirror="alpha", time=1.0, positions={}, version="1"), "time"),
        (AggregatorHeartbeat(time=1.0, roster=1, held=0), "time"),
        (RosterRequest(id="1", verb="remove", who="dana", time=1.0, reason=""), "time"),  # type: ignore[arg-type]
        (Notice(event=event, time=1.0, roster=1, acks=(), previous={}), "time"),
    ]


@pytest.mark.parametrize(("record", "member"), examples(), ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("time", [-5, -1e-9, LATEST + 1, 1e300])
def test_a_time_that_no_calendar_has_is_refused(record: object, member: str, time: float) -> None:
    data = parse(to_json(record), "record")
    assert read(type(record), data) == record
    with pytest.raises(MalformedEvent, match=f"{member}: expected a number from 0 to {LATEST}"):
        read(type(record), {**data, member: time})


def test_the_bounds_of_time_are_those_of_the_calendar() -> None:
    for second in (EARLIEST, LATEST):
        datetime.datetime.fromtimestamp(second, datetime.UTC)
    for second in (EARLIEST - 1, LATEST + 1):
        with pytest.raises((ValueError, OverflowError)):
            datetime.datetime.fromtimestamp(second, datetime.UTC)


def test_a_level_below_nothing_is_refused() -> None:
    data = parse(to_json(Chain("x").ack("alpha", 0)), "record")
    with pytest.raises(MalformedEvent, match=r"Ack\.applied: expected a number from 0"):
        read(Ack, {**data, "applied": -1})


@pytest.mark.parametrize("nested", ["[", '{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("depth", [500, 5_000, 500_000])
def test_deep_nesting_is_passed_over_or_refused(nested: str, depth: int) -> None:
    """The parser has its own limit, which depends on how deep the caller stands."""
    closed = nested * depth + "1" + {"[": "]", '{"a":': "}"}[nested] * depth
    for text in (closed, f'{{"name": "x", "later": {closed}}}', f'{{"name": {closed}}}'):
        try:
            assert from_json(Open, text.encode()) == Open(name="x")
        except MalformedEvent:
            continue


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    name: str
    inner: Inner | None = None


def test_an_extensible_shape_passes_over_only_what_it_does_not_know() -> None:
    assert from_json(Open, b'{"name": "x", "later": {"deep": [1]}}') == Open(name="x")
    for text, complaint in {
        '{"name": 5, "later": 1}': "Open.name: expected text, got 5",
        '{"later": 1}': "Open: member 'name' is missing",
        '{"name": "x", "inner": {"number": 1, "later": 1}}': "Open.inner: unknown member 'later'",
    }.items():
        with pytest.raises(MalformedEvent, match=complaint):
            from_json(Open, text.encode())


def test_text_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MalformedEvent, match="expected at most 10"):
        from_json(Outer, b" " * 11, limit=10)


def test_a_whole_number_is_taken_for_a_number_with_a_point() -> None:
    assert read(Inner, {"number": 1, "share": 2}).share == 2.0


inners = st.builds(
    Inner, number=st.integers(-(2**63) + 1, 2**63 - 1), share=st.floats(allow_nan=False, allow_infinity=False)
)
outers = st.builds(
    Outer,
    name=st.text(),
    inner=st.none() | inners,
    items=st.lists(inners, max_size=3).map(tuple),
    table=st.none() | st.dictionaries(st.text(), st.integers(-5, 5), max_size=3),
    flag=st.booleans(),
)


@given(outers)
def test_what_is_written_is_read_back_and_written_alike(value: Outer) -> None:
    text = to_json(value)
    assert from_json(Outer, text) == value
    assert to_json(from_json(Outer, text)) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused_and_nothing_else_happens(data: object) -> None:
    try:
        from_json(Outer, json.dumps(data).encode())
    except MalformedEvent:
        return
