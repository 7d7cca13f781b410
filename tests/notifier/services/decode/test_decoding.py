# SPDX-License-Identifier: GPL-2.0-or-later
"""Decoding of one message: what comes out, why one is rejected, and that nothing private is left anywhere.

The golden files have what becomes of a raw message each. Write them again after an intended change:

    python -m tests.notifier.services.decode.test_decoding
"""

import base64
import gzip
import json
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import from_json
from notifier.messages.raw import PRIVATE, RawMessage, from_line, to_line
from notifier.services.decode import decoding
from notifier.services.decode.decoding import Decoded, Tools, decode, reject_repeat
from notifier.services.decode.documents import DocumentSchemas, load_schemas
from notifier.services.decode.geo import GeoLookup, open_geo
from notifier.services.decode.rejection import DecodeReject, ErrorType
from notifier.services.decode.rejects import error_record
from notifier.services.decode.settings import SHIPPED
from notifier.services.decode.sources import RawArrival
from notifier.services.edge.settings import HEAD_BYTES
from testing.builders.notifier.submissions import (
    BERLIN,
    ENGLAND,
    HGPUSH,
    ID,
    IPV6,
    TELEMETRY,
    VILLAGE,
    a_document,
    a_raw,
    injected,
    write_cities,
    write_geo,
)
from testing.services.cache import CHECKOUT

GOLDEN = Path(__file__).with_name("golden")
# The schema of what the decoder adds to a document.
DECODED = json.loads((CHECKOUT / "notifier/messages/schemas/decoded.1.json").read_text())
# The schema of where it adds that to the body.
INGESTION = json.loads((CHECKOUT / "notifier/messages/schemas/ingestion.1.json").read_text())

# What a client may be recognized by.
PLANTED = ("203.0.113.7", "203-0-113-7", "203_0_113_7", "2001:db8::7", "planted-agent")


def packed(content: bytes) -> bytes:
    """A stream of gzip, the same from every Python."""
    return zlib.compress(content, 9, wbits=31)


def cases() -> dict[str, bytes]:
    """The raw message of each golden file."""
    document = json.dumps(a_document()).encode()
    firefox = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:109.0) Gecko/20100101 Firefox/115.0.2"
    raw = {
        "decoded": a_raw(),
        "decoded-gzip": a_raw(packed(document)),
        "decoded-zstd": a_raw(zstandard.ZstdCompressor().compress(document)),
        "decoded-headers": a_raw(date="Mon", dnt="1", x_pingsender_version="1.0", x_debug_id="me", args="a=b"),
        "decoded-browser": a_raw(user_agent=firefox, x_forwarded_for=ENGLAND),
        "decoded-client": a_raw({**a_document(), "client_info": {"client_id": "2907648d-711b-4e9f-94b5-52a2b40a44b1"}}),
        "decoded-village": a_raw(x_forwarded_for=VILLAGE),
        "decoded-ipv6": a_raw(x_forwarded_for=IPV6),
        "decoded-nowhere": a_raw(x_forwarded_for="unknown", user_agent=""),
        "attributes-missing": RawMessage(document, {"uri": HGPUSH, "x_forwarded_for": BERLIN}),
        "attributes-timestamp": a_raw(submission_timestamp="yesterday"),
        "uri": a_raw(uri="/submit/eng-workflow/hgpush/1/no-id"),
        "uri-telemetry": a_raw(uri=TELEMETRY, args="v=3"),
        "compression": a_raw(packed(document)[:-9]),
        "compression-zstd": a_raw(zstandard.ZstdCompressor().compress(document)[:-9]),
        "size": a_raw(b" " * 100_001),
        "size-unpacked": a_raw(packed(b" " * 100_001)),
        "json": a_raw(b"{'no': 'json'}"),
        "json-list": a_raw([1]),
        "schema": a_raw({**a_document(), "changesetID": "203.0.113.7"}),
        "schema-member-missing": a_raw({"changesetID": "0" * 40}),
        "schema-unknown": a_raw(uri=HGPUSH.replace("/1/", "/2/")),
        "schema-version": a_raw({"type": "main"}, uri=TELEMETRY, args="v=4"),
    }
    lines = {name: to_line(message) for name, message in raw.items()}
    lines["form"] = b'{"x_forwarded_for": "203.0.113.7"'
    lines["form-attribute"] = b'{"payload": "", "attributeMap": {"x_forwarded_for": ["203.0.113.7"]}}'
    lines["base64"] = b'{"payload": "no base64", "attributeMap": {"uri": "/", "remote_addr": "203.0.113.7"}}'
    return lines


class BrokenDatabase:
    """A database of places that fails, each time with these exceptions, the last caused by the one before; all name the client."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self.kinds = kinds

    def get(self, address: str) -> None:
        self.fail(self.kinds, address)

    def fail(self, kinds: Sequence[type[Exception]], address: str) -> None:
        *earlier, last = kinds
        if not earlier:
            raise last(address)
        try:
            self.fail(earlier, address)
        except Exception as error:
            raise last(address) from error


# An exception with two causes more than a reject keeps: from the first cause to the exception itself.
CHAIN = (KeyError, BufferError, AttributeError, AssertionError, TypeError, ArithmeticError, LookupError, RuntimeError)

# The golden files of exceptions that no message causes.
FAILURES = {
    "unexpected": CHAIN[-1:],
    "unexpected-five-causes": CHAIN[-6:],
    "unexpected-more-causes": CHAIN,
}
GOLDEN_NAMES = (*cases(), "repeat", *FAILURES)


def result_of(name: str, tools: Tools) -> Decoded | DecodeReject:
    """What a golden file is about."""
    if name in FAILURES:
        broken: Any = BrokenDatabase(*FAILURES[name])
        return decode(to_line(a_raw()), replace(tools, geo=GeoLookup(database=broken)))
    if name == "repeat":
        delivered = decode(to_line(a_raw()), tools)
        assert isinstance(delivered, Decoded)
        return reject_repeat(delivered)
    return decode(cases()[name], tools)


def outcome(result: Decoded | DecodeReject) -> dict[str, Any]:
    """What a golden file has of a result; of a stack trace the class alone."""
    if isinstance(result, Decoded):
        return {"body": json.loads(result.body), "attributes": dict(result.attributes)}
    errors = {name: text.splitlines()[0] for name, text in result.errors.items()}
    payload = base64.b64encode(result.raw.payload).decode()
    if len(payload) > 1000:
        payload = f"{len(payload)} characters"
    return {"payload": payload, "attributes": {**result.raw.attributes, **errors}}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_message_becomes_what_its_golden_file_has(name: str, tools: Tools) -> None:
    result = result_of(name, tools)
    assert outcome(result) == json.loads((GOLDEN / f"{name}.json").read_text())
    assert name.startswith("decoded" if isinstance(result, Decoded) else result.kind)


def test_there_is_a_golden_file_for_every_kind_of_error() -> None:
    found = {json.loads(file.read_text())["attributes"].get("error_type") for file in GOLDEN.glob("*.json")}
    assert found == {None, *ErrorType}
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(GOLDEN_NAMES)


@pytest.mark.parametrize("name", [name for name in cases() if name.startswith("decoded")])
@pytest.mark.more
def test_decoded_attributes_match_their_schema_and_are_in_the_body(name: str, tools: Tools) -> None:
    result = decode(cases()[name], tools)
    assert isinstance(result, Decoded)
    jsonschema.validate(dict(result.attributes), DECODED)
    jsonschema.validate(json.loads(result.body), INGESTION)
    assert injected(result.body) == result.attributes


def test_the_shipped_schemas_are_schemas() -> None:
    jsonschema.Draft202012Validator.check_schema(DECODED)
    jsonschema.Draft202012Validator.check_schema(INGESTION)
    assert load_schemas(SHIPPED).routes == {"eng-workflow.hgpush"}


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        ("changesetID", "A" * 40),
        ("changesetID", "0" * 40 + "\n"),
        ("repository", "mozilla-central"),
        ("reviewSystemUsed", None),
        ("pushDate", "2026-11-23"),
        ("landingSystem", 1),
        ("diffstat", {"additions": -1}),
    ],
)
def test_a_document_with_a_wrong_member_is_rejected_by_its_place(member: str, wrong: Any, tools: Tools) -> None:
    result = decode(to_line(a_raw({**a_document(), member: wrong})), tools)
    assert isinstance(result, DecodeReject)
    assert f"hgpush: properties/{member}" in result.errors["error_message"]


def test_optional_members_may_be_absent(tools: Tools) -> None:
    required = ("changesetID", "repository", "reviewSystemUsed")
    assert isinstance(decode(to_line(a_raw({name: a_document()[name] for name in required})), tools), Decoded)


def telemetry(tools: Tools) -> Tools:
    """Tools with a schema for telemetry that takes anything."""
    anything = {("telemetry", "main", "4"): jsonschema.Draft202012Validator({})}
    return Tools(schemas=DocumentSchemas(anything), geo=tools.geo)


@pytest.mark.parametrize("version", [{"version": 4}, {"version": "4"}, {"v": 4}])
def test_telemetry_has_its_version_in_the_body(version: dict[str, Any], tools: Tools) -> None:
    system = {"name": "Windows_NT", "version": "10.0.19045.1"}
    body = {
        **version,
        "application": {"name": "firefox", "channel": "nightly-cck"},
        "environment": {"system": {"os": system}},
    }
    result = decode(to_line(a_raw(body, uri=TELEMETRY, args="v=4")), telemetry(tools))
    assert isinstance(result, Decoded)
    jsonschema.validate(dict(result.attributes), DECODED)
    expected = {
        "document_version": "4",
        "document_id": ID,
        "app_name": "Firefox",
        "app_version": "61.0a1",
        "app_update_channel": "nightly",
        "app_build_id": "20180328030202",
        "normalized_app_name": "Firefox",
        "normalized_channel": "nightly",
        "normalized_os": "Windows",
    }
    assert expected.items() <= result.attributes.items()
    assert result.attributes.get("normalized_os_version") is None  # four numbers may be an address
    assert expected["normalized_os"] == json.loads(result.body)["normalized_os"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, "Windows") for name in ("Windows", "WINNT", "Windows_NT", "WindowsNT", "windows")),
        *((name, "Mac") for name in ("Darwin", "Mac", "macOS", "Mac OS X", "OS X")),
        *((name, "Linux") for name in ("Linux", "GNU/Linux", "SunOS", "Solaris", "FreeBSD", "GNU/kFreeBSD", "OpenBSD")),
        *((name, "iOS") for name in ("iOS", "iPhone", "iPadOS", "iPad")),
        *((name, "Android") for name in ("Android", "android 14")),
        *((name, "Other") for name in ("AmigaOS", "Haiku")),
    ],
)
def test_a_system_is_normalized_from_each_place_of_a_body(name: str, expected: str, tools: Tools) -> None:
    for place in ({"os": name}, {"environment": {"system": {"os": {"name": name}}}}, {"client_info": {"os": name}}):
        result = decode(to_line(a_raw({"version": 4, **place}, uri=TELEMETRY, args="v=4")), telemetry(tools))
        assert isinstance(result, Decoded)
        assert result.attributes["normalized_os"] == expected


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        *((name, name) for name in ("release", "esr", "beta", "aurora", "nightly")),
        ("release-cck-mozilla", "release"),
        ("esr-cck-1", "esr"),
        ("nightly-cck", "nightly"),
        ("beta-cdntest", "beta"),
        ("betastop", "beta"),
        ("esr52", "Other"),
        ("released", "Other"),
        ("Release", "Other"),
        ("no", "Other"),
    ],
)
def test_a_channel_is_normalized(channel: str, expected: str, tools: Tools) -> None:
    for place in ({"application": {"channel": channel}}, {"client_info": {"app_channel": channel}}):
        result = decode(to_line(a_raw({"version": 4, **place}, uri=TELEMETRY, args="v=4")), telemetry(tools))
        assert isinstance(result, Decoded)
        assert result.attributes["normalized_channel"] == expected


def test_the_systems_version_of_glean_is_normalized(tools: Tools) -> None:
    body = {"version": 4, "client_info": {"os": "Linux", "os_version": "6.1.0-18"}}
    result = decode(to_line(a_raw(body, uri=TELEMETRY, args="v=4")), telemetry(tools))
    assert isinstance(result, Decoded)
    assert result.attributes["normalized_os_version"] == "6.1.0"


@pytest.mark.parametrize("wrong", ["2026-13-45T14:00:00Z", "2026-02-30T14:00:00Z", "2026-11-23T25:00:00.5Z"])
def test_a_time_that_no_calendar_has_is_no_timestamp(wrong: str, tools: Tools) -> None:
    result = decode(to_line(a_raw(submission_timestamp=wrong)), tools)
    assert isinstance(result, DecodeReject)
    assert "submission_timestamp" in result.errors["error_message"]


def test_what_a_client_writes_where_the_decoder_does_is_gone(tools: Tools) -> None:
    forged = {**a_document(), "metadata": {"geo_country": "XX"}, "normalized_os": "forged", "sample_id": 5, "sample": 1}
    result = decode(to_line(a_raw(forged)), tools)
    assert isinstance(result, Decoded)
    body = json.loads(result.body)
    assert injected(result.body) == result.attributes
    assert "normalized_os" not in body
    assert "sample_id" not in body
    assert body["sample"] == 1


CLIENT = "2907648d-711b-4e9f-94b5-52a2b40a44b1"


@pytest.mark.parametrize(
    "client",
    [
        {"clientId": CLIENT},
        {"client_id": CLIENT},
        {"client_info": {"client_id": CLIENT}},
        {"clientId": CLIENT.upper()},
        {"client_id": f"{{{CLIENT}}}"},
        {"client_info": None, "client_id": 7, "clientId": CLIENT},
    ],
    ids=str,
)
def test_a_sample_id_is_the_checksum_of_the_clients_id(client: dict[str, Any], tools: Tools) -> None:
    result = decode(to_line(a_raw({**a_document(), **client})), tools)
    assert isinstance(result, Decoded)
    assert result.attributes["sample_id"] == "67"
    assert json.loads(result.body)["sample_id"] == 67


@pytest.mark.parametrize("client", [{}, {"clientId": None}, {"client_id": "me"}, {"client_info": []}], ids=str)
def test_a_document_without_a_clients_id_has_no_sample_id(client: dict[str, Any], tools: Tools) -> None:
    result = decode(to_line(a_raw({**a_document(), **client})), tools)
    assert isinstance(result, Decoded)
    assert "sample_id" not in result.attributes.keys() | json.loads(result.body).keys()


def test_metadata_is_nested_as_the_public_schema_has_it(tools: Tools) -> None:
    result = decode(to_line(a_raw({"version": 4}, uri=TELEMETRY, args="v=4", dnt="1")), telemetry(tools))
    assert isinstance(result, Decoded)
    body = json.loads(result.body)
    assert body["submission_timestamp"] == "2026-11-23T14:00:00.123456Z"
    assert body["document_id"] == ID
    assert body["metadata"] == {
        "document_namespace": "telemetry",
        "document_type": "main",
        "document_version": "4",
        "geo": {"country": "DE", "subdivision1": "BE", "city": "Berlin"},
        "header": {"dnt": "1"},
        "uri": {
            "app_name": "Firefox",
            "app_version": "61.0a1",
            "app_update_channel": "nightly",
            "app_build_id": "20180328030202",
        },
        "user_agent": {"browser": "Mercurial", "version": "7.2"},
    }


def test_a_type_without_ids_gets_one_that_is_the_same_each_time(tools: Tools) -> None:
    made = Tools(schemas=tools.schemas, without_id=frozenset({"eng-workflow.hgpush"}))
    first, again, other = (
        decode(
            to_line(a_raw(uri="/submit/eng-workflow/hgpush/1", submission_timestamp=f"2026-11-23T14:00:0{n}Z")), made
        )
        for n in (1, 1, 2)
    )
    assert isinstance(first, Decoded)
    assert isinstance(again, Decoded)
    assert isinstance(other, Decoded)
    assert first.id == again.id != other.id
    assert first.identity is None
    jsonschema.validate(dict(first.attributes), DECODED)


@pytest.mark.parametrize("name", cases())
def test_a_reject_can_be_decoded_again_to_the_same_end(name: str, tools: Tools) -> None:
    result = decode(cases()[name], tools)
    if isinstance(result, DecodeReject) and result.kind not in ("form", "base64"):
        again = decode(to_line(result.as_raw()), tools)
        assert isinstance(again, DecodeReject)
        assert again.raw == result.raw
        assert again.errors["error_message"] == result.errors["error_message"]


def test_a_repeat_is_rejected_with_its_metadata_alone(tools: Tools) -> None:
    decoded = decode(to_line(a_raw()), tools)
    assert isinstance(decoded, Decoded)
    found = reject_repeat(decoded)
    assert (found.kind, found.raw.payload, found.raw.attributes) == ("repeat", b"", decoded.attributes)


class FailingGeo(GeoLookup):
    """Fails at every look, and says at what."""

    def __init__(self) -> None:
        """It has no database."""

    def find(self, attributes: Mapping[str, str]) -> dict[str, str]:
        try:
            raise KeyError(attributes["user_agent"])
        except KeyError as error:
            raise RuntimeError(f"no such agent: {attributes['user_agent']}") from error


class ShortGeo(FailingGeo):
    """The machine is short of memory."""

    def find(self, attributes: Mapping[str, str]) -> dict[str, str]:
        raise MemoryError


def test_an_unexpected_exception_is_a_reject_that_does_not_quote_it(tools: Tools) -> None:
    result = decode(to_line(a_raw(user_agent="planted-agent")), replace(tools, geo=FailingGeo()))
    assert isinstance(result, DecodeReject)
    assert result.errors["error_type"] == "unexpected"
    assert result.errors["exception_class"] == "builtins.RuntimeError"
    assert "in find" in result.errors["stack_trace"]
    assert result.errors["stack_trace_cause_1"].startswith("builtins.KeyError\n")
    assert "planted-agent" not in repr(result)


LARGE = [{"x_debug_id": "\xe9" * 2_000_000}, {"x_forwarded_for": "1," * 60_000}, {"user_agent": "a" * 100_000}]


@pytest.mark.parametrize("attributes", LARGE, ids=lambda found: next(iter(found)))
def test_attributes_that_no_record_could_hold_are_a_reject_that_one_holds(
    tools: Tools, attributes: dict[str, str]
) -> None:
    line = to_line(a_raw(**attributes))
    result = decode(line, tools)
    assert isinstance(result, DecodeReject)
    assert result.errors["error_message"] == "attributes: more than 98304 bytes"
    kept = from_json(ErrorRecord, error_record(result, RawArrival(line=line, place="raw"), 1.0).value or b"")
    assert base64.b64decode(kept.value or "") == a_raw().payload
    assert max(map(len, result.raw.attributes.values())) <= 1000


def test_the_largest_attributes_of_the_edge_are_decoded(tools: Tools) -> None:
    assert isinstance(decode(to_line(a_raw(x_debug_id="\xe9" * HEAD_BYTES)), tools), Decoded)


def test_a_body_too_large_for_a_record_once_written_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All sizes are a sixteenth of the real ones."""
    monkeypatch.setattr(decoding, "_LARGEST_WRITTEN", decoding._LARGEST_WRITTEN // 16)
    tools = Tools(schemas=load_schemas(SHIPPED), largest=250_000)
    body = json.dumps({**a_document(), "note": []}).replace("[]", "[" + "1e15," * 37_500 + "1]")
    result = decode(to_line(a_raw(body.encode())), tools)
    assert isinstance(result, DecodeReject)
    assert (result.kind, "as ASCII JSON" in result.errors["error_message"]) == ("size", True)


@pytest.mark.parametrize(
    ("written", "delivered"),
    [("1E5", "100000.0"), ("0.12345678901234567890", "0.12345678901234568"), ("9" * 100, "9" * 100)],
)
def test_numbers_are_delivered_as_the_page_says(written: str, delivered: str, tools: Tools) -> None:
    body = json.dumps({**a_document(), "note": 1}).replace('"note": 1', f'"note": {written}')
    result = decode(to_line(a_raw(body.encode())), tools)
    assert isinstance(result, Decoded)
    assert f'"note":{delivered},'.encode() in result.body


@pytest.mark.parametrize("written", ["1e400", "9" * 101])
def test_numbers_that_the_page_refuses_are_rejects(written: str, tools: Tools) -> None:
    body = json.dumps({**a_document(), "note": 1}).replace('"note": 1', f'"note": {written}')
    result = decode(to_line(a_raw(body.encode())), tools)
    assert isinstance(result, DecodeReject)
    assert result.kind == "json"


def test_a_shortage_of_the_machine_is_no_reject(tools: Tools) -> None:
    with pytest.raises(MemoryError):
        decode(to_line(a_raw()), replace(tools, geo=ShortGeo()))


# -- privacy

addresses = st.sampled_from(PLANTED)
agents = st.one_of(
    addresses,
    addresses.map("mercurial/proto-1.0 (Mercurial {})".format),
    addresses.map("Mozilla/5.0 (X11; Linux {0}; rv:{0}) Gecko/20100101 Firefox/{0}".format),
    # The name of a bot is its own word, so only addresses must not be in it.
    st.sampled_from(PLANTED[:4]).map("Mozilla/5.0 (compatible; {0}bot/{0}; +http://{0}/bot.html)".format),
    addresses.map("Mozilla/5.0 (Windows NT {0}) AppleWebKit/{0} Chrome/{0} Safari/{0}".format),
    st.sampled_from(PLANTED[:4]).map("{0} CFNetwork/{0} Darwin/{0}".format),
    st.tuples(st.text(max_size=20), addresses, st.text(max_size=20)).map("".join),
)
forwarded = st.one_of(
    addresses,
    st.lists(addresses | st.text(max_size=10), max_size=4).map(",".join),
    addresses.map("[{}]:443".format),
    addresses.map("{}%eth0".format),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | addresses,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10) | addresses, inner, max_size=3),
    max_leaves=10,
)
documents = st.one_of(
    st.just(a_document()),
    st.builds(lambda name, value: {**a_document(), name: value}, st.sampled_from(sorted(a_document())), values),
    st.builds(lambda name, value: {**a_document(), name: value}, st.text(max_size=10), values),
    values,
)
payloads = st.one_of(
    documents.map(lambda found: json.dumps(found).encode()),
    documents.map(lambda found: gzip.compress(json.dumps(found).encode(), 1)),
    documents.map(lambda found: zstandard.ZstdCompressor(1).compress(json.dumps(found).encode())),
    st.binary(max_size=100),
    st.binary(max_size=100).map(b"\x1f\x8b\x08".__add__),
    st.binary(max_size=100).map(b"\x28\xb5\x2f\xfd".__add__),
    st.integers(1, 1500).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth),
    st.integers(1, 5000).map(lambda digits: b'{"pushDate":' + b"9" * digits + b"}"),
)
attributes = st.fixed_dictionaries(
    {
        "submission_timestamp": st.just("2026-11-23T14:00:00.123456Z") | st.text(max_size=10),
        "uri": st.sampled_from([HGPUSH, HGPUSH, HGPUSH, TELEMETRY, "/submit"]) | st.text(max_size=10),
        "protocol": st.just("HTTP/1.1"),
    },
    optional={
        "method": st.just("POST"),
        "args": st.just("v=4") | st.text(max_size=10),
        "date": st.text(max_size=10),
        "x_forwarded_for": forwarded,
        "remote_addr": addresses | st.text(max_size=10),
        "user_agent": agents,
        "X-Forwarded-For": addresses,
        "remote_port": addresses,
    },
)
raw_lines = st.builds(RawMessage, payloads, attributes).map(to_line)
lines = st.one_of(
    raw_lines,
    raw_lines,
    st.builds(lambda line, end: line[:end], raw_lines, st.integers(0, 300)),
    st.builds(
        lambda line, at, new: line[:at] + new + line[at + 1 :], raw_lines, st.integers(0, 300), st.binary(max_size=2)
    ),
    st.binary(max_size=100),
)


def check_any_line(line: bytes, tools: Tools) -> None:
    """For any input the result is whole, and nothing of it identifies a client beyond what is in its body."""
    result = decode(line, tools)
    if isinstance(result, Decoded):
        assert injected(result.body) == result.attributes
        jsonschema.validate(json.loads(result.body), INGESTION)
        jsonschema.validate(dict(result.attributes), DECODED)
        assert b"\n" not in result.body
        said = dict(result.attributes)
    else:
        assert result.kind in set(ErrorType)
        assert {"error_message", "exception_class", "stack_trace"} <= result.errors.keys()
        assert result.kind != "unexpected", result.errors["stack_trace"]
        assert from_line(to_line(result.as_raw())) == result.as_raw()
        said = {**result.raw.attributes, **result.errors}
        if result.kind == "form":
            assert result.raw == RawMessage(b"", {})
    assert not set(PRIVATE) & said.keys()
    assert not [word for word in PLANTED if word in json.dumps(said)]


@pytest.fixture(scope="module")
def any_tools(places: Path) -> Tools:
    geo = open_geo(str(places / "geo.mmdb"), str(places / "cities.txt"), 0, 1)
    anything = {("telemetry", "main", "4"): jsonschema.Draft202012Validator({})}
    validators = {**load_schemas(SHIPPED).validators, **anything}
    return Tools(schemas=DocumentSchemas(validators), geo=geo, largest=20_000)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=3 * settings.default.max_examples)
@given(lines)
@example(to_line(a_raw(b'{"a":' * 900 + b"1" + b"}" * 900)))
@example(to_line(a_raw(b'{"pushDate": 1e400}')))
@example(to_line(a_raw(user_agent="mercurial/proto-1.0 (Mercurial 203.0.113.7)")))
def test_any_line_is_decoded_or_rejected_without_what_is_private(any_tools: Tools, line: bytes) -> None:
    check_any_line(line, any_tools)


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=100_000)
@given(lines)
def test_any_of_many_lines_is_decoded_or_rejected_without_what_is_private(any_tools: Tools, line: bytes) -> None:
    check_any_line(line, any_tools)


def write_golden() -> None:
    """Write all golden files again."""
    with tempfile.TemporaryDirectory() as folder:
        geo = open_geo(str(write_geo(Path(folder, "geo"))), str(write_cities(Path(folder, "cities"))), 15000, 0)
        tools = Tools(schemas=load_schemas(SHIPPED), geo=geo, largest=100_000)
        for name in GOLDEN_NAMES:
            text = json.dumps(outcome(result_of(name, tools)), indent=2, sort_keys=True)
            (GOLDEN / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(write_golden())
