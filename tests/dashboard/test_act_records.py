# SPDX-License-Identifier: GPL-2.0-or-later
"""The acts of operators as records of the log, of which a dashboard's file is a copy."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.dashboard.acts import ActJournal, ActKind, ActOutcome, OperatorAct
from hgext.vcsreplicator.log import NOTIFIER, NewRecord
from hgext.vcsreplicator.words.errors import Unavailable
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import with_topics
from testing.seeds import seeds

ACT = OperatorAct(kind=ActKind.SKIP, target="hooks", argument={"message": "m"}, who="olga", reason="stuck", at=9.0)


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    with_topics(made)
    return made


def test_acts_outlive_the_dashboards_machine(log: MemoryLog, tmp_path: Path) -> None:
    journal = ActJournal(str(tmp_path / "acts.db"), log)
    number, _ = journal.begin(ACT, "form")
    journal.end(number, ActOutcome.REFUSED, "no such message")
    journal.begin(ACT, "other form")
    elsewhere = ActJournal(str(tmp_path / "elsewhere.db"), log)
    assert elsewhere.begin(ACT, "form") == (number, False)
    assert elsewhere.list_newest(9) == journal.list_newest(9)
    assert [each.outcome for each in elsewhere.list_newest(9)] == [ActOutcome.BEGUN, ActOutcome.REFUSED]


def test_an_earlier_releases_acts_are_put_into_the_log(log: MemoryLog, tmp_path: Path) -> None:
    former = MemoryLog()
    with_topics(former)
    number, _ = ActJournal(str(tmp_path / "acts.db"), former).begin(ACT, "form")
    [act] = ActJournal(str(tmp_path / "acts.db"), log).list_newest(9)
    assert (act.number, ActJournal(str(tmp_path / "elsewhere.db"), log).list_newest(9)) == (number, [act])


def test_nothing_is_begun_while_the_log_does_not_answer(log: MemoryLog, tmp_path: Path) -> None:
    journal = ActJournal(str(tmp_path / "acts.db"), log)
    journal.list_newest(9)
    log.leaderless.add((NOTIFIER, 0))
    with pytest.raises(Unavailable):
        journal.begin(ACT, "form")
    assert journal.list_newest(9) == []
    assert ActJournal(str(tmp_path / "acts.db"), log).list_newest(9) == []
    log.leaderless.clear()
    assert journal.begin(ACT, "form")[1]


def test_an_outcome_that_the_log_did_not_take_follows_at_the_next_start(log: MemoryLog, tmp_path: Path) -> None:
    journal = ActJournal(str(tmp_path / "acts.db"), log)
    number, _ = journal.begin(ACT, "form")
    log.leaderless.add((NOTIFIER, 0))
    journal.end(number, ActOutcome.DONE, "skipped")
    log.leaderless.clear()
    assert [each.outcome for each in journal.list_newest(9)] == [ActOutcome.DONE]
    ActJournal(str(tmp_path / "acts.db"), log).list_newest(9)
    [act] = ActJournal(str(tmp_path / "elsewhere.db"), log).list_newest(9)
    assert (act.outcome, act.result) == (ActOutcome.DONE, "skipped")


def test_acts_of_two_dashboards_have_different_numbers_for_all(log: MemoryLog, tmp_path: Path) -> None:
    one, other = (ActJournal(str(tmp_path / name), log) for name in ("one.db", "other.db"))
    for journal in (one, other):
        journal.list_newest(9)
    numbers = {form: journal.begin(replace(ACT, reason=form), form)[0] for journal, form in ((one, "a"), (other, "b"))}
    assert len(set(numbers.values())) == 2
    one.end(numbers["a"], ActOutcome.DONE, "skipped")
    third = ActJournal(str(tmp_path / "third.db"), log)
    assert {each.act.reason: each.number for each in third.list_newest(9)} == numbers


def test_an_act_never_has_the_number_of_one_of_a_lost_topic(log: MemoryLog, tmp_path: Path) -> None:
    former = MemoryLog()
    with_topics(former)
    journal = ActJournal(str(tmp_path / "acts.db"), former)
    taken = {journal.begin(ACT, f"{number}")[0] for number in range(4)}
    for number in list(taken):
        journal.end(number, ActOutcome.DONE, "skipped")
    taken.add(journal.begin(ACT, "later")[0])  # has a number that comes again in the new topic
    journal = ActJournal(str(tmp_path / "acts.db"), log)
    added = {journal.begin(ACT, f"{number}")[0] for number in range(4, 8)}
    assert len(added - taken) == 4
    assert {each.number for each in ActJournal(str(tmp_path / "other.db"), log).list_newest(99)} == added | taken


def test_two_acts_to_which_an_earlier_release_gave_one_number_are_shown(log: MemoryLog, tmp_path: Path) -> None:
    for form in ("one", "other"):
        former = MemoryLog()
        with_topics(former)
        ActJournal(str(tmp_path / f"{form}.db"), former).begin(ACT, form)
        ActJournal(str(tmp_path / f"{form}.db"), log).list_newest(9)
    shown = {each.number for each in ActJournal(str(tmp_path / "third.db"), log).list_newest(9)}
    assert (len(shown), 1 in shown) == (2, True)


@pytest.mark.parametrize(
    "changed",
    [
        (b'"skip"', b'"drop"'),
        (b'"begun"', b'"half"'),
        (b'"outcome"', b'"number":0,"outcome"'),
        (b'"{', b'"'),
        (b'"olga"', b'"\\udce9"'),
    ],
)
def test_an_act_in_the_log_that_cannot_be_read_hides_no_other(
    log: MemoryLog, tmp_path: Path, changed: tuple[bytes, bytes]
) -> None:
    ActJournal(str(tmp_path / "acts.db"), log).begin(ACT, "form")
    [record] = log.records(NOTIFIER)
    assert record.value is not None
    damaged = record.value.replace(*changed)
    assert damaged != record.value
    log.append([NewRecord(topic=NOTIFIER, key="act/damaged", value=damaged)])
    shown = ActJournal(str(tmp_path / "elsewhere.db"), log).list_newest(9)
    assert [each.number for each in shown] == [1]


@pytest.mark.parametrize("seed", seeds(50))
def test_folders_lost_at_any_step_cost_no_act(log: MemoryLog, tmp_path: Path, seed: int) -> None:
    chance, machines = random.Random(seed), 0
    expected: dict[str, ActOutcome] = {}
    journal = ActJournal(str(tmp_path / "acts.db"), log)
    for step in range(30):
        match chance.randrange(4):
            case 0:
                assert journal.begin(replace(ACT, reason=f"{step}"), f"form {step}")[1]
                expected[f"{step}"] = ActOutcome.BEGUN
            case 1:
                for each in journal.list_newest(1):
                    journal.end(each.number, ActOutcome.DONE, "skipped")
                    expected[each.act.reason] = ActOutcome.DONE
            case 2:
                journal = ActJournal(str(tmp_path / f"acts{machines or ''}.db"), log)
            case _:
                machines += 1
                journal = ActJournal(str(tmp_path / f"acts{machines}.db"), log)
    assert {each.act.reason: each.outcome for each in journal.list_newest(99)} == expected
