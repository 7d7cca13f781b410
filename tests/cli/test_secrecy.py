# SPDX-License-Identifier: GPL-2.0-or-later
"""URLs on the command line are checked for exposures like those of the file."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.demo import preparation
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.errors import BadConfig, Refused

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("within_the_run")]

EXCHANGE = "exchange/hgpushes/v2"
PLAIN, PASSWORD = "plain-text", "password-in-url"


class Reached(Exception):
    """What would connect was called."""


@pytest.fixture(autouse=True)
def nothing_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(*_: object, **__: object) -> Log:
        raise Reached

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("notifier.destinations.pulse.listener.listen", reach)
    monkeypatch.setattr(preparation, "open_log", reach)
    monkeypatch.setattr(preparation, "_create_topic_and_bucket", reach)


def ran(*words: str) -> BaseException | None:
    return CliRunner().invoke(program, words).exception


@pytest.mark.parametrize(
    ("words", "complaint", "exposure"),
    [
        (("listen", "amqp://me@pulse.example/", EXCHANGE), "URL: amqp:// to pulse.example, expected amqps://", PLAIN),
        (("listen", "amqps://me:s3cret@pulse.example/", EXCHANGE), "URL: a password in a URL to pulse.example", PASSWORD),
        (("demo", "--log", "kafka://k1.example:9092"), "--log: PLAINTEXT to k1.example, expected security_protocol", PLAIN),
        (("demo", "--log", "kafka://127.0.0.1:9092,192.0.2.7:9092"), "--log: PLAINTEXT to 192.0.2.7", PLAIN),
        (("demo", "--pulse", "amqp://pulse.example/"), "--pulse: amqp:// to pulse.example, expected amqps://", PLAIN),
        (("demo", "--sns-endpoint", "http://sns.example/"), "--sns-endpoint: http:// to sns.example, expected https://", PLAIN),
    ],
)  # fmt: skip
def test_what_gives_a_secret_away_is_refused_before_a_connection(
    tmp_path: Path, words: tuple[str, ...], complaint: str, exposure: str
) -> None:
    folder = ("--dir", str(tmp_path / "demo"), "--prepare") if words[0] == "demo" else ()
    error = ran(*words, *folder)
    assert isinstance(error, BadConfig), repr(error)
    assert str(error).startswith(complaint)
    assert str(error).endswith(f"; if it is meant, add --insecure {exposure}")
    assert "s3cret" not in str(error)
    assert not list(tmp_path.glob("demo/*"))
    other = PASSWORD if exposure == PLAIN else PLAIN
    assert isinstance(ran(*words, *folder, "--insecure", other), BadConfig)
    assert isinstance(ran(*words, *folder, "--insecure", exposure), Reached)


@pytest.mark.parametrize(
    "words",
    [
        ("listen", "amqp://guest:guest@127.0.0.1:5672/", EXCHANGE),
        ("listen", "amqps://me@pulse.example/", EXCHANGE),
        ("demo", "--prepare", "--log", "kafka://localhost:9092"),
        ("demo", "--prepare", "--log", "kafka://k1.example:9093?security_protocol=SSL"),
        ("demo", "--prepare", "--pulse", "amqp://guest:guest@localhost/"),
    ],
)
def test_loopback_and_tls_are_fine(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = ("--dir", str(tmp_path)) if words[0] == "demo" else ()
    assert isinstance(ran(*words, *folder), Reached)


def test_the_services_of_a_demo_are_configured_for_plain_text(tmp_path: Path) -> None:
    ran("demo", "--prepare", "--dir", str(tmp_path), "--log", "kafka://k1.example:9092", "--insecure", PLAIN)
    assert tomllib.loads((tmp_path / "vcsreplicator.toml").read_text())["insecure"] == [PLAIN]
    assert f"\ninsecure = {PLAIN}\n" in (tmp_path / "master.hgrc").read_text()


def test_what_can_be_meant_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(program, ["listen", "amqp://h/", EXCHANGE, "--insecure", "everything"])
    assert result.exit_code == 2
    assert PLAIN in result.output
    assert not isinstance(result.exception, Refused)
