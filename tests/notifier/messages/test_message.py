# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages to the letter: golden files hold what receivers have read for years."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.event import Bookmark, Event, Marker, MarkerNode, PhaseMove, PushEntry, Type
from notifier.messages.message import Message, messages, to_text
from notifier.messages.public import Policy, PublicSettings, public_url
from testing.builders.notifier.notices import a_notice, a_push, an_event, identifier, node

GOLDEN = Path(__file__).with_name("golden")
PUBLIC = PublicSettings(urls={"": "https://hg.example/"})

MARKER = Marker(
    precursor=MarkerNode(node=node("old"), known=True, visible=False, desc="größe\nmore", push=a_push(3)),
    successors=(
        MarkerNode(node=node("new"), known=True, visible=True, desc="better", push=None),
        MarkerNode(node=node("elsewhere"), known=False, visible=None, desc=None, push=None),
    ),
    user="Dana <dana@example.com>",
    time=1472075231.0,
)
PRUNED = Marker(
    precursor=MarkerNode(node=node("pruned"), known=False, visible=None, desc=None, push=None),
    successors=(),
    user=None,
    time=1472075232.5,
)
EVENTS = {
    "changegroup.1": an_event("try", 2, push=PushEntry(id=120040, user="u@example", date=1460975081)),
    "newrepo.1": an_event("projects/new", type=Type.CREATED),
    "obsolete.1": an_event("try", 3, added=False, markers=(MARKER, PRUNED)),
    "bookmark.1": an_event(
        "try", 4, added=False, bookmarks=(Bookmark(name="@", node=node(1)), Bookmark(name="gone", node=None))
    ),
    "phase.1": an_event("try", 5, added=False, phases=(PhaseMove(phase=0, nodes=(node(1), node(2))),)),
    "repodeleted.1": an_event("try", 6, type=Type.DELETED),
    "reporenamed.1": an_event("projects/final", 7, type=Type.RENAMED, detail={"from": "projects/draft"}),
}


def told(event: Event, public: PublicSettings = PUBLIC) -> list[Message]:
    return list(messages(a_notice(event), 17, public))


@pytest.mark.parametrize("name", EVENTS)
def test_message_has_the_documented_form(name: str) -> None:
    [message] = told(EVENTS[name])
    written = json.dumps(message.envelope, indent=2, sort_keys=True) + "\n"
    assert written == (GOLDEN / f"{name}.json").read_text()


def test_a_repository_that_was_there_before_is_not_announced_as_new() -> None:
    [adopted, made] = [an_event("x", 1, type=Type.CREATED, detail={"origin": origin}) for origin in ("adopted", "init")]
    assert told(adopted) == []
    assert [message.type for message in told(made)] == ["newrepo.1"]


def test_urls_of_a_push_keep_the_order_of_parameters() -> None:
    [message] = told(EVENTS["changegroup.1"])
    [push] = message.data["pushlog_pushes"]
    assert push["push_json_url"] == "https://hg.example/try/json-pushes?version=2&startID=120039&endID=120040"
    assert push["push_full_json_url"].endswith("/try/json-pushes?version=2&full=1&startID=120039&endID=120040")


def test_push_without_a_record_has_an_empty_list_of_pushes() -> None:
    event = an_event("try", 1)
    bare = a_notice(replace(event, changes=replace(event.changes, push=None)))
    [message] = messages(bare, 0, PUBLIC)
    assert message.data["pushlog_pushes"] == []


def test_push_with_markers_is_two_messages_in_order_with_ids_of_their_own() -> None:
    found = told(an_event("try", 2, markers=(MARKER,)))
    assert [message.type for message in found] == ["changegroup.1", "obsolete.1"]
    assert [message.id for message in found] == [
        f"{identifier('try', 2)}.changegroup.1",
        f"{identifier('try', 2)}.obsolete.1",
    ]
    assert [message.index for message in found] == [0, 1]


def test_each_stream_names_its_own_previous_message() -> None:
    event = an_event("try", 9, markers=(MARKER,))
    notice = a_notice(event, previous={"changegroup.1": identifier("try", 8), "obsolete.1": None})
    first, second = messages(notice, 0, PUBLIC)
    assert first.previous == f"{identifier('try', 8)}.changegroup.1"
    assert second.previous is None


@pytest.mark.parametrize("kind", [Type.HGRC, Type.SYNC, Type.STRIPPED, Type.CENSORED])
def test_what_only_mirrors_care_about_is_not_announced(kind: Type) -> None:
    assert told(an_event("try", 2, type=kind)) == []


def test_text_that_is_no_unicode_is_announced_as_valid_utf_8() -> None:
    marker = Marker(precursor=MARKER.precursor, successors=(), user="caf\udce9 <c@example.com>", time=1.0)
    [message] = told(an_event("try", 2, added=False, markers=(marker,)))
    assert message.data["markers"][0]["user"] == "caf\N{REPLACEMENT CHARACTER} <c@example.com>"
    json.loads(to_text(message.envelope)).__str__().encode("utf-8")


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("try", "https://hg.example/try"),
        ("integration/autoland", "https://hg.example/integration/autoland"),
        ("users/dana", "https://people.example/dana"),
        ("userstories", "https://hg.example/userstories"),
        ("l10n/ä b", "https://hg.example/l10n/%C3%A4%20b"),
    ],
)
def test_longest_prefix_of_whole_parts_decides_the_url(path: str, url: str) -> None:
    settings = PublicSettings(urls={"": "https://hg.example/", "users": "https://people.example/"})
    assert public_url(path, settings) == url


@pytest.mark.parametrize(
    "settings",
    [
        PublicSettings(urls={"projects": "https://hg.example/"}),
        PublicSettings(urls={"": "https://hg.example/"}, ignore=("private/",)),
        PublicSettings(urls={"": "https://hg.example/"}, policy=Policy.DENY),
        PublicSettings(urls={"": "https://hg.example/"}, never=("re:private/",)),
        PublicSettings(urls={"": "https://hg.example/"}, only=("path:try",)),
        PublicSettings(urls={"": "https://hg.example/"}, only=("re:.*",), never=("path:private/plan",)),
    ],
)
def test_repository_that_is_not_public_has_no_message(settings: PublicSettings) -> None:
    for kind in Type:
        assert told(an_event("private/plan", 2, type=kind), settings) == []


def test_rename_does_not_tell_the_name_it_had_while_it_was_not_public() -> None:
    settings = PublicSettings(urls={"": "https://hg.example/"}, ignore=("private/",))
    [message] = told(an_event("shown", 2, type=Type.RENAMED, detail={"from": "private/plan"}), settings)
    assert "private" not in to_text(message.envelope)
    assert message.data == {"repo_url": "https://hg.example/shown", "old_repo_url": None}


def test_rename_from_a_name_that_is_no_path_tells_no_old_name() -> None:
    [message] = told(an_event("shown", 2, type=Type.RENAMED, detail={"from": "../\ud800"}))
    assert message.data == {"repo_url": "https://hg.example/shown", "old_repo_url": None}


def test_sequence_goes_on_over_an_adopted_history() -> None:
    [message] = messages(replace(a_notice(an_event("x", 2)), base=7), 0, PUBLIC)
    assert message.sequence == 9


def test_settings_name_the_wrong_key() -> None:
    with pytest.raises(ValueError, match=r"only: rule 'try': expected path:EXACT or re:EXPRESSION"):
        PublicSettings(urls={"": "https://hg.example/"}, only=("try",))
    with pytest.raises(ValueError, match=r"urls\.x: expected an http or https URL"):
        PublicSettings(urls={"x": "hg.example"})
