# SPDX-License-Identifier: GPL-2.0-or-later
"""What comparing a mirror's repository with the master's says. Pure.

Both sides are looked at while pushes go on, so most looks find them at different sequences, which says nothing: look again. Only
at the same sequence can they differ.
"""

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A repository after event `seq`. Hashes are SHA-256; `changesets` is over all nodes in order, `heads` over the sorted
    heads, `phases` over the sorted roots of each, `markers` over the sorted binary markers, `pushlog` over its rows."""

    repository: str
    incarnation: str
    seq: int
    id: str
    digest: str
    length: int
    changesets: str
    heads: str
    phases: str
    bookmarks: str
    markers: str
    pushlog: str


PARTS = ("id", "digest", "length", "changesets", "heads", "phases", "bookmarks", "markers", "pushlog")
"""The members that must be equal at equal sequence."""


class ComparisonOutcome(enum.StrEnum):
    """What a comparison found."""

    EQUAL = "equal"
    DIFFERS = "differs"
    BEHIND = "behind"
    AHEAD = "ahead"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for one repository of one mirror, the mirror's sequence, and in words what is wrong."""

    mirror: str
    repository: str
    path: str
    outcome: ComparisonOutcome
    seq: int = 0
    note: str = ""


def differences(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    """What differs between two fingerprints of the same sequence; nothing if they are equal."""
    return tuple(name for name in PARTS if getattr(one, name) != getattr(other, name))


def judge(here: Fingerprint | None, there: Fingerprint) -> tuple[ComparisonOutcome, str]:
    """The outcome of one look at the mirror (None: it has no such repository) and at the master, and a note."""
    if here is None:
        return ComparisonOutcome.MISSING, f"the master has {there.length} changesets, this mirror nothing"
    if here.repository != there.repository:
        return (
            ComparisonOutcome.DIFFERS,
            f"another repository lives here: {here.repository}, on the master {there.repository}",
        )
    if here.incarnation != there.incarnation:
        return ComparisonOutcome.BEHIND, f"incarnation {here.incarnation}, on the master {there.incarnation}"
    if here.seq != there.seq:
        note = f"at event {here.seq}, the master at {there.seq}"
        return (ComparisonOutcome.BEHIND if here.seq < there.seq else ComparisonOutcome.AHEAD), note
    found = differences(here, there)
    return (
        (ComparisonOutcome.DIFFERS, f"at event {here.seq}: {', '.join(found)}")
        if found
        else (ComparisonOutcome.EQUAL, "")
    )
