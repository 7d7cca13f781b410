# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples in the docs work as they stand."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kombu
import pytest
from amqp.exceptions import NotFound

from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.opening import open_log
from notifier.delivery import destination
from notifier.publishing.settings import read
from notifier.services.poll.settings import PollSettings
from notifier.services.work.settings import WorkSettings
from testing.builders.notifier.notices import an_event, publish_pushes
from testing.builders.notifier.notifying import Notifier
from testing.builders.notifier.receivers import PulseReceiver
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def first_block(page: str, section: str) -> str:
    """The example that begins with this section."""
    return next(block for block in blocks(page, "toml") if block.startswith(section))


def test_example_of_a_destination_works(
    log: Log, notifier: Notifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, entry = blocks("destinations.md", "python")[:2]
    (tmp_path / "folder_example.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, place = re.findall(r'"([^"]*)"', entry)
    assert importlib.import_module("folder_example").__doc__
    monkeypatch.setitem(destination.DESTINATIONS, name, place.replace("notifier.destinations.folder", "folder_example"))  # type: ignore[arg-type]
    (tmp_path / "out").mkdir()
    tables = {"public": {"urls": {"": "https://hg.example/"}}}
    table = {"type": name, "folder": str(tmp_path / "out")}
    settings = read({**tables, "notifier": {"it": table}}, "docs.toml")
    notifier.start(it=settings.destinations["it"])
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    assert sorted(os.listdir(tmp_path / "out")) == sorted(f"{an_event('x', seq).id}.changegroup.1" for seq in (1, 2, 3))


def test_every_key_in_the_docs_is_one(tmp_path: Path) -> None:
    whole = "\n".join(blocks("destinations.md", "toml")).replace("[notifier.NAME", "[notifier.common")
    whole = whole.replace(
        'type = "jsonlines"                    # required; or stdout', 'type = "stdout" # or jsonlines'
    )
    settings = read(tomllib.loads(whole), "destinations.md")
    assert set(settings.destinations) == {"common", "lines", "pulse-v2", "workers", "decoder", "sns", "hooks"}


def test_every_key_of_the_queue_in_the_docs_is_one() -> None:
    whole = "[public.urls]\n" + first_block("hg-push-services.md", "[notifier.workers]")
    assert set(read(tomllib.loads(whole), "hg-push-services.md").destinations) == {"workers"}


def test_every_key_of_the_poller_in_the_docs_is_one(tmp_path: Path) -> None:
    text = first_block("hg-push-services.md", "[poll]")
    (tmp_path / "v.toml").write_text(f'log = "sqlite:///log.db"\n{text}')
    settings = load(tmp_path / "v.toml").settings(PollSettings, "poll")
    assert len(settings.repositories) == 2


def test_every_key_of_the_worker_in_the_docs_is_one(tmp_path: Path) -> None:
    (tmp_path / "v.toml").write_text(first_block("hg-push-services.md", "[work]"))
    settings = load(tmp_path / "v.toml").settings(WorkSettings, "work")
    assert settings.repositories == ("https://hg.example/",)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("page", "section", "words", "key"),
    [
        ("hg-push-services.md", "[poll]", "poll", "poll.password"),
        ("hg-push-services.md", "[work]", "work --migrate", "work.database-password"),
        ("hg-push-services.md", "[work]", "work", "work.database-password"),
        ("hg-push-services.md", "[work]", "pushes --parked", "work.database-password"),
        ("guardian.md", "[guardian]", "guardian user list", "guardian.password"),
        ("guardian.md", "[guardian]", "guardian watch", "guardian.smtp-password"),
    ],
)
def test_an_example_without_its_password_is_one_line_and_exit_78(
    tmp_path: Path, page: str, section: str, words: str, key: str
) -> None:
    text = first_block(page, section)
    for folder in ("/var/lib/vcsreplicator", "/etc/vcsreplicator"):
        text = text.replace(folder, str(tmp_path))
    file = tmp_path / "v.toml"
    url = f"sqlite://{tmp_path}/log.db"
    open_log(url, creates=True).close()
    file.write_text(f'log = "{url}"\n' + re.sub(r"\n\[listen\].*", "", text, flags=re.DOTALL))
    with warm_starts():
        ended = subprocess.run([*PROGRAM, CLI, *words.split(), "-c", str(file)], capture_output=True, text=True)
    assert ended.returncode == 78, ended.stderr
    [line] = ended.stderr.splitlines()
    assert f"{file}: {key}: {tmp_path}/" in line
    assert "cannot be read: No such file or directory" in line


def test_documented_consumer_gets_messages(log: Log, notifier: Notifier, rabbitmq: Any, tmp_path: Path) -> None:
    receiver = PulseReceiver(rabbitmq, "v2")
    notifier.start(it=receiver.settings())
    program = tmp_path / "consumer.py"
    program.write_text(blocks("messages.md", "python")[-1])
    command = [sys.executable, str(program), receiver.url, receiver.exchange, "guest"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or consumers(receiver.url, "queue/guest/example"), "the consumer")
        publish_pushes(log, "x", 1, 1)
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        process.kill()
        _, complaint = process.communicate()
        receiver.close()
    assert line, complaint
    assert json.loads(line) == [an_event("x", 1).changes.heads_added[0]]


def consumers(url: str, queue: str) -> int:
    """How many read the queue; 0 if there is none yet."""
    with kombu.Connection(url) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).consumer_count)
        except NotFound:
            return 0
