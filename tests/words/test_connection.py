# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from, as a header of records: a golden file, and headers of any other form."""

import json
from pathlib import Path

import pytest

from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds
from hgext.vcsreplicator.words.event import PushConnection
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.wire import (
    CONNECTION,
    CONNECTION_LIMIT,
    SIGNED,
    SIGNED_LIMIT,
    carried,
    connection_headers,
    read_connection,
    read_signed,
)
from tests.words.test_wire import EVENT

GOLDEN = Path(__file__).with_name("golden") / "connection.1.json"
WHOLE = PushConnection(
    address="10.0.0.7", forwarded="198.51.100.1, 2001:db8::7", client="mercurial/proto-1.0 (Mercurial 7.2) größe"
)


def test_the_header_is_that_of_the_golden_file() -> None:
    assert connection_headers(WHOLE) == {CONNECTION: GOLDEN.read_text().rstrip("\n")}
    assert read_connection(connection_headers(WHOLE)) == WHOLE


def test_an_entry_without_a_connection_has_the_bytes_it_always_had() -> None:
    entry = Entry(event=EVENT, needs=MirrorNeeds.NOTHING)
    assert "connection" not in json.loads(to_json(entry))
    assert from_json(Entry, to_json(entry)).connection is None
    with_connection = Entry(event=EVENT, needs=MirrorNeeds.NOTHING, connection=WHOLE)
    assert from_json(Entry, to_json(with_connection)).connection == WHOLE


def test_no_connection_is_no_header() -> None:
    assert connection_headers(None) == {}
    assert read_connection({"other": "x"}) is None


@pytest.mark.parametrize("text", ["", "x", "[]", '{"address":7}', "\udc80", '"' * 40_000], ids=repr)
def test_a_header_of_another_form_is_no_connection(text: str) -> None:
    assert read_connection({CONNECTION: text}) is None


def test_members_of_a_newer_release_are_passed_over() -> None:
    assert read_connection({CONNECTION: '{"address":"::1","port":7}'}) == PushConnection(address="::1")


def test_only_the_connection_goes_along_and_none_that_is_too_large() -> None:
    assert carried({"ce_id": "x", CONNECTION: "{}"}) == {CONNECTION: "{}"}
    assert carried({CONNECTION: "x" * (CONNECTION_LIMIT + 1)}) == {}


@pytest.mark.parametrize("text", ["", "x\r\ny: z", "x\x7f", "\xe9", "x" * (SIGNED_LIMIT + 1)])
def test_a_signed_notice_that_no_header_can_carry_is_none(text: str) -> None:
    assert read_signed({SIGNED: text}) is None
    assert read_signed({SIGNED: "x" * SIGNED_LIMIT}) is not None


def test_the_header_of_a_signed_notice_does_not_go_along_with_an_event() -> None:
    assert carried({SIGNED: "x"}) == {}
