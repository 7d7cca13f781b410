# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw messages, their two forms, and the URIs that they are submitted to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgext.vcsreplicator.words.errors import MalformedEvent
from notifier.messages.raw import (
    REQUIRED,
    NotBase64,
    RawMessage,
    Submission,
    WrongUri,
    choose_partition,
    from_line,
    parse_uri,
    to_line,
    to_record,
    topic_of,
)

ID = "2c3a0767-d84a-4d02-8a92-fa54a3376049"
HGPUSH = f"/submit/eng-workflow/hgpush/1/{ID}"
TELEMETRY = f"/submit/telemetry/{ID}/main/Firefox/61.0a1/nightly/20180328030202"


@given(st.binary(), st.dictionaries(st.text(), st.text()))
def test_a_raw_message_survives_its_line(payload: bytes, attributes: dict[str, str]) -> None:
    raw = RawMessage(payload, attributes)
    assert from_line(to_line(raw)) == raw
    assert b"\n" not in to_line(raw)


def test_a_record_has_the_same_json_as_a_line() -> None:
    raw = RawMessage(b"{}", {"uri": HGPUSH})
    record = to_record(raw, "raw")
    assert (record.topic, record.value) == ("raw", to_line(raw))


def partition_of(uri: str, **more: str) -> int:
    return choose_partition(to_line(RawMessage(b"{}", {"uri": uri, **more})), 1000)


def test_all_messages_of_one_id_have_one_partition() -> None:
    same = [HGPUSH, HGPUSH.upper(), HGPUSH.replace("/1/", "/2/"), TELEMETRY, HGPUSH + "/"]
    other = {"args": f'"uri": "/submit/{ID[::-1]}', "user_agent": '", "uri": "/' + "a" * 36}
    found = {partition_of(uri) for uri in same} | {partition_of(uri, **other) for uri in same}
    assert len(found) == 1
    assert found != {partition_of(HGPUSH[:-1] + "8")}


def test_messages_spread_over_all_partitions_with_and_without_an_id() -> None:
    lines = [to_line(RawMessage(b"%d" % n, {"uri": HGPUSH[:-3] + f"{n:03}"})) for n in range(100)]
    assert {choose_partition(line, 8) for line in lines} == set(range(8))
    assert {choose_partition(to_line(RawMessage(b"%d" % n, {"uri": "/submit/a/b/1"})), 8) for n in range(100)} == set(
        range(8)
    )


def test_the_messages_of_the_notifier_keep_their_order_in_one_partition() -> None:
    found = {to_record(RawMessage(b"%d" % n, {"uri": "/", "origin": "notifier"}), "raw", 8).partition for n in range(9)}
    assert found == {0}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "payload and attributeMap"),
        (b'{"payload": ""}', "payload and attributeMap"),
        (b'{"payload": "", "attributeMap": {"uri": ["/"]}}', "object of texts"),
        (b'{"payload": "", "attributeMap": {"uri": {}}}', "object of texts"),
        (b'{"payload": "", "attributeMap": {"content_length": NaN}}', "not JSON"),
        (b'{"payload": "", "attributeMap": []}', "object of texts"),
        (b'{"payload": null, "attributeMap": {}}', "expected text"),
        (b'{"payload": 1, "attributeMap": {}}', "expected text"),
        (b'{"payload": "YQ=", "attributeMap": {"uri": "/"}}', "not base64"),
        (b'{"payload": "Y Q==", "attributeMap": {}}', "not base64"),
    ],
)
def test_a_malformed_line_is_refused_without_quoting_it(line: bytes, reason: str) -> None:
    with pytest.raises(MalformedEvent, match=reason) as refused:
        from_line(line)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_slash_at_the_end_of_a_uri_is_no_part_of_it() -> None:
    assert parse_uri(f"{HGPUSH}/") == parse_uri(HGPUSH)
    assert parse_uri(f"{TELEMETRY}/", "v=4") == parse_uri(TELEMETRY, "v=4")
    for wrong in (f"{HGPUSH}//", f"{TELEMETRY}//"):
        with pytest.raises(WrongUri):
            parse_uri(wrong, "v=4")


@pytest.mark.parametrize("args", ["", "a=b"])
def test_telemetry_may_leave_its_version_to_the_body(args: str) -> None:
    assert parse_uri(TELEMETRY, args) == parse_uri(TELEMETRY, "v=4")


def test_null_is_absent_and_a_number_its_text() -> None:
    line = (
        b'{"payload": "", "attributeMap": {"uri": "/", "dnt": null, "content_length": 12, "date": 1.50, "host": true}}'
    )
    assert from_line(line).attributes == {"uri": "/", "content_length": "12", "date": "1.50", "host": "true"}
    assert from_line(b'{"payload": "", "attributeMap": null}').attributes == {}


def test_unknown_members_of_a_line_are_ignored() -> None:
    line = b'{"payload": "e30=", "attributeMap": {"uri": "/"}, "messageId": 7, "publishTime": null}'
    assert from_line(line) == RawMessage(b"{}", {"uri": "/"})


def test_a_payload_that_is_no_base64_is_kept_with_its_attributes() -> None:
    with pytest.raises(NotBase64) as refused:
        from_line(b'{"payload": "no base64!", "attributeMap": {"uri": "/submit"}}')
    assert refused.value.raw == RawMessage(b"no base64!", {"uri": "/submit"})


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_missing_attribute_is_named(missing: str) -> None:
    attributes = dict.fromkeys(REQUIRED, "x")
    RawMessage(b"", attributes).check()
    del attributes[missing]
    with pytest.raises(MalformedEvent, match=missing):
        RawMessage(b"", attributes).check()


def test_a_uri_names_its_document() -> None:
    assert parse_uri(HGPUSH) == Submission(namespace="eng-workflow", type="hgpush", version="1", id=ID)
    assert parse_uri(HGPUSH.upper().replace("SUBMIT", "submit")).id == ID


def test_a_telemetry_uri_names_its_application_and_no_version() -> None:
    assert parse_uri(TELEMETRY, "v=4") == Submission(
        namespace="telemetry",
        type="main",
        version=None,
        id=ID,
        app_name="Firefox",
        app_version="61.0a1",
        app_update_channel="nightly",
        app_build_id="20180328030202",
    )


def test_a_type_without_ids_is_submitted_without_one() -> None:
    short = HGPUSH.removesuffix(f"/{ID}")
    assert parse_uri(short, without_id={"eng-workflow.hgpush"}).id is None
    with pytest.raises(WrongUri):
        parse_uri(HGPUSH, without_id={"eng-workflow.hgpush"})


@pytest.mark.parametrize(
    ("uri", "args"),
    [
        ("", ""),
        ("/", ""),
        ("/submit/eng-workflow/hgpush/1", ""),
        (HGPUSH + "\n", ""),
        (HGPUSH + "?v=4", ""),
        (HGPUSH[:-1], ""),
        (HGPUSH.replace("/1/", "/one/"), ""),
        (HGPUSH.replace("/1/", "/²/"), ""),
        (HGPUSH.replace("hgpush", ".."), ""),
        (HGPUSH.replace("eng-workflow", "telemetry"), "v=4"),
        (TELEMETRY, "v=3"),
        (TELEMETRY, "v=4&v=4"),
        (TELEMETRY + "/more", "v=4"),
        (TELEMETRY.replace("/nightly", ""), "v=4"),
        (TELEMETRY.replace("telemetry", "eng-workflow"), "v=4"),
    ],
)
def test_any_other_uri_is_refused_without_quoting_it(uri: str, args: str) -> None:
    with pytest.raises(WrongUri) as refused:
        parse_uri(uri, args)
    assert ID not in str(refused.value)


def test_a_place_in_the_log_is_a_topic_of_its_own() -> None:
    assert topic_of("log:raw") == "raw"
    assert topic_of("amqp://localhost//") is None
    for wrong in ("log:", "log:Raw", "log:../x", "log:events", "log:errors"):
        with pytest.raises(ValueError, match="expected"):
            topic_of(wrong)
