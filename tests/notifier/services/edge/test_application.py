# SPDX-License-Identifier: GPL-2.0-or-later
"""What the edge answers, and what it keeps of a request: over real connections."""

import json
import re

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.version import VERSION
from notifier.messages.raw import NOTIFIER, NOTIFIER_TYPES, ORIGIN
from testing.builders.notifier.submitting import SOME, TYPE, Edge, ask, connect, number_uuid, post, statuses, taken
from tests.fuzz.applications import Refused as RefusedRequest
from tests.fuzz.applications import ask_edge

pytestmark = pytest.mark.processes

TELEMETRY = "/submit/telemetry/2c3a0767-d84a-4d02-8a92-fa54a3376049/main/Firefox/61.0a1/nightly/20180328030202"


def status(edge: Edge, request: bytes) -> int:
    """The only answer, to a request after which the connection is closed."""
    [found] = statuses(ask(edge.port, request))
    return found


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_submission_is_taken_untouched_with_its_attributes(edge: Edge, taken_log: Log, method: str) -> None:
    body = bytes(range(256)) * 3
    headers = (
        "User-Agent: mercurial/proto-1.0 (Mercurial 7.2)",
        "X-Forwarded-For: 1.2.3.4, 5.6.7.8",
        "X-Forwarded-For: 9.10.11.12",
        "Date: Mon, 23 Nov 2026 14:00:00 GMT",
        "DNT: 1",
        "X-PingSender-Version: 1.0",
        "X-Debug-ID: größe",
        "X-Other: not kept",
        "Connection: close",
    )
    before = len(taken(taken_log))
    answer = ask(edge.port, post(f"{SOME}?a=%20b&c", body, *headers, method=method))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")
    [message] = taken(taken_log)[before:]
    attributes = dict(message.attributes)
    assert message.payload == body
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", attributes.pop("submission_timestamp"))
    assert attributes == {
        "uri": SOME,
        "protocol": "HTTP/1.1",
        "method": method,
        "args": "a=%20b&c",
        "remote_addr": "127.0.0.1",
        "content_length": "768",
        "date": "Mon, 23 Nov 2026 14:00:00 GMT",
        "dnt": "1",
        "host": "edge.example",
        "user_agent": "mercurial/proto-1.0 (Mercurial 7.2)",
        "x_forwarded_for": "1.2.3.4, 5.6.7.8, 9.10.11.12",
        "x_pingsender_version": "1.0",
        "x_debug_id": "größe",
    }


@pytest.mark.parametrize("name", ["Origin", "X-Origin", "attributeMap", "submission_timestamp", "method"])
def test_no_header_of_a_client_says_who_wrote_a_message(edge: Edge, taken_log: Log, name: str) -> None:
    before = len(taken(taken_log))
    assert status(edge, post(SOME, b"{}", f"{name}: {NOTIFIER}", "Connection: close")) == 200
    [message] = taken(taken_log)[before:]
    assert ORIGIN not in message.attributes
    assert NOTIFIER not in message.attributes.values()


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("name", [*NOTIFIER_TYPES, *map(str.upper, NOTIFIER_TYPES)])
def test_types_of_the_notifier_are_refused_with_a_line(
    edge: Edge, taken_log: Log, name: str, version: str, method: str
) -> None:
    before = taken_log.ends("raw")[0]
    path = f"/submit/{name.replace('.', '/')}/{version}/{number_uuid(1).upper()}"
    for each in (path, f"{path}/"):
        answer = ask(edge.port, post(each, method=method))
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert answer.endswith(f"\r\n\r\nonly the notifier writes {name}; take another type\n".encode())
    assert taken_log.ends("raw")[0] == before


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (post(f"{TELEMETRY}?v=4"), 200),
        (post("/submit/eng-workflow/build-anonymous/1"), 200),
        (post(body=b""), 200),
        (post(body=b"x" * 10_000), 200),
        (post(body=b"x" * 10_001), 413),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n" % SOME.encode(), 413),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n{}" % (SOME.encode(), b"2".zfill(5001)), 400),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n" % (SOME.encode(), b"9" * 5001), 400),
        (post(TYPE), 400),
        (post("/submit/eng-workflow/build-anonymous/1/2c3a0767-d84a-4d02-8a92-fa54a3376049"), 400),
        (post(f"{TYPE}/not-a-uuid"), 400),
        (post(TELEMETRY), 200),
        (post(f"{TELEMETRY}/?v=4"), 200),
        (post(f"{SOME}/"), 200),
        (post(f"{TELEMETRY}?v=3"), 400),
        (post(f"{TELEMETRY}/more?v=4"), 404),
        (post("/submit/telemetry/hgpush/1/2c3a0767-d84a-4d02-8a92-fa54a3376049"), 404),
        (post("/submit/eng-workflow"), 404),
        (post(f"{SOME}/more"), 404),
        (post("/submit/"), 404),
        (post("/"), 404),
        (post("/submit"), 404),
        (post("/__heartbeat__"), 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (post(method="GET"), 405),
        (post(method="HEAD"), 405),
        (post(method="DELETE"), 405),
        (post(method="OPTIONS"), 405),
        (b"POST %s HTTP/1.1\r\nHost: a\r\n\r\n" % SOME.encode(), 411),
        (b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % SOME.encode(), 411),
        (post(SOME + "?" + "x" * 300), 414),
        (post(SOME, b"", "X-Long: " + "x" * 40_000), 431),
        (post(SOME, b"", *(f"X-Long-{n}: {'x' * 1000}" for n in range(40))), 431),
    ],
    ids=lambda value: value[:60].decode("latin-1").replace("\r\n", " ") if isinstance(value, bytes) else str(value),
)
def test_every_request_has_its_answer(edge: Edge, taken_log: Log, request_: bytes, expected: int) -> None:
    before = taken_log.ends("raw")[0]
    assert status(edge, request_) == expected
    assert taken_log.ends("raw")[0] - before == (expected == 200)


def test_the_methods_of_a_path_are_named(edge: Edge) -> None:
    assert b"\r\nallow: POST, PUT\r\n" in ask(edge.port, post(method="PATCH"))
    assert b"\r\nallow: GET, HEAD\r\n" in ask(edge.port, post("/__version__"))


def test_a_client_that_sends_before_it_reads_sees_the_refusal(edge: Edge) -> None:
    assert status(edge, post(body=b"x" * 3_000_000)) == 413


def test_a_client_that_waits_for_permission_gets_it_or_the_refusal(edge: Edge) -> None:
    said = ask(edge.port, post(SOME, b"{}", "Expect: 100-continue"))
    assert statuses(said) == [100, 200]
    refused = post(SOME, b"x" * 20_000, "Expect: 100-continue")[:-20_000]
    assert statuses(ask(edge.port, refused)) == [413]


def test_the_pages_answer(edge: Edge) -> None:
    def get(path: str) -> tuple[bytes, bytes]:
        head, _, content = ask(edge.port, f"GET {path} HTTP/1.0\r\n\r\n".encode()).partition(b"\r\n\r\n")
        return head.split(b"\r\n")[0], content

    assert get("/__lbheartbeat__") == (b"HTTP/1.1 200 OK", b"running\n")
    assert get("/__heartbeat__") == (b"HTTP/1.1 200 OK", b"able to take messages\n")
    line, content = get("/__version__")
    assert (line, json.loads(content)) == (b"HTTP/1.1 200 OK", {"name": "vcsreplicator", "version": VERSION})


def test_a_body_that_breaks_off_is_not_taken(edge: Edge, taken_log: Log) -> None:
    before = len(taken(taken_log))
    with connect(edge.port) as client:
        client.sendall(post(SOME, b"broken off")[:-3])
    assert status(edge, post(SOME, b"whole", "Connection: close")) == 200
    assert [each.payload for each in taken(taken_log)[before:]] == [b"whole"]


def test_one_connection_takes_many_requests_in_order(edge: Edge, taken_log: Log) -> None:
    before = len(taken(taken_log))
    paths = [f"{TYPE}/{number_uuid(number)}" for number in range(50)]
    said = ask(edge.port, b"".join(post(path, path.encode()) for path in paths))
    assert statuses(said) == [200] * 50
    assert [each.attributes["uri"] for each in taken(taken_log)[before:]] == paths


SMUGGLED = post(f"{TYPE}/{number_uuid(666)}")
FIRST = f"POST {SOME} HTTP/1.1\r\nHost: a\r\n".encode()


@pytest.mark.parametrize(
    "request_",
    [
        FIRST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FIRST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FIRST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
        FIRST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length: 0, 0\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length: +2\r\n\r\n{}" + SMUGGLED,
        FIRST + b"Content-Length: -1\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length : 0\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length: 0x2\r\n\r\n{}" + SMUGGLED,
        FIRST + b"Content-Length: 99999999999999999999999\r\n\r\n{}" + SMUGGLED,
        FIRST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        FIRST + b"A: b\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        FIRST + b"A: b\rContent-Length: 0\r\n\r\n" + SMUGGLED,
        FIRST + b"A: b\x00c\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        FIRST + b"Content-Length: 0\r\nA:\r\n continued\r\n\r\n" + SMUGGLED,
        b"POST %s HTTP/3.0\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % SOME.encode() + SMUGGLED,
        b"BREW %s HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % SOME.encode() + SMUGGLED,
        b"POST nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
        b"POST %s\x01 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % SOME.encode() + SMUGGLED,
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + SMUGGLED,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED,
    ],
    ids=lambda request_: (
        request_.replace(FIRST, b"").split(b"\r\n\r\n")[0][:40].decode("latin-1").encode("unicode_escape").decode()
    ),
)
def test_a_doubtful_request_is_refused_with_all_that_follows(edge: Edge, taken_log: Log, request_: bytes) -> None:
    before = taken_log.ends("raw")[0]
    found = statuses(ask(edge.port, request_))
    assert len(found) == 1
    assert found[0] in (400, 411)
    assert taken_log.ends("raw")[0] == before


def test_after_a_request_to_change_the_protocol_the_connection_ends(edge: Edge, taken_log: Log) -> None:
    before = taken_log.ends("raw")[0]
    headers = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
    said = ask(edge.port, post(SOME, b"{}", *headers) + SMUGGLED)
    assert statuses(said) == [200]
    assert b"\r\nconnection: close\r\n" in said
    assert taken_log.ends("raw")[0] == before + 1


@pytest.mark.parametrize("length", [b"", b"x", b"+2", b"-1", b"2, 2", b"\xb2", b"1_0", b"2.0"])
def test_a_length_that_is_no_number_is_refused_with_a_line(length: bytes) -> None:
    """The edge's server hands none on, but another one may."""
    content = b"POST %s HTTP/1.1\r\nContent-Length: %s\r\n\r\n{}" % (SOME.encode(), length)
    with pytest.raises(RefusedRequest, match="expected Content-Length of at most 20 digits"):
        ask_edge(content)
