# SPDX-License-Identifier: GPL-2.0-or-later
"""Secrets have a place and are never shown."""

import os
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent
from hgext.vcsreplicator.words.shape import read
from notifier.clients.amqp.settings import BrokerSettings
from notifier.clients.secret import Secret
from notifier.destinations.webhook.subscription import Subscription


@pytest.mark.parametrize(
    ("secret", "place"),
    [
        (Secret(file="/etc/a.password"), "/etc/a.password"),
        (Secret(env="PULSE"), "the environment variable PULSE"),
        (Secret(command=("pass", "show", "pulse")), "pass"),
    ],
)
def test_a_message_can_name_the_place_of_a_secret(secret: Secret, place: str) -> None:
    assert secret.place == place


def test_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE", "s3cret")
    assert Secret(env="PULSE").read() == "s3cret"


def test_secret_comes_from_a_file_without_its_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    assert Secret(file=str(file)).read() == "s3cret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    file.chmod(mode)
    with pytest.raises(BadConfig, match=f"has mode {mode:04o}, expected 0600 or stricter: chmod go="):
        Secret(file=str(file)).read()


def test_a_pipe_in_the_place_of_a_secret_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(BadConfig, match=r"key: .*/key: expected a file, got a folder, a pipe or a device$"):
        Secret(file=str(tmp_path / "key")).read("key")


def test_secret_comes_from_a_command() -> None:
    assert Secret(command=("printf", "s3cret\\n")).read() == "s3cret"


@pytest.mark.parametrize(
    ("secret", "complaint"),
    [
        (Secret(env="NOT_THERE"), "the environment variable NOT_THERE is not set"),
        (Secret(file="/not/there"), "/not/there cannot be read: No such file"),
        (Secret(command=("false",)), "false failed with exit code 1"),
        (Secret(command=("/not/there",)), "/not/there cannot be run"),
        (Secret(command=("true",)), "true is empty"),
    ],
)
def test_missing_secret_names_its_place(secret: Secret, complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint):
        secret.read()


def test_failing_command_does_not_show_what_it_printed() -> None:
    with pytest.raises(BadConfig) as trouble:
        Secret(command=("sh", "-c", "echo s3cret; echo s3cret >&2; exit 3")).read()
    assert "s3cret" not in str(trouble.value)


def test_exactly_one_place_is_expected() -> None:
    for places in ({}, {"env": "A", "file": "/b"}):
        with pytest.raises(ValueError, match="secret: expected one of env, file, command"):
            Secret(**places)


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (BrokerSettings, {"url": "amqp://localhost", "password": "s3cret"}),
        (BrokerSettings, {"url": "amqp://localhost", "password": {"command": "s3cret"}}),
        (BrokerSettings, {"url": "amqp://localhost", "password": {"file": "s3cret"}}),
        (BrokerSettings, {"url": "amqp://localhost", "password": {"env": ["s3cret"]}}),
        (Subscription, {"url": "https://ci.example/hook", "secrets": "s3cret"}),
        (Subscription, {"url": "https://ci.example/hook", "secrets": ["s3cret"]}),
    ],
)
def test_a_secret_instead_of_its_place_is_refused_and_not_shown(kind: type, table: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent, match=r"expected (a list of )?\{ file = ") as found:
        read(kind, table)
    assert "s3cret" not in str(found.value)
