# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict reading of JSON into frozen dataclasses, and writing of them.

Unknown, missing, repeated and ill-typed members are refused. Only a member that may be None or has a default may be missing. An
`extensible` dataclass ignores members that it does not know, because a newer program may have written them.

Used for every record that arrives from the log or a file, all of which are untrusted. Standard library only, because a push
imports it. Supported types: str, int, float, bool, None, unions with None, StrEnum, tuple[X, ...], Mapping[str, X] and other
dataclasses. A float member accepts an integer; a bool is never a number. Whole numbers have at most 64 bits, and JSON has finite
ones only. `Annotated` with `NumberRange` gives a number's limits, as `Time` and `Count` do, and with `Unit` its unit, as `Seconds`
and `Bytes` do.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import os
import reprlib
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from .errors import MalformedEvent, quote_value
from .value import Value

T = TypeVar("T")
ValueReader = Callable[[Any, str], Any]

GIB = 1024**3
# Bytes of JSON.
MAX_TEXT = 4 * 1024 * 1024
# The largest whole number; the smallest is its negative.
LARGEST = 2**63 - 1

# Characters of a number in JSON; programs write far fewer.
NUMBER_TEXT = 100

_SCALARS = frozenset({str, int, float, bool})
_EXTENSIBLE: set[type] = set()
_INTERNED: set[type] = set()
_WITHHELD: dict[type, str] = {}


def extensible(kind: type[T]) -> type[T]:
    """Mark a dataclass to which newer programs may add members."""
    _EXTENSIBLE.add(kind)
    return kind


def interned(kind: type[T]) -> type[T]:
    """Mark a dataclass that services keep by the million: equal texts of its members are kept once.

    They are gone with the last of them, except from a Python 3.12 before 3.12.7, which keeps each text until it ends.
    """
    _INTERNED.add(kind)
    return kind


def withheld(expected: str) -> Callable[[type[T]], type[T]]:
    """Mark a dataclass whose place may hold a secret by mistake.

    An error about a wrong value says what is `expected` and never shows the value.
    """

    def mark(kind: type[T]) -> type[T]:
        _WITHHELD[kind] = expected
        return kind

    return mark


class NumberRange:
    """The least and the greatest value of an annotated number, both included."""

    def __init__(self, least: float, greatest: float) -> None:
        self.least, self.greatest = least, greatest


class Unit:
    """The unit of an annotated number, which the error about another value names."""

    def __init__(self, name: str) -> None:
        self.name = name


# Seconds since the epoch of the first and the last second that a calendar has: in the years 1 and 9999.
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799

# When a record was made, seconds since the epoch.
Time = Annotated[float, NumberRange(0, LATEST)]

# How many there are, or how far something is.
Count = Annotated[int, NumberRange(0, LARGEST)]

# A setting that is a duration or a size.
Seconds = Annotated[float, Unit("seconds")]
Days = Annotated[float, Unit("days")]
Bytes = Annotated[int, Unit("bytes")]


def to_json(value: Any) -> bytes:
    """Return canonical bytes of a dataclass: sorted keys, no blanks, ASCII."""
    return _ENCODER.encode(plain(value)).encode("ascii")


def plain(value: Any) -> Any:
    """Return the value as dictionaries, lists and scalars; None members are left out."""
    if type(value) in _SCALARS:  # most members are, and a call for each would take half the time
        return value
    kind: Any = type(value)
    names = _list_members(kind)
    if names is not None:
        found = {}
        for name in names:
            member = getattr(value, name)
            if type(member) in _SCALARS:
                found[name] = member
            elif member is not None:
                found[name] = plain(member)
        return found
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def from_json(kind: type[T], text: bytes | memoryview, *, limit: int = MAX_TEXT) -> T:
    """Read a `kind` from JSON of at most `limit` bytes; raises MalformedEvent."""
    return read(kind, parse(text, kind.__name__, limit=limit))


def try_json(kind: type[T], text: bytes | None) -> T | None:
    """Read a `kind` from JSON; return None if there is no text or it cannot be read."""
    try:
        return None if text is None else from_json(kind, text)
    except MalformedEvent:
        return None


def parse(text: bytes | memoryview, where: str, *, limit: int = MAX_TEXT) -> Any:
    """Read JSON of at most `limit` bytes; raises MalformedEvent."""
    if len(text) > limit:
        raise MalformedEvent(f"{where}: {len(text)} bytes of JSON, expected at most {limit}")
    try:
        return _DECODER.decode(bytes(text).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(f"{where}: not JSON: {str(error)[:200]}") from error


def read(kind: type[T], data: Any, where: str | None = None) -> T:
    """Read a `kind` from parsed data; MalformedEvent names the member below `where`."""
    reader: ValueReader = _make_reader(typing.cast(Any, kind))
    return typing.cast(T, reader(data, where or kind.__name__))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def _make_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) != len(members):  # other programs may take the first of the two
        [(name, _)] = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"member {name[:60]!r} stands twice")
    return made


def _parse_integer(text: str) -> int:
    if len(text) > NUMBER_TEXT:  # beyond some thousand digits the conversion itself takes very long, or raises
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _parse_float(text: str) -> float:
    value = float(text) if len(text) <= NUMBER_TEXT else math.inf
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_constant=_refuse_constant,
    parse_int=_parse_integer,
    parse_float=_parse_float,
)


@functools.cache
def _list_members(kind: type[Any]) -> tuple[str, ...] | None:
    """Return the members of a dataclass; None for another type.

    A push, whose types are a `Value` or none, does not load `dataclasses`.
    """
    if issubclass(kind, Value):
        return kind.list_members()
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    import dataclasses

    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _make_reader(kind: Any) -> ValueReader:
    """Return the function that checks and converts one value of `kind`, at a place."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        inner, annotation = arguments  # only one has an effect
        if isinstance(annotation, Unit):
            return _read_scalar(inner, f" of {annotation.name}")
        return _read_within(_make_reader(inner), annotation)
    if origin in (typing.Union, types.UnionType):
        [inner] = [argument for argument in arguments if argument is not types.NoneType]
        present = _make_reader(inner)
        return lambda value, where: None if value is None else present(value, where)
    if origin is tuple:
        return _read_list(_make_reader(arguments[0]), _WITHHELD.get(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(_make_reader(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind)
    if kind in _SCALARS:
        return _read_scalar(kind)
    return _read_dataclass(kind)


def _make_error(where: str, expected: str, value: Any) -> MalformedEvent:
    return MalformedEvent(f"{where}: expected {expected}, got {reprlib.repr(value)[:60]}")


def _read_scalar(kind: type, of_unit: str = "") -> ValueReader:
    expected = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind] + of_unit

    def reader(value: Any, where: str) -> Any:
        is_whole = type(value) is int
        if type(value) is not kind and not (is_whole and kind is float):
            raise _make_error(where, expected, value)
        if is_whole and abs(value) > LARGEST:
            raise MalformedEvent(f"{where}: expected a number of 64 bits, got one of {value.bit_length()}")
        return float(value) if kind is float else value

    return reader


def _read_within(inner: ValueReader, within: NumberRange) -> ValueReader:
    def reader(value: Any, where: str) -> Any:
        number = inner(value, where)
        if not within.least <= number <= within.greatest:
            raise _make_error(where, f"a number from {within.least} to {within.greatest}", number)
        return number

    return reader


def _read_list(inner: ValueReader, withheld: str | None) -> ValueReader:
    def reader(value: Any, where: str) -> Any:
        if type(value) is not list:
            if withheld:
                raise MalformedEvent(f"{where}: expected a list of {withheld}")
            raise _make_error(where, "a list", value)
        return tuple([inner(item, where) for item in value])

    return reader


def _read_mapping(inner: ValueReader) -> ValueReader:
    def reader(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _make_error(where, "an object", value)
        return {key: inner(item, f"{where}.{key[:60]}") for key, item in value.items()}

    return reader


def _read_enum(kind: type[enum.Enum]) -> ValueReader:
    def reader(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _make_error(where, "one of " + ", ".join(str(item.value) for item in kind), value) from None

    return reader


def _find_exact(hint: Any) -> tuple[Any, NumberRange | None]:
    """Return the type and the bounds of values that need no other check.

    The type is None if there are no such values. Most members have one, which saves the calls.
    """
    if hint in (str, bool, str | None, bool | None):
        return typing.get_args(hint)[0] if typing.get_args(hint) else hint, None
    if typing.get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], NumberRange):
        return hint.__origin__, hint.__metadata__[0]
    return None, None


def _read_dataclass(kind: type) -> ValueReader:
    every = typing.get_type_hints(kind, include_extras=True)
    hints = {name: every[name] for name in _list_members(kind) or ()}
    bare = _list_required(kind)
    readers: dict[str, tuple[Any, NumberRange | None, ValueReader]] = {
        name: (*_find_exact(hint), _make_reader(hint)) for name, hint in hints.items()
    }
    required = {name for name in bare if types.NoneType not in typing.get_args(hints[name])}
    optional = {name: None for name in bare if name not in required}
    make = kind.take_members if issubclass(kind, Value) else lambda members: kind(**members)
    lists = {name for name, hint in hints.items() if typing.get_origin(hint) is tuple}

    def reader(value: Any, where: str) -> Any:
        if type(value) is not dict:
            if kind in _WITHHELD:
                raise MalformedEvent(f"{where}: expected {_WITHHELD[kind]}")
            raise _make_error(where, "an object", value)
        if not value.keys() <= hints.keys():
            if kind not in _EXTENSIBLE:
                name = min(value.keys() - hints.keys())[:60]
                raise MalformedEvent(f"{where}: unknown member {name!r}, expected one of {nearest(name, hints)}")
            value = {name: item for name, item in value.items() if name in hints}
        if not required <= value.keys():
            raise MalformedEvent(f"{where}: member {min(required - value.keys())!r} is missing")
        members: dict[str, Any] = dict(optional)
        try:
            for name, item in value.items():
                exact, within, inner = readers[name]
                if type(item) is exact and (within is None or within.least <= item <= within.greatest):
                    members[name] = item
                elif not item and type(item) is list and name in lists:
                    members[name] = ()
                else:
                    members[name] = inner(item, f"{where}.{name}")
            if kind in _INTERNED:
                members = {name: sys.intern(item) if type(item) is str else item for name, item in members.items()}
            return make(members)
        except (MalformedEvent, ValueError) as error:
            if kind in _WITHHELD:
                raise MalformedEvent(f"{where}: expected {_WITHHELD[kind]}") from None
            if isinstance(error, MalformedEvent):
                raise
            raise MalformedEvent(f"{where}.{error}") from error

    return reader


def _list_required(kind: type[Any]) -> list[str]:
    """Return the members of a dataclass that have no default."""
    if issubclass(kind, Value):
        return kind.list_required()
    import dataclasses

    return [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def nearest(name: str, known: Iterable[str]) -> str:
    """List the known names, the most similar to a mistaken one first."""
    # Only for a mistake: a push imports this module.
    from difflib import SequenceMatcher

    return ", ".join(sorted(known, key=lambda other: (-SequenceMatcher(None, name, other).ratio(), other)))


def hyphened(message: str) -> str:
    """Return a complaint about a setting with the keys of TOML, which have hyphens."""
    where, colon, rest = message.partition(":")
    before, listed, names = rest.partition(", expected one of ")
    if " unknown member " in before:
        before, names = before.replace("unknown member", "unknown key"), names.replace("_", "-")
    if before.startswith(" member "):
        before = " key " + before.removeprefix(" member ").replace("_", "-")
    return where.replace("_", "-") + colon + before + listed + names


def within(settings: Any, prefix: str = "", /, **limits: tuple[float, float]) -> None:
    """Raise ValueError naming the first member that is not between its limits.

    The limits of a tuple are those of each number in it; nan is never between any. The error has `prefix` before the member's name,
    and says the unit, if there is one.
    """
    for name, (least, most) in limits.items():
        member = getattr(settings, name)
        for value in member if isinstance(member, tuple) else (member,):
            if not least <= value <= most:
                number = f"number{_name_unit(settings, name)} from {least:.12g} to {most:.12g}"
                raise ValueError(f"{prefix}{name}: expected a {number}, got {quote_value(value)}")


def _name_unit(settings: Any, name: str) -> str:
    """Return ` of UNIT` for a number, or a tuple of numbers, that has a unit."""
    kind = typing.get_type_hints(type(settings), include_extras=True)[name]
    if typing.get_origin(kind) is tuple:
        kind = typing.get_args(kind)[0]
    return "".join(f" of {unit.name}" for unit in typing.get_args(kind) if isinstance(unit, Unit))


def absolute(settings: Any, *names: str) -> None:
    """Raise ValueError naming the first member that is a relative path."""
    for name in names:
        path = getattr(settings, name)
        if path is not None and not os.path.isabs(path):
            raise ValueError(f"{name}: expected an absolute path, got {quote_value(path)}")
