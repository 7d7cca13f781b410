# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a mirror from becoming the master. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from ...status import SILENT, Picture
from ...words.records import RELAY_KEY, MasterRecord, RepositoryState
from ...words.shape import Count
from ..comparison import ComparisonOutcome, Fingerprint, judge
from ..settings import MirrorSettings
from ..task import FoundRepository
from .verify import is_included


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedHgrc:
    """The hgrc of a repository, which may have passwords; `content` has one character for each byte."""

    content: str
    mode: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedRepository:
    """A repository of a master that refuses pushes."""

    path: str
    fingerprint: Fingerprint
    hgrc: HandedHgrc | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What the master `source` hands over, all of whose events are in the log.

    `promotion` was the newest one then: after another one the handover is void.
    """

    source: str
    promotion: MasterRecord | None
    repositories: tuple[HandedRepository, ...]


def find_former(picture: Picture, known: MasterRecord | None) -> frozenset[str]:
    """Return the sources of all masters so far, which a promotion replaces."""
    sent = {state.source for state in picture.states.values() if state.source}
    reported = {key.removeprefix(RELAY_KEY) for key in picture.heard if key.startswith(RELAY_KEY)}
    return frozenset(sent | reported | ({known.source, *known.replaces} if known else set()))


def find_rivals(
    picture: Picture, known: MasterRecord | None, former: Collection[str], source: str, now: float
) -> Iterator[str]:
    """Say which former masters may still send events, or may later, and how to go on.

    The master of the newest promotion, `known`, is given time to start its relay.
    """
    age = abs(now - picture.promoted)
    if known is not None and known.source != source and age <= SILENT:
        yield f"{known.source} became the master {age:.0f} s ago: start its relay, or wait {SILENT:.0f} s"
    if source in former:
        yield f"relay.source: {source} was a master, whose relay may come back: expected a name that no master had"
    for each in sorted(former):
        if (silence := picture.silence(f"{RELAY_KEY}{each}", now)) <= SILENT:
            yield f"the relay of {each} reported {silence:.0f} s ago: stop it, or its machine, and wait {SILENT:.0f} s"


def find_overtaken(
    states: Collection[RepositoryState], here: Mapping[str, Collection[tuple[int, str]]], others: Collection[str]
) -> Iterator[str]:
    """Say which repositories other masters have continued, so that a former master cannot.

    `here` has the newest event and the folder of each of its copies; an account may have made some, so the lowest counts. A
    repository that is gone on both sides does not count.
    """
    for state in sorted(states, key=lambda state: state.path):
        copies = here.get(state.repository, ())
        newest, folder = min(copies, default=(0, ""))
        if state.source in others and (newest < state.seq if copies else not state.deleted):
            have = f"{folder} is at event {newest}" if copies else "it is not here"
            move = (
                f"; if {folder} is only a copy, move it out of the root, then run this again" if len(copies) > 1 else ""
            )
            yield (
                f"{state.path}: {have}, and {state.source} sent event {state.seq} of it: "
                f"hand over the newest master, and promote a mirror of it{move}"
            )


def find_lacks(
    picture: Picture,
    settings: MirrorSettings,
    found: Mapping[str, FoundRepository],
    find_path: Callable[[str], str | None],
) -> Iterator[str]:
    """Say of each repository of the log what the mirror lacks of it, and how to go on.

    `found` are the mirror's repositories by id, and `find_path` returns the wire path that a folder will have on the master.
    """
    # Also one that no aggregator has seen: it has no state, and its folder is not yet where the master would serve it.
    checkpoints = {name: each.checkpoint for name, each in found.items() if each.checkpoint is not None}
    unreleased = {name: at for name, at in checkpoints.items() if found[name].serving < at.seq}
    for waiting in sorted(unreleased.values(), key=lambda waiting: waiting.path):
        yield (
            f"{waiting.path}: event {waiting.seq} is not released: let an aggregator run, deactivate mirrors that are lost "
            "(vcsreplicator roster), and start the mirror until it serves it"
        )
    for state in sorted(picture.states.values(), key=lambda state: state.path):
        here, at = found.get(state.repository), checkpoints.get(state.repository)
        if state.deleted or state.repository in unreleased:
            continue
        if not is_included(picture, settings.name, state):
            yield (
                f"{state.path}: the mirror's rules leave it out: vcsreplicator roster rules {settings.name} --yes, then start "
                "the mirror until it has it; or promote a mirror that carries it"
            )
        elif here is None or at is None:
            yield f"{state.path}: it is not here, or is damaged; start the mirror, which heals it, or promote another one"
        elif at.incarnation != state.incarnation or at.seq < state.seq:
            yield (
                f"{state.path}: the mirror is at event {at.seq}, the log at {state.seq}; "
                "start the mirror until it is caught up"
            )
        elif find_path(here.folder) != at.path:
            yield (
                f"{state.path}: its folder {here.folder} is {find_path(here.folder) or 'no path'} on the master; "
                "correct [relay.roots]"
            )


def find_differing(
    handover: Handover, states: Collection[RepositoryState], here: Mapping[str, Fingerprint]
) -> Iterator[str]:
    """Say of each repository how the mirror's copy differs from what was handed over; `here` is by id."""
    handed = {each.fingerprint.repository: each for each in handover.repositories}
    for repository, each in handed.items():
        outcome, note = judge(here.get(repository), each.fingerprint)
        if outcome is not ComparisonOutcome.EQUAL:
            yield f"{each.path}: not as on the old master: {note}; start the mirror until it is caught up, or heal it"
    for state in states:
        if not state.deleted and state.source == handover.source and state.repository not in handed:
            yield f"{state.path}: it was not handed over; run vcsreplicator handover on the old master again"


def list_generations(states: Collection[RepositoryState]) -> dict[str, int]:
    """Return the newest generation of each path that the log knows, deleted ones included."""
    places = [(state.path, state.generation) for state in states]
    places += [(stay.path, stay.generation) for state in states for stay in (*state.left, *state.stays)]
    return dict(sorted(places, key=lambda place: place[1]))
