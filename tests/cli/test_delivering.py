# SPDX-License-Identifier: GPL-2.0-or-later
"""`trace` says of no message that it was delivered unless something shows it."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import ERRORS, EVENTS, NOTICES, STATE, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import to_json
from notifier.delivery.rejects import Rejects
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.message import Message, messages
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.builders.notifier.notifying import FILE, PUBLIC

# Rejects of other messages, more than a search for those of one notice begins with.
MANY = 150


def put(log: Log, topic: str, key: str, value: bytes) -> None:
    log.append([NewRecord(topic=topic, key=key, value=value)])


@pytest.fixture
def message(tmp_path: Path) -> Message:
    """The message of a push, whose notice `lines` and `hooks` have passed."""
    (tmp_path / "x.toml").write_text(FILE.format(folder=tmp_path))
    chain = Chain("x")
    event = chain.take(2)[-1]
    notice = Notice(event=event, time=0.0, roster=1, acks=(), previous={})
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        put(log, EVENTS, event.repository, wire.encode(event))
        put(log, NOTICES, event.repository, to_json(notice))
        put(log, STATE, event.repository, to_json(replace(state_of(event), noticed=2)))
        for name in ("lines", "hooks"):
            log.acknowledge(f"notifier-{name}", NOTICES, {0: 1})
    [found] = messages(notice, 0, PUBLIC)
    return found


def traced(folder: Path) -> dict[str, str]:
    """What `trace` says of each destination."""
    result = CliRunner().invoke(program, ["trace", "x", "--json", "--config", str(folder / "x.toml")])
    assert result.exception is None, result.exception
    found: dict[str, str] = json.loads(result.output)["destinations"]
    return found


def deliver(folder: Path, message: Message, *states: DeliveryState, replay: str | None = None) -> None:
    """A delivery to one subscription after another, each in one of these states."""
    with closing(Deliveries(str(folder / "deliveries.db"))) as deliveries:
        for number, state in enumerate(states):
            wanted = Subscription(url="https://ci.example.org/hook")
            deliveries.subscriptions.add(f"ci-{replay}-{number}", wanted, origin="command", who="dana", now=1.0)
            newest = deliveries.subscriptions.all()[-1:]
            [row] = deliveries.enqueue([(replace(message, replay=replay), newest)], 1.0)
            end = AttemptEnd(begun=row, state=state, attempt=1, mature_at=9.0, status=500, error=None)
            deliveries.record([end], 2.0)


SEE = "vcsreplicator deliveries list --destination hooks"


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((DeliveryState.DELIVERED,) * 2, "2 delivered"),
        ((DeliveryState.QUEUED, DeliveryState.DELIVERED), f"1 delivered, 1 queued: {SEE}"),
        ((DeliveryState.EXHAUSTED,), f"1 exhausted: {SEE}"),
    ],
)
def test_a_message_that_is_queued_for_a_webhook_is_not_delivered(
    tmp_path: Path, message: Message, states: tuple[DeliveryState, ...], said: str
) -> None:
    deliver(tmp_path, message, *states)
    deliver(tmp_path, message, DeliveryState.DELIVERED, replay="dana, today")
    assert traced(tmp_path)["hooks"] == said


def test_of_a_webhook_without_a_delivery_of_the_message_none_is_claimed(tmp_path: Path, message: Message) -> None:
    assert traced(tmp_path)["hooks"] == f"passed; its deliveries are on the notifier's machine: {SEE}"
    deliver(tmp_path, message)
    assert traced(tmp_path)["hooks"] == "passed; no delivery of it is kept"
    (tmp_path / "deliveries.db").write_text("no database, but long enough to be read as one" * 100)
    assert traced(tmp_path)["hooks"] == f"passed; its deliveries cannot be read: {SEE}"


def test_a_message_that_a_destination_passed_is_not_said_to_be_delivered(tmp_path: Path, message: Message) -> None:
    assert traced(tmp_path)["lines"] == "passed"
    (tmp_path / "x.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n')
    assert traced(tmp_path) == {"lines": "passed", "hooks": "passed"}


def test_a_rejected_message_is_rejected_however_many_rejects_follow(tmp_path: Path, message: Message) -> None:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=False) as log:
        Rejects("lines", log, SystemClock()).keep_message(message, "skipped by dana", is_counted=False)
        put(log, ERRORS, "x", b'{"severity": 3}')
        for number in range(1, MANY):
            other = replace(message, id=f"{number}.changegroup.1", offset=number)
            Rejects("hooks", log, SystemClock()).keep_message(other, "status 500", is_counted=False)
    said = traced(tmp_path)
    assert said["lines"] == "rejected: changegroup.1: skipped by dana (vcsreplicator errors show 0)"
    assert "rejected" not in said["hooks"]


def test_a_notice_that_could_not_be_read_is_rejected(tmp_path: Path, message: Message) -> None:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=False) as log:
        Rejects("lines", log, SystemClock()).keep("no such path", b"", message.offset, message.repository)
    assert traced(tmp_path)["lines"] == "rejected: no such path (vcsreplicator errors show 0)"
