# SPDX-License-Identifier: GPL-2.0-or-later
"""What `--json` prints of verbs that had only tables."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig, ReplicationError
from notifier.clients.secret import Secret
from notifier.destinations.state import Kind, StateDatabase
from notifier.destinations.webhook.deliveries import Deliveries
from notifier.destinations.webhook.subscription import Subscription

pytestmark = pytest.mark.processes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The services' file of an installation with a log and a webhook destination."""
    text = f"""
log = "sqlite://{tmp_path}/log.db"
[public.urls]
"" = "https://hg.example/"
[notifier]
state = "{tmp_path}/notifier.db"
[notifier.hooks]
type = "webhook"
database = "{tmp_path}/deliveries.db"
"""
    (tmp_path / "x.toml").write_text(text)
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
    return tmp_path / "x.toml"


def printed(file: Path, *words: str) -> Any:
    done = CliRunner().invoke(program, [*words, "--json", "--config", str(file)])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_requests_are_listed_with_who_and_what(file: Path, tmp_path: Path) -> None:
    assert printed(file, "destination", "requests") == []
    with closing(StateDatabase(str(tmp_path / "notifier.db"))) as state:
        state.requests.ask("hooks", Kind.PAUSE, {}, who="dana", now=time.time())
    [request] = printed(file, "destination", "requests")
    assert (request["destination"], request["kind"], request["who"], request.get("result")) == (
        "hooks",
        "pause",
        "dana",
        None,
    )


def _subscribe(folder: Path, subscription: Subscription, name: str = "ci") -> None:
    """Add a subscription as the notifier does, which answers the request of the verb."""
    with closing(Deliveries(str(folder / "deliveries.db"))) as deliveries:
        assert deliveries.subscriptions.add(name, subscription, origin="command", who="dana", now=time.time())


def test_a_subscription_is_listed_with_all_members_but_its_secrets(file: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    headers = {"Authorization": "Bearer hunter2", "X-Team": "build"}
    _subscribe(tmp_path, Subscription(url="https://ci.example/", headers=headers, secrets=(Secret(file=str(key)),)))
    [listed] = printed(file, "subscription", "list")
    assert listed.pop("created_at") == pytest.approx(time.time(), abs=600)
    assert listed == {
        "id": 1,
        "name": "ci",
        "origin": "command",
        "state": "active",
        "paused_reason": None,
        "failing_since": None,
        "subscription": {
            "url": "https://ci.example/",
            "method": "POST",
            "types": ["changegroup.1", "newrepo.1", "obsolete.1"],
            "filter": None,
            "headers": {"Authorization": "(its value is not shown)", "X-Team": "build"},
            "secrets": [{"file": str(key), "command": []}],
            "timeout": 10.0,
            "concurrency": 4,
            "order": "strict",
            "is_signed": True,
            "former_until": [],
        },
    }


def test_a_subscription_that_is_paused_or_fails_says_so_and_why(file: Path, tmp_path: Path) -> None:
    for name in ("ci", "bot"):
        _subscribe(tmp_path, Subscription(url="https://ci.example/"), name)
    with closing(Deliveries(str(tmp_path / "deliveries.db"))) as deliveries:
        deliveries.subscriptions.pause("bot", "by an operator", who="dana", now=1.0)
        deliveries.subscriptions.failing(1, 1000.0)
    listed = {each["name"]: each for each in printed(file, "subscription", "list")}
    assert (listed["ci"]["state"], listed["ci"]["failing_since"]) == ("failing", 1000.0)
    assert (listed["bot"]["state"], listed["bot"]["paused_reason"]) == ("paused", "by an operator")


def test_the_history_of_subscriptions_is_listed(file: Path, tmp_path: Path) -> None:
    _subscribe(tmp_path, Subscription(url="https://ci.example/"))
    [change] = printed(file, "subscription", "history")
    assert (change["subscription"], change["what"]) == ("ci", "added")
    assert change["time"] == pytest.approx(time.time(), abs=600)


def test_a_check_of_the_configuration_says_what_is_right_and_the_mistake(file: Path) -> None:
    said = printed(file, "config", "check")
    assert said["found"][:2] == [f"{file}: all sections are correct", "the log answers"]
    assert said["mistake"] is None
    file.write_text(file.read_text() + "[relay]\nsocket = 1\n")
    done = CliRunner().invoke(program, ["config", "check", "--json", "--config", str(file)])
    assert isinstance(done.exception, BadConfig)
    mistake = json.loads(done.output)["mistake"]
    assert mistake == str(done.exception)
    assert "relay" in mistake


@pytest.mark.parametrize("section", ["[public]\nfoo = 1", "public = 5"])
def test_a_wrong_section_public_is_named_without_a_notifier_too(tmp_path: Path, section: str) -> None:
    file = tmp_path / "dashboard.toml"
    file.write_text(f'log = "sqlite://{tmp_path}/log.db"\n{section}\n')
    done = CliRunner().invoke(program, ["config", "check", "--config", str(file)])
    assert isinstance(done.exception, BadConfig)
    assert str(done.exception).startswith(f"{file}: public")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("log = [", "not TOML"),
        ('[nothing]\nlog = "x"', "nothing: unknown, expected one of"),
        (None, "cannot be read"),
        ('log = "sqlite:///nonexistent/log.db"', "/nonexistent"),
        ('log = "kafka://127.0.0.1:9"', "127.0.0.1:9"),
    ],
)
def test_a_check_of_a_file_that_cannot_be_used_is_json_too(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "broken.toml"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(program, ["config", "check", "--json", "--config", str(file)])
    assert isinstance(done.exception, ReplicationError)
    answer = json.loads(done.stdout)
    assert answer["mistake"] == str(done.exception)
    assert words in answer["mistake"]


def test_a_listing_for_people_is_a_table(file: Path) -> None:
    done = CliRunner().invoke(program, ["topics", "list", "--config", str(file)])
    assert done.output.split()[:4] == ["topic", "partitions", "first", "end"]
    assert [line.split()[0] for line in done.output.splitlines()[1:]] == [topic.name for topic in topics()]
