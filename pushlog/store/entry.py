# SPDX-License-Identifier: GPL-2.0-or-later
"""A push as a value, and its form in the pushlog's file.

The file is a list of facts, the last one about an id counts: "push N is exactly this" or "push N was deleted". A strip restates
the pushes that lost changesets, an operator's correction restates the push that was edited.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Push(NamedTuple):  # made in half the time of a dataclass, which every push pays
    """A push: user, date and changesets.

    The date is in epoch seconds; the nodes are 40 hex digits each, in order.
    """

    id: int
    user: str
    date: int
    nodes: tuple[str, ...]


class Deleted(NamedTuple):
    """The deletion of the push with this id, which is not used again."""

    id: int


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
            return Deleted(id=fields["deleted"])
        return Push(id=fields["id"], user=fields["user"], date=fields["date"], nodes=tuple(fields["nodes"]))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a fact about a push: {payload[:80]!r}") from error
