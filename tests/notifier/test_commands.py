# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs for operators of the notifier, and the subscriber's `listen`."""

import base64
import datetime
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click.testing
import pytest

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import NOTIFIER, Log, NewRecord
from hgext.vcsreplicator.words.errors import Refused, ReplicationError, Unavailable
from notifier.destinations.pulse.listener import ListenSettings, ReceivedMessage, listen
from notifier.destinations.state import StateDatabase
from notifier.destinations.webhook.signing import signing_key
from notifier.publishing import settings as notifier_settings
from testing.builders.notifier.endpoint import Endpoint, Reply, Request
from testing.builders.notifier.notices import publish_pushes
from testing.builders.notifier.notifying import FILE, Notifier, Scripted
from testing.builders.notifier.receivers import PulseReceiver
from testing.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture
def file(tmp_path: Path, log: Log) -> Path:
    file = tmp_path / "services.toml"
    file.write_text(FILE.format(folder=tmp_path))
    return file


def say(file: Path, *words: str) -> str:
    """What the verb prints; raises what it refuses."""
    result = click.testing.CliRunner().invoke(program, [*words, "--config", str(file)], catch_exceptions=False)
    if result.exit_code:
        raise ReplicationError(result.output)
    return result.stdout


@pytest.fixture
def running(file: Path, notifier: Notifier) -> Iterator[Notifier]:
    import tomllib

    read = notifier_settings.read(tomllib.loads(file.read_text()), str(file))
    notifier.start(
        lines=Scripted(answer=lambda m: Unavailable("no") if m.sequence == 7 else None),
        hooks=read.destinations["hooks"],
    )
    return notifier


def test_pause_and_resume_are_answered_by_the_notifier(file: Path, running: Notifier) -> None:
    assert say(file, "destination", "pause", "lines") == "lines: paused\n"
    assert say(file, "destination", "resume", "lines") == "lines: resumed\n"
    assert "resumed" in say(file, "destination", "requests")


def test_unknown_destination_is_named_with_those_there_are(file: Path) -> None:
    with pytest.raises(ReplicationError, match=r"no destination 'nowhere'; the destinations are: lines, hooks"):
        say(file, "destination", "pause", "nowhere")


@pytest.mark.parametrize(
    "words",
    [
        ("destination", "pause", "lines"),
        ("destination", "resume", "lines"),
        ("destination", "skip", "lines", "--message", "m", "--yes"),
        ("replay", "--repository", "x", "--to", "lines", "--since", "1"),
    ],
)
def test_a_request_on_a_machine_without_the_notifier_makes_no_file(
    file: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(Refused, match="the request is recorded"):
        say(file, *words, "--wait", "0.1")
    assert set(tmp_path.iterdir()) == before


@pytest.fixture
def follows_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notifier looks often for requests of other machines."""
    monkeypatch.setattr("notifier.publishing.orders.FOLLOW_EVERY", 0.05)


@pytest.mark.usefixtures("follows_often")
def test_a_destination_is_paused_from_a_machine_without_the_notifier(
    file: Path, running: Notifier, tmp_path: Path, log: Log
) -> None:
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(file.read_text().replace(f"{tmp_path}/notifier.db", f"{tmp_path}/absent.db"))
    assert say(elsewhere, "destination", "pause", "lines") == "lines: paused\n"
    assert running.state.paused("lines")
    assert say(elsewhere, "destination", "resume", "lines") == "lines: resumed\n"
    with pytest.raises(ReplicationError, match="lines: nothing skipped: no such message"):
        say(elsewhere, "destination", "skip", "lines", "--message", "m", "--yes")
    assert [each.result for each in running.state.requests.list_newest(9)][1:] == ["resumed", "paused"]
    assert not Path(f"{tmp_path}/absent.db").exists()


@pytest.mark.usefixtures("follows_often")
def test_a_request_that_the_log_and_the_verb_bring_is_carried_out_once(file: Path, running: Notifier) -> None:
    say(file, "destination", "pause", "lines")
    say(file, "destination", "resume", "lines")
    assert [each.result for each in running.state.requests.list_newest(9)] == ["resumed", "paused"]


def test_a_machine_without_the_notifier_shows_what_the_log_has(
    file: Path, running: Notifier, tmp_path: Path, log: Log
) -> None:
    say(file, "subscription", "add", "ci", "https://192.0.2.1/hook")
    say(file, "subscription", "pause", "ci")
    say(file, "destination", "pause", "lines")
    publish_pushes(log, "x", 1, 1)
    running.settled("hooks")
    running.stop()
    here = {path: say(file, *path) for path in (("subscription", "list"), ("deliveries", "list"))}
    for found in (*tmp_path.glob("deliveries.db*"), *tmp_path.glob("notifier.db*")):
        found.unlink()
    before = set(tmp_path.iterdir())
    assert {path: say(file, *path) for path in here} == here
    assert "1 queued" in here["deliveries", "list"]
    assert json.loads(say(file, "deliveries", "show", "1"))["state"] == "queued"
    assert "paused" in say(file, "destination", "requests")
    for words in (("subscription", "remove", "ci", "--yes"), ("deliveries", "redeliver", "1")):
        with pytest.raises(Refused, match="the request is recorded"):
            say(file, *words, "--wait", "0.1")
    assert set(tmp_path.iterdir()) == before


def sign(request: Request, *keys: str) -> str:
    """Return the signatures that a receiver with these keys expects."""
    content = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.{request.text}".encode()
    digests = [hmac.new(signing_key(key), content, hashlib.sha256).digest() for key in keys]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


@pytest.mark.usefixtures("follows_often")
def test_webhooks_are_changed_from_a_machine_without_the_notifier(
    file: Path, running: Notifier, tmp_path: Path, log: Log
) -> None:
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(file.read_text().replace(f"{tmp_path}/notifier", f"{tmp_path}/absent"))
    elsewhere.write_text(elsewhere.read_text().replace(f"{tmp_path}/deliveries", f"{tmp_path}/missing"))
    with Endpoint(lambda request: Reply(status=422)) as endpoint:
        added = say(elsewhere, "subscription", "add", "ci", endpoint.url).split()
        assert added[:6] + added[7:] == ["secret", "of", "ci,", "shown", "only", "once:", "hooks:", "ci", "added"]
        assert endpoint.url in say(elsewhere, "subscription", "list")
        with pytest.raises(Refused, match=r"^hooks: failed: status 422 after \d\.\d+ s$"):
            say(elsewhere, "subscription", "test", "ci")
        example = endpoint.requests[0]
        assert example.headers["webhook-signature"] == sign(example, added[6])
        assert added[6] not in say(elsewhere, "subscription", "list", "--json")
        assert added[6] not in say(elsewhere, "destination", "requests", "--json")
        rotated = say(elsewhere, "subscription", "rotate", "ci", "--overlap", "1")
        assert "hooks: ci rotated; the former key signs too until " in rotated
        with pytest.raises(Refused, match="status 422"):
            say(elsewhere, "subscription", "test", "ci")
        keys = [rotated.split()[7], added[6]]
        assert endpoint.requests[1].headers["webhook-signature"] == sign(endpoint.requests[1], *keys)
        listed = say(elsewhere, "subscription", "list", "--json") + say(elsewhere, "destination", "requests", "--json")
        assert not [key for key in keys if key in listed]
        [until] = json.loads(say(elsewhere, "subscription", "list", "--json"))[0]["subscription"]["former_until"]
        assert until == pytest.approx(time.time() + 3600, abs=60)
        publish_pushes(log, "x", 1, 1)
        eventually(lambda: "1 exhausted" in say(elsewhere, "deliveries", "list"))
        assert say(elsewhere, "subscription", "pause", "ci") == "hooks: ci paused\n"
        assert say(elsewhere, "deliveries", "redeliver", "1") == "1 queued again\n"
        assert "1 queued" in say(elsewhere, "deliveries", "list")
        assert say(elsewhere, "subscription", "resume", "ci") == "hooks: ci resumed\n"
        assert say(elsewhere, "subscription", "remove", "ci", "--yes") == "hooks: ci removed\n"
    assert json.loads(say(elsewhere, "subscription", "list", "--json")) == []
    assert not [*tmp_path.glob("absent*"), *tmp_path.glob("missing*")]


def test_in_place_of_an_overtaken_database_the_log_is_shown(file: Path, running: Notifier, log: Log) -> None:
    say(file, "subscription", "add", "ci", "https://192.0.2.1/hook")
    running.settled("hooks")
    running.stop()
    log.append([NewRecord(topic=NOTIFIER, key="database/hooks", value=b'{"id":"another"}')])
    log.append([NewRecord(topic=NOTIFIER, key="subscription/hooks/ci", value=None)])
    assert json.loads(say(file, "subscription", "list", "--json")) == []


def test_request_while_the_notifier_is_stopped_is_kept(file: Path, tmp_path: Path) -> None:
    StateDatabase(f"{tmp_path}/notifier.db").close()
    with pytest.raises(ReplicationError, match="the request is recorded"):
        say(file, "destination", "pause", "lines", "--wait", "0.1")


@pytest.mark.parametrize("reported", [None, 0.0], ids=["never reported", "stopped"])
def test_a_skip_of_the_oldest_failure_needs_a_running_notifier(
    file: Path, tmp_path: Path, reported: float | None
) -> None:
    with closing(StateDatabase(f"{tmp_path}/notifier.db")) as state:
        if reported is not None:
            state.record_condition("lines", {}, now=reported)
        with pytest.raises(Refused, match=r"lines: the notifier does not run here, .* add --message ID"):
            say(file, "destination", "skip", "lines", "--yes")
        assert state.requests.list_newest(5) == []
        with pytest.raises(Refused, match="the request is recorded"):
            say(file, "destination", "skip", "lines", "--message", "m1", "--yes", "--wait", "0.1")


def test_skip_says_what_it_would_do_and_acts_on_yes(file: Path, running: Notifier, log: Log) -> None:
    publish_pushes(log, "x", 7, 7)
    with pytest.raises(
        ReplicationError, match="the oldest message that failed would never be sent to lines; add --yes"
    ):
        say(file, "destination", "skip", "lines")
    eventually(lambda: "failing since" in say(file, "destination", "list"))
    assert "skipped" in say(file, "destination", "skip", "lines", "--yes").split()[1]
    running.settled("lines")
    assert "skipped by" in running.errors()[0].reason


def test_list_shows_trouble(file: Path, running: Notifier, log: Log) -> None:
    publish_pushes(log, "x", 7, 7)
    eventually(lambda: re.search(r"failing since 2.{18} UTC: no", say(file, "destination", "list")))
    assert json.loads(say(file, "destination", "list", "--json"))["lines"]["trouble"] == "no"


def test_list_says_since_when_the_notifier_reports_nothing(file: Path, running: Notifier, tmp_path: Path) -> None:
    eventually(lambda: "  delivering" in say(file, "destination", "list"))
    running.stop()
    with closing(StateDatabase(f"{tmp_path}/notifier.db")) as state:
        last = state.conditions()["lines"]
        state.record_condition("lines", last, now=last["time"] - 100)
    assert re.search(r"no report since 2.{18} UTC; before that: delivering", say(file, "destination", "list"))


def test_what_only_reads_makes_no_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert "never ran" in say(file, "destination", "list")
    say(file, "destination", "requests")
    say(file, "subscription", "list")
    say(file, "deliveries", "list")
    assert set(tmp_path.iterdir()) == before


def test_replay_by_push_id_and_by_time(file: Path, running: Notifier, log: Log) -> None:
    publish_pushes(log, "x", 1, 3)
    running.settled("lines")
    replay = ("replay", "--repository", "x", "--to", "lines", "--since")
    assert say(file, *replay, "3") == "lines: sent 1 message again\n"
    assert say(file, *replay, "2016-04-18T10:24:43") == "lines: sent 2 messages again\n"
    with pytest.raises(ReplicationError, match=r"expected a time such as"):
        say(file, *replay, "yesterday")
    with pytest.raises(Refused, match="lines: nothing sent: the log has no message for it about nope"):
        say(file, "replay", "--repository", "nope", "--to", "lines", "--since", "1")


def test_subscription_lives_from_its_adding_to_its_removal(
    file: Path, running: Notifier, log: Log, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    key.chmod(0o600)
    with Endpoint() as endpoint:
        say(file, "subscription", "add", "ci", endpoint.url, "--header", "x-team: build", "--secret-file", str(key))
        assert endpoint.url in say(file, "subscription", "list", "--json")
        publish_pushes(log, "x", 1, 2)
        eventually(lambda: endpoint.told == [("x", 1), ("x", 2)])
        assert endpoint.requests[0].headers["x-team"] == "build"
        assert endpoint.requests[0].headers["webhook-signature"].startswith("v1,")
        say(file, "subscription", "pause", "ci")
        publish_pushes(log, "x", 3, 3)
        eventually(lambda: json.loads(say(file, "deliveries", "list", "--state", "queued", "--json")))
        with pytest.raises(ReplicationError, match="waiting deliveries to ci would be cancelled; add --yes"):
            say(file, "subscription", "remove", "ci")
        say(file, "subscription", "remove", "ci", "--yes")
        assert "1 cancelled, 2 delivered" in say(file, "deliveries", "list")
        assert "removed" in say(file, "subscription", "history")
        assert "MfKQ9" not in say(file, "subscription", "list", "--json")


def test_delivery_is_shown_and_sent_again(file: Path, running: Notifier, log: Log) -> None:
    with Endpoint(lambda request: Reply(status=500, body=b"no \x1b disk")) as endpoint:
        assert say(file, "subscription", "add", "ci", endpoint.url, "--unsigned") == "hooks: ci added\n"
        publish_pushes(log, "x", 1, 2)
        eventually(lambda: "2 exhausted" in say(file, "deliveries", "list"))
        shown = json.loads(say(file, "deliveries", "show", "1"))
        assert (shown["state"], shown["error"], shown["body"]["type"]) == ("exhausted", "status 500", "changegroup.1")
        assert [(each["status"], each["answer"]) for each in shown["attempts"]] == [(500, "no \x1b disk")] * 2
        assert all(0 < each["duration"] < 60 for each in shown["attempts"])
        assert [each["ended"] for each in shown["attempts"]] == [
            f"{datetime.datetime.fromtimestamp(each['ended_at'], datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
            for each in shown["attempts"]
        ]
        assert "\x1b" not in say(file, "deliveries", "show", "1")
        assert "webhook-signature" not in endpoint.requests[0].headers
        endpoint.reply = lambda request: Reply()
        with pytest.raises(ReplicationError, match="2 deliveries would be sent again; add --yes"):
            say(file, "deliveries", "redeliver", "--exhausted", "ci")
        assert say(file, "deliveries", "redeliver", "--exhausted", "ci", "--yes") == "2 queued again\n"
        eventually(lambda: "2 delivered" in say(file, "deliveries", "list"))


def test_redelivery_that_queues_nothing_is_refused(file: Path, running: Notifier, log: Log) -> None:
    with Endpoint() as endpoint:
        say(file, "subscription", "add", "ci", endpoint.url)
        publish_pushes(log, "x", 1, 2)
        eventually(lambda: "2 delivered" in say(file, "deliveries", "list"))
        for words, complaint in (
            ((), "expected numbers of deliveries, or --exhausted SUBSCRIPTION"),
            (("7",), "there is no delivery 7"),
            (("1", "7", "8", "--yes"), "there is no delivery 7, 8"),
            (("--exhausted", "ci"), "no delivery to ci was given up"),
            (("--exhausted", "other", "--yes"), "no delivery to other was given up"),
        ):
            with pytest.raises(ReplicationError, match=complaint):
                say(file, "deliveries", "redeliver", *words)
        say(file, "subscription", "remove", "ci", "--yes")
        with pytest.raises(ReplicationError, match="hooks: nothing queued: the subscriptions were removed, or"):
            say(file, "deliveries", "redeliver", "1", "2", "--yes")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("deliveries", "show", "77"), "there is no delivery 77"),
        (("deliveries", "show", "9" * 20), "9 is not in the range"),
        (("deliveries", "redeliver", "9" * 20), "9 is not in the range"),
        (("subscription", "add", "x", "ftp://x"), "url: expected https"),
        (("subscription", "add", "x", "https://x", "--unsigned", "--secret-file", "/k"), "expected no --secret-file"),
        (("replay", "--repository", "caf\udce9", "--to", "lines", "--since", "1"), "expected text in UTF-8"),
        (("destination", "skip", "lines", "--message", "\udce9", "--yes"), "expected text in UTF-8"),
        (("subscription", "add", "x", "https://x", "--header", "foo"), "--header: expected NAME:VALUE, got 'foo'"),
    ],
)
def test_mistakes_are_one_line(file: Path, words: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ReplicationError, match=complaint):
        say(file, *words)


def test_http_endpoint_is_refused_where_only_https_is_allowed(file: Path) -> None:
    file.write_text(file.read_text().replace("allow-http = true", ""))
    with pytest.raises(Refused, match=r"^url: expected https; to allow http as well, set allow-http = true$"):
        say(file, "subscription", "add", "ci", "http://ci.example/hook")
    assert json.loads(say(file, "subscription", "list", "--json")) == []


@pytest.fixture
def told(rabbitmq: Any, log: Log, notifier: Notifier) -> Iterator[PulseReceiver]:
    """An exchange to which three pushes of `x` come while the block runs."""
    receiver = PulseReceiver(rabbitmq, "v2")
    notifier.start(it=receiver.settings())
    yield receiver
    receiver.close()


def listener(receiver: PulseReceiver, **more: Any) -> ListenSettings:
    queue = receiver.name + "-listener"
    return ListenSettings(url=receiver.url, exchange=receiver.exchange, queue=queue, pause=0.05, durable=True, **more)


def test_listener_gets_every_message_and_repeats_what_failed(told: PulseReceiver, log: Log) -> None:
    attempts: list[int] = []

    def hand_on(arrival: ReceivedMessage) -> bool:
        attempts.append(arrival.headers["sequence"])
        return attempts.count(arrival.headers["sequence"]) > 1

    done: list[int] = []
    stop = threading.Event()
    thread = threading.Thread(
        target=lambda: done.append(listen(listener(told, prefetch=1), hand_on, stop=stop, limit=3))
    )
    thread.start()
    try:
        eventually(lambda: _queue_exists(told))
        publish_pushes(log, "x", 1, 3)
        eventually(lambda: done)
    finally:
        stop.set()
        thread.join()
    assert done == [3]
    assert sorted(attempts) == [1, 1, 2, 2, 3, 3]


def test_listener_names_are_checked() -> None:
    with pytest.raises(ValueError, match="queue: expected queue/<clientId>/<name>"):
        ListenSettings(url="amqp://h", exchange="exchange/a/b", queue="mine")
    with pytest.raises(ValueError, match="exchange: expected exchange/"):
        ListenSettings(url="amqp://h", exchange="amq.topic", queue="queue/a/b")


def test_listen_prints_each_message_as_a_line(told: PulseReceiver, log: Log) -> None:
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "listen", told.url, told.exchange, "--count", "2"]
    more = ["--queue", told.name + "-listener", "--durable"]
    process = subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stderr is not None
        assert f'"queue": "{told.name}-listener"' in process.stderr.readline(), "from now on it gets all"
        publish_pushes(log, "x", 1, 2)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert [json.loads(line)["payload"]["type"] for line in out.splitlines()] == ["changegroup.1", "changegroup.1"]
    assert process.returncode == 0


def test_listener_ends_with_what_its_caller_raises(told: PulseReceiver, log: Log) -> None:
    def hand_on(arrival: ReceivedMessage) -> bool:
        raise BrokenPipeError("no reader")

    with pytest.raises(BrokenPipeError, match="no reader"):
        _listens(told, log, hand_on)


def test_listen_leaves_a_message_that_is_too_large_in_its_queue(told: PulseReceiver, log: Log) -> None:
    with pytest.raises(Refused, match="max-message"):
        _listens(told, log, lambda arrival: True, max_message=10)
    came: list[str] = []
    assert listen(listener(told), lambda arrival: not came.append(arrival.text), stop=threading.Event(), limit=1) == 1
    assert json.loads(came[0])["payload"]["type"] == "changegroup.1"


def _listens(told: PulseReceiver, log: Log, hand_on: Callable[[ReceivedMessage], bool], **more: int) -> None:
    """A subscriber that was there before a push is."""
    publishing = threading.Thread(
        target=lambda: eventually(lambda: _queue_exists(told)) and publish_pushes(log, "x", 1, 1)
    )
    publishing.start()
    try:
        listen(listener(told, **more), hand_on, stop=threading.Event(), limit=1)
    finally:
        publishing.join()


def test_listen_without_the_exchange_says_so(rabbitmq: Any) -> None:
    command = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "listen", rabbitmq.vhost(), "exchange/no/such"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "no exchange 'exchange/no/such'" in result.stderr
    assert "Traceback" not in result.stderr


class _Pause(threading.Event):
    """Ends the listener as soon as it waits to connect again."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def test_listen_ends_at_a_missing_virtual_host_called_limit(rabbitmq: Any) -> None:
    settings = ListenSettings(url=rabbitmq.url.removesuffix("/") + "limit", exchange="exchange/a/b", queue="queue/a/b")
    with pytest.raises(Refused, match="NOT_ALLOWED - vhost limit not found"):
        listen(settings, lambda arrival: True, stop=_Pause())


def test_listen_waits_at_a_virtual_host_with_all_its_connections(rabbitmq: Any) -> None:
    url = rabbitmq.vhost()
    vhost = url.rpartition("/")[2]
    rabbitmq.evaluate(f'rabbit_vhost_limit:set(<<"{vhost}">>, [{{<<"max-connections">>, 0}}], <<"test">>)')
    stop = _Pause()
    assert listen(ListenSettings(url=url, exchange="exchange/a/b", queue="queue/a/b"), lambda _: True, stop=stop) == 0
    assert stop.is_set()


def _queue_exists(receiver: PulseReceiver) -> bool:
    import kombu
    from amqp.exceptions import NotFound

    with kombu.Connection(receiver.url) as connection:
        try:
            return bool(connection.channel().queue_declare(receiver.name + "-listener", passive=True).consumer_count)
        except NotFound:
            return False
