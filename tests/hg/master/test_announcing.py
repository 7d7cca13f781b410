# SPDX-License-Identifier: GPL-2.0-or-later
"""The events of changes from outside, and what finding them costs."""

import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mercurial import error, phases

from hgext.vcsreplicator.hg import observe
from hgext.vcsreplicator.hg.master import announcing, pushes, refusals
from hgext.vcsreplicator.words.event import NULL_NODE, Bookmark, Changes, Marker, MarkerNode, Tip, Type
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.mirror.author import Author

EMPTY = Tip(length=0, node=NULL_NODE)
opened: list[str] = []


def note_databases(event: str, arguments: tuple[object, ...]) -> None:
    if event == "sqlite3.connect":
        opened.append(str(arguments[0]))


sys.addaudithook(note_databases)  # for good: there is no taking it away


@pytest.fixture
def author(tmp_path: Path) -> Author:
    author = Author(tmp_path, "one")
    author.repo.ui.setconfig(b"phases", b"publish", True)
    for _ in range(3):
        author.push(count=2)
    return author


def told(author: Author, before: Tip = EMPTY) -> list[tuple[Type, int]]:
    """The type of each event to come, and how many changesets it adds."""
    found = announcing.announce_outside(author.repo, before, observe.tip(author.repo))
    return [(each.kind, each.changes.added.count if each.changes.added else 0) for each in found]


PUSH_BY_PUSH = [(Type.CHANGED, 2), (Type.CHANGED, 2), (Type.CHANGED, 2), (Type.SYNC, 0)]
ONLY_SYNC = [(Type.SYNC, 0)]


def test_the_pushlog_is_opened_once_for_all_pushes(author: Author) -> None:
    opened.clear()
    assert told(author) == PUSH_BY_PUSH
    assert len(opened) == 1


def test_the_pushlog_is_opened_once_for_all_markers(author: Author) -> None:
    log = author.repo.changelog
    markers = [(log.node(rev), (), 0, (), (0.0, 0), None) for rev in range(4)]
    opened.clear()
    found = pushes.public_markers(author.repo, markers)
    assert [marker.precursor.push.id for marker in found if marker.precursor.push] == [1, 1, 2, 2]
    assert len(opened) == 1


def edit(author: Author, statement: str) -> None:
    with closing(sqlite3.connect(f"{author.folder}/.hg/pushlog2.db", isolation_level=None)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("statement", [f"date = {10**12}", f"date = {-(10**12)}", "id = -7"])
def test_a_row_that_no_event_can_hold_is_in_none(author: Author, statement: str) -> None:
    edit(author, f"UPDATE pushlog SET {statement} WHERE id = 2")
    edit(author, "UPDATE changesets SET pushid = (SELECT id FROM pushlog WHERE id NOT IN (1, 3)) WHERE pushid = 2")
    assert told(author) == [(Type.CHANGED, 2), (Type.SYNC, 0)]
    log = author.repo.changelog
    found = pushes.public_markers(author.repo, [(log.node(rev), (), 0, (), (0.0, 0), None) for rev in (0, 2)])
    assert [marker.precursor.push and marker.precursor.push.id for marker in found] == [1, None]
    assert [from_json(Marker, to_json(marker), limit=10_000) for marker in found] == list(found)


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_a_marker_whose_date_is_no_number_is_refused(seconds: float) -> None:
    with pytest.raises(error.Abort, match="cannot be stored"):
        refusals.refuse_odd_markers([(b"1" * 20, (), 0, (), (seconds, 0), None)])


@pytest.mark.parametrize(("key", "value"), [(b"a:b", b""), (b"a\0b", b""), (b"a", b"\0")])
def test_a_marker_that_mercurial_cannot_list_is_refused(key: bytes, value: bytes) -> None:
    said = "an obsolescence marker has metadata that no list of markers can have: b'a"
    with pytest.raises(error.Abort, match=said):
        refusals.refuse_odd_markers([(b"1" * 20, (), 0, ((b"user", b"x"), (key, value)), (0.0, 0), None)])


@pytest.mark.parametrize("seconds", [1e300, -1e300, 5e-324, -0.0, 2.0**63])
def test_a_marker_of_any_other_date_can_be_read_again(author: Author, seconds: float) -> None:
    marker = (b"1" * 20, (), 0, (), (seconds, 0), None)
    refusals.refuse_odd_markers([marker])
    (found,) = pushes.public_markers(author.repo, [marker])
    assert from_json(Marker, to_json(found), limit=10_000) == found


@pytest.mark.parametrize("phase", [phases.secret, phases.archived, phases.internal])
def test_a_marker_says_of_a_secret_changeset_its_node_alone(author: Author, phase: int) -> None:
    log = author.repo.changelog
    author.move_above_secret(phase, log.node(4).hex())
    [marker] = pushes.public_markers(author.repo, [(log.node(5), (log.node(4), log.node(3)), 0, (), (0.0, 0), None)])
    for rev, described in ((5, marker.precursor), (4, marker.successors[0])):
        assert described == MarkerNode(node=log.node(rev).hex(), known=False, visible=None, desc=None, push=None)
    assert marker.successors[1].desc is not None
    assert marker.successors[1].push is not None


@pytest.mark.parametrize("node", ["1" * 40, "f" * 40])
def test_a_bookmark_at_a_changeset_that_is_not_here_is_refused(tmp_path: Path, node: str) -> None:
    author = Author(tmp_path, "repo")
    changes = Changes(added=None, bookmarks=(Bookmark(name="moved", node=node),))
    with pytest.raises(error.Abort, match="a bookmark cannot be at a changeset that is not here: moved, "):
        refusals.refuse_odd_bookmarks(author.repo, changes)


@pytest.mark.parametrize(("bound", "expected"), [(6, PUSH_BY_PUSH), (5, ONLY_SYNC)])
def test_as_many_changesets_as_the_bound_are_told_and_more_are_not(
    author: Author, monkeypatch: pytest.MonkeyPatch, bound: int, expected: object
) -> None:
    monkeypatch.setattr(announcing, "MANY", bound)
    assert told(author) == expected


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_push_that_no_event_can_hold_leaves_all_to_the_sync(
    author: Author, monkeypatch: pytest.MonkeyPatch, lacking: int
) -> None:
    nodes = [author.push(parent=NULL_NODE) for _ in range(12)]  # each a head
    assert len(nodes) == 12
    size = max(len(to_json(each.changes)) for each in announcing.announce_outside(author.repo, EMPTY, tip(author)))
    monkeypatch.setattr(refusals, "EVENT_LIMIT", refusals.EVENT_REST + size - lacking)
    assert told(author) == ONLY_SYNC if lacking else len(told(author)) == 16


def test_without_publishing_only_the_sync_comes(author: Author) -> None:
    author.repo.ui.setconfig(b"phases", b"publish", False)
    assert told(author) == ONLY_SYNC


def test_what_begins_in_the_middle_of_a_push_leaves_all_to_the_sync(author: Author) -> None:
    node = author.repo.changelog.node(0).hex()
    assert told(author, Tip(length=1, node=node)) == ONLY_SYNC


def test_a_push_with_a_lower_number_is_left_to_the_sync(author: Author) -> None:
    edit(author, "UPDATE changesets SET pushid = CASE pushid WHEN 2 THEN 3 WHEN 3 THEN 2 ELSE pushid END")
    found = announcing.announce_outside(author.repo, EMPTY, tip(author))
    assert [each.changes.push.id for each in found if each.changes.push] == [1, 3]


def tip(author: Author) -> Tip:
    return observe.tip(author.repo)
