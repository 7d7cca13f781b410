# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict reading: what is not exactly the shape is refused, with the member's address."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.errors import MalformedEvent
from hgext.vcsreplicator.shape import extensible, from_json, read, to_json


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
        ("5", "Outer: expected an object, got 5"),
    ],
)
def test_what_is_not_the_shape_is_refused_with_its_address(text: str, complaint: str) -> None:
    with pytest.raises(MalformedEvent) as caught:
        from_json(Outer, text.encode())
    assert str(caught.value).startswith(complaint)


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    name: str
    inner: Inner | None = None


def test_an_extensible_shape_passes_over_what_it_does_not_know_and_takes_nothing_else() -> None:
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
