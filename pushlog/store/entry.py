# SPDX-License-Identifier: GPL-2.0-or-later
"""A push as a value, and its form in the pushlog's file.

The file is a list of facts, the last one about an id counts: "push N is exactly this" or "push N was deleted". A strip restates
the pushes that lost changesets, an operator's correction restates the push that was edited.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


# Plain classes: every push makes them anew, and a NamedTuple takes ten times as long to make.
class Push:
    """A push: user, date in epoch seconds, and nodes of 40 hex digits in order."""

    __slots__ = ("date", "id", "nodes", "user")

    def __init__(self, *, id: int, user: str, date: int, nodes: tuple[str, ...]) -> None:
        self.id, self.user, self.date, self.nodes = id, user, date, nodes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Push):
            return NotImplemented
        return self.nodes == other.nodes and self.is_same_act(other)

    def __hash__(self) -> int:
        return hash((self.id, self.user, self.date, self.nodes))

    def __repr__(self) -> str:
        return f"Push(id={self.id}, user={self.user!r}, date={self.date}, nodes={self.nodes})"

    def is_same_act(self, other: Push) -> bool:
        """Return whether id, user and date are equal; the changesets may differ."""
        return (self.id, self.user, self.date) == (other.id, other.user, other.date)

    def with_nodes(self, nodes: Iterable[str]) -> Push:
        return Push(id=self.id, user=self.user, date=self.date, nodes=tuple(nodes))


class Deleted:
    """The deletion of the push with this id, which is not used again."""

    __slots__ = ("id",)

    def __init__(self, *, id: int) -> None:
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deleted) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Deleted(id={self.id})"


Fact = Push | Deleted


def encode(fact: Fact) -> bytes:
    """Return a fact as one line of ASCII JSON."""
    if isinstance(fact, Deleted):
        return b'{"deleted":%d}' % fact.id
    return json.dumps(
        {"id": fact.id, "user": fact.user, "date": fact.date, "nodes": fact.nodes}, separators=(",", ":")
    ).encode("ascii")


def decode(payload: bytes) -> Fact:
    """Return the fact that `encode` wrote; raises `ValueError` for anything else."""
    try:
        fields = json.loads(payload)
        if "deleted" in fields:
            return Deleted(id=_check_number(fields["deleted"]))
        user, nodes = fields["user"], fields["nodes"]
        if type(user) is not str or type(nodes) is not list or not all(type(node) is str for node in nodes):
            raise TypeError
        return Push(id=_check_number(fields["id"]), user=user, date=_check_number(fields["date"]), nodes=tuple(nodes))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a fact about a push: {payload[:80]!r}") from error


def _check_number(value: object) -> int:
    """Return a number that SQLite can hold; raises `TypeError` for another value."""
    if type(value) is not int or abs(value) >= 1 << 63:
        raise TypeError
    return value
