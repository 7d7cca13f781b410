# SPDX-License-Identifier: GPL-2.0-or-later
"""Slow, silent and numerous clients: each is bounded, and none keeps others out; and how the edge stops."""

import select
import socket
import threading
from collections.abc import Awaitable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hgext.vcsreplicator import service
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.services.edge import server
from notifier.services.edge.intake import EdgeIntake, Outcome
from notifier.services.edge.settings import HEAD_BYTES, EdgeSettings
from testing.builders.notifier.submitting import SOME, Edge, ask, connect, log_away, post, read_all, statuses, taken
from testing.services.cache import CHECKOUT
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

# Bytes that uvloop reads at once.
ONE_READ = 256 * 1024
HEARTBEAT = b"GET /__lbheartbeat__ HTTP/1.0\r\n\r\n"
HALF_HEAD = b"POST /submit/"
ANSWERED = post()
HALF_BODY = f"POST {SOME} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf".encode()


@pytest.mark.parametrize(
    "sent", [b"", HALF_HEAD, HALF_BODY, ANSWERED], ids=["nothing", "half a head", "half a body", "one request"]
)
def test_two_hundred_half_open_connections_keep_no_one_out(edge: Edge, sent: bytes) -> None:
    with ExitStack() as open_connections:
        for _ in range(200):
            client = open_connections.enter_context(connect(edge.port))
            client.sendall(sent)
            if sent == ANSWERED:
                assert statuses(client.recv(1000)) == [200]
        assert statuses(ask(edge.port, HEARTBEAT)) == [200]
        assert statuses(ask(edge.port, post(SOME, b"{}", "Connection: close"))) == [200]


@pytest.mark.parametrize(
    "sent", [b"", HALF_HEAD, HALF_BODY, b"\r\n"], ids=["nothing", "half a head", "half a body", "a newline"]
)
def test_a_client_that_does_not_go_on_is_closed(impatient_edge: Edge, sent: bytes) -> None:
    with connect(impatient_edge.port) as client:
        client.sendall(sent)
        assert read_all(client) == b""


@pytest.mark.parametrize(
    "start",
    [HALF_HEAD, HALF_BODY, b"\r\n", ANSWERED + b"\r\n", post()[:-2]],
    ids=["head", "body", "newlines", "newlines after an answer", "second head"],
)
def test_a_client_that_goes_on_slowly_is_closed(impatient_edge: Edge, start: bytes) -> None:
    ended = threading.Event()
    with connect(impatient_edge.port) as client:
        client.sendall(start)

        def trickle() -> None:
            while not ended.wait(0.05):
                try:
                    client.sendall(b"\n" if start.endswith(b"\r\n") else b"x")
                except OSError:
                    return

        trickling = threading.Thread(target=trickle)
        trickling.start()
        answered = read_all(client)
        ended.set()
        trickling.join()
    assert statuses(answered) in ([], [200], [200, 400], [400])


def test_a_body_has_its_own_time(tmp_path: Path, log: Log) -> None:
    with Edge(log, tmp_path, header_timeout=1.0) as edge, connect(edge.port) as client:
        client.sendall(post(SOME, b"{}", "Connection: close")[:-1])
        client.settimeout(2.5)
        with pytest.raises(TimeoutError):
            client.recv(1000)
        client.settimeout(PATIENCE)
        client.sendall(b"}")
        assert statuses(read_all(client)) == [200]


def test_a_connection_may_carry_more_heads_than_one_may_have_bytes(tmp_path: Path, log: Log) -> None:
    with Edge(log, tmp_path) as edge, connect(edge.port) as client:
        for _ in range(HEAD_BYTES // 4000 + 2):
            client.sendall(post(SOME, b"{}", f"X-Long: {'x' * 4000}"))
            assert statuses(client.recv(1000)) == [200]


def test_an_idle_connection_is_closed_after_its_answer(impatient_edge: Edge) -> None:
    with connect(impatient_edge.port) as client:
        client.sendall(post())
        assert statuses(read_all(client)) == [200]


def test_a_header_without_an_end_is_refused_before_it_takes_memory(edge: Edge) -> None:
    with connect(edge.port) as client:
        sent = 0
        client.sendall(f"POST {SOME} HTTP/1.1\r\nX-Endless: ".encode())
        try:
            while sent < 64 * 1024 * 1024:
                sent += client.send(b"x" * 65536)
        except OSError:
            pass
        said = b""
        try:
            said = read_all(client)
        except OSError:
            pass
    assert statuses(said) in ([431], [])  # a client that sends on may miss the answer
    assert sent < HEAD_BYTES + 32 * 1024 * 1024  # what the two sockets hold


def test_a_client_that_asks_for_thousands_of_answers_at_once_is_closed(edge: Edge) -> None:
    """Each request that waits takes memory, far more than its bytes."""
    with connect(edge.port) as client:
        client.sendall(HEARTBEAT.replace(b"1.0", b"1.1") * 5000)
        assert len(statuses(read_all(client))) < 5000


def test_a_client_that_reads_its_answers_may_let_requests_wait(tmp_path: Path, log: Log) -> None:
    request = HEARTBEAT.replace(b"1.0", b"1.1")
    with Edge(log, tmp_path) as edge, connect(edge.port) as client:
        client.sendall(request * 5)
        received = b""
        for answered in range(1, 300):
            while received.count(b"HTTP/1.1 200") < answered:
                more = client.recv(65536)
                assert more, f"closed after {answered - 1} answers"
                received += more
            client.sendall(request)


def test_a_client_that_sends_many_bodies_is_read_as_it_is_answered(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, begin = list[int](), server.EdgeConnection.on_message_begin

    def note(connection: server.EdgeConnection) -> None:
        waiting.append(len(connection.pipeline))
        begin(connection)

    monkeypatch.setattr(server.EdgeConnection, "on_message_begin", note)
    body = b"x" * 9_000
    requests = post(SOME, body) * 79 + post(SOME, body, "Connection: close")
    with connect(edge.port) as client:
        sender = threading.Thread(target=client.sendall, args=(requests,))
        sender.start()
        assert statuses(read_all(client)) == [200] * 80
        sender.join()
    assert max(waiting) <= 2 * ONE_READ // len(body)


def test_thousands_of_headers_are_refused_however_small_they_are(edge: Edge) -> None:
    headers = [f"{number}:" for number in range(2000)]
    assert statuses(ask(edge.port, post(SOME, b"{}", *headers))) == [431]
    assert statuses(ask(edge.port, post(SOME, b"{}", "Connection: close", *headers[:200]))) == [200]


@pytest.mark.parametrize("rest", [b"", b"{"], ids=["half a body", "a body"])
def test_requests_answered_before_their_bodies_count_as_connections(tmp_path: Path, log: Log, rest: bytes) -> None:
    head = b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    with Edge(log, tmp_path, max_connections=10, idle_timeout=60.0) as edge, ExitStack() as open_connections:
        clients = []
        for _ in range(30):
            clients.append(client := open_connections.enter_context(connect(edge.port)))
            client.sendall(head)
            assert statuses(client.recv(1000)) == [200]
            client.sendall(rest)
        eventually(lambda: sum(map(has_ended, clients)) >= 20, "the edge has closed all but the newest")
        assert not has_ended(clients[-1])


def test_an_answer_before_its_body_leaves_no_longer_time(impatient_edge: Edge) -> None:
    """The idle time follows the body, not the time for an answer."""
    with connect(impatient_edge.port) as client:
        client.sendall(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n")
        assert statuses(client.recv(1000)) == [200]
        client.sendall(b"{")
        assert read_all(client) == b""


def test_a_request_that_waits_for_us_gives_way_to_no_other(tmp_path: Path, log: Log) -> None:
    with Edge(log, tmp_path, max_connections=10, log_timeout=60.0) as edge, ExitStack() as open_connections:
        with log_away(tmp_path):
            waiting = open_connections.enter_context(connect(edge.port))
            waiting.sendall(post(SOME, b"{}", "Connection: close"))
            for _ in range(30):
                open_connections.enter_context(connect(edge.port)).sendall(HALF_HEAD)
            assert statuses(ask(edge.port, HEARTBEAT)) == [200]
        assert statuses(read_all(waiting)) == [200]


def test_messages_whose_clients_are_gone_count_as_connections(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[bytes] = []
    submit = EdgeIntake.submit

    def note(self: EdgeIntake, value: bytes) -> Awaitable[Outcome]:
        submitted.append(value)
        return submit(self, value)

    monkeypatch.setattr(EdgeIntake, "submit", note)
    with Edge(log, tmp_path, max_connections=10, log_timeout=60.0) as edge:
        with log_away(tmp_path):
            for number in range(1, 41):
                with connect(edge.port) as client:
                    client.sendall(post())
                    eventually(lambda: len(submitted) == number or has_ended(client), "taken or closed")  # noqa: B023
        assert len(submitted) == 10
        eventually(lambda: len(taken(log)) == 10, "the log has all")
        request = post(SOME, b"{}", "Connection: close")
        eventually(lambda: statuses(ask(edge.port, request)) == [200], "the edge knows that the log has them")


def has_ended(client: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    if not select.select([client], [], [], 0)[0]:
        return False
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def accepts(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_stop_answers_what_is_under_way(tmp_path: Path, log: Log) -> None:
    with Edge(log, tmp_path, log_timeout=60.0) as edge, connect(edge.port) as idle, connect(edge.port) as waiting:
        with log_away(tmp_path):
            waiting.sendall(post())
            idle.sendall(HEARTBEAT.replace(b"1.0", b"1.1\r\nHost: a"))
            answer = b""
            while not answer.endswith(b"running\n"):  # it may come in pieces
                piece = idle.recv(1000)
                assert piece
                answer += piece
            stopping = threading.Thread(target=edge.stop)
            stopping.start()
            assert idle.recv(1000) == b""
            eventually(lambda: not accepts(edge.port), "the edge accepts no more")
        assert statuses(read_all(waiting)) == [200]
        stopping.join()
    assert len(taken(log)) == 1


def test_an_address_in_use_is_named_in_one_line(tmp_path: Path, log: Log) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = EdgeSettings(listen="unused", queue=str(tmp_path / "queue"))
        with pytest.raises(BadConfig, match=r"^edge\.listen: 127\.0\.0\.1:\d+ cannot be used: Address already in use$"):
            server.run(settings, log, address=other.getsockname(), stop=threading.Event(), ready=lambda: None)


def test_an_address_in_use_ends_the_edge_with_a_code_that_retries(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "stop_on_signals", threading.Event)  # signals are the test run's
    settings = EdgeSettings(listen="unused", queue=str(tmp_path / "queue"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        code = service.serve(
            lambda stop, ready: server.run(settings, log, address=other.getsockname(), stop=stop, ready=ready)
        )
    assert code == 1
    page = " ".join((CHECKOUT / "docs/edge-decoder.md").read_text().split())
    assert f"an address in use does so with exit code {code}" in page


def test_a_host_that_does_not_exist_is_named(tmp_path: Path, log: Log) -> None:
    settings = EdgeSettings(listen="unused", queue=str(tmp_path / "queue"))
    with pytest.raises(BadConfig, match=r"^edge\.listen: no-host\.invalid:80 cannot be used: (?!Unknown error)"):
        server.run(settings, log, address=("no-host.invalid", 80), stop=threading.Event(), ready=lambda: None)


def test_no_log_line_has_an_address(tmp_path: Path, log: Log, capfd: pytest.CaptureFixture[str]) -> None:
    with Edge(log, tmp_path) as edge:
        forwarded = "X-Forwarded-For: 203.0.113.77"
        assert statuses(ask(edge.port, post(SOME, b"{}", forwarded, "Connection: close"))) == [200]
        assert statuses(ask(edge.port, post("/nowhere", b"{}", forwarded))) == [404]
        assert statuses(ask(edge.port, post(SOME, b"{}", forwarded, "Content-Length: 7"))) == [400]
        with log_away(tmp_path):
            assert statuses(ask(edge.port, post(SOME, b"{}", forwarded, "Connection: close"))) == [200]
        eventually(lambda: len(taken(log)) == 2, "the queue is drained", timeout=PATIENCE)
    written = capfd.readouterr()
    assert "203.0.113" not in written.out + written.err
    assert "127.0.0.1" not in written.out + written.err
