# SPDX-License-Identifier: GPL-2.0-or-later
"""Frozen dataclasses that are cheap to define.

They are for the modules that every push loads. `dataclass(frozen=True, slots=True, kw_only=True)` compiles eight functions and
makes each class twice: 0.5 to 1 ms a class, and a push would define some thirty. A subclass of `Value` is a dataclass, too
(`fields`, `replace` and type checkers know it), whose functions are those of this class: 0.05 ms. A class that no push loads is
better an ordinary dataclass.
"""

import dataclasses
import typing
from typing import Any, ClassVar


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Value:
    """A frozen dataclass whose members are given by name.

    Values of one class with equal members are equal. A default is one object that all values share.
    """

    _members: ClassVar[frozenset[str]]
    _order: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        cls._order = tuple(field.name for field in fields)
        cls._members = frozenset(cls._order)
        made = (
            (field.name, field.default_factory) for field in fields if field.default_factory is not dataclasses.MISSING
        )
        cls._defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        cls._defaults.update((name, make()) for name, make in made)

    def __init__(self, **members: Any) -> None:
        """Take the members; raise TypeError for a missing or unknown one."""
        values = self.__dict__
        values.update(self._defaults)
        values.update(members)
        if values.keys() != self._members:
            wrong = ", ".join(sorted(values.keys() ^ self._members))
            raise TypeError(f"{type(self).__name__}: missing or unknown: {wrong}")

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self._order))

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._order)
        return f"{type(self).__qualname__}({members})"
