# SPDX-License-Identifier: GPL-2.0-or-later
"""Brokers that stop in the middle of anything: nothing waits for them without a limit, neither publisher nor listener."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Refused, Unavailable
from notifier.clients.amqp import connection
from notifier.delivery.destination import DeliveryOutcome, Destination
from notifier.delivery.window import Delivery
from notifier.destinations.pulse import listener
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.pulse.listener import ListenSettings, ReceivedMessage, listen
from notifier.messages.message import messages
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event
from testing.builders.notifier.notifying import PUBLIC
from testing.faults.broker import (
    CHANNEL_OK,
    CONFIRMING,
    CONSUMING,
    DECLARED,
    HEARTBEAT,
    START,
    TUNE,
    FakeBroker,
    Trouble,
    body,
    content,
    endless_frame,
    endless_message,
    frame,
    half_a_frame,
    hang_up_at_the_farewell,
    huge_frame,
    many_deliveries_without_a_message,
    many_messages_at_once,
    only_heartbeats,
    silence,
)
from testing.waiting import eventually

pytestmark = pytest.mark.processes

TROUBLES = pytest.mark.parametrize("trouble", [silence, half_a_frame, endless_frame, huge_frame, only_heartbeats])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose connections may fail for want of time."""
    monkeypatch.setattr(connection, "PATIENCE", 0.2)


def publisher(url: str, **more: object) -> Destination:
    settings = PulseSettings(url=url, exchange="exchange/guest/v2", confirm_timeout=0.3)
    return replace(settings, **more).open("it", SystemClock(), MemoryLog())  # type: ignore[arg-type]


def is_submitted(destination: Destination) -> bool:
    """Submit a message; a machine that is too slow to connect in so short a time gets twice as much the next time."""
    [message] = messages(a_notice(an_event("x", 1)), 0, PUBLIC)
    try:
        destination.submit(Delivery(number=7, message=message, attempt=1))
    except Unavailable:
        connection.PATIENCE *= 2
        return False
    return True


@TROUBLES
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("until", [None, START, TUNE, CHANNEL_OK, DECLARED])
def test_broker_that_stops_while_it_is_connected_to_is_unavailable(
    trouble: Trouble, until: tuple[int, int] | None
) -> None:
    with FakeBroker(until, trouble) as broker, pytest.raises(Unavailable):
        publisher(broker.url).start()


@TROUBLES
@pytest.mark.usefixtures("impatient")
def test_broker_that_stops_before_it_confirms_costs_the_connection(trouble: Trouble) -> None:
    with FakeBroker(CONFIRMING, trouble) as broker:
        destination = publisher(broker.url)
        eventually(lambda: is_submitted(destination))
        outcomes: list[DeliveryOutcome] = []
        eventually(lambda: outcomes.extend(destination.outcomes(0.02)) or outcomes)
        destination.close()
    assert [(each.number, type(each.error)) for each in outcomes] == [(7, Unavailable)]


def nack_and_leave(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(1)  # the message comes
    connection.sendall(frame(1, (60, 120), (1).to_bytes(8) + b"\0"))


def nack_and_hang(connection: socket.socket, over: threading.Event) -> None:
    nack_and_leave(connection, over)
    over.wait()


@pytest.mark.parametrize("trouble", [nack_and_leave, nack_and_hang])
@pytest.mark.usefixtures("impatient")
def test_nack_of_a_broker_that_then_breaks_counts_for_nothing(trouble: Trouble) -> None:
    with FakeBroker(CONFIRMING, trouble) as broker:
        destination = publisher(broker.url, confirm_timeout=60)
        eventually(lambda: is_submitted(destination))
        outcomes: list[DeliveryOutcome] = []
        eventually(lambda: outcomes.extend(destination.outcomes(0.02)) or outcomes)
        destination.close()
    assert [(each.number, type(each.error)) for each in outcomes] == [(7, Unavailable)]


STOPPED = (half_a_frame, endless_frame, huge_frame)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("until", "trouble"),
    [
        *((None, each) for each in (silence, only_heartbeats, *STOPPED)),
        *((CHANNEL_OK, each) for each in (silence, only_heartbeats, *STOPPED)),
        *(
            (CONSUMING, each) for each in (*STOPPED, many_messages_at_once, many_deliveries_without_a_message)
        ),  # silence is a broker without messages then
    ],
)
def test_listener_leaves_a_broker_that_stops(until: tuple[int, int] | None, trouble: Trouble) -> None:
    stop = threading.Event()
    with FakeBroker(until, trouble) as broker:
        settings = ListenSettings(url=broker.url, exchange="exchange/guest/v2", queue="queue/guest/q")
        listening = threading.Thread(target=listen, args=(settings, lambda arrival: True), kwargs={"stop": stop})
        listening.start()
        eventually(lambda: broker.connections > 1, "another connection")
        stop.set()
        listening.join(60)
        assert not listening.is_alive()


def subscriber(broker: FakeBroker, **more: int) -> ListenSettings:
    return ListenSettings(url=broker.url, exchange="exchange/guest/v2", queue="queue/guest/q", **more)  # type: ignore[arg-type]


def test_a_listener_refuses_a_message_too_large_before_it_takes_it() -> None:
    stop = threading.Event()
    with FakeBroker(CONSUMING, endless_message) as broker, over_after(90, stop):
        refusal = (
            rf"^127.0.0.1:\d+/ queue/guest/q: a message of {2**62} bytes, expected at most 16777216 \(max-message\)$"
        )
        with pytest.raises(Refused, match=refusal):
            listen(subscriber(broker), lambda arrival: True, stop=stop)


@pytest.mark.parametrize("parts", [[1000], [400, 600], [1] * 1000])
def test_listener_takes_a_message_in_as_many_frames_as_it_comes(parts: list[int]) -> None:
    def one_message(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(1000) + b"".join(body(bytes(part)) for part in parts))
        hang_up_at_the_farewell(connection, over)

    stop, came = threading.Event(), []
    with FakeBroker(CONSUMING, one_message) as broker, over_after(90, stop):
        settings = subscriber(broker, max_message=1000)
        assert listen(settings, lambda arrival: not came.append(len(arrival.text)), stop=stop, limit=1) == 1
        with pytest.raises(Refused, match="a message of 1000 bytes, expected at most 999"):
            listen(subscriber(broker, max_message=999), lambda arrival: True, stop=stop)
    assert came == [1000]


def test_listener_shows_signs_of_life_while_a_message_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEARTBEAT", 1)
    alive, stop = threading.Event(), threading.Event()

    def one_message_then_heartbeats(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(1) + body(b"1"))
        received = b""
        while received.count(HEARTBEAT) < 3:
            received += connection.recv(1000)
            connection.sendall(HEARTBEAT)
        alive.set()
        hang_up_at_the_farewell(connection, over)

    with FakeBroker(CONSUMING, one_message_then_heartbeats) as broker, over_after(90, stop):
        assert listen(subscriber(broker), lambda arrival: alive.wait(60), stop=stop, limit=1) == 1
        assert broker.connections == 1


def test_a_listener_that_loses_its_broker_hands_no_message_on_twice() -> None:
    stop, leave, turns = threading.Event(), threading.Event(), []

    def one_message(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(1) + body(b"1"))
        leave.wait(60)

    def hand_on(arrival: ReceivedMessage) -> bool:
        turns.append("begins")
        if len(turns) > 1:
            stop.set()
            leave.set()
            return True
        leave.set()
        eventually(lambda: broker.connections > 1, "the listener connects again")
        leave.clear()
        turns.append("ends")
        return True

    with FakeBroker(CONSUMING, one_message) as broker, over_after(90, stop):
        listen(subscriber(broker), hand_on, stop=stop)
        leave.set()
    assert turns == ["begins", "ends", "begins"]


def test_a_listener_that_stops_begins_nothing_more() -> None:
    stop, leave, turns = threading.Event(), threading.Event(), []

    def one_message(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(content(1) + body(b"1"))
        leave.wait(60)
        over.wait(0.5)  # so that the listener takes the message before it loses the connection

    def hand_on(arrival: ReceivedMessage) -> bool:
        turns.append(arrival.text)
        leave.set()
        eventually(lambda: broker.connections > 3, "the listener connects repeatedly")
        stop.set()
        time.sleep(0.5)  # a listener that hands on what waits has the time to
        return True

    with FakeBroker(CONSUMING, one_message) as broker, over_after(90, stop):
        listen(subscriber(broker), hand_on, stop=stop)
        leave.set()
    assert turns == ["1"]


@contextmanager
def over_after(seconds: float, stop: threading.Event) -> Iterator[None]:
    """Ends what would otherwise go on for ever."""
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_listener_without_messages_stops_when_it_is_asked_to() -> None:
    stop = threading.Event()
    with FakeBroker(CONSUMING, hang_up_at_the_farewell) as broker:
        settings = ListenSettings(url=broker.url, exchange="exchange/guest/v2", queue="queue/guest/q")
        listening = threading.Thread(target=listen, args=(settings, lambda arrival: True), kwargs={"stop": stop})
        listening.start()
        eventually(lambda: broker.connections)
        stop.set()
        listening.join(60)
        assert not listening.is_alive()


@pytest.mark.usefixtures("impatient")
def test_tls_handshake_that_never_ends_is_unavailable() -> None:
    def babble(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 kB, which comes byte by byte
        while not over.wait(0.005):
            connection.sendall(b"\2")

    for trouble in (silence, babble):
        with FakeBroker(None, trouble) as broker, pytest.raises(Unavailable):
            publisher(broker.url.replace("amqp:", "amqps:")).start()


def garbage(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
    over.wait()


def nonsense(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"\1\0\7\0\0\0\4\0\x3c\0\x50\xce" * 3)
    over.wait()


@pytest.mark.parametrize("trouble", [garbage, nonsense])
def test_something_else_than_a_broker_is_unavailable(trouble: Trouble) -> None:
    for until in (None, CHANNEL_OK):
        with FakeBroker(until, trouble) as broker, pytest.raises(Unavailable):
            publisher(broker.url).start()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda file: None, r"^ca-file: .*ca\.pem cannot be read: No such file or directory$"),
        (
            lambda file: file.mkdir(),
            r"^ca-file: .*ca\.pem: expected certificates in PEM, got a folder, a pipe or a device$",
        ),
        (os.mkfifo, r"^ca-file: .*ca\.pem: expected certificates in PEM, got a folder, a pipe or a device$"),
        (lambda file: file.write_text("no certificate"), r"^ca-file: .*ca\.pem: expected certificates in PEM: "),
    ],
    ids=["missing", "folder", "pipe", "garbage"],
)
def test_missing_authorities_are_named(tmp_path: Path, make: Callable[[Path], object], complaint: str) -> None:
    make(tmp_path / "ca.pem")
    with pytest.raises(Unavailable, match=complaint):
        publisher("amqps://u@127.0.0.1:1//", ca_file=str(tmp_path / "ca.pem")).start()
