# SPDX-License-Identifier: GPL-2.0-or-later
"""What one event means for what a mirror has."""

from dataclasses import replace

from hgext.vcsreplicator.mirror.checkpoint import Checkpoint, before_first, with_former
from hgext.vcsreplicator.mirror.plan import Act, Claim, claim, plan
from hgext.vcsreplicator.words.event import NULL_NODE, Changes, Event, MasterSettings, Tip, Type
from hgext.vcsreplicator.words.records import Reason


def identifier(number: int) -> str:
    return f"{number:032x}"


REPOSITORY, OTHER, INCARNATION = identifier(1), identifier(2), identifier(9)


def event(seq: int, **members: object) -> Event:
    given = {
        "type": Type.CREATED if seq == 1 else Type.CHANGED,
        "repository": REPOSITORY,
        "incarnation": INCARNATION,
        "path": "a",
        "generation": 1,
        "seq": seq,
        "id": identifier(100 + seq),
        "previous": identifier(99 + seq) if seq > 1 else None,
        "digest": "0" * 64,
        "time": 0.0,
        "source": "serve",
        "changes": Changes(added=None),
        "after": Tip(length=0, node=NULL_NODE),
        "settings": MasterSettings(),
    }
    return Event(**{**given, **members})  # type: ignore[arg-type]


def checkpoint(seq: int, **members: object) -> Checkpoint:
    before = before_first(REPOSITORY, INCARNATION, "a", 1)
    return replace(before, **{"seq": seq, "id": identifier(100 + seq), **members})  # type: ignore[arg-type]


def test_the_first_event_creates() -> None:
    assert plan(event(1), None).act is Act.CREATE


def test_the_direct_successor_applies() -> None:
    assert plan(event(4), checkpoint(3)).act is Act.APPLY


def test_a_repeat_is_skipped() -> None:
    assert plan(event(3), checkpoint(3)).act is Act.SKIP
    assert plan(event(1), checkpoint(3)).act is Act.SKIP


def test_a_hole_is_a_gap() -> None:
    step = plan(event(5), checkpoint(3))
    assert step.reason is Reason.GAP
    assert "seq 5 follows, this mirror has 3" in step.why


def test_an_event_of_an_unknown_repository_is_a_gap_unless_the_first() -> None:
    assert plan(event(2), None).reason is Reason.GAP


def test_another_event_with_a_known_sequence_is_a_fork() -> None:
    assert plan(event(3, id=identifier(7)), checkpoint(3)).reason is Reason.FORK


def test_a_successor_of_another_event_is_a_fork() -> None:
    assert plan(event(4, previous=identifier(7)), checkpoint(3)).reason is Reason.FORK


def test_a_new_incarnation_is_not_applied_on_top_of_the_old() -> None:
    assert plan(event(1, incarnation=identifier(8)), checkpoint(3)).reason is Reason.DIVERGED


def test_events_of_a_former_incarnation_are_skipped() -> None:
    now = checkpoint(2, incarnation=identifier(8), former=(INCARNATION,))
    assert plan(event(7), now).act is Act.SKIP


def test_the_incarnation_before_is_remembered_by_its_successor() -> None:
    after = with_former(checkpoint(1, incarnation=identifier(8)), checkpoint(3))
    assert after.former == (INCARNATION,)


def test_a_newer_generation_takes_the_place_of_an_older_one() -> None:
    assert claim("a", 2, checkpoint(9), is_leaving=False) is Claim.DISPLACE


def test_an_older_generation_does_not_come_back() -> None:
    assert claim("a", 1, checkpoint(1, generation=2), is_leaving=False) is Claim.WAIT


def test_two_repositories_of_one_generation_cannot_share_a_path() -> None:
    assert claim("a", 1, checkpoint(1), is_leaving=False) is Claim.REFUSED


def test_repositories_of_two_paths_cannot_share_a_folder() -> None:
    assert claim("a", 2, checkpoint(1, path="other"), is_leaving=False) is Claim.REFUSED


def test_what_leaves_is_in_no_others_way() -> None:
    assert claim("a", 1, checkpoint(9, path="b", generation=7), is_leaving=True) is Claim.DISPLACE


def test_a_deletion_of_what_is_not_here_is_done() -> None:
    assert plan(event(5, type=Type.DELETED), None).act is Act.SKIP
