# SPDX-License-Identifier: GPL-2.0-or-later
"""Signatures, the guard of addresses, and what answers mean."""

import base64
import hashlib
import hmac
import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notifier.destinations.webhook import request
from notifier.destinations.webhook.addresses import Forbidden, allowed, resolve
from notifier.destinations.webhook.deliveries import DeliveryAttempt
from notifier.destinations.webhook.request import (
    SIGNED_HEADER,
    AttemptResult,
    DeliveryVerdict,
    RequestSender,
    headers,
    judge,
    signed_headers,
)
from notifier.destinations.webhook.signing import signing_key
from notifier.destinations.webhook.subscription import Subscription
from testing.builders.certificates import certificate
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.faults.broker import FakeBroker
from testing.faults.system import System
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
OUTGOING = DeliveryAttempt(
    attempt=0,
    message_id="abc.newrepo.1",
    replay="",
    repository="ab" * 16,
    previous="aaa.newrepo.1",
    sequence=4,
    body='{"x": 1}',
)


def test_signature_is_that_of_standard_webhooks() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    outgoing = DeliveryAttempt(
        attempt=0, message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", replay="", repository="",
        previous=None, sequence=1, body='{"test": 2432232314}',
    )  # fmt: skip
    found = signed_headers(outgoing, [signing_key(secret)], 1614265330.9)
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_every_secret_signs_so_that_keys_can_be_changed() -> None:
    signatures = signed_headers(OUTGOING, [b"old", b"new"], 1.0)["webhook-signature"].split()
    expected = hmac.new(b"new", b'abc_newrepo_1.1.{"x": 1}', hashlib.sha256).digest()
    assert len(signatures) == 2
    assert signatures[1] == "v1," + base64.b64encode(expected).decode()


def test_id_stays_the_same_over_attempts_and_the_attempt_is_named() -> None:
    subscription = Subscription(url="https://example.org/hook", headers={"x-team": "build"})
    first = headers(OUTGOING, subscription, [], 1.0)
    second = headers(DeliveryAttempt(**{**_members(OUTGOING), "attempt": 1}), subscription, [], 2.0)
    assert first["webhook-id"] == second["webhook-id"]
    assert (first["vcsreplicator-attempt"], second["vcsreplicator-attempt"]) == ("1", "2")
    assert first["vcsreplicator-previous"] == "aaa.newrepo.1"
    assert first["vcsreplicator-repository"] == "ab" * 16
    assert first["x-team"] == "build"
    assert first["host"] == "example.org"


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1", "fec0::1", "3fff::1", "192.0.0.8", "64:ff9b:1::7f00:1"),
        *(
            "64:ff9b:1::101:101",
            "64:ff9b::a9fe:a9fe",
            "2002:a00:1::1",
            "::127.0.0.1",
            "2001:0:101:101::1",
            "192.88.99.1",
        ),
    ],
)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not allowed(ipaddress.ip_address(address), [])


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]
)
def test_public_address_is_allowed(address: str) -> None:
    assert allowed(ipaddress.ip_address(address), [])


def test_network_on_the_allow_list_is_open() -> None:
    networks = [ipaddress.ip_network("10.1.0.0/16")]
    assert allowed(ipaddress.ip_address("10.1.2.3"), networks)
    for same in ("::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::1"):
        assert allowed(ipaddress.ip_address(same), networks)
    assert not allowed(ipaddress.ip_address("10.2.2.3"), networks)


def test_name_is_held_against_the_rules_after_it_was_resolved() -> None:
    with pytest.raises(Forbidden, match=r"localhost has the address (127\.0\.0\.1|::1), which is not public"):
        resolve("localhost", 80, [])
    with pytest.raises(Forbidden):
        resolve("2130706433", 80, [])  # 127.0.0.1 as one number


@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_address_of_a_name_is_held_against_the_rules(system: System, place: int) -> None:
    addresses = ["1.1.1.1", "8.8.8.8"]
    addresses.insert(place, "10.0.0.1")
    system.name_hosts({"hook.example": addresses}.get)
    with pytest.raises(Forbidden, match=r"hook\.example has the address 10\.0\.0\.1"):
        resolve("hook.example", 80, [])


def test_connection_goes_to_the_address_that_was_checked(system: System) -> None:
    with Endpoint() as endpoint:
        answers = [["127.0.0.1"], ["127.0.0.2"]]  # a name that changes its mind
        asked = system.name_hosts(lambda host: answers.pop(0) if host == "hook.example" else None)
        url = endpoint.url.replace("127.0.0.1", "hook.example")
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        assert sender.send(OUTGOING, Subscription(url=url), [], 1.0).verdict is DeliveryVerdict.DELIVERED
        sender.close()
        [request] = endpoint.requests
    assert asked.count("hook.example") == 1
    assert request.headers["host"].startswith("hook.example:")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, DeliveryVerdict.DELIVERED) for status in (200, 201, 204)),
        *((status, DeliveryVerdict.AGAIN) for status in (401, 403, 404, 408, 425, 429, 500, 502, 503, 504)),
        *((status, DeliveryVerdict.WRONG) for status in (301, 302, 307, 400, 413, 422)),
        (410, DeliveryVerdict.GONE),
    ],
)
def test_answer_decides_what_becomes_of_the_delivery(status: int, verdict: DeliveryVerdict) -> None:
    assert judge(status, {}, 0.0).verdict is verdict


def send(
    endpoint: Endpoint, *, timeout: float = PATIENCE, networks: object = LOOPBACK, method: str = "POST"
) -> AttemptResult:
    sender = RequestSender(networks=networks, allow_http=True)  # type: ignore[arg-type]
    try:
        return sender.send(OUTGOING, Subscription(url=endpoint.url, timeout=timeout, method=method), [b"key"], 1.0)
    finally:
        sender.close()


def test_request_carries_body_and_headers() -> None:
    with Endpoint() as endpoint:
        assert send(endpoint, method="PUT").verdict is DeliveryVerdict.DELIVERED
        [request] = endpoint.requests
    assert (request.method, request.path, request.body) == ("PUT", "/hook", {"x": 1})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == "abc_newrepo_1"


def test_an_endpoint_on_a_private_address_gets_nothing() -> None:
    with Endpoint() as endpoint:
        answer = send(endpoint, networks=[])
        assert endpoint.requests == []
    assert answer.verdict is DeliveryVerdict.AGAIN
    assert "127.0.0.1, which is not public" in (answer.error or "")


def test_redirect_is_not_followed() -> None:
    with Endpoint() as inner, Endpoint(lambda request: Reply(status=302, headers=(("location", inner.url),))) as outer:
        assert send(outer).verdict is DeliveryVerdict.WRONG
        assert inner.requests == []


def test_endpoint_that_does_not_answer_in_time_is_to_be_tried_again() -> None:
    never = threading.Event()
    with Endpoint(lambda request: Reply(hang=never)) as endpoint:
        answer = send(endpoint, timeout=0.2)
    assert answer.verdict is DeliveryVerdict.AGAIN
    assert answer.status is None


def test_endpoint_may_take_the_whole_timeout_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the connection has a limit of its own."""
    monkeypatch.setattr("notifier.destinations.webhook.request.CONNECT_PATIENCE", 0.2)
    never = threading.Event()

    def late(request: Request) -> Reply:
        never.wait(0.6)
        return Reply()

    with Endpoint(late) as endpoint:
        assert send(endpoint, timeout=60).verdict is DeliveryVerdict.DELIVERED


def dripping(first: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Sends this at once, then a byte every few milliseconds for ever."""

    def drip(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.wait(0.005):
            connection.sendall(b"x")

    return drip


@pytest.mark.parametrize(
    ("first", "verdict"),
    [
        (b"HTTP/1.1 200 OK\r\nx-long: ", DeliveryVerdict.AGAIN),
        (b"HTTP/1.1 2", DeliveryVerdict.AGAIN),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", DeliveryVerdict.DELIVERED),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffff\r\n", DeliveryVerdict.DELIVERED),
        (b"HTTP/1.1 503 No\r\ncontent-length: 1000000\r\n\r\n", DeliveryVerdict.AGAIN),
    ],
    ids=["headers", "status", "body", "chunk", "body of an error"],
)
def test_answer_that_drips_for_ever_ends_with_the_timeout(first: bytes, verdict: DeliveryVerdict) -> None:
    with FakeBroker(None, dripping(first)) as endpoint:
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        url = endpoint.url.replace("amqp://guest:guest@", "http://")
        # A head that delivers must come in this time.
        timeout = 2.0 if verdict is DeliveryVerdict.DELIVERED else 0.2
        assert sender.send(OUTGOING, Subscription(url=url, timeout=timeout), [], 1.0).verdict is verdict
        sender.close()


def test_an_answer_counts_only_for_its_own_request_behind_hints() -> None:
    """Otherwise the next delivery on the connection would take the late answer of this one for its own."""
    finals = ["503 No", "200 OK", "422 No"]

    def hint(connection: socket.socket, over: threading.Event) -> None:
        with connection.makefile("rb") as lines:
            for final in finals:
                while lines.readline().strip():
                    pass
                lines.read(len(OUTGOING.body))
                connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
                connection.sendall(f"HTTP/1.1 {final}\r\ncontent-length: 0\r\n\r\n".encode())
            over.wait()

    with FakeBroker(None, hint) as endpoint:
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        subscription = Subscription(url=endpoint.url.replace("amqp://guest:guest@", "http://"), timeout=60)
        assert [sender.send(OUTGOING, subscription, [], 1.0).status for _ in finals] == [503, 200, 422]
        sender.close()


def test_endpoint_that_sends_nothing_but_hints_is_to_be_tried_again() -> None:
    def hint(connection: socket.socket, over: threading.Event) -> None:
        while not over.wait(0.005):
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")

    with FakeBroker(None, hint) as endpoint:
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        subscription = Subscription(url=endpoint.url.replace("amqp://guest:guest@", "http://"), timeout=0.2)
        answer = sender.send(OUTGOING, subscription, [], 1.0)
        assert (answer.verdict, answer.status) == (DeliveryVerdict.AGAIN, None)
        sender.close()


def test_endless_answer_is_not_read_to_its_end() -> None:
    def flood(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"x" * 65536)

    with FakeBroker(None, flood) as endpoint:
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        url = endpoint.url.replace("amqp://guest:guest@", "http://")
        assert sender.send(OUTGOING, Subscription(url=url, timeout=60), [], 1.0).verdict is DeliveryVerdict.DELIVERED
        sender.close()


def test_a_signed_notice_that_servers_would_refuse_is_left_out() -> None:
    for length, is_there in ((SIGNED_HEADER, True), (SIGNED_HEADER + 1, False)):
        outgoing = DeliveryAttempt(**{**_members(OUTGOING), "signed": "x" * length})
        assert (
            "vcsreplicator-signed" in headers(outgoing, Subscription(url="https://example.org/"), [], 1.0)
        ) is is_there


def test_headers_of_a_subscription_never_stand_beside_ours() -> None:
    found = headers(OUTGOING, Subscription(url="https://example.org/", headers={"User-Agent": "me"}), [], 1.0)
    assert [value for name, value in found.items() if name.lower() == "user-agent"] == ["me"]


def test_name_that_changes_between_check_and_connection_changes_nothing(system: System) -> None:
    """The connection goes to the address that was checked, and the next request asks for it again."""
    with Endpoint() as endpoint:
        answers = [["127.0.0.1"], ["10.0.0.1"]]
        asked = system.name_hosts(lambda host: answers.pop(0) if host == "example.org" else None)
        sender = RequestSender(networks=LOOPBACK, allow_http=True)
        subscription = Subscription(url=f"http://example.org:{endpoint.port}/hook")
        assert sender.send(OUTGOING, subscription, [], 1.0).verdict is DeliveryVerdict.DELIVERED
        answer = sender.send(OUTGOING, subscription, [], 1.0)
        sender.close()
    assert "10.0.0.1, which is not public" in (answer.error or "")
    assert len(endpoint.requests) == 1
    assert {*asked} <= {"example.org", "127.0.0.1"}


@pytest.fixture
def many_names(system: System) -> None:
    """Each name that ends in `.example` is on loopback."""
    system.name_hosts(lambda host: ["127.0.0.1"] if host.endswith(".example") else None)


def count_open(port: int) -> int:
    """Count the open connections to this port of loopback."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "01" for row in rows)


def test_connections_stay_open_to_the_addresses_used_last(many_names: None) -> None:
    clients: list[int] = []
    with Endpoint() as endpoint, closing(RequestSender(networks=LOOPBACK, allow_http=True, kept=3)) as sender:

        def send_to(name: str) -> None:
            subscription = Subscription(url=f"http://{name}.example:{endpoint.port}/hook")
            assert sender.send(OUTGOING, subscription, [], 1.0).verdict is DeliveryVerdict.DELIVERED
            clients.append(endpoint.accepted)

        for name in ("a", "b", "c", "a", "d", "a", "c", "d", "b"):
            send_to(name)
        assert clients == [1, 2, 3, 3, 4, 4, 4, 4, 5]
        for number in range(20):
            send_to(f"n{number}")
        eventually(lambda: count_open(endpoint.port) == 3)


def test_a_request_that_begins_keeps_its_connections(many_names: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[DeliveryVerdict] = []
    with Endpoint() as endpoint, closing(RequestSender(networks=LOOPBACK, allow_http=True, kept=1)) as sender:

        def send_to(name: str) -> None:
            subscription = Subscription(url=f"http://{name}.example:{endpoint.port}/hook")
            found.append(sender.send(OUTGOING, subscription, [], 1.0).verdict)

        others = ["b"]

        def send_another_meanwhile(*arguments: Any) -> dict[str, str]:
            while others:
                send_to(others.pop())
            return headers(*arguments)

        monkeypatch.setattr(request, "headers", send_another_meanwhile)
        send_to("a")
    assert found == [DeliveryVerdict.DELIVERED] * 2


def test_endpoint_that_resets_is_to_be_tried_again() -> None:
    with Endpoint(lambda request: Reply(reset=True)) as endpoint:
        assert send(endpoint).verdict is DeliveryVerdict.AGAIN


def test_a_refused_connection_is_to_be_tried_again() -> None:
    with Endpoint() as endpoint:
        url = endpoint.url
    sender = RequestSender(networks=LOOPBACK, allow_http=True)
    assert sender.send(OUTGOING, Subscription(url=url), [], 1.0).verdict is DeliveryVerdict.AGAIN


def test_a_host_of_many_addresses_holds_a_worker_no_longer(monkeypatch: pytest.MonkeyPatch, system: System) -> None:
    tried = list[str]()

    def refuse(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        tried.append(address[0])
        raise ConnectionRefusedError

    system.name_hosts(lambda _: [f"127.0.0.{number}" for number in range(1, 200)])
    monkeypatch.setattr("urllib3.util.connection.create_connection", refuse)
    with closing(RequestSender(networks=LOOPBACK, allow_http=True)) as sender:
        answer = sender.send(OUTGOING, Subscription(url="http://many.example/"), [], 0)
    assert answer.verdict is DeliveryVerdict.AGAIN
    assert tried == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]


def test_https_goes_to_the_checked_address_and_verifies_the_name(tmp_path: Path) -> None:
    good, other = certificate(tmp_path, "good", "DNS:localhost"), certificate(tmp_path, "other", "DNS:elsewhere")
    networks = [*LOOPBACK, ipaddress.ip_network("::1")]
    for chain, verdict in ((good, DeliveryVerdict.DELIVERED), (other, DeliveryVerdict.AGAIN)):
        with Endpoint(certificate=chain) as endpoint:
            sender = RequestSender(networks=networks, allow_http=False, ca_file=str(chain))
            answer = sender.send(OUTGOING, Subscription(url=f"https://localhost:{endpoint.port}/hook"), [], 1.0)
            sender.close()
        assert answer.verdict is verdict, answer
        assert [request.headers["host"] for request in endpoint.requests] == (
            [f"localhost:{endpoint.port}"] if verdict is DeliveryVerdict.DELIVERED else []
        )


def test_plain_http_is_refused_unless_allowed_and_its_subscription_waits() -> None:
    with Endpoint() as endpoint:
        answer = RequestSender(networks=LOOPBACK, allow_http=False).send(
            OUTGOING, Subscription(url=endpoint.url), [], 1.0
        )
        assert endpoint.requests == []
    assert answer.verdict is DeliveryVerdict.GONE


def _members(outgoing: DeliveryAttempt) -> dict[str, object]:
    return {name: getattr(outgoing, name) for name in outgoing.__slots__}
