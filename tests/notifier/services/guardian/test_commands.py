# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator guardian` as an operator types it."""

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.cli.guardian import _open_token_file
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.service import EXIT_CONFIG
from hgext.vcsreplicator.words.errors import Refused
from notifier.services.guardian.broker import connected
from notifier.services.guardian.settings import GuardianSettings
from testing.builders.notifier.mailbox import Mailbox
from testing.builders.notifier.notices import with_topics
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts
from tests.notifier.services.guardian.conftest import Guarded, some_settings

pytestmark = pytest.mark.processes


def written(folder: Path, settings: GuardianSettings, more: str = "") -> Path:
    """The settings as a file, and the log that it names."""
    file, url = folder / "guardian.toml", f"sqlite://{folder}/log.db"
    with open_log(url, creates=True) as log:
        with_topics(log)
    names = ("management_url", "broker_url", "smtp_url", "sender", "operator", "state", "warn_at", "limit")
    keys = "".join(f"{name.replace('_', '-')} = {json.dumps(getattr(settings, name))}\n" for name in names)
    file.write_text(f'log = "{url}"\n[guardian]\n{keys}{more}')
    return file


@pytest.fixture
def file(tmp_path: Path, settings: GuardianSettings) -> Path:
    return written(tmp_path, settings)


def guardian(file: Path, *words: str) -> list[str]:
    return [*PROGRAM, CLI, "guardian", *words, "--config", str(file)]


def said(file: Path, *words: str, code: int = 0, columns: int = 80) -> str:
    """What the verb prints, on the stream that fits its exit code."""
    environment = {**os.environ, "COLUMNS": str(columns)}
    with warm_starts():
        done = subprocess.run(guardian(file, *words), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code < 2 else done.stderr


def test_a_client_is_added_listed_given_a_token_and_removed(file: Path, guarded: Guarded, tmp_path: Path) -> None:
    me = guarded.add()  # so that its name is free
    guarded.clients.remove(me)
    token = said(file, "user", "add", me, "--owner", "alice@owners.example").strip()
    with connected(guarded.settings, me, token):
        pass
    secret = tmp_path / "token"
    assert said(file, "user", "token", me, "--token-file", str(secret)) == f"the token is in {secret}\n"
    assert secret.stat().st_mode & 0o777 == 0o600
    with connected(guarded.settings, me, secret.read_text().strip()):
        pass
    said(file, "user", "owner", me, "bob@owners.example")
    rows = json.loads(said(file, "user", "list", "--json"))
    assert {"client": me, "owner": "bob@owners.example", "rights": "its own names"} in rows
    assert "add --yes to do it" in said(file, "user", "remove", me, code=2)
    assert said(file, "user", "remove", me, "--yes") == f"{me}: removed\n"
    assert me not in said(file, "user", "list")


def test_a_token_file_that_exists_is_neither_read_nor_replaced(file: Path, guarded: Guarded, tmp_path: Path) -> None:
    me = guarded.add()
    (tmp_path / "token").write_text("other")
    complaint = said(file, "user", "token", me, "--token-file", str(tmp_path / "token"), code=2)
    assert "expected a new file: File exists" in complaint
    assert (tmp_path / "token").read_text() == "other"
    with connected(guarded.settings, me, guarded.tokens[me]):
        pass


def test_a_token_that_the_broker_refused_leaves_no_file(tmp_path: Path) -> None:
    def add() -> None:
        with _open_token_file(str(tmp_path / "token")) as keep:
            keep("token")
            assert (tmp_path / "token").read_text() == "token\n"
            raise Refused("the broker says no")

    with pytest.raises(Refused):
        add()
    assert not (tmp_path / "token").exists()


def test_one_round_shows_what_it_found_and_did(file: Path, guarded: Guarded, mailbox: Mailbox) -> None:
    me = guarded.add("alice", "alice@owners.example")
    queue = guarded.queue(me, messages=9)
    vhost = guarded.settings.vhost
    eventually(lambda: (guarded.management.get("queues", vhost, queue) or {}).get("messages") == 9)
    row = [queue, "9", "0", "alice@owners.example", "beyond its limit, no consumer, unbounded"]
    assert said(file, "watch", "--once", "--dry-run").splitlines()[1].rstrip().split(maxsplit=4) == row
    assert mailbox.mails == []
    file.write_text(file.read_text() + 'delete = "yes"\n')
    row[-1] = "would be deleted, no consumer, unbounded"
    assert said(file, "watch", "--once", "--dry-run").splitlines()[1].rstrip().split(maxsplit=4) == row
    row[-1] = "deleted, no consumer, unbounded"
    assert said(file, "watch", "--once").splitlines()[1].rstrip().split(maxsplit=4) == row
    assert len(mailbox.mails) == 1


def test_a_check_says_what_failed_by_its_exit_code(file: Path, guarded: Guarded) -> None:
    channel = guarded.channel()
    channel.queue_declare("queue/a/b", durable=False, auto_delete=False)
    done = subprocess.run(
        guardian(file, "check", "--sample", "0", "--json"), capture_output=True, text=True, check=False
    )
    rows = json.loads(done.stdout)
    assert done.returncode == 1
    assert [row["requirement"] for row in rows if row["result"] == "fail"] == [
        "SHOULD use durable or auto-delete queues"
    ]
    channel.exchange_declare("hgpushes", "topic", durable=True, auto_delete=False)
    done = subprocess.run(guardian(file, "check", "--sample", "0"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "1 of 1: hgpushes" in done.stdout


def test_the_watch_is_a_service(file: Path, guarded: Guarded, mailbox: Mailbox) -> None:
    guarded.queue(guarded.add("alice", "alice@owners.example"), messages=5)
    port = free_port()
    file.write_text(file.read_text() + f'every = 1\n[listen]\nguardian = "127.0.0.1:{port}"\n')
    service = subprocess.Popen(guardian(file, "watch"), stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: mailbox.to("alice@owners.example"), "the mail")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        service.send_signal(signal.SIGTERM)
        _, lines = service.communicate(timeout=60)
    finally:
        service.kill()
        service.wait()
    assert service.returncode == 0
    assert 'vcsreplicator_guardian_queues{state="near"} 1.0' in metrics
    assert "owners.example" not in metrics + lines
    named = [json.loads(line)["event"] for line in lines.splitlines()]
    assert "queue near its limit" in named
    assert named.count("queue unbounded") == 1


@pytest.mark.slow
def test_a_broker_that_goes_away_is_one_line_and_retried(tmp_path: Path, mailbox: Mailbox, own_service: Any) -> None:
    from testing.services.rabbitmq import RabbitMQ

    broker = own_service(RabbitMQ)
    settings = some_settings(
        management_url=broker.management_url(),
        broker_url=broker.url,
        smtp_url=mailbox.url,
        state=str(tmp_path / "g.db"),
    )
    file, errors = written(tmp_path, settings, "every = 1\n"), tmp_path / "errors"
    with errors.open("w") as stream:
        service = subprocess.Popen(guardian(file, "watch"), stderr=stream)
    try:
        eventually(lambda: '"ready"' in errors.read_text(), "the first round")
        broker.kill()
        eventually(lambda: "round not complete" in errors.read_text(), "the line")
        broker.restart()
        eventually(lambda: "rounds are complete again" in errors.read_text(), "the next line")
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
    finally:
        service.kill()
        service.wait()
    assert errors.read_text().count("round not complete") == 1


@pytest.mark.parametrize("words", [("user", "list"), ("watch",), ("watch", "--once"), ("check",)])
def test_a_wrong_password_is_one_line_and_exit_code_78(
    tmp_path: Path, settings: GuardianSettings, words: tuple[str]
) -> None:
    file = written(tmp_path, settings)
    file.write_text(file.read_text().replace("http://guest@", "http://guest:wrong@"))
    *others, line = said(file, *words, code=EXIT_CONFIG).splitlines()
    assert [json.loads(each)["event"] for each in others] == (["taking over"] if words == ("watch",) else [])
    assert f"{file}: guardian.management-url: " in line
    assert "expected the password of a user with the tag administrator" in line


def test_config_check_reads_the_section_and_knows_the_service(tmp_path: Path) -> None:
    file = written(tmp_path, some_settings(), '[listen]\nguardian = "127.0.0.1:9"\n')
    command = [*PROGRAM, CLI, "config", "check", "--config", str(file)]
    assert subprocess.check_output(command, text=True).startswith(f"{file}: all sections are correct\n")
    file.write_text(file.read_text().replace("\nlimit = 8", "\nlimit = 3"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CONFIG
    assert "guardian.warn-at: expected less than limit (3), got 4" in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("log = 'x'\n[guardian]\n", "guardian: key 'broker-url' is missing"),
        ("[work]\n", "section [guardian] is missing"),
        ("[guardian]\n", "log: expected text"),
        ("log = 'x'\n[guardian]\nlimit = 'x'\n", "guardian"),
    ],
)
def test_a_malformed_file_is_one_line_and_exit_code_78(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "guardian.toml"
    file.write_text(text)
    line = said(file, "user", "list", code=EXIT_CONFIG)
    assert line.count("\n") == 1
    assert complaint in line
