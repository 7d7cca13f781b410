# SPDX-License-Identifier: GPL-2.0-or-later
"""The checker of histories finds what it is there to find: each promise broken on purpose, one at a time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hgext.vcsreplicator.words.roster import Mirror, MirrorRole, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from testing.checks.checker import Kind, Report, Step, check

ALPHA, BETA = (Mirror(name=name, state=MirrorState.ACTIVE) for name in ("alpha", "beta"))
BASE = Step(kind=Kind.ACCEPTED, time=0.0, repository="x", incarnation="i", path="x", version=1)
History = list[Step]


def roster(*mirrors: Mirror, version: int = 1, allow_empty: bool = False) -> Step:
    everything = Roster(version=version, mirrors=mirrors, allow_empty=allow_empty)
    return Step(kind=Kind.ROSTER, time=0.0, roster=everything)


def step(kind: Kind, seq: int, who: str = "", **members: object) -> Step:
    identity = f"event-{seq}" if kind in (Kind.ACCEPTED, Kind.APPLIED, Kind.NOTICED) else ""
    digest = f"digest-{seq}" if kind in (Kind.ACCEPTED, Kind.APPLIED) else ""
    given = {"kind": kind, "seq": seq, "who": who, "id": identity, "digest": digest, **members}
    return replace(BASE, **given)  # type: ignore[arg-type]


def notice(seq: int, *, previous: str | None = None, proof: tuple[str, ...] = ("alpha", "beta")) -> Step:
    return step(Kind.NOTICED, seq, proof=proof, previous={"changegroup.1": previous})


def good() -> History:
    """Two mirrors, two events, one destination."""
    steps = [roster(ALPHA, BETA)]
    for seq in (1, 2):
        steps += [
            step(Kind.ACCEPTED, seq, offset=seq),
            step(Kind.APPLIED, seq, "alpha"),
            step(Kind.APPLIED, seq, "beta"),
            step(Kind.RELEASED, seq),
            step(Kind.SERVED, seq, "alpha"),
            step(Kind.SERVED, seq, "beta"),
            notice(seq, previous="event-1" if seq == 2 else None),
            step(Kind.DELIVERED, seq, "pulse"),
        ]
    return steps


def without(kind: Kind, seq: int, who: str = "") -> Callable[[History], History]:
    return lambda steps: [one for one in steps if (one.kind, one.seq, one.who) != (kind, seq, who)]


def late(kind: Kind, seq: int, who: str = "") -> Callable[[History], History]:
    """The step comes at the very end."""
    return lambda steps: [*without(kind, seq, who)(steps), step(kind, seq, who)]


def twice(kind: Kind, seq: int, who: str = "") -> Callable[[History], History]:
    return lambda steps: [*steps, next(one for one in steps if (one.kind, one.seq, one.who) == (kind, seq, who))]


def changed(kind: Kind, seq: int, **members: object) -> Callable[[History], History]:
    def change(steps: History) -> History:
        return [replace(one, **members) if (one.kind, one.seq) == (kind, seq) else one for one in steps]  # type: ignore[arg-type]

    return change


def with_roster(step: Step) -> Callable[[History], History]:
    return lambda steps: [step, *steps[1:]]


def test_a_history_that_keeps_every_promise_has_no_violation() -> None:
    assert check(good()) == Report(events=2, notices=2)


def test_repeats_of_events_and_deliveries_are_counted_and_allowed() -> None:
    report = check(twice(Kind.DELIVERED, 1, "pulse")(twice(Kind.ACCEPTED, 2)(good())))
    assert (report.violations, report.repeated_events, report.repeated_deliveries) == ([], 1, 1)


def test_an_event_may_wait_for_its_notice_while_the_history_goes_on() -> None:
    assert not check(without(Kind.DELIVERED, 2, "pulse")(without(Kind.NOTICED, 2)(good())), complete=False).violations


def test_a_joining_mirror_is_expected_only_behind_its_joining_point() -> None:
    beta = replace(BETA, state=MirrorState.JOINING, joined={"0": 2})
    steps = changed(Kind.NOTICED, 1, proof=("alpha",))(with_roster(roster(ALPHA, beta))(good()))
    steps = without(Kind.APPLIED, 1, "beta")(without(Kind.SERVED, 1, "beta")(steps))
    assert not check(steps).violations
    assert check(without(Kind.SERVED, 2, "beta")(steps)).violations


def joined_between(*names: str, proof: tuple[str, ...]) -> History:
    """The log lost event 1 at 5 and took it again at 1; these mirrors joined at 3, and serve it if the notice says so."""
    mirrors = [replace(ALPHA, name=name, state=MirrorState.JOINING, joined={"0": 3}) for name in names]
    history = [roster(*(mirrors if "alpha" in names else [ALPHA, *mirrors]))]
    history += [step(Kind.ACCEPTED, 1, offset=5), step(Kind.ACCEPTED, 1, offset=1)]
    for who in proof:
        history += [step(Kind.APPLIED, 1, who), step(Kind.RELEASED, 1), step(Kind.SERVED, 1, who)]
    return [*history, notice(1, proof=proof)]


@pytest.mark.parametrize(
    ("joined", "proof"),
    [(["beta"], ["alpha"]), (["beta"], ["alpha", "beta"]), (["alpha"], ["alpha"])],
    ids=["as before the point", "as behind it", "alone"],
)
def test_an_event_that_the_log_lost_waits_for_a_mirror_by_either_place(joined: list[str], proof: list[str]) -> None:
    assert not check(joined_between(*joined, proof=tuple(proof))).violations


def test_a_proof_by_the_other_place_names_only_who_serves() -> None:
    history = joined_between("beta", proof=("alpha", "beta"))
    [found] = check(without(Kind.SERVED, 1, "beta")(history)).violations
    assert "announced before beta served it" in found


def test_a_proof_is_by_one_place_for_all_mirrors() -> None:
    [found] = check(joined_between("beta", "gamma", proof=("alpha", "beta"))).violations
    assert "the proof of 1 names ['alpha', 'beta']" in found


def test_events_of_a_replaced_incarnation_need_no_notice() -> None:
    steps = [one for one in good() if one.seq != 2]
    new = step(Kind.ACCEPTED, 1, incarnation="j")
    assert check([*steps, step(Kind.ACCEPTED, 2), new], complete=False).violations == []
    report = check([*steps, step(Kind.ACCEPTED, 2), new])
    assert len(report.violations) == 1, "only the newest incarnation lacks a notice"


def test_a_mirror_deletes_at_the_release_but_for_what_it_does_not_have() -> None:
    history = changed(Kind.ACCEPTED, 2, deletes=True)([*good()[:10], step(Kind.SERVED, 2, "alpha")])
    assert any("alpha serves 2, released is 1" in line for line in check(history, complete=False).violations)
    absent = without(Kind.SERVED, 1, "alpha")(history)
    assert not any("alpha serves 2" in line for line in check(absent, complete=False).violations)
    lost = [*history[:-1], step(Kind.SERVED, 0, "alpha"), history[-1]]
    assert not any("alpha serves 2" in line for line in check(lost, complete=False).violations)
    found = [*lost[:-1], step(Kind.SERVED, 1, "alpha"), history[-1]]
    assert any("alpha serves 2" in line for line in check(found, complete=False).violations)
    assert not any("alpha serves 2" in line for line in check(found, complete=False, lossy={"alpha"}).violations)


def test_a_notice_after_the_first_of_the_successor_is_found() -> None:
    successor = [replace(each, repository="y", generation=2) for each in good() if each.kind is not Kind.ROSTER]
    assert not check([*good(), *successor]).violations
    first = [each for each in good() if each.kind is not Kind.ROSTER]
    assert any("after generation 2 at x" in line for line in check([good()[0], *successor, *first]).violations)


SEEDED = {
    "notice before a mirror served": (late(Kind.SERVED, 2, "beta"), "announced before beta served it"),
    "notice a mirror never served": (without(Kind.SERVED, 1, "alpha"), "announced before alpha served it"),
    "release before a mirror applied": (late(Kind.APPLIED, 2, "alpha"), "released before alpha applied it"),
    "a mirror with another digest": (
        changed(Kind.APPLIED, 2, digest="digest-9"),
        "alpha is at 2 with another id or digest",
    ),
    "a mirror with another event": (changed(Kind.APPLIED, 1, id="event-9"), "beta is at 1 with another id or digest"),
    "a mirror that was ahead of the log with another event": (
        lambda steps: [step(Kind.APPLIED, 1, "alpha", id="event-9"), *steps],
        "alpha is at 1 with another id or digest",
    ),
    "serving what is not released": (late(Kind.RELEASED, 2), "alpha serves 2, released is 1"),
    "event never announced": (without(Kind.NOTICED, 2), "accepted and never announced"),
    "notice lost in the middle": (without(Kind.NOTICED, 1), "announced before 1"),
    "notice twice": (twice(Kind.NOTICED, 1), "announced again or out of order"),
    "notices out of order": (late(Kind.NOTICED, 1), "announced before 1"),
    "notice of another event": (changed(Kind.NOTICED, 2, id="event-9"), "names no accepted event"),
    "proof lacks a gating mirror": (changed(Kind.NOTICED, 2, proof=("alpha",)), "the proof of 2 names"),
    "proof names a stranger": (changed(Kind.NOTICED, 2, proof=("alpha", "beta", "gamma")), "the proof of 2 names"),
    "stream names the wrong predecessor": (
        changed(Kind.NOTICED, 2, previous={"changegroup.1": "event-7"}),
        "follows event-7",
    ),
    "stream forgets its predecessor": (changed(Kind.NOTICED, 2, previous={"changegroup.1": None}), "follows None"),
    "delivery skipped": (without(Kind.DELIVERED, 1, "pulse"), "pulse got 2 before 1"),
    "delivery before its notice": (late(Kind.NOTICED, 2), "before its notice"),
    "release that goes back": (lambda steps: [*steps, step(Kind.RELEASED, 1)], "release went back"),
    "roster version that was not written": (changed(Kind.NOTICED, 2, version=5), "is in no record"),
    "notice without any mirror": (with_roster(roster()), "without any gating mirror"),
    "rules not kept": (
        with_roster(roster(ALPHA, replace(BETA, rules=Rules(include=("path:y",))))),
        "the proof of 1 names ['alpha', 'beta'], gating were ['alpha']",
    ),
}


@pytest.mark.parametrize(
    "beta",
    [
        replace(BETA, role=MirrorRole.BACKUP),
        replace(BETA, state=MirrorState.INACTIVE),
        replace(BETA, state=MirrorState.REMOVED),
        replace(BETA, deactivated=("x",)),
        replace(BETA, rules=Rules(exclude=("path:x",), include=("re:.*",))),
        replace(BETA, rules=Rules(exclude=("re:x",), include=("re:x",))),
        replace(BETA, rules=Rules(exclude=("re:y",))),
        replace(BETA, state=MirrorState.JOINING, joined={"0": 3}),
    ],
)
def test_a_mirror_that_gates_nothing_is_in_no_proof(beta: Mirror) -> None:
    steps = [one for one in with_roster(roster(ALPHA, beta))(good()) if one.who != "beta"]
    alone = [replace(one, proof=("alpha",)) if one.kind is Kind.NOTICED else one for one in steps]
    assert check(alone).violations == []
    assert check(steps).violations


@pytest.mark.parametrize("rules", [Rules(include=("path:x",), exclude=("re:.*",)), Rules(include=("re:[xy]",))])
def test_a_mirror_whose_rules_include_a_repository_gates_it(rules: Rules) -> None:
    steps = with_roster(roster(ALPHA, replace(BETA, rules=rules)))(good())
    assert check(steps).violations == []
    assert check([one for one in steps if (one.kind, one.who) != (Kind.SERVED, "beta")]).violations


@pytest.mark.parametrize("violation", SEEDED)
def test_each_broken_promise_is_found(violation: str) -> None:
    breaking, complaint = SEEDED[violation]
    assert complaint in "\n".join(check(breaking(good())).violations)
