# SPDX-License-Identifier: GPL-2.0-or-later
"""The judge of fault campaigns finds each kind of violation, in histories that observers could have written."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from testing.faults.campaign.history import History, Seen, read
from testing.faults.campaign.judge import find_recoveries, judge, tell_seconds
from testing.faults.campaign.page import BEGIN, END, write_page
from testing.faults.campaign.running import Plan, draw
from testing.faults.campaign.table import FAULTS

FAULT = FAULTS[0].id


def pushed(number: int, at: float) -> Seen:
    """A push that took a second."""
    return Seen(kind="pushed", who="red", begin=at - 1, end=at, what={"head": f"head-{number}", "attempts": 1})


def delivered(number: int, at: float, *, who: str = "lines", previous: int | None = None) -> Seen:
    """The message of a push; by itself it follows the one before."""
    before = number - 1 if previous is None else previous
    what = {
        "id": f"id-{number}",
        "previous": f"id-{before}" if before else None,
        "repository": "r",
        "sequence": number,
        "type": "changegroup.1",
        "path": "red",
        "heads": [f"head-{number}"],
    }
    return Seen(kind="delivered", who=who, begin=at, end=at, what=what)


def acted(kind: str) -> Seen:
    return Seen(kind="acted", who=kind, begin=1.0, end=1.0, what={"path": "red"})


def looked(at: float, *missing: str) -> Seen:
    return Seen(kind="looked", who="beta", begin=at, end=at + 1, what={"id": "id-1", "missing": list(missing)})


def checked(at: float, *findings: str) -> Seen:
    return Seen(kind="checked", begin=at, end=at + 1, what={"findings": list(findings)})


def struck(begin: float, end: float, *spares: str, within: float = 10.0) -> Seen:
    return Seen(kind="struck", who=FAULT, begin=begin, end=end, what={"within": within, "spares": list(spares)})


# Two pushes and their messages at two destinations, a fault between them, looks and answers that find all well.
WELL = [
    Seen(kind="began", who="7", begin=0.0, end=0.0, what={"destinations": ["hooks", "lines"]}),
    pushed(1, 2.0),
    *(delivered(1, 3.0, who=who) for who in ("hooks", "lines")),
    looked(3.1),
    struck(10.0, 12.0),
    pushed(2, 14.0),
    *(delivered(2, 15.0, who=who) for who in ("hooks", "lines")),
    looked(15.1),
    checked(200.0),
    Seen(kind="ended", begin=300.0, end=300.0),
]


def without(*numbers: int) -> list[Seen]:
    return [each for place, each in enumerate(WELL) if place not in numbers]


def test_a_history_in_which_all_is_well_has_no_violation() -> None:
    assert judge(WELL) == []


VIOLATIONS: dict[str, list[Seen]] = {
    "lost: lines: red: head-2 is in 0": without(8),
    "lost: lines: red: head-1 is in 0": without(3, 8),
    "twice: lines: red: head-2 is in 2": [*WELL, replace(WELL[8], what={**WELL[8].what, "id": "another"})],
    "phantom: lines at 20.0: red: head-3": [*WELL, delivered(3, 20.0)],
    "misordered: lines: ('r', 'changegroup.1'): id-2 follows id-1, the last was None": [
        *without(3, 8),
        WELL[8],
        WELL[3],
    ],
    "misordered: lines: red: head-1 is told before": [WELL[0], replace(WELL[1], end=20.0), *WELL[2:]],
    "repeated: lines got id-2 again at 50.0": [*WELL, replace(WELL[8], end=50.0)],
    "lost: lines: 2 of changegroup.1 at red, it got 1": [*without(8), acted("changegroup.1"), acted("changegroup.1")],
    "early: beta at 15.1: json-rev": [*without(9), looked(15.1, "json-rev/head-2 with 404")],
    "silent: check says OK at 80.0": [*without(8), checked(80.0)],
    "silent: check says OK at 90.0": [*without(8), checked(75.0, "waits until 80"), checked(90.0)],
    "alarm: check says at 201.0: beta is silent": [*without(10), checked(200.0, "beta is silent")],
    "late: relay-killed, healed at 12.0: lines took 23.0 s": [*without(8), delivered(2, 35.0)],
    "stuck: head-2, pushed at 14.0, reached lines at 91.0": [*without(8), struck(20.0, 50.0), delivered(2, 91.0)],
    "trouble: relay at 9.0: ended with 78": [
        *WELL,
        Seen(kind="trouble", who="relay", begin=9.0, end=9.0, what={"text": "ended with 78"}),
    ],
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_each_kind_of_violation_is_found(violation: str) -> None:
    assert any(each.startswith(violation) for each in judge(VIOLATIONS[violation])), judge(VIOLATIONS[violation])


EXCUSED: dict[str, list[Seen]] = {
    "a repeat soon after a fault": [*WELL, replace(WELL[8], end=30.0)],
    "a mirror that the fault took away": [*without(5), struck(10.0, 12.0, "beta"), looked(16.0, "no answer")],
    "a look that began while the mirror was away": [*WELL, struck(16.0, 17.0, "beta"), looked(15.5, "no answer")],
    "an alarm a while after a fault": [*WELL, struck(90.0, 100.0), checked(150.0, "beta is silent")],
    "check is OK while a message waits for less than a minute": [
        *without(5, 8),
        struck(10.0, 12.0, within=30.0),
        checked(20.0),
        delivered(2, 30.0),
    ],
    "a wait that ends when another begins": [
        *without(5, 8),
        struck(10.0, 60.0, within=100.0),
        checked(74.0, "waits until 77"),
        checked(78.0),
        delivered(2, 80.0),
    ],
    "a push that waits while faults last": [
        *without(5, 8),
        *(struck(at, at + 20.0, within=30.0) for at in (10.0, 20.0, 32.0)),
        checked(40.0, "lines waits"),
        delivered(2, 45.0),
    ],
    "a push that waits when the history is cut": [*without(8, 10, 11), checked(16.0, "beta is silent")],
    "a fault that another one follows at once": [*without(8), struck(16.0, 30.0, within=20.0), delivered(2, 35.0)],
}


@pytest.mark.parametrize("what", EXCUSED)
def test_what_a_fault_excuses_is_no_violation(what: str) -> None:
    assert judge(EXCUSED[what]) == []


def test_a_history_is_read_back_without_a_line_that_was_cut(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.add("looked", "beta", begin=1.0, id="id-1", missing=["a page"])
    history.close()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"kind": "loo')
    assert read(tmp_path / "history.jsonl") == history.seen


def test_a_recovery_is_counted_from_the_end_of_the_fault() -> None:
    during = [pushed(3, 11.5), *(delivered(3, 12.5, who=who) for who in ("hooks", "lines"))]
    [recovery] = find_recoveries([*WELL[:6], *during, *WELL[6:]])
    assert recovery.seconds == {"hooks": 3.0, "lines": 3.0}
    assert tell_seconds([recovery]) == ("3.0 s", "3.0 s")


def test_the_same_seed_draws_the_same_schedule() -> None:
    def first(seed: int) -> list[Any]:
        schedule = draw(Plan(seed=seed))
        times = [next(schedule) for _ in range(2 * len(FAULTS))]
        return [(fault.id, chance.random()) for [fault], chance in times]

    assert first(7) == first(7) != first(8)
    assert {name for name, _ in first(7)[: len(FAULTS)]} == {fault.id for fault in FAULTS}


def test_faults_that_strike_together_touch_different_parts() -> None:
    schedule = draw(Plan(seed=7, together=6))
    times = [next(schedule)[0] for _ in range(60)]
    drawn = [fault.id for faults in times for fault in faults]
    assert set(drawn[: len(FAULTS)]) == {fault.id for fault in FAULTS}
    assert max(len(faults) for faults in times) == 6
    for faults in times:
        assert not any(one.meets(other) for one, other in combinations(faults, 2)), faults


def test_faults_that_strike_together_share_one_recovery() -> None:
    both = [*WELL[:5], WELL[5], replace(WELL[5], who="log-killed"), *WELL[6:]]
    assert [each.seconds for each in find_recoveries(both)] == 2 * [{"hooks": 3.0, "lines": 3.0}]


def test_the_table_replaces_only_what_is_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    write_page([WELL, WELL], page)
    text = page.read_text()
    assert text.startswith(f"above\n{BEGIN}")
    assert text.endswith(f"{END}\nbelow\n")
    assert f"| {FAULTS[0].does} | {FAULTS[0].promised} | 2 | 3.0 s | 3.0 s | 0 |" in text
    assert "Seeds 7: 4 pushes, 2 faults of 1 kinds." in text
    assert "old" not in text
