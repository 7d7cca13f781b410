# SPDX-License-Identifier: GPL-2.0-or-later
"""A repository that a mirror must not have any more is set aside and acknowledged, in any state and after any missed event."""

import shutil
from typing import Any

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.log import ROSTER, STATE, NewRecord
from hgext.vcsreplicator.log.table import Table
from hgext.vcsreplicator.mirror import service
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AGGREGATOR, AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import Mirror as Member
from hgext.vcsreplicator.words.roster import MirrorRole, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import NAME, Bench
from testing.waiting import eventually

pytestmark = pytest.mark.processes


def set_aside(bench: Bench) -> list[str]:
    """What the mirror keeps of repositories that are gone."""
    aside = bench.root / "~vcsreplicator/aside"
    return sorted(each.name for each in aside.iterdir()) if aside.exists() else []


def said_deleted(bench: Bench, author: Author) -> None:
    """Returns once the mirror acknowledged the deletion like any other event."""

    def holds(acks: dict[str, object]) -> bool:
        ack = bench.ack(author)
        last = (author.seq, author.seq, author.last, author.digest)
        return ack is not None and ack.detached is None and (ack.applied, ack.serving, ack.event, ack.digest) == last

    bench.wait(holds, "the deletion acknowledged")


def lose(bench: Bench, author: Author) -> None:
    """What was not sent of the repository never reaches the log."""
    bench.sent[author.repository] = len(author.frames)


def roster(bench: Bench, version: int, **members: object) -> None:
    member = Member(name=NAME, **{"state": MirrorState.ACTIVE, **members})  # type: ignore[arg-type]
    bench.log.append([NewRecord(topic=ROSTER, key="roster", value=to_json(Roster(version=version, mirrors=(member,))))])


def say_version(bench: Bench, version: int) -> None:
    """The aggregator says which roster it has."""
    beat = AggregatorHeartbeat(time=1.0, roster=version, held=0)
    bench.log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(beat))])


def delete_on_master(author: Author) -> None:
    author.event(Type.DELETED)
    shutil.rmtree(author.folder)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("damaged", "when"), [("00changelog.i", "while it runs"), ("replicated.log", "while it is down")]
)
def test_one_deleted_while_it_waits_for_its_repair_is_set_aside(bench: Bench, damaged: str, when: str) -> None:
    patient, neighbour = bench.author("patient"), bench.author("neighbour")
    patient.push()
    bench.send(patient, neighbour)
    bench.release(patient)
    with bench.mirror():
        bench.wait_served(patient)
        with (bench.where(patient) / ".hg/store" / damaged).open("r+b") as file:
            file.write(b"damage")
        patient.push()
        delete_on_master(patient)
        bench.sent[patient.repository] += 1  # a gap before the deletion
        bench.send(patient)
        bench.wait_detached(patient)
        if when == "while it runs":
            bench.release(patient, 2, deleted=True)
            said_deleted(bench, patient)
    if when == "while it is down":
        bench.release(patient, 2, deleted=True)
    with bench.mirror():
        said_deleted(bench, patient)
        neighbour.push()
        bench.send(neighbour)
        bench.wait_applied(neighbour)
        bench.release(patient, deleted=True, noticed=patient.seq)
        bench.wait(lambda acks: patient.repository not in acks, "its ack gone")
        eventually(bench.everything_passed, "all positions stored")
    assert not bench.where(patient).exists()
    assert len(set_aside(bench)) == 1
    assert bench.notes() == []


def test_the_copy_that_was_begun_of_a_repository_goes_with_it(bench: Bench) -> None:
    patient = bench.author("patient")
    patient.push()
    bench.send(patient)
    bench.release(patient)
    with bench.mirror():
        bench.wait_served(patient)
    (bench.where(patient) / ".hg/store/replicated.log").write_bytes(b"damage")
    staging = bench.root / "~vcsreplicator/staging"
    shutil.copytree(patient.folder, staging / patient.repository)
    delete_on_master(patient)
    lose(bench, patient)
    with bench.mirror():
        bench.wait_detached(patient)
        bench.release(patient, deleted=True)
        said_deleted(bench, patient)
        eventually(lambda: not any(staging.iterdir()), "the copy given up")


def test_a_deletion_that_the_log_lost_is_found_out_from_the_state(bench: Bench) -> None:
    patient, stranger, neighbour = bench.author("patient"), bench.author("stranger"), bench.author("neighbour")
    bench.send(patient, neighbour)
    lose(bench, stranger)
    with bench.mirror():
        bench.wait_applied(patient, neighbour)
        for author in (patient, stranger):
            delete_on_master(author)
            lose(bench, author)
            bench.release(author, deleted=True)
        said_deleted(bench, patient)
        said_deleted(bench, stranger)
    assert not bench.where(patient).exists()
    assert len(set_aside(bench)) == 1


def test_a_backup_keeps_one_deleted_while_it_waits_for_its_repair(bench: Bench) -> None:
    patient, neighbour = bench.author("patient"), bench.author("neighbour")
    bench.send(patient)
    roster(bench, 1, role=MirrorRole.BACKUP)
    with bench.mirror():
        bench.wait_applied(patient)
        patient.push()
        delete_on_master(patient)
        bench.sent[patient.repository] += 1
        bench.send(patient)
        bench.wait_detached(patient)
        bench.release(patient, 1, deleted=True)
        bench.send(neighbour)
        bench.wait_applied(neighbour)
        bench.release(neighbour)
        bench.wait_served(neighbour)
    assert bench.where(patient).exists()
    assert set_aside(bench) == []


def test_a_backup_of_the_roster_ignores_deletions(bench: Bench) -> None:
    author, neighbour = bench.author("repo"), bench.author("neighbour")
    author.push()
    bench.send(author)
    roster(bench, 1, role=MirrorRole.BACKUP)
    with bench.mirror():
        bench.wait_applied(author)
        author.event(Type.DELETED)
        bench.send(author, neighbour)
        bench.wait_applied(author, neighbour)
    with bench.mirror():
        bench.release(neighbour)
        bench.wait_served(neighbour)
    assert bench.where(author).exists()
    assert set_aside(bench) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("reason", ["gap", "diverged"])
def test_a_repository_that_is_renamed_while_it_waits_for_its_repair_moves(bench: Bench, reason: str) -> None:
    patient, neighbour = bench.author("patient"), bench.author("neighbour")
    patient.push()
    bench.send(patient)
    bench.release(patient)
    with bench.mirror():
        bench.wait_served(patient)
        if reason == "diverged":
            bench.hg(patient, "debugbuilddag", "+1", "--from-existing")
        patient.push()
        patient.rename(bench.master_root, "elsewhere")
        if reason == "gap":
            bench.sent[patient.repository] += 1
        patient.push()
        bench.send(patient)
        bench.release(patient, 2)
        bench.wait_applied(patient)
        bench.release(patient)
        bench.wait_served(patient)
        successor = bench.author("patient")  # the path it left is free
        bench.send(successor, neighbour)
        bench.release(successor)
        bench.wait_applied(neighbour)
        bench.wait_served(successor)
    found = bench.found()
    assert found[patient.repository].folder == str(bench.root / "elsewhere")
    assert found[successor.repository].folder == str(bench.root / "patient")
    assert bench.hg(patient, "verify", "-q") == ""


def test_a_path_that_a_repository_left_can_be_taken_by_another(bench: Bench) -> None:
    former = bench.author("repo")
    bench.send(former)
    with bench.mirror():
        bench.wait_applied(former)
        former.rename(bench.master_root, "elsewhere")
        successor = bench.author("repo")
        bench.send(former)
        bench.wait_applied(former)
        bench.send(successor)
        bench.wait_applied(successor)


def test_a_repository_that_the_rules_carry_no_more_is_served_no_more(bench: Bench) -> None:
    inside, outside = bench.author("project/inside"), bench.author("private/outside")
    for author in (inside, outside):
        author.push()
        bench.release(author)
    bench.send(inside, outside)
    roster(bench, 1)
    with bench.mirror():
        bench.wait_served(inside, outside)
        roster(bench, 2, rules=Rules(include=("re:project/",)))
        bench.wait(lambda acks: outside.repository not in acks, "its ack gone")
        assert not bench.where(outside).exists()
        assert len(set_aside(bench)) == 1
        outside.push()
        bench.send(outside)
        bench.release(outside)
        inside.push()
        bench.send(inside)
        bench.wait_applied(inside)
        assert not bench.where(outside).exists()
        roster(bench, 3)
        bench.wait_served(outside)
    with bench.mirror():  # which reads the older rosters again
        inside.push()
        bench.send(inside)
        bench.release(inside)
        bench.wait_served(inside)
    assert bench.where(outside).exists()


def test_nothing_leaves_a_starting_mirror_without_the_newest_roster(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running aggregator writes it again: here, while the mirror waits for it."""
    author = bench.author("private/repo")
    author.push()
    bench.send(author)
    bench.release(author)
    roster(bench, 2)
    with bench.mirror():
        bench.wait_served(author)
    roster(bench, 1, rules=Rules(include=("re:project/",)))
    say_version(bench, 2)
    warnings = []

    def warn(event: str, **_names: object) -> None:
        warnings.append(event)
        roster(bench, 2)

    monkeypatch.setattr(service.logger, "warning", warn)
    author.push()
    bench.send(author)
    bench.release(author)
    with bench.mirror():
        bench.wait_served(author)
    assert (warnings, set_aside(bench)) == (["waits for the roster that the log lost"], [])


WAITS = ["waits for the roster that the log lost", "older roster followed"]


@pytest.mark.parametrize(("newest", "expected"), [(None, WAITS), (b"{", [])], ids=["none", "unreadable"])
def test_a_mirror_waits_a_while_for_a_roster_that_nothing_rewrites(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, newest: bytes | None, expected: list[str]
) -> None:
    bench.log.append([NewRecord(topic=ROSTER, key="roster", value=newest)])
    say_version(bench, 2)
    monkeypatch.setattr(service, "DOUBT", 0.2)
    answers, read = iter([True, False]), service.read_table

    def read_unless_down(*arguments: Any, **options: Any) -> Table:
        """The log does not answer once, while the mirror waits."""
        if not next(answers, True):
            raise Unavailable("down")
        return read(*arguments, **options)

    monkeypatch.setattr(service, "read_table", read_unless_down)
    author = bench.author("repo")
    author.push()
    bench.send(author)
    bench.release(author)
    with capture_logs() as lines, bench.mirror():
        bench.wait_served(author)
    assert [line["event"] for line in lines if line["event"] in WAITS] == expected


def test_a_repository_that_is_renamed_out_of_the_rules_is_served_no_more(bench: Bench) -> None:
    author = bench.author("project/repo")
    author.push()
    bench.send(author)
    roster(bench, 1, rules=Rules(include=("re:project/",)))
    with bench.mirror():
        bench.wait_applied(author)
        author.rename(bench.master_root, "private/repo")
        bench.send(author)
        bench.release(author)
        bench.wait(lambda acks: author.repository not in acks, "its ack gone")
        eventually(bench.everything_passed, "all positions stored")
    assert not (bench.root / "private").exists()
    assert not (bench.root / "project").exists()
    assert bench.notes() == []


def test_a_mirror_that_is_removed_and_added_again_says_its_levels_again(bench: Bench) -> None:
    author = bench.author("repo")
    bench.send(author)
    roster(bench, 1)
    with bench.mirror():
        bench.wait_applied(author)
        roster(bench, 2, state=MirrorState.REMOVED, since=1.0)
        bench.log.append([NewRecord(topic="acks", key=f"{NAME}/{author.repository}", value=None)])
        bench.wait(lambda acks: author.repository not in acks, "the ack forgotten")
        roster(bench, 3, state=MirrorState.JOINING, since=2.0)
        bench.wait_applied(author)
