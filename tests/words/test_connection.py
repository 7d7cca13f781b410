# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a push came from, as a header of records: a golden file, limits, and bytes of any kind."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.outbox.entry import Entry, Needs
from hgext.vcsreplicator.words.connection import (
    ADDRESS_LIMIT,
    CLIENT_LIMIT,
    CONNECTION,
    FORWARDED_LIMIT,
    HEADER_LIMIT,
    PushConnection,
    carried,
    connection_headers,
    connection_of,
    read_connection,
)
from hgext.vcsreplicator.words.shape import from_json, to_json
from tests.words.test_wire import EVENT

GOLDEN = Path(__file__).with_name("golden") / "connection.1.json"
WHOLE = PushConnection(
    address="10.0.0.7", forwarded="198.51.100.1, 2001:db8::7", client="mercurial/proto-1.0 (Mercurial 7.2) größe"
)


def test_the_header_is_that_of_the_golden_file() -> None:
    assert connection_headers(WHOLE) == {CONNECTION: GOLDEN.read_text().rstrip("\n")}
    assert read_connection(connection_headers(WHOLE)) == WHOLE


def test_an_entry_of_the_outbox_without_a_connection_has_the_bytes_it_always_had() -> None:
    entry = Entry(event=EVENT, needs=Needs.NOTHING)
    assert "connection" not in json.loads(to_json(entry))
    assert from_json(Entry, to_json(entry)).connection is None
    with_connection = Entry(event=EVENT, needs=Needs.NOTHING, connection=WHOLE)
    assert from_json(Entry, to_json(with_connection)).connection == WHOLE


def test_what_is_not_known_is_absent() -> None:
    assert connection_of(address=b"", forwarded=b" ", client=b"") is None
    assert connection_of(address=b"::1", forwarded=b"", client=b"") == PushConnection(address="::1")
    assert connection_headers(None) == {}
    assert read_connection({"other": "x"}) is None


def test_a_list_of_addresses_keeps_whole_entries_at_its_right() -> None:
    forwarded = b"6.6.6.6, " * 500 + b"198.51.100.1, 10.0.0.7"
    found = connection_of(address=b"", forwarded=forwarded, client=b"")
    assert found is not None
    assert found.forwarded is not None
    assert set(found.forwarded.split(", ")) == {"6.6.6.6", "198.51.100.1", "10.0.0.7"}
    assert found.forwarded.endswith("198.51.100.1, 10.0.0.7")


@given(st.binary(max_size=5000), st.binary(max_size=5000), st.binary(max_size=5000))
def test_any_bytes_make_a_small_header_that_can_be_read(address: bytes, forwarded: bytes, client: bytes) -> None:
    found = connection_of(address=address, forwarded=forwarded, client=client)
    headers = connection_headers(found)
    assert read_connection(headers) == found
    if found is not None:
        assert len(headers[CONNECTION]) < HEADER_LIMIT
        assert headers[CONNECTION].isascii()
        assert len(found.address or "") <= ADDRESS_LIMIT
        assert len(found.forwarded or "") <= FORWARDED_LIMIT
        assert len(found.client or "") <= CLIENT_LIMIT


@pytest.mark.parametrize("text", ["", "x", "[]", '{"address":7}', "\udc80", '"' * 40_000], ids=repr)
def test_a_header_of_another_form_is_no_connection(text: str) -> None:
    assert read_connection({CONNECTION: text}) is None


def test_members_of_a_newer_release_are_passed_over() -> None:
    assert read_connection({CONNECTION: '{"address":"::1","port":7}'}) == PushConnection(address="::1")


def test_only_the_connection_goes_along_and_none_that_is_too_large() -> None:
    assert carried({"ce_id": "x", CONNECTION: "{}"}) == {CONNECTION: "{}"}
    assert carried({CONNECTION: "x" * (HEADER_LIMIT + 1)}) == {}
