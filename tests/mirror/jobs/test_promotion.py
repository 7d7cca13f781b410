# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps a mirror from becoming the master, each in words that say how to go on."""

from dataclasses import replace
from typing import Any

import pytest

from hgext.vcsreplicator.log import SERVICES, Record
from hgext.vcsreplicator.mirror.checkpoint import before_first
from hgext.vcsreplicator.mirror.comparison import PARTS, Fingerprint
from hgext.vcsreplicator.mirror.jobs.promotion import (
    HandedRepository,
    Handover,
    find_differing,
    find_former,
    find_lacks,
    find_overtaken,
    find_rivals,
    list_generations,
)
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import FoundRepository
from hgext.vcsreplicator.status import Picture
from hgext.vcsreplicator.words.records import MASTER_KEY, FormerPath, MasterRecord
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state

SETTINGS = MirrorSettings(name="alpha", root="/repos")
STATE = some_state(seq=3, source="hg://old")
AT = replace(before_first("a" * 32, "b" * 32, "x", 1), seq=3, id="c" * 32)
HERE = FoundRepository(folder="/repos/x", checkpoint=AT, serving=3)
BEHIND = FoundRepository(
    folder="/repos/x", checkpoint=replace(before_first("a" * 32, "b" * 32, "x", 1), seq=2, id="e" * 32), serving=2
)
ELSEWHERE = replace(HERE, folder="/repos/~vcsreplicator/waiting/x")
PRINT = Fingerprint(
    repository="a" * 32, incarnation="b" * 32, seq=3, **{name: 5 if name == "length" else name for name in PARTS}
)
HANDED = Handover(
    source="hg://old", promotion=None, repositories=(HandedRepository(path="x", fingerprint=PRINT, hgrc=None),)
)
NARROW = Roster(mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(exclude=("x",))),))


@pytest.mark.parametrize(
    ("found", "roster", "expected"),
    [
        (HERE, Roster(), None),
        (None, Roster(), "it is not here, or is damaged"),
        (BEHIND, Roster(), "the mirror is at event 2, the log at 3"),
        (ELSEWHERE, Roster(), "correct [relay.roots]"),
        (HERE, NARROW, "the mirror's rules leave it out: vcsreplicator roster rules alpha --yes"),
    ],
)
def test_a_mirror_that_lacks_a_repository_is_not_promoted(
    found: FoundRepository | None, roster: Roster, expected: str | None
) -> None:
    picture = Picture(states={STATE.repository: STATE}, roster=roster)
    here = {STATE.repository: found} if found else {}
    lacks = list(find_lacks(picture, SETTINGS, here, lambda folder: folder.removeprefix("/repos/")))
    assert len(lacks) == (expected is not None)
    assert expected is None or expected in lacks[0]


def test_no_mirror_is_promoted_while_the_relay_of_a_former_master_reports() -> None:
    picture = Picture(states={STATE.repository: STATE}, heard={"relay hg://old": (7, 100.0)})
    [problem] = find_rivals(picture, None, find_former(picture, None), "hg://alpha", 130.0)
    assert problem.startswith("the relay of hg://old reported 30 s ago: stop it")
    assert list(find_rivals(picture, None, find_former(picture, None), "hg://alpha", 161.0)) == []


def test_no_mirror_is_promoted_while_the_master_of_another_promotion_may_start() -> None:
    """Its operator read that it is the master."""
    known = MasterRecord(source="hg://beta", mirror="beta", replaces=("hg://old",), time=1.0)
    record = Record(topic=SERVICES, partition=0, offset=7, key=MASTER_KEY, value=to_json(known), headers={}, time=100.0)
    picture = Picture()
    picture.absorb(record)
    assert list(find_rivals(picture, known, (), "hg://alpha", 130.0)) == [
        "hg://beta became the master 30 s ago: start its relay, or wait 60 s"
    ]
    assert list(find_rivals(picture, known, (), "hg://alpha", 161.0)) == []
    assert list(find_rivals(picture, known, (), "hg://beta", 130.0)) == [], "it is promoted again after a kill"


def test_no_master_takes_back_what_another_one_has_gone_on_with() -> None:
    """It would be the master by the log, and refuse pushes, as all later ones then do."""
    gone = replace(STATE, repository="d" * 32, path="gone", deleted=True)
    new, own = replace(STATE, repository="e" * 32, path="new"), replace(STATE, repository="f" * 32, source="hg://own")
    states = [gone, STATE, own, new]
    assert list(find_overtaken(states, {"a" * 32: [(3, "/x")], "e" * 32: [(3, "/new")]}, {"hg://old"})) == []
    assert list(find_overtaken(states, {"a" * 32: [(2, "/x")], "d" * 32: [(2, "/gone")]}, {"hg://old"})) == [
        f"{path}: {have}, and hg://old sent event 3 of it: hand over the newest master, and promote a mirror of it"
        for path, have in (("gone", "/gone is at event 2"), ("new", "it is not here"), ("x", "/x is at event 2"))
    ]
    assert list(find_overtaken(states, {}, {"hg://other"})) == []


@pytest.mark.parametrize("source", ["hg://first", "hg://second", "hg://old", "hg://quiet"])
def test_no_new_master_takes_the_source_of_any_former_one(source: str) -> None:
    """Its relay would not be fenced when it comes back, also if later masters have sent the newest events."""
    picture = Picture(states={STATE.repository: STATE}, heard={"relay hg://quiet": (7, 1.0), "alpha": (8, 1.0)})
    known = MasterRecord(source="hg://second", mirror="beta", replaces=("hg://first",), time=1.0)
    former = find_former(picture, known)
    assert former == {"hg://first", "hg://second", "hg://old", "hg://quiet"}
    [problem] = find_rivals(picture, known, former, source, 100.0)
    assert problem.endswith("expected a name that no master had")


@pytest.mark.parametrize("change", [{"path": "z"}, {"deleted": True}])
def test_a_mirror_that_waits_for_a_release_is_not_promoted(change: dict[str, Any]) -> None:
    """Its folder is not where the log has it; a deleted one would be served by the new master."""
    state, here = replace(STATE, **change), replace(HERE, checkpoint=replace(AT, **change), serving=2)
    picture = Picture(states={state.repository: state})
    [lack] = find_lacks(picture, SETTINGS, {state.repository: here}, lambda folder: "x")
    assert "event 3 is not released: let an aggregator run, deactivate mirrors that are lost" in lack


def test_a_repository_that_no_aggregator_has_seen_is_not_left_behind() -> None:
    """The master was lost with its aggregator. The folder still waits in the mirror's own one, which no master serves."""
    [lack] = find_lacks(Picture(), SETTINGS, {STATE.repository: replace(ELSEWHERE, serving=0)}, lambda folder: None)
    assert lack.startswith("x: event 3 is not released: let an aggregator run, ")


def test_the_new_master_counts_on_from_the_newest_generation_of_each_path() -> None:
    stay = FormerPath(path="y", generation=4, until=2)
    left = FormerPath(path="z", generation=2, until=2)
    states = [replace(STATE, stays=(stay,), left=(left,)), replace(STATE, path="y", generation=3)]
    assert list_generations([*states, replace(STATE, generation=2)]) == {"x": 2, "y": 4, "z": 2}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (PRINT, []),
        (replace(PRINT, phases="other"), ["x: not as on the old master: at event 3: phases; start the mirror"]),
        (replace(PRINT, seq=2), ["x: not as on the old master: at event 2, the master at 3; start the mirror"]),
        (None, ["x: not as on the old master: the master has 5 changesets, this mirror nothing; start the mirror"]),
    ],
)
def test_a_mirror_that_differs_from_what_was_handed_over_is_not_promoted(
    here: Fingerprint | None, expected: list[str]
) -> None:
    found = list(find_differing(HANDED, [STATE], {} if here is None else {"a" * 32: here}))
    assert [each.partition(" until")[0] for each in found] == expected


def test_a_repository_that_began_after_the_handover_is_named() -> None:
    states = [STATE, replace(STATE, repository="d" * 32, path="z"), replace(STATE, repository="e" * 32, deleted=True)]
    [problem] = find_differing(HANDED, states, {"a" * 32: PRINT})
    assert problem == "z: it was not handed over; run vcsreplicator handover on the old master again"
