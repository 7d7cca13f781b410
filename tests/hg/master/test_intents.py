# SPDX-License-Identifier: GPL-2.0-or-later
"""Notes of acts that are no transaction: any size is read again, and users who may write to the root may write them."""

import json
import os
import stat
from dataclasses import replace

import pytest
from mercurial import error

from hgext.vcsreplicator.hg.master import creation, intents, refusals
from hgext.vcsreplicator.hg.master.intents import Intent
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.event import NO_CHANGES, Changes, Marker, MarkerNode
from hgext.vcsreplicator.words.shape import from_json, to_json


def intent(**members):
    return Intent(kind="stripped", repository="a" * 32, seq=1, path="one", folder="/repos/one", **members)


def heads(count):
    return tuple(f"{number:040x}" for number in range(count))


def test_a_strip_with_a_hundred_thousand_heads_is_noted_whole(tmp_path):
    note = intent(heads_after=heads(100_000))
    intents.write(str(tmp_path), note)
    assert intents.read(str(tmp_path), "one") == note


def test_a_note_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(intents, "LIMIT", 1000)
    with pytest.raises(error.Abort, match="too many heads or markers for a strip"):
        intents.write(str(tmp_path), intent(heads_after=heads(100)))
    assert intents.read(str(tmp_path), "one") is None


def take_generation(root, path):
    """As an event that is written."""
    creation.note_generation(root, path, creation.read_generation(root, path) + 1)
    return creation.read_generation(root, path)


def test_generations_count_the_repositories_of_one_path(tmp_path):
    assert [take_generation(str(tmp_path), path) for path in ("one", "one", "two", "one")] == [1, 2, 1, 3]


@pytest.mark.parametrize("content", ["", "x", "-5", "9" * 18, "9" * 30, "9" * 5000, "\u0663", "1" * 10_000_000])
def test_a_damaged_generation_leads_to_one_that_events_take(tmp_path, content):
    take_generation(str(tmp_path), "one")
    (tmp_path / creation.NOTES / "generations" / creation.name_of("one")).write_text(content + "\none\n")
    found = [take_generation(str(tmp_path), "one") for _ in range(2)]
    assert all(1 <= generation < 2**63 for generation in found)


def test_a_strip_that_no_event_can_tell_is_refused_before_it_begins():
    refusals.refuse_large(Changes(added=None, heads_removed=heads(50_000)), hint=b"")
    with pytest.raises(error.Abort, match="too large for one event: 100000 heads"):
        refusals.refuse_large(Changes(added=None, heads_removed=heads(100_000)), hint=b"")


def test_more_markers_than_an_event_holds_are_refused_undescribed():
    node = MarkerNode(node="0" * 40, known=False, visible=None, desc=None, push=None)
    shortest = to_json(Marker(precursor=node, successors=(), user=None, time=0.0))
    assert len(shortest) >= refusals.SHORTEST_MARKER
    marker = (bytes(20), (), 0, (), (0.0, 0), None)
    refusals.refuse_many_markers([marker] * 41_000, NO_CHANGES)
    with pytest.raises(error.Abort, match="too large for one event: 0 heads, 0 bookmarks, 42000 markers"):
        refusals.refuse_many_markers([marker] * 42_000, NO_CHANGES)


def test_notes_and_generations_are_for_all_who_may_write_to_the_root(tmp_path):
    tmp_path.chmod(0o2775)
    before = os.umask(0o077)
    try:
        intents.write(str(tmp_path), intent())
        take_generation(str(tmp_path), "one")
        creation.make_folder(str(tmp_path), creation.DELETED)
    finally:
        os.umask(before)
    modes = {path.name[:4]: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    folders = {".vcs": 0o2775, "inte": 0o2775, "gene": 0o2775, "dele": 0o2775}
    assert modes == {**folders, creation.name_of("one")[:4]: 0o664}


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("renamed", {"to": "/elsewhere/one"}),
        ("renamed", {"to": "ROOT/../elsewhere"}),
        ("renamed", {"to": "ROOT-not/one"}),
        ("renamed", {"to": "ROOT/link/one"}),
        ("renamed", {"to": "ROOT/two", "to_root": "/elsewhere"}),
        ("renamed", {"to": "ROOT/one/.hg/sharedpath", "to_path": "one/.hg/sharedpath"}),
        ("renamed", {"to": "ROOT/.vcsreplicator/intents/x", "to_path": ".vcsreplicator/intents/x"}),
        ("renamed", {"to": "ROOT/two", "to_path": "another"}),
        ("deleted", {"to": "ROOT/one"}),
        ("stripped", {"folder": "/elsewhere/one"}),
    ],
)
def test_a_note_that_names_a_place_outside_the_roots_is_refused(tmp_path, kind, members):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to("/")
    root = str(tmp_path / "root")
    given = {name: value.replace("ROOT", root) for name, value in {"folder": "ROOT/one", **members}.items()}
    note = Intent(kind=kind, repository="a" * 32, seq=1, path="one", **given)
    with pytest.raises(MalformedEvent, match="expected a"):
        intents.confine(note, root, {root: ""})


def test_notes_of_what_happens_below_the_roots_are_taken(tmp_path):
    roots = [str(tmp_path / name) for name in ("a", "b")]
    prefixes = {roots[0]: "", roots[1]: "b"}
    moved = Intent(
        kind="renamed", repository="a" * 32, seq=1, path="one", folder=f"{roots[0]}/one", to=f"{roots[1]}/x/one"
    )
    intents.confine(replace(moved, to_root=roots[1], to_path="b/x/one"), roots[0], prefixes)
    aside = f"{roots[0]}/.vcsreplicator/deleted/{'a' * 32}"
    intents.confine(replace(moved, kind="deleted", to=aside), roots[0], prefixes)


@pytest.mark.timeout(10)
def test_a_pipe_in_place_of_a_note_or_generation_is_not_waited_for(tmp_path):
    root = str(tmp_path)
    for kind, file in (
        ("intents", creation.intent_file(root, "one")),
        ("generations", os.path.join(root, creation.NOTES, "generations", creation.name_of("one"))),
    ):
        creation.make_folder(root, kind)
        os.mkfifo(file)
    for act in (intents.read, creation.read_generation):
        with pytest.raises(OSError, match="Not a file: "):
            act(root, "one")


def test_a_strip_that_an_older_release_can_finish_has_a_note_it_reads():
    members = json.loads(to_json(intent(roots=heads(1), heads_after=heads(1))))
    assert not members.keys() & {"former_bundles", "backup", "markers"}
    assert from_json(Intent, json.dumps(members).encode()).markers is None


@pytest.mark.parametrize("member", ["folder", "to", "to_root"])
@pytest.mark.parametrize("name", ["ROOT/a\0b", "ROOT/\ud800"])
def test_a_note_with_a_name_that_no_file_has_is_refused(tmp_path, member, name):
    root = str(tmp_path)
    given = {
        "folder": f"{root}/one",
        "to": f"{root}/two",
        "to_root": root,
        "to_path": "two",
        member: name.replace("ROOT", root),
    }
    note = Intent(kind="renamed", repository="a" * 32, seq=1, path="one", **given)
    with pytest.raises(MalformedEvent, match="expected"):
        intents.confine(note, root, {root: ""})


def test_an_act_with_a_name_that_is_no_text_can_be_named():
    assert intents.act_of(replace(intent(), kind="\ud800")) == b"?"
