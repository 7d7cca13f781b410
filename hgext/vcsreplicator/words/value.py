# SPDX-License-Identifier: GPL-2.0-or-later
"""Frozen dataclasses that are cheap to define.

They are for the modules that every push loads. `dataclass(frozen=True, slots=True, kw_only=True)` compiles eight functions and
makes each class twice: 0.5 to 1 ms a class, and a push would define some thirty. A subclass of `Value` is a dataclass, too
(`fields`, `replace` and type checkers know it), whose functions are those of this class: 0.01 ms. What `dataclasses` knows of it is
made when that module first asks. No push does, nor loads that module. A class that no push loads is better an ordinary dataclass.
"""

import threading
import typing
from typing import Any, ClassVar, NoReturn, Self, TypeVar

_Kind = TypeVar("_Kind", bound="Value")

_making = threading.RLock()


class _Fields:
    """What `dataclasses` reads from a class that it knows, made when it first does."""

    def __get__(self, value: object, kind: type) -> dict[str, Any]:
        if kind is Value:
            raise AttributeError("a Value without members is no dataclass")
        import dataclasses

        with _making:
            if isinstance(vars(kind)["__dataclass_fields__"], _Fields):
                dataclasses.dataclass(init=False, repr=False, eq=False)(kind)
        fields: dict[str, Any] = vars(kind)["__dataclass_fields__"]
        return fields


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Value:
    """A frozen dataclass whose members are given by name.

    Values of one class with equal members are equal. A default is one object that all values share.
    """

    __dataclass_fields__: ClassVar[Any] = _Fields()
    _members: ClassVar[frozenset[str]]
    _order: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = cls.__annotations__
        cls._order = tuple(dict.fromkeys((*cls._order, *own)))
        cls._members = frozenset(cls._order)
        cls._defaults = cls._defaults | {name: vars(cls)[name] for name in own if name in vars(cls)}
        for name, default in cls._defaults.items():
            if hasattr(default, "default_factory"):  # of `dataclasses.field`
                cls._defaults[name] = default.default_factory()
        cls.__dataclass_fields__ = _Fields()

    @classmethod
    def list_members(cls) -> tuple[str, ...]:
        """Return the names of the members in order, inherited ones first."""
        return cls._order

    @classmethod
    def list_required(cls) -> list[str]:
        """Return the names of the members without a default."""
        return [name for name in cls._order if name not in cls._defaults]

    @classmethod
    def take_members(cls, members: dict[str, Any]) -> Self:
        """Return a value with these members, whose names the caller has checked."""
        value = cls.__new__(cls)
        object.__setattr__(value, "__dict__", cls._defaults | members)
        return value

    def __init__(self, **members: Any) -> None:
        """Take the members; raise TypeError for a missing or unknown one."""
        values = self.__dict__
        values.update(self._defaults)
        values.update(members)
        if values.keys() != self._members:
            wrong = ", ".join(sorted(values.keys() ^ self._members))
            raise TypeError(f"{type(self).__name__}: missing or unknown: {wrong}")

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        _refuse(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self._order))

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._order)
        return f"{type(self).__qualname__}({members})"


def replace(value: _Kind, **members: Any) -> _Kind:
    """Return a copy with other members, as `dataclasses.replace` does."""
    return type(value)(**(vars(value) | members))


def _refuse(change: str) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(change)
