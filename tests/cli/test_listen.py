# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator listen` takes in each message that a client published: a message that ended it would end it at each start."""

import datetime
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import NotAllowed
from click.testing import CliRunner
from structlog.testing import capture_logs

from hgext.vcsreplicator.cli import listen
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.words.errors import Refused
from notifier.clients.amqp.connection import translated
from notifier.destinations.pulse import listener
from notifier.destinations.pulse.listener import ListenSettings, ReceivedMessage

pytestmark = pytest.mark.usefixtures("within_the_run")


def listened(
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    text: str = "{}",
    key: str = "k",
    name: str = "m",
    headers: Mapping[str, Any] | None = None,
) -> str:
    """What the command prints when this message arrives."""
    message = ReceivedMessage(text=text, routing_key=key, properties={"message_id": name}, headers=headers or {})

    def hand_on_one(settings: Any, hand_on: Callable[[ReceivedMessage], bool], **_: Any) -> int:
        assert hand_on(message)
        return 1

    monkeypatch.setattr(listener, "listen", hand_on_one)
    ended = CliRunner().invoke(listen.command, ["amqp://127.0.0.1/", "exchange/a/b", *words], catch_exceptions=False)
    assert ended.exit_code == 0
    return ended.stdout


@pytest.mark.parametrize("depth", [200_000, 990, 900])
@pytest.mark.parametrize("words", [(), ("--whole",)])
def test_a_message_of_brackets_is_printed(monkeypatch: pytest.MonkeyPatch, depth: int, words: tuple[str, ...]) -> None:
    text = "[" * depth + "]" * depth
    printed = listened(monkeypatch, *words, text=text)
    assert text in printed
    assert printed.count("\n") == 1


@pytest.mark.processes
def test_a_command_gets_no_password_of_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VCSREPLICATOR_LISTEN_PASSWORD", "planted")
    monkeypatch.setenv("KEPT", "kept")
    found = tmp_path / "environment"
    listened(monkeypatch, "--run", f"sh -c 'env > {found}'")
    assert "KEPT=kept" in found.read_text()
    assert "planted" not in found.read_text()


@pytest.mark.processes
def test_a_command_gets_names_that_no_environment_holds_with_a_sign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = tmp_path / "found"
    listened(
        monkeypatch, "--run", f"""sh -c 'echo "$ROUTING_KEY $MESSAGE_ID" > {found}'""", key="a\0b", name="c\0\ud800"
    )
    assert found.read_text() == "a\ufffdb c\ufffd\ufffd\n"


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        ("/no/such/command", "--run: /no/such/command cannot be run: No such file"),
        ("'", "--run: No closing quotation"),
        ("", "--run: expected a command"),
    ],
)
@pytest.mark.processes
def test_a_command_that_cannot_be_run_is_named(monkeypatch: pytest.MonkeyPatch, run: str, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        listened(monkeypatch, "--run", run)


def test_what_is_no_json_is_printed_as_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    died = {"x-death": [{"time": datetime.datetime(2026, 7, 29)}]}
    assert listened(monkeypatch, text="no json") == '"no json"\n'
    whole = json.loads(listened(monkeypatch, "--whole", text="no json", headers=died))
    assert (whole["body"], whole["headers"]["x-death"][0]["time"]) == ("no json", "2026-07-29 00:00:00")


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": 1e999}'])
def test_a_number_that_json_has_not_is_printed_as_text(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Python reads and writes it; other programs would not read the line."""
    printed = listened(monkeypatch, "--whole", text=text, headers={"x": [float("nan")]})
    whole = json.loads(printed, parse_constant=pytest.fail)
    assert (whole["body"], whole["headers"]) == (text, {"x": ["NaN"]})


class StopAtRest(threading.Event):
    """Ends a service as soon as it would rest."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


@pytest.mark.processes
def test_a_broker_that_does_not_answer_is_named() -> None:
    place, stop = f"127.0.0.1:{free_port()}", StopAtRest()
    settings = ListenSettings(url=f"amqp://guest@{place}/v", exchange="exchange/a/b", queue="queue/guest/q")
    with capture_logs() as lines:
        listener.listen(settings, lambda message: True, stop=stop)
    assert [line["reason"] for line in lines] == [f"{place}/v queue/guest/q: [Errno 111] Connection refused"]


def refused(monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    """What is logged of a broker that refuses the connection with this text, until the listener would wait."""

    def refuse(*_given: object, **_options: object) -> None:
        with translated("broker/v"):
            raise NotAllowed(text)

    stop = StopAtRest()
    monkeypatch.setattr(listener, "QueueConsumer", refuse)
    settings = ListenSettings(url="amqp://guest@127.0.0.1/v", exchange="exchange/a/b", queue="queue/guest/q")
    with capture_logs() as lines:
        listener.listen(settings, lambda message: True, stop=stop)
    return [line["event"] for line in lines]


@pytest.mark.parametrize("text", ["vhost v not found", "access to vhost 'v' refused for user 'guest'"])
def test_a_virtual_host_that_is_refused_ends_the_command(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(Refused, match=f"^broker/v: .*{text}"):
        refused(monkeypatch, text)


def test_a_limit_of_connections_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, "connection refused: vhost connection limit (1) is reached") == ["not connected"]
