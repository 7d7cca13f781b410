# SPDX-License-Identifier: GPL-2.0-or-later
"""Values behave as frozen dataclasses do."""

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import field

import pytest

from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.value import Value, replace


class Made(Value):
    """One with a default that is made."""

    name: str
    moved: Mapping[str, int] = field(default_factory=dict)


class Point(Value):
    """An example."""

    x: int
    y: int = 0


def test_equal_members_make_equal_values() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert hash(Point(x=1)) == hash(Point(x=1, y=0))
    assert Point(x=1) != Point(x=2)


def test_values_of_two_kinds_are_not_equal() -> None:
    class Other(Value):
        """The same members."""

        x: int
        y: int = 0

    assert Point(x=1) != Other(x=1)


def test_a_value_does_not_change() -> None:
    point = Point(x=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point == Point(x=1)


@pytest.mark.parametrize("members", [{}, {"y": 1}, {"x": 1, "z": 2}])
def test_missing_and_unknown_members_are_refused(members: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Point: missing or unknown"):
        Point(**members)


def test_a_value_is_a_dataclass_to_who_asks() -> None:
    assert [field.name for field in dataclasses.fields(Point)] == ["x", "y"]
    assert dataclasses.replace(Point(x=1), y=5) == Point(x=1, y=5)
    assert dataclasses.asdict(Point(x=1)) == {"x": 1, "y": 0}


def test_a_value_is_a_dataclass_with_the_members_of_its_base() -> None:
    class Space(Point):
        """One more dimension."""

        z: int = 0

    for kind, names in ((Point, ["x", "y"]), (Space, ["x", "y", "z"]), (Point, ["x", "y"])):
        assert [field.name for field in dataclasses.fields(kind)] == names
    assert dataclasses.replace(Space(x=1, z=3), y=2) == Space(x=1, y=2, z=3)


def test_a_value_without_members_is_no_dataclass() -> None:
    assert not dataclasses.is_dataclass(Value)


def test_a_copy_has_the_other_members() -> None:
    assert replace(Point(x=1, y=2), y=5) == Point(x=1, y=5)
    with pytest.raises(TypeError, match="unknown: z"):
        replace(Point(x=1), z=3)


def test_a_value_is_copied_pickled_and_shown() -> None:
    point = Point(x=1, y=2)
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert repr(point) == "Point(x=1, y=2)"


def test_a_default_that_is_made_is_there_if_the_member_is_not_given() -> None:
    assert Made(name="a") == Made(name="a", moved={})
    assert from_json(Made, to_json(Made(name="a"))) == Made(name="a")
    assert Made(name="a", moved={"x": 1}) != Made(name="b", moved={})
