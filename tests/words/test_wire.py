# SPDX-License-Identifier: GPL-2.0-or-later
"""The format of events: fixed by a golden file, and strict about everything else."""

import dataclasses
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words import digest, wire
from hgext.vcsreplicator.words.errors import MalformedEvent, Rejected, UnknownEvent
from hgext.vcsreplicator.words.event import (
    OFFERS_MARKERS,
    OFFERS_NO_MARKERS,
    UNKNOWN_SETTINGS,
    Bookmark,
    Changes,
    ClientSettings,
    Event,
    Heartbeat,
    Marker,
    MarkerNode,
    MasterSettings,
    NodeSet,
    PhaseMove,
    PushEntry,
    Tip,
    Type,
)
from hgext.vcsreplicator.words.shape import read

GOLDEN = Path(__file__).with_name("golden") / "event.1.bin"
NODE = "0123456789" * 4
OTHER = "a" * 40

CHANGES = Changes(
    added=NodeSet(count=2, sha256="1" * 64),
    heads_added=(NODE,),
    heads_removed=(OTHER,),
    phases=(PhaseMove(phase=0, nodes=(NODE,)),),
    bookmarks=(Bookmark(name="wip", node=NODE), Bookmark(name="gone", node=None)),
    markers=(
        Marker(
            precursor=MarkerNode(node=OTHER, known=False, visible=None, desc=None, push=None),
            successors=(MarkerNode(node=NODE, known=True, visible=True, desc="größe", push=None),),
            user="dana@example.com",
            time=1472075231.0,
        ),
    ),
    markers_sha256="2" * 64,
    push=PushEntry(id=7, user="dana@example.com", date=1472075231),
)
EVENT = Event(
    type=Type.CHANGED,
    repository="b" * 32,
    incarnation="c" * 32,
    path="integration/autoland",
    generation=1,
    seq=2,
    id="d" * 32,
    previous="e" * 32,
    digest=digest.advance(digest.START, Type.CHANGED, CHANGES),
    time=1472075231.25,
    source="serve",
    changes=CHANGES,
    after=Tip(length=5, node=NODE),
    settings=MasterSettings(requirements=("store",), evolution=("exchange",), publishing=False),
)
BUNDLE = b"HG20 bundle"


def test_the_bytes_of_an_event_are_those_of_the_golden_file() -> None:
    assert wire.encode(EVENT, wire.inline(BUNDLE), BUNDLE) == GOLDEN.read_bytes()


def test_an_event_is_read_back_as_it_was() -> None:
    frame = wire.decode(GOLDEN.read_bytes())
    assert (frame.event, frame.body) == (EVENT, BUNDLE)


STATED = dataclasses.replace(EVENT, settings=MasterSettings(evolution=OFFERS_MARKERS, publishing=False))
SILENT = dataclasses.replace(EVENT, settings=MasterSettings())


@pytest.mark.parametrize(("name", "event"), [("stated", STATED), ("silent", SILENT)])
def test_the_bytes_of_settings_are_those_of_the_golden_file(name: str, event: Event) -> None:
    golden = GOLDEN.with_name(f"event.1.{name}.bin").read_bytes()
    assert wire.encode(event) == golden
    assert wire.decode(golden).event == event


MEANINGS = {
    "of this release": (MasterSettings(evolution=OFFERS_NO_MARKERS, publishing=True), False, (True, False)),
    "of a relay of this release": (MasterSettings(requirements=("store",)), False, (None, None)),
    "of a former push": (MasterSettings(publishing=True), True, (True, None)),
    "of a former relay": (MasterSettings(publishing=True), False, (None, None)),
    "of a former event with drafts": (MasterSettings(publishing=False), False, (False, None)),
    "of a former push with evolve": (MasterSettings(evolution=("all",), publishing=False), True, (False, True)),
    "of a former push with options": (
        MasterSettings(evolution=("createmarkers", "exchange"), publishing=False),
        True,
        (False, True),
    ),
    "of a former push without exchange": (MasterSettings(evolution=("exchange",), publishing=True), True, (True, None)),
}


@pytest.mark.parametrize(("settings", "is_push", "meant"), MEANINGS.values(), ids=MEANINGS)
def test_settings_count_only_where_their_writer_knew_them(
    settings: MasterSettings, meant: tuple[bool | None, bool | None], *, is_push: bool
) -> None:
    found = settings.for_clients(is_push=is_push)
    assert (found.publishing, found.exchange) == meant


def test_settings_that_are_not_known_stay_as_they_were() -> None:
    before = ClientSettings(publishing=False, exchange=True)
    assert ClientSettings(exchange=False).after(before) == ClientSettings(publishing=False, exchange=False)
    assert UNKNOWN_SETTINGS.after(before) == before


def test_a_heartbeat_is_read_back_as_it_was() -> None:
    beat = Heartbeat(time=1.5, sender="relay")
    assert wire.decode(wire.encode_heartbeat(beat)).header.heartbeat == beat


def test_headers_name_the_event_in_the_words_of_cloudevents() -> None:
    assert wire.headers(EVENT, "hg://master.example") == {
        "ce_specversion": "1.0",
        "ce_id": EVENT.id,
        "ce_source": "hg://master.example",
        "ce_type": "vcsreplicator.changed.1",
        "ce_subject": "integration/autoland",
        "ce_time": "2016-08-24T21:47:11.250Z",
        "ce_sequence": "2",
        "ce_partitionkey": EVENT.repository,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../escape"},
        {"repository": "x"},
        {"id": "D" * 32},
        {"digest": "0"},
        {"seq": 0},
        {"seq": 1},
        {"generation": 0},
        {"previous": None},
        {"after": Tip(length=-1, node=NODE)},
        {"after": Tip(length=1, node="-" + NODE[1:])},
        {"changes": Changes(added=None, heads_added=("--config=x",))},
        {"changes": Changes(added=None, phases=(PhaseMove(phase=3, nodes=()),))},
        {"changes": Changes(added=None, bookmarks=(Bookmark(name=f"a\n{NODE} evil", node=NODE),))},
        {"changes": Changes(added=None, bookmarks=(Bookmark(name="", node=NODE),))},
        {"changes": Changes(added=None, bookmarks=(Bookmark(name="\ud800", node=NODE),))},
        {"changes": Changes(added=None, bookmarks=(Bookmark(name="x", node="tip"),))},
        {"changes": Changes(added=NodeSet(count=1, sha256="short"))},
    ],
)
def test_an_event_with_a_member_out_of_its_form_is_refused(change: dict[str, object]) -> None:
    value = wire.encode(dataclasses.replace(EVENT, **change))  # type: ignore[arg-type]
    with pytest.raises(MalformedEvent):
        wire.decode(value)


def test_a_header_that_would_grow_when_written_again_is_refused() -> None:
    value = wire.encode(EVENT)
    raw = value[8:].replace(rb"gr\u00f6\u00dfe", "größe".encode())
    assert raw != value[8:]
    with pytest.raises(MalformedEvent, match="ASCII"):
        wire.decode(value[:4] + len(raw).to_bytes(4, "big") + raw)


def test_a_newer_version_is_unknown_and_not_malformed() -> None:
    with pytest.raises(UnknownEvent):
        wire.decode(wire.encode(dataclasses.replace(EVENT, version=2)))


def test_an_unknown_type_is_unknown_and_not_malformed() -> None:
    value = wire.encode(EVENT).replace(b'"type":"changed"', b'"type":"chanted"')
    with pytest.raises(UnknownEvent):
        wire.decode(value)


def test_a_member_named_like_one_of_a_class_is_unknown() -> None:
    with pytest.raises(MalformedEvent, match="unknown member '_members'"):
        read(Tip, {"length": 0, "node": NODE, "_members": 1})


def test_one_flipped_bit_in_the_bundle_is_seen() -> None:
    value = bytearray(GOLDEN.read_bytes())
    value[-3] ^= 4
    with pytest.raises(MalformedEvent, match="SHA-256"):
        wire.decode(bytes(value))


def test_what_does_not_fit_into_a_record_is_refused_by_the_writer() -> None:
    body = b"x" * wire.FRAME_LIMIT
    with pytest.raises(Rejected, match="do not fit"):
        wire.encode(EVENT, wire.inline(body), body)


def test_a_body_without_an_inline_attachment_is_refused() -> None:
    with pytest.raises(MalformedEvent, match="without an inline attachment"):
        wire.decode(wire.encode(EVENT, None, b"x"))


@given(st.binary(max_size=200), st.integers(0, 900))
def test_any_bytes_are_decoded_or_refused(noise: bytes, where: int) -> None:
    golden = GOLDEN.read_bytes()
    for value in (noise, golden[:where] + noise + golden[where + len(noise) :], golden[:where]):
        try:
            wire.decode(value)
        except Rejected:
            continue


def test_the_digest_does_not_depend_on_the_order_things_were_observed_in() -> None:
    turned = dataclasses.replace(CHANGES, bookmarks=CHANGES.bookmarks[::-1], heads_added=CHANGES.heads_added[::-1])
    assert digest.advance(digest.START, Type.CHANGED, turned) == EVENT.digest


def test_the_digest_depends_on_every_part_of_the_change() -> None:
    seen = {
        EVENT.digest,
        digest.advance(EVENT.digest, Type.CHANGED, CHANGES),
        digest.advance(digest.START, Type.SYNC, CHANGES),
    }
    changes = (
        {"added": None}, {"heads_added": ()}, {"heads_removed": ()}, {"phases": ()}, {"bookmarks": ()},
        {"markers_sha256": None}, {"push": None}, {"removed": NodeSet(count=1, sha256="3" * 64)},
    )  # fmt: skip
    for change in changes:
        seen.add(digest.advance(digest.START, Type.CHANGED, dataclasses.replace(CHANGES, **change)))  # type: ignore[arg-type]
    assert len(seen) == 3 + len(changes)


def test_sets_of_nodes_and_markers_are_hashes_of_their_bytes() -> None:
    assert digest.node_set([]) is None
    assert digest.node_set([b"a" * 20, b"b" * 20]) == NodeSet(
        count=2, sha256=hashlib.sha256(b"a" * 20 + b"b" * 20).hexdigest()
    )
    assert digest.marker_hash([b"2", b"1"]) == digest.marker_hash([b"1", b"2"]) == hashlib.sha256(b"12").hexdigest()
