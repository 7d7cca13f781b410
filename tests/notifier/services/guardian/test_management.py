# SPDX-License-Identifier: GPL-2.0-or-later
"""The management API: a real one, and everything else that may stand where it should."""

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from notifier.clients.secret import Secret
from notifier.services.guardian import management as module
from notifier.services.guardian.clients import Clients
from notifier.services.guardian.management import Management
from notifier.services.guardian.settings import GuardianSettings
from testing.faults.broker import FakeBroker
from tests.notifier.services.guardian.conftest import FILE, Guarded, some_settings

pytestmark = pytest.mark.processes


def checked(settings: GuardianSettings) -> None:
    with closing(Management(settings, FILE)) as management:
        management.check(settings.vhost)


def test_a_wrong_password_is_named_and_not_shown(settings: GuardianSettings, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("Wr0ng!")
    file.chmod(0o600)
    with pytest.raises(
        BadConfig, match=r"guardian.toml: guardian.management-url: .* refuses the user 'guest'"
    ) as found:
        checked(replace(settings, password=Secret(file=str(file))))
    assert "Wr0ng!" not in str(found.value)


def test_a_user_without_the_tag_is_named(guarded: Guarded) -> None:
    me = guarded.add()
    guarded.management.put("users", me, content={"password": "p", "tags": "monitoring"})
    address = guarded.settings.management_url.replace("guest@", f"{me}:p@")
    with pytest.raises(BadConfig, match="expected a user with the tag administrator"):
        checked(replace(guarded.settings, management_url=address))


def test_a_missing_virtual_host_is_named(settings: GuardianSettings) -> None:
    with pytest.raises(BadConfig, match=r"guardian\.broker-url: the broker has no virtual host 'nowhere'"):
        checked(replace(settings, broker_url="amqp://guest@127.0.0.1/nowhere"))


def test_an_api_that_refuses_connections_is_awaited_and_the_plugin_named() -> None:
    closed = f"http://guest@127.0.0.1:{free_port()}"
    with pytest.raises(
        Unavailable, match=r"the management API does not answer: .*refused; if the broker runs, enable it"
    ):
        checked(some_settings(management_url=closed))


def test_a_service_that_does_not_speak_http_is_no_management_api() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"AMQP\x00\x00\x09\x01\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(BadConfig, match="answers, but is not RabbitMQ's management API"):
            checked(some_settings(management_url=f"http://127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's `status` and `body`, `pause` seconds later."""

    def do_GET(self) -> None:
        server: Any = self.server
        threading.Event().wait(server.pause)
        self.send_response(server.status)
        self.end_headers()
        try:
            self.wfile.write(server.body)
        except OSError:
            pass  # the client has read enough

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[..., GuardianSettings]]:
    """Settings whose management API answers so."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def answer(status: int, body: bytes, pause: float = 0.0) -> GuardianSettings:
        server.status, server.body, server.pause = status, body, pause
        return some_settings(management_url=f"http://127.0.0.1:{server.server_port}")

    yield answer
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", BadConfig),
        (200, b"[]", BadConfig),
        (200, b'{"tags": 7}', BadConfig),
        (200, b"[" * 100_000, BadConfig),
        (404, b"not here", BadConfig),
        (302, b"", BadConfig),
        (401, b'{"reason": "bad\\u001b[2J"}', BadConfig),
        (500, b'{"reason": "no quorum"}', Unavailable),
        (503, b"", Unavailable),
    ],
)
def test_other_answers_are_one_line(
    answering: Callable[[int, bytes], GuardianSettings], status: int, body: bytes, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as found:
        checked(answering(status, body))
    assert type(found.value) is kind
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    "begin",
    [b"", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n{", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{"],
    ids=["first line", "headers", "body", "body of a length"],
)
def test_an_answer_that_is_too_slow_is_awaited(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like another program's once it is cut; then a guardian would end at its start for good."""
    monkeypatch.setattr(module, "ANSWER_PATIENCE", 0.3)

    def drip(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(begin)
        while not over.wait(0.02):
            connection.sendall(b" ")

    with FakeBroker(None, drip) as broker, pytest.raises(Unavailable, match="does not answer"):
        checked(some_settings(management_url=f"http://127.0.0.1:{broker.url.rpartition(':')[2].strip('/')}"))


@pytest.mark.parametrize(
    "body", [b"7", b"null", b"[1]", b'{"items": 7, "page_count": 1}', b'{"items": [1], "page_count": 1}']
)
@pytest.mark.parametrize("ask", ["rows", "all", "owners"])
def test_a_list_of_something_else_is_one_line(
    answering: Callable[[int, bytes], GuardianSettings], body: bytes, ask: str
) -> None:
    with closing(Management(answering(200, body), FILE)) as management:
        clients = Clients(management, "/")
        with pytest.raises(BadConfig, match="answers, but is not RabbitMQ's management API"):
            list(management.rows("queues", columns="name") if ask == "rows" else getattr(clients, ask)())


@pytest.mark.parametrize("body", [b"7", b"[]", b'{"value": 7}', b'{"value": {"owner": 7}}'])
def test_an_owner_of_another_form_is_no_address(
    answering: Callable[[int, bytes], GuardianSettings], body: bytes
) -> None:
    with closing(Management(answering(200, body), FILE)) as management:
        assert Clients(management, "/").owner("client") == ""


def test_an_answer_without_end_is_cut(
    answering: Callable[[int, bytes], GuardianSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_ANSWER", 1000)
    with pytest.raises(Unavailable, match="an answer of more than 1000 bytes"):
        checked(answering(200, b"[" + b"1," * 1000 + b"1]"))


def test_an_answer_may_take_longer_than_a_connection(
    answering: Callable[..., GuardianSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_PATIENCE", 0.2)
    with closing(Management(answering(200, b'{"name": "q"}', pause=0.6), FILE)) as management:
        assert management.get("queues") == {"name": "q"}


def test_a_list_of_pages_that_never_ends_is_bounded(
    answering: Callable[[int, bytes], GuardianSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PAGES", 3)
    with closing(Management(answering(200, b'{"items": [{"name": "q"}], "page_count": 999}'), FILE)) as management:
        assert len(list(management.rows("queues", columns="name"))) == 3
