# SPDX-License-Identifier: GPL-2.0-or-later
"""What the threads beside the supervisor put into its inbox; a worker's answer is `pool.Answered`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..log import Positions, Record

# The incarnation and the sequence of an event.
ExpectedEvent = tuple[str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Records that a reader brought, and the positions where it goes on.

    `follows` names the repository of a catch-up reader, `run` its catching up. The supervisor calls `taken` after it took the
    records: a reader is never more than `sources.AHEAD` of these ahead.
    """

    records: Sequence[Record]
    positions: Mapping[tuple[str, int], int]
    follows: str | None = None
    run: int = 0
    taken: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The log no longer holds the position where a catch-up reader must go on."""

    follows: str
    run: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The log no longer holds the position of the stream's reader, which goes on at these."""

    positions: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where `events` ended, and which event of each repository was expected before the mirror asked: later ones may follow."""

    ends: Positions
    expected: Mapping[str, ExpectedEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An error after which a thread cannot go on; it ends the mirror."""

    error: Exception
