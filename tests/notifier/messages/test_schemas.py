# SPDX-License-Identifier: GPL-2.0-or-later
"""Schemas: shipped for every type, true of every message, and shown in the docs as they are."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgext.vcsreplicator.words.event import Bookmark, Marker, MarkerNode, PhaseMove, PushEntry
from hgext.vcsreplicator.words.streams import Stream
from notifier.messages.message import messages
from notifier.messages.public import PublicSettings
from testing.builders.notifier.notices import a_notice, an_event, node
from testing.services.cache import CHECKOUT

GOLDEN = Path(__file__).with_name("golden")
DOCS = CHECKOUT / "docs/messages.md"

texts = st.text(max_size=20) | st.just("caf\udce9")
pushes = st.builds(PushEntry, id=st.integers(1, 10**6), user=texts, date=st.integers(0, 2**33))
unknown = st.builds(
    MarkerNode, node=st.just(node(1)), known=st.just(False), visible=st.none(), desc=st.none(), push=st.none()
)
known = st.builds(
    MarkerNode, node=st.just(node(2)), known=st.just(True), visible=st.booleans(), desc=texts, push=st.none() | pushes
)
changesets = known | unknown
markers = st.builds(
    Marker,
    precursor=changesets,
    successors=st.lists(changesets, max_size=3).map(tuple),
    user=st.none() | texts,
    time=st.floats(0, 2**33),
)
bookmarks = st.builds(Bookmark, name=texts, node=st.none() | st.just(node(3)))
phases = st.builds(PhaseMove, phase=st.integers(0, 2), nodes=st.just((node(4),)))


@functools.cache
def validator(stream: Stream) -> jsonschema.Draft202012Validator:
    """Of all messages of a type: to check the schema takes longer than to validate one."""
    schema: dict[str, Any] = json.loads((CHECKOUT / "notifier/messages/schemas" / f"{stream.value}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("stream", Stream)
def test_documented_example_has_the_form_of_its_schema(stream: Stream) -> None:
    example = json.loads((GOLDEN / f"{stream.value}.json").read_text())
    validator(stream).validate(example)


@pytest.mark.parametrize("stream", Stream)
def test_schema_refuses_what_is_not_documented(stream: Stream) -> None:
    example = json.loads((GOLDEN / f"{stream.value}.json").read_text())
    example["data"]["secret"] = 1
    with pytest.raises(jsonschema.ValidationError):
        validator(stream).validate(example)


@settings(deadline=None)
@given(
    st.none() | pushes,
    st.lists(markers, max_size=3),
    st.lists(bookmarks, max_size=3, unique_by=lambda bookmark: bookmark.name),
    st.lists(phases, max_size=2),
)
def test_every_message_has_the_form_of_its_schema(
    push: PushEntry | None, some: list[Marker], moved: list[Bookmark], moves: list[PhaseMove]
) -> None:
    event = an_event("try", 2, markers=some, bookmarks=moved, phases=moves)
    event = replace(event, changes=replace(event.changes, push=push))
    found = messages(a_notice(event), 0, PublicSettings(urls={"": "https://hg.example/"}))
    assert found
    for message in found:
        written = json.loads(json.dumps(message.envelope))
        validator(message.type).validate(written)
        json.dumps(written, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("stream", Stream)
def test_docs_show_the_example_as_it_is(stream: Stream) -> None:
    example = (GOLDEN / f"{stream.value}.json").read_text().rstrip()
    assert f"```json\n{example}\n```" in DOCS.read_text()
    assert f"schemas/{stream.value}.json" in DOCS.read_text()
