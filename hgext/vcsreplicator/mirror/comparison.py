# SPDX-License-Identifier: GPL-2.0-or-later
"""The comparison of a mirror's repository with the master's. Pure.

Both sides are read while pushes go on, so most comparisons find different sequences and are repeated. Only at the same sequence can
the sides differ.
"""

import enum
from dataclasses import dataclass

from ..words.errors import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A repository after event `seq`, in SHA-256 hashes.

    `changesets` is over all nodes in order, `heads` over the sorted heads, `phases` over the sorted roots of each, `markers` over
    the sorted binary markers, `pushlog` over its rows.
    """

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


# The members that must be equal at equal sequence.
PARTS = ("id", "digest", "length", "changesets", "heads", "phases", "bookmarks", "markers", "pushlog")


class ComparisonOutcome(enum.StrEnum):
    """The outcome of a comparison."""

    EQUAL = "equal"
    DIFFERS = "differs"
    BEHIND = "behind"
    AHEAD = "ahead"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for one repository of one mirror.

    `seq` is the mirror's sequence; `note` says in words what is wrong.
    """

    mirror: str
    repository: str
    path: str
    outcome: ComparisonOutcome
    seq: int = 0
    note: str = ""


def differences(one: Fingerprint, other: Fingerprint) -> tuple[str, ...]:
    """Return the differing parts of two fingerprints of the same sequence."""
    return tuple(name for name in PARTS if getattr(one, name) != getattr(other, name))


def judge(here: Fingerprint | None, there: Fingerprint) -> tuple[ComparisonOutcome, str]:
    """Return the outcome of a comparison, and a note.

    `here` is the fingerprint of the mirror (None: it has no such repository), `there` that of the master.
    """
    if here is None:
        return ComparisonOutcome.MISSING, f"the master has {counted(there.length, 'changeset')}, this mirror nothing"
    if here.repository != there.repository:
        note = f"another repository lives here: {here.repository}, on the master {there.repository}"
        return ComparisonOutcome.DIFFERS, note
    if here.incarnation != there.incarnation:
        return ComparisonOutcome.BEHIND, f"incarnation {here.incarnation}, on the master {there.incarnation}"
    if here.seq != there.seq:
        outcome = ComparisonOutcome.BEHIND if here.seq < there.seq else ComparisonOutcome.AHEAD
        return outcome, f"at event {here.seq}, the master at {there.seq}"
    found = differences(here, there)
    if found:
        longer = f" (length {here.length}, on the master {there.length})" if "length" in found else ""
        return ComparisonOutcome.DIFFERS, f"at event {here.seq}: {', '.join(found)}{longer}"
    return ComparisonOutcome.EQUAL, ""
