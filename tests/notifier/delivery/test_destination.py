# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of destinations, held against every one of them with its real other side."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from hgext.vcsreplicator.keys.pairs import make_key
from hgext.vcsreplicator.keys.signed import check_notice, sign_notice
from hgext.vcsreplicator.log import NOTICES, SERVICES, Log
from hgext.vcsreplicator.log import NewRecord as LogMessage
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import NOTIFIER_KEY
from hgext.vcsreplicator.words.shape import to_json
from notifier.clients.database import NOWHERE
from notifier.delivery.destination import DeliveryThreads
from notifier.delivery.window import Delivery
from notifier.destinations.state import Kind, StateDatabase
from notifier.messages.message import messages
from notifier.publishing.condition import DestinationCondition
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event, publish, publish_pushes, with_topics
from testing.builders.notifier.notifying import PUBLIC, Notifier, Scripted
from testing.builders.notifier.receivers import (
    DecodeReceiver,
    HgPushReceiver,
    LinesReceiver,
    PulseReceiver,
    Receiver,
    SnsReceiver,
    Told,
    WebhookReceiver,
)
from testing.faults import PythonSteps, first_visits
from testing.waiting import PATIENCE, eventually
from testing.warm import warm_starts

pytestmark = pytest.mark.processes

KINDS = ("jsonlines", "pulse-v1", "pulse-v2", "hg-push", "decode", "sns", "webhook")
# A queue behind SNS does not.
KEEPS_ORDER = ("jsonlines", "pulse-v1", "pulse-v2", "hg-push", "decode", "webhook")


@pytest.fixture
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    made = a_receiver(request.param, request, tmp_path)
    yield made
    made.close()


def a_receiver(kind: str, request: pytest.FixtureRequest, folder: Path) -> Receiver:
    match kind:
        case "jsonlines":
            return LinesReceiver(folder)
        case "hg-push":
            return HgPushReceiver(request.getfixturevalue("rabbitmq"), folder)
        case "decode":
            return DecodeReceiver(request.getfixturevalue("rabbitmq"), folder)
        case "sns":
            return SnsReceiver(request.getfixturevalue("aws").url)
        case "webhook":
            return WebhookReceiver(folder)
        case _:
            return PulseReceiver(request.getfixturevalue("rabbitmq"), kind.removeprefix("pulse-"))


def every_kind(*kinds: str) -> Any:
    marks = {"jsonlines": [], "webhook": []}
    chosen = [pytest.param(kind, marks=marks.get(kind, [pytest.mark.services])) for kind in kinds or KINDS]
    return pytest.mark.parametrize("receiver", chosen, indirect=True)


def of(path: str, told: list[Told]) -> list[int]:
    return [seq for name, seq in told if name == path]


def first_appearances(sequences: list[int]) -> list[int]:
    return list(dict.fromkeys(sequences))


@pytest.mark.sample(3)
@every_kind()
def test_everything_arrives_once_and_in_order(log: Log, notifier: Notifier, receiver: Receiver) -> None:
    notifier.start(it=receiver.settings())
    for path in ("x", "y", "z"):
        publish_pushes(log, path, 1, 15)
    notifier.settled("it")
    eventually(lambda: len(receiver.told()) == 45, "all messages")
    for path in ("x", "y", "z"):
        arrived = of(path, receiver.told())
        assert (sorted(arrived) if isinstance(receiver, SnsReceiver) else arrived) == list(range(1, 16))


def signed_by(receiver: Receiver) -> list[str | None]:
    """The signed notice of each message that arrived."""
    match receiver:
        case LinesReceiver():
            return [json.loads(line).get("signed") for line in receiver.file.read_text().splitlines()]
        case WebhookReceiver():
            return [request.headers.get("vcsreplicator-signed") for request in receiver.endpoint.requests]
        case SnsReceiver():
            return [each["MessageAttributes"].get("signed", {}).get("Value") for each in receiver.messages]
        case PulseReceiver():
            return [message.headers.get("signed") for message in receiver.messages]
    raise AssertionError(receiver)


@pytest.mark.sample(3)
@every_kind("jsonlines", "pulse-v1", "pulse-v2", "hg-push", "sns", "webhook")
def test_a_message_carries_its_signed_notice_unchanged_in_a_replay_too(
    log: Log, notifier: Notifier, receiver: Receiver, tmp_path: Path
) -> None:
    key, notice = make_key(tmp_path / "key"), a_notice(an_event("x", 1))
    signed = sign_notice(key, notice, ())
    notifier.start(it=receiver.settings())
    publish(log, notice, signed=signed)
    publish(log, a_notice(an_event("y", 1)))
    notifier.settled("it")
    eventually(lambda: len(receiver.told()) == 2, "both messages")
    assert sorted(filter(None, signed_by(receiver))) == [signed]
    notifier.ask("it", Kind.REPLAY, repository="x", since_push=1)
    eventually(lambda: len(receiver.told()) == 3, "the replay")
    assert sorted(filter(None, signed_by(receiver))) == [signed] * 2
    assert check_notice(signed, [key.signing]).notice.event == notice.event.id


@pytest.mark.sample(3)
@every_kind(*KEEPS_ORDER)
def test_order_of_a_repository_holds_while_the_other_side_comes_and_goes(
    log: Log, notifier: Notifier, receiver: Receiver
) -> None:
    notifier.start(it=receiver.settings())
    for path in ("x", "y"):
        publish_pushes(log, path, 1, 5)
    eventually(lambda: len(receiver.told()) >= 3)
    receiver.down()
    for path in ("x", "y"):
        publish_pushes(log, path, 6, 10)
    receiver.up()
    eventually(lambda: len(set(receiver.told())) == 20, "all messages")
    for path in ("x", "y"):
        assert first_appearances(of(path, receiver.told())) == list(range(1, 11))


@pytest.mark.sample(3)
@every_kind("jsonlines", "pulse-v1", "pulse-v2", "hg-push", "decode", "sns")
def test_position_stands_while_nothing_is_confirmed(log: Log, notifier: Notifier, receiver: Receiver) -> None:
    other = Scripted()
    notifier.start(it=receiver.settings(), other=other)
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    before = notifier.position("it")
    receiver.down()
    publish_pushes(log, "x", 2, 4)
    notifier.settled("other")
    eventually(lambda: notifier.state.conditions().get("it", {}).get("trouble"), "the trouble to be told")
    assert notifier.position("it") == before
    receiver.up()
    notifier.settled("it")
    eventually(lambda: set(receiver.told()) == {("x", seq) for seq in range(1, 5)}, "all messages")


@every_kind("webhook")
def test_a_webhook_is_confirmed_by_its_table_and_delivers_later(
    log: Log, notifier: Notifier, receiver: Receiver
) -> None:
    notifier.start(it=receiver.settings())
    receiver.down()
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    assert receiver.told() == []
    receiver.up()
    eventually(lambda: receiver.told() == [("x", 1), ("x", 2), ("x", 3)], "all messages")


@pytest.mark.sample(3)
@every_kind("pulse-v1", "pulse-v2", "hg-push", "decode", "webhook")
def test_poison_is_set_aside_and_holds_up_nothing(log: Log, notifier: Notifier, receiver: Receiver) -> None:
    assert receiver.poison is not None
    notifier.start(it=receiver.settings())
    publish_pushes(log, receiver.poison, 1, 1)
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    eventually(lambda: of("x", receiver.told()) == [1, 2, 3], "the others")
    assert {name for name, _ in receiver.told()} == {"x"}


@every_kind("pulse-v1", "pulse-v2")
def test_poison_is_kept_with_its_reason(log: Log, notifier: Notifier, receiver: Receiver) -> None:
    assert receiver.poison is not None
    notifier.start(it=receiver.settings())
    publish_pushes(log, receiver.poison, 1, 1)
    notifier.settled("it")
    [kept] = notifier.errors()
    assert "401 bytes, AMQP allows 255" in kept.reason


def test_delivery_that_a_close_cancels_is_not_confirmed() -> None:
    going_on = threading.Event()
    destination = DeliveryThreads(lambda _: going_on.wait(PATIENCE) and None, workers=1)
    [message] = messages(a_notice(an_event("x", 1)), 0, PUBLIC)
    for number in (1, 2):  # the second waits for the thread
        destination.submit(Delivery(number=number, message=message, attempt=1))
    destination.close()
    going_on.set()
    found: dict[int, Exception | None] = {}
    while len(found) < 2:
        found.update((each.number, each.error) for each in destination.outcomes(1.0))
    assert found[1] is None
    assert isinstance(found[2], Unavailable)


# Times that no clock gives.
HOSTILE = ("1e999", "-5", "1e18", "-1e300", "9" * 400, '"soon"')


@pytest.mark.sample(3)
@every_kind()
def test_notice_with_a_time_that_no_clock_says_holds_up_nothing(
    log: Log, notifier: Notifier, receiver: Receiver
) -> None:
    for number, wrong in enumerate(HOSTILE):
        value = to_json(a_notice(an_event(f"evil{number}", 1)))
        value = re.sub(rb'"time":[0-9.]+', f'"time":{wrong}'.encode(), value)
        log.append([LogMessage(topic=NOTICES, key=None, value=value)])
    publish_pushes(log, "x", 1, 3)
    notifier.start(it=receiver.settings())
    notifier.settled("it")
    eventually(lambda: len(of("x", receiver.told())) == 3, "the others")
    assert sorted(of("x", receiver.told())) == [1, 2, 3]


@pytest.mark.sample(3)
@every_kind()
def test_other_destinations_do_not_notice_one_that_is_down(log: Log, notifier: Notifier, receiver: Receiver) -> None:
    other = Scripted()
    receiver.down()
    notifier.start(it=receiver.settings(), other=other)
    for seq in range(1, 21):
        publish_pushes(log, "x", seq, seq)
        eventually(lambda seq=seq: len(other.got) >= seq)
    assert other.told("x") == list(range(1, 21))
    if not isinstance(receiver, WebhookReceiver):  # whose table takes everything meanwhile
        assert notifier.position("it") == log.beginnings(NOTICES)[0]
    receiver.up()
    eventually(lambda: set(of("x", receiver.told())) == set(range(1, 21)), "all messages")


def test_destination_that_hangs_holds_up_no_other(log: Log, notifier: Notifier) -> None:
    going_on = threading.Event()
    hanging, other = Scripted(answer=lambda _: going_on.wait(PATIENCE) and None), Scripted()
    notifier.start(it=hanging, other=other)
    publish_pushes(log, "x", 1, 20)
    eventually(lambda: other.told("x") == list(range(1, 21)), "the other's messages")
    assert hanging.got == []
    going_on.set()
    notifier.settled("it")
    assert hanging.told("x") == list(range(1, 21))


def write_tables(folder: Path, receiver: Receiver) -> Path:
    file = folder / "tables.json"
    table = {**receiver.table(), "patience": {"attempts": 2, "retry": {"first": 0.02, "longest": 0.2}}}
    public = {"urls": {"": "https://hg.example/"}}
    sections = {"notifier": {"state": str(folder / "state.db"), "it": table}, **receiver.sections()}
    file.write_text(json.dumps({"public": public, **sections}))
    return file


def argv(tables: Path, folder: Path, until: int | None = None) -> list[str]:
    more = [] if until is None else [str(until)]
    return [
        sys.executable,
        "-P",
        "-m",
        "testing.builders.notifier.notifier_process",
        str(tables),
        f"sqlite://{folder}/log.db",
        *more,
    ]


@pytest.mark.sample(1)
@every_kind()
def test_sigterm_drains_within_a_bound(log: Log, receiver: Receiver, tmp_path: Path) -> None:
    with running(argv(write_tables(tmp_path, receiver), tmp_path)) as process:
        for path in "abcdefgh":
            publish_pushes(log, path, 1, 20)
        eventually(lambda: receiver.told())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    position = log.stored("notifier-it", NOTICES)[0]
    if not isinstance(receiver, WebhookReceiver):
        arrived = len(set(eventually(receiver.told)))
        assert arrived >= position - log.beginnings(NOTICES)[0]


def test_a_notice_after_a_kill_comes_once_through_the_standby(log: Log, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = map(LinesReceiver, folders)
    commands = [
        argv(write_tables(folder, each), tmp_path) for folder, each in zip(folders, (first, second), strict=True)
    ]
    with running(commands[0]) as active:
        publish_pushes(log, "x", 1, 5)
        eventually(lambda: log.stored("notifier-it", NOTICES) == log.ends(NOTICES))
        with running(commands[1]):
            eventually(lambda: len([key for _, key in read_table(log, SERVICES).records if NOTIFIER_KEY in key]) == 2)
            publish_pushes(log, "x", 6, 6)
            eventually(lambda: log.stored("notifier-it", NOTICES) == log.ends(NOTICES))
            active.kill()
            active.wait()
            publish_pushes(log, "x", 7, 9)
            eventually(lambda: log.stored("notifier-it", NOTICES) == log.ends(NOTICES))
    assert (of("x", first.told()), of("x", second.told())) == ([1, 2, 3, 4, 5, 6], [7, 8, 9])


def kill_points(steps: PythonSteps, command: list[str], every: int) -> list[int]:
    """Step numbers of a whole run: the first visit of each line, or of every so-manieth."""
    with warm_starts():
        taken = steps.taken(
            lambda environment: subprocess.run(command, env=environment, check=True, capture_output=True)
        )
    return first_visits(taken)[::every]


@pytest.mark.hunt
@pytest.mark.slow
@pytest.mark.timeout(3600)
@every_kind()
def test_killed_at_every_step_it_repeats_and_never_skips(receiver: Receiver, tmp_path: Path) -> None:
    survive_kills(receiver, tmp_path, every=1)


@pytest.mark.hunt
@every_kind("jsonlines", "webhook")
def test_killed_at_a_few_steps_it_repeats_and_never_skips(receiver: Receiver, tmp_path: Path) -> None:
    survive_kills(receiver, tmp_path, every=120)


def survive_kills(receiver: Receiver, folder: Path, *, every: int) -> None:
    """Two pushes a round, one round a kill, at steps spread over the courier, the window and the destination."""
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        with_topics(log)
        tables = write_tables(folder, receiver)
        files = (
            "notifier/publishing/courier.py",
            "notifier/delivery/window.py",
            "notifier/destinations/webhook/deliveries.py",
            "notifier/destinations/jsonlines.py",
            "notifier/clients/lines.py",
        )
        more = (
            "notifier/destinations/pulse/destination.py",
            "notifier/clients/amqp/channel.py",
            "notifier/destinations/hgpush/destination.py",
            "notifier/destinations/hgpush/lookup.py",
            "notifier/destinations/decode.py",
            "notifier/destinations/sns/destination.py",
            "notifier/destinations/webhook/destination.py",
            "notifier/destinations/webhook/dispatcher.py",
            "notifier/delivery/destination.py",
            "notifier/clients/amqp/connection.py",
            "notifier/publishing/orders.py",
        )
        steps = PythonSteps(
            files=(*files, *more), record=folder / "steps", argument="testing.builders.notifier.notifier_process"
        )
        publish_pushes(log, "x", 1, 2)
        points = kill_points(steps, argv(tables, folder, log.ends(NOTICES)[0]), every)
        kills, seq = 0, 2
        for point in points:
            publish_pushes(log, "x", seq + 1, seq + 2)
            publish_pushes(log, "y", seq + 1, seq + 2)
            seq += 2
            command = argv(tables, folder, log.ends(NOTICES)[0])
            environment = {**os.environ, **steps.environment(kill_at=point)}
            with warm_starts():
                ended = subprocess.run(command, env=environment, capture_output=True, check=False)
            kills += ended.returncode == -signal.SIGKILL
        subprocess.run(argv(tables, folder, log.ends(NOTICES)[0]), check=True, capture_output=True)
        with running(argv(tables, folder)):
            eventually(lambda: len(set(receiver.told())) >= 2 * seq - 2, "everything to arrive")
        assert kills >= len(points) // 2
    assert first_appearances(sorted(of("x", receiver.told()))) == list(range(1, seq + 1))
    if not isinstance(receiver, SnsReceiver):
        assert first_appearances(of("x", receiver.told())) == list(range(1, seq + 1))
        assert first_appearances(of("y", receiver.told())) == list(range(3, seq + 1))


class running:
    """A notifier process for the length of a block."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(60)


def test_the_loop_works_on_kafka_too(kafka: Any, unique_name: str, tmp_path: Path) -> None:
    with open_log(f"{kafka.url}?topic-prefix={unique_name}.") as log:
        with_topics(log)
        receiver, notifier = LinesReceiver(tmp_path), Notifier(log, tmp_path)
        publish_pushes(log, "x", 1, 20)
        notifier.start(it=receiver.settings())
        notifier.settled("it")
        notifier.stop()
        publish_pushes(log, "x", 21, 30)
        notifier.start(it=receiver.settings())
        notifier.settled("it")
        notifier.stop()
        notifier.state.close()
    assert first_appearances(of("x", receiver.told())) == list(range(1, 31))


def read_flag(name: str) -> float | None:
    return REGISTRY.get_sample_value("vcsreplicator_notifier_down_flag", {"destination": name})


def test_a_destination_is_down_from_a_failure_to_the_next_answer() -> None:
    state = StateDatabase(NOWHERE)
    one, other = (DestinationCondition(name, MemoryLog(), state, SystemClock()) for name in ("one", "other"))
    assert (read_flag("one"), read_flag("other")) == (0.0, 0.0), "an alert needs a series before the first failure"
    one.record_outage(Unavailable("away"))
    one.record_outage(Unavailable("away"))
    assert (read_flag("one"), read_flag("other")) == (1.0, 0.0)
    other.record_outage(Unavailable("away"))
    one.record_answer()
    assert (read_flag("one"), read_flag("other")) == (0.0, 1.0)
    other.record_answer()
    assert read_flag("other") == 0.0
    state.close()
