# SPDX-License-Identifier: GPL-2.0-or-later
"""TLS to a real management API: its certificate is verified, or the command ends with one line."""

import json
import subprocess
from pathlib import Path

import pytest

from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.service import EXIT_CONFIG
from testing.builders.certificates import certificate
from testing.builders.notifier.notices import with_topics
from testing.services.rabbitmq import TlsRabbitMQ
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = [pytest.mark.processes, pytest.mark.services]


def guardian(tls_rabbitmq: TlsRabbitMQ, folder: Path, *words: str, host: str = "localhost", ca: str | None) -> str:
    """What a command prints, on the stream that fits its exit code, which is 0 or that for a wrong configuration."""
    password = folder / "password"
    password.write_text("guest")
    password.chmod(0o600)
    keys = {
        "management-url": f"https://guest@{host}:{tls_rabbitmq.https_port()}",
        "broker-url": f"amqps://guest@{host}:{tls_rabbitmq.amqps_port()}//",
        "smtp-url": "smtp://127.0.0.1:9",
        "sender": "guardian@pulse.example",
        "operator": "operator@pulse.example",
        "state": str(folder / "guardian.db"),
        **({} if ca is None else {"ca-file": ca}),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    file = folder / "guardian.toml"
    url = f"sqlite://{folder}/log.db"
    with open_log(url, creates=True) as log:
        with_topics(log)
    file.write_text("\n".join([f'log = "{url}"', "[guardian]", *lines, f'password = {{ file = "{password}" }}', ""]))
    with warm_starts():
        done = subprocess.run(
            [*PROGRAM, CLI, "guardian", *words, "-c", str(file)], capture_output=True, text=True, check=False
        )
    assert done.returncode in (0, EXIT_CONFIG), done.stdout + done.stderr
    return done.stderr if done.returncode else done.stdout


def test_management_api_with_an_own_authority_is_spoken_to(tls_rabbitmq: TlsRabbitMQ, tmp_path: Path) -> None:
    own = tls_rabbitmq.certificate_file()
    token = guardian(tls_rabbitmq, tmp_path, "user", "add", "alice", "--owner", "alice@owners.example", ca=own)
    assert token.strip()
    assert "alice@owners.example" in guardian(tls_rabbitmq, tmp_path, "user", "list", ca=own)
    assert guardian(tls_rabbitmq, tmp_path, "watch", "--once", ca=own)


@pytest.mark.parametrize("words", [("user", "list"), ("watch",), ("watch", "--once"), ("check", "--sample", "0")])
def test_certificate_of_another_authority_is_one_line_and_exit_78(
    tls_rabbitmq: TlsRabbitMQ, tmp_path: Path, words: tuple[str, ...]
) -> None:
    other = certificate(tmp_path, "other", "DNS:localhost")
    *others, said = guardian(tls_rabbitmq, tmp_path, *words, ca=str(other)).splitlines()
    assert [json.loads(each)["event"] for each in others] == (["taking over"] if words == ("watch",) else [])
    assert f"{tmp_path}/guardian.toml: guardian.management-url: localhost:{tls_rabbitmq.https_port()}: " in said
    assert "certificate verify failed" in said
    assert "guardian.ca-file" in said


def test_certificate_of_another_host_is_one_line_and_exit_78(tls_rabbitmq: TlsRabbitMQ, tmp_path: Path) -> None:
    said = guardian(tls_rabbitmq, tmp_path, "user", "list", host="127.0.0.1", ca=tls_rabbitmq.certificate_file())
    assert len(said.splitlines()) == 1
    assert "certificate verify failed" in said
    assert "expected a certificate for this host" in said
