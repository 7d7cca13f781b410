# SPDX-License-Identifier: GPL-2.0-or-later
"""The check of a real broker: what it finds there, and that the tables in the docs say the truth about our own clients."""

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock
from notifier.delivery.window import Delivery
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.pulse.listener import ListenSettings, listen
from notifier.messages.message import messages
from notifier.messages.public import PublicSettings
from notifier.services.guardian import clients, trial
from notifier.services.guardian.checking import check
from notifier.services.guardian.requirements import CheckMark, CheckResult, Requirement
from notifier.services.guardian.sampling import Sample
from notifier.services.guardian.settings import Deletion, GuardianSettings
from notifier.services.guardian.watching import QueueWatch
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event, with_topics
from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from tests.notifier.services.guardian.conftest import FILE, Guarded

pytestmark = pytest.mark.processes

Results = Mapping[Requirement, CheckResult]
BROKER = ("Pulse", "Body")


def checked(
    settings: GuardianSettings, client: str | None = None, sample: float = 0.0, log: Log | None = None
) -> Results:
    log = log or with_topics(MemoryLog())
    found = check(settings, FILE, log, client=client, sample=sample, stop=threading.Event())
    assert [each.requirement for each in found] == list(Requirement)
    return {each.requirement: each for each in found}


def marks(results: Results, mark: CheckMark) -> set[Requirement]:
    return {requirement for requirement, each in results.items() if each.mark is mark}


def published(guarded: Guarded) -> bool:
    """Whether the broker's statistics know that a client published."""
    channels = guarded.management.get("vhosts", guarded.settings.vhost, "channels")
    return any(each.get("message_stats", {}).get("publish") for each in channels)


def consuming(guarded: Guarded) -> set[str]:
    """The clients with consumers, as far as the broker's statistics know them: a row comes before its client."""
    rows = guarded.management.get("consumers", guarded.settings.vhost)
    return {each["channel_details"]["user"] for each in rows if each["channel_details"]}


def test_a_broker_in_order_fails_nothing_and_keeps_nothing_of_the_trial(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Users are the broker's, not the virtual host's: other tests make such clients at the same time.
    drawn = secrets.token_hex(4)
    monkeypatch.setattr("notifier.services.guardian.checking.secrets.token_hex", lambda _: drawn)
    settings = replace(guarded.settings, delete=Deletion.UNUSED)
    log = with_topics(MemoryLog())
    with closing(QueueWatch(settings, FILE, log)) as watch:
        watch.round()
    found = checked(settings, log=log)
    assert marks(found, CheckMark.FAIL) == set()
    shown = {requirement for requirement in Requirement if requirement.subject in BROKER}
    assert shown - marks(found, CheckMark.PASS) == {Requirement.REGISTRATION, Requirement.QUEUE_KIND}
    assert list(guarded.management.rows("queues", settings.vhost, columns="name")) == []
    assert f"guardian-check-{drawn}" not in guarded.clients.owners()
    assert guarded.management.get("users", f"guardian-check-{drawn}") is None


def test_what_clients_declared_otherwise_is_named(guarded: Guarded) -> None:
    channel = guarded.channel()
    channel.exchange_declare("hgpushes", "topic", durable=True, auto_delete=False)
    channel.exchange_declare("exchange/a/fanout", "fanout", durable=True, auto_delete=False)
    channel.exchange_declare("exchange/a/fleeting", "topic", durable=False, auto_delete=False)
    channel.queue_declare("somewhere", durable=False, auto_delete=False)
    queue = guarded.queue("a", "full", 9)
    counted = guarded.management
    eventually(lambda: (counted.get("queues", guarded.settings.vhost, queue) or {}).get("messages") == 9)
    eventually(lambda: published(guarded))
    found = checked(guarded.settings)
    reasons = {requirement: found[requirement].reason for requirement in marks(found, CheckMark.FAIL)}
    assert reasons == {
        Requirement.CONFIRMED_PUBLISHING: "1 of 1: guest",
        Requirement.EXCHANGE_NAME: "1 of 3: hgpushes",
        Requirement.EXCHANGE_TYPE: "1 of 3: exchange/a/fanout",
        Requirement.EXCHANGE_DURABLE: "1 of 3: exchange/a/fleeting",
        Requirement.QUEUE_NAME: "1 of 2: somewhere",
        Requirement.QUEUE_SIZE: f"1 of 2: {queue}",
        Requirement.QUEUE_KIND: "1 of 2: somewhere",
    }
    assert found[Requirement.NOTIFIES].mark is CheckMark.OPEN


def test_channels_and_consumers_without_limits_are_named(guarded: Guarded) -> None:
    me = guarded.add()
    queue = guarded.queue(me)
    channel = guarded.channel(me)
    channel.exchange_declare(f"exchange/{me}/e", "topic", durable=True, auto_delete=False)
    channel.basic_publish(channel.prepare_message("{}", content_encoding="utf-8"), f"exchange/{me}/e", "key")
    channel.basic_consume(queue, callback=lambda message: None)
    eventually(lambda: published(guarded))
    eventually(lambda: me in consuming(guarded), "the broker's statistics to know whose consumer it is")
    found = checked(guarded.settings, me)
    assert found[Requirement.CONFIRMED_PUBLISHING].reason == f"1 of 1: {me}"
    assert found[Requirement.CONSUMER_PREFETCH].reason == f"1 of 1: {queue}"


def test_rights_that_are_too_wide_are_found(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "permissions", lambda client: {"configure": ".*", "write": ".*", "read": ".*"})
    found = checked(guarded.settings)
    assert found[Requirement.EXCHANGE_REFUSED].reason.startswith("a client may: declare another client's, ")
    assert found[Requirement.QUEUE_REFUSED].mark is CheckMark.FAIL
    assert found[Requirement.SOURCE_REFUSED].reason == "a client may: bind to amq.topic"
    rest = guarded.management.rows("exchanges", guarded.settings.vhost, columns="name")
    assert [each["name"] for each in rest if each["name"] and not each["name"].startswith("amq.")] == []
    assert list(guarded.management.rows("queues", guarded.settings.vhost, columns="name")) == []


def test_a_broker_that_lacks_an_extension_fails(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks for nothing of the kind, so the broker does nothing of it."""
    real = trial.Trial._declare

    def declare_without_limit(self: Any, channel: Any) -> None:
        real(self, channel)
        channel.queue_delete(self._name_queue("short"))
        channel.queue_declare(self._name_queue("short"), durable=True, auto_delete=False)
        channel.queue_bind(self._name_queue("short"), self._exchange, "short")

    monkeypatch.setattr(trial.Trial, "_declare", declare_without_limit)
    for call in ("basic_qos", "confirm_select", "basic_get"):
        monkeypatch.setattr(f"kombu.transport.pyamqp.Channel.{call}", lambda *_: None)
    monkeypatch.setattr(trial, "TURNS", 1)
    assert marks(checked(guarded.settings), CheckMark.FAIL) >= {
        Requirement.CONFIRMS,
        Requirement.PREFETCH,
        Requirement.LENGTH_LIMIT,
        Requirement.AT_LEAST_ONCE,
    }


GOOD = {"content_type": "application/json", "delivery_mode": 2}


@pytest.mark.parametrize(
    ("body", "properties", "key", "broken"),
    [
        (b"{}", GOOD, "key", set()),
        (b"\xff", GOOD, "key", {Requirement.JSON}),
        (b"{", GOOD, "key", {Requirement.JSON}),
        (b"[" * 100_000, GOOD, "key", {Requirement.JSON, Requirement.SMALL}),
        (b'"' + b"x" * 8190 + b'"', GOOD, "key", {Requirement.SMALL}),
        (b'"' + b"x" * 8189 + b'"', GOOD, "key", set()),
        (b"{}", {**GOOD, "content_type": "text/plain"}, "key", {Requirement.CONTENT_TYPE}),
        (b"{}", {"content_type": "application/json"}, "key", {Requirement.MESSAGE_DURABLE}),
        (b"{}", GOOD, "", {Requirement.ROUTING_KEY}),
    ],
)
def test_a_message_is_held_against_each_line(
    body: bytes, properties: dict[str, Any], key: str, broken: set[Requirement]
) -> None:
    sample = Sample()
    sample.add(body, properties, "exchange/a/b", key)
    assert {each.requirement for each in sample.results() if each.mark is CheckMark.FAIL} == broken


# -- our own clients


@contextmanager
def running(target: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run it in a thread that ends with the block."""
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def url_of(guarded: Guarded, client: str) -> str:
    return guarded.settings.broker_url.replace("guest:guest@", f"{client}:{guarded.tokens[client]}@")


def publishing(guarded: Guarded, client: str, exchange: str) -> Callable[[threading.Event], None]:
    """What publishes messages, as the notifier does, until it is stopped."""
    [message] = messages(a_notice(an_event("try", 2)), 2, PublicSettings(urls={"": "https://hg.example/"}))
    settings = PulseSettings(url=url_of(guarded, client), exchange=exchange, cc=("type.{type}",))

    def publish(stop: threading.Event) -> None:
        destination = settings.open("pulse", SystemClock(), MemoryLog())
        while not stop.wait(0.05):
            destination.submit(Delivery(number=1, message=message, attempt=1))
            destination.outcomes(0.05)
        destination.close()

    return publish


def test_the_documented_table_of_our_clients_is_true(guarded: Guarded) -> None:
    writer, reader = guarded.add("writer"), guarded.add("reader")
    exchange = f"exchange/{writer}/v2"
    subscription = ListenSettings(url=url_of(guarded, reader), exchange=exchange, queue=f"queue/{reader}/listen")
    arrived = threading.Event()

    def subscribe(stop: threading.Event) -> None:
        listen(subscription, lambda message: arrived.set() or True, stop=stop)  # type: ignore[func-returns-value]

    vhost = guarded.settings.vhost
    with running(publishing(guarded, writer, exchange)):
        eventually(lambda: guarded.management.get("exchanges", vhost, exchange), "the exchange")
        with running(subscribe):
            assert arrived.wait(60)
            eventually(lambda: published(guarded))
            eventually(lambda: guarded.management.get("consumers", vhost), "the consumer")
            of_writer = checked(guarded.settings, writer, sample=1.0)
            of_reader = checked(guarded.settings, reader)
    for requirement, (of_pulse, of_listen) in documented().items():
        for said, found in ((of_pulse, of_writer), (of_listen, of_reader)):
            if said != "–":
                assert (requirement, said, found[requirement].reason) == (
                    requirement,
                    found[requirement].mark.value,
                    found[requirement].reason,
                )


def documented() -> dict[Requirement, tuple[str, str]]:
    """The table of docs/guardian.md: each line, and what it says of the destination and of `listen`."""
    text = (Path(CHECKOUT) / "docs/guardian.md").read_text()
    rows = re.findall(r"^\| ([A-Z]\w+) \| ((?:MUST|SHOULD|MAY) [^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    by_words = {(each.subject, each.words): each for each in Requirement}
    return {by_words[subject, words]: (ours, listens) for subject, words, ours, listens in rows}


def test_the_documented_table_has_every_line_about_clients() -> None:
    broker_only = {each for each in Requirement if each.subject in BROKER} - {Requirement.QUEUE_KIND}
    assert set(documented()) == set(Requirement) - broker_only
