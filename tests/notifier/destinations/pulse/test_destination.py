# SPDX-License-Identifier: GPL-2.0-or-later
"""Pulse on a real RabbitMQ: bodies to the letter, properties, and everything that can happen to a broker."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import kombu
import pytest

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from hgext.vcsreplicator.words.event import Type
from notifier.clients.amqp.channel import REFUSED, OnNack
from notifier.clients.secret import Secret
from notifier.delivery.destination import DeliveryOutcome, Destination
from notifier.delivery.window import Delivery
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.pulse.message import body, payload, routing_key
from notifier.messages.message import Message, messages
from notifier.messages.public import PublicSettings
from notifier.publishing.condition import PartedDestination
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.notices import a_notice, an_event, publish, publish_pushes
from testing.builders.notifier.notifying import Notifier, Scripted
from testing.builders.notifier.receivers import FAST, PulseReceiver
from testing.metrics import value_of
from testing.services.cache import CHECKOUT
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually

pytestmark = pytest.mark.processes

PUBLIC = PublicSettings(urls={"": "https://hg.example/"})


def a_message(path: str = "integration/autoland", seq: int = 2, **event: Any) -> Message:
    [message] = messages(a_notice(an_event(path, seq, **event)), seq, PUBLIC)
    return message


@pytest.fixture
def pulse(rabbitmq: Any) -> Iterator[PulseReceiver]:
    receiver = PulseReceiver(rabbitmq, "v2")
    yield receiver
    receiver.close()


def send(destination: Destination, *what: Message, patience: float = 20.0) -> list[DeliveryOutcome]:
    """Submits all and waits for all outcomes."""
    for number, message in enumerate(what):
        destination.submit(Delivery(number=number, message=message, attempt=1))
    found: list[DeliveryOutcome] = []

    def collected() -> bool:
        found.extend(destination.outcomes(0.05))
        return len(found) == len(what)

    eventually(collected, "all outcomes")
    return found


def opened(settings: PulseSettings) -> Destination:
    return settings.open("pulse", SystemClock(), MemoryLog())


# -- what is sent


def test_v1_body_has_pushes_only_and_neither_source_nor_type() -> None:
    message = a_message()
    assert set(payload(message, "v1")) == {"repo_url", "heads", "pushlog_pushes"}
    text = body(payload(message, "v1"), "exchange/hgpushes/v1", "integration/autoland", 1469830278.503365)
    assert '"_meta": {"exchange": "exchange/hgpushes/v1", "routing_key": "integration/autoland", ' in text
    assert '"sent": "2016-07-29T22:11:18.503365", "serializer": "json"' in text


def test_v2_body_has_type_and_data() -> None:
    message = a_message(type=Type.CREATED)
    expected = {"type": "newrepo.1", "data": {"repo_url": "https://hg.example/integration/autoland"}}
    assert payload(message, "v2") == expected


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        (None, "integration/Auto"),
        ("https://hg.example/", "integration/Auto"),
        ("https://hg.example/integration/", "Auto"),
    ],
)
def test_routing_key_is_the_path_of_the_repository(prefix: str | None, key: str) -> None:
    assert routing_key(a_message("integration/Auto"), prefix) == key


@pytest.mark.parametrize("exchange", ["hgpushes/v2", "exchange/v2", "exchange//v2", "queue/me/v2", "exchange/me/a b"])
def test_wrong_name_of_an_exchange_is_refused_at_start(exchange: str) -> None:
    with pytest.raises(ValueError, match="exchange: expected exchange/<clientId>/<name>"):
        PulseSettings(url="amqp://h", exchange=exchange)


@pytest.mark.parametrize("template", ["{type.value}", "{type[a]}", "{0}", "{"])
def test_a_copy_under_a_template_of_anything_else_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="cc: expected text with"):
        PulseSettings(url="amqp://h", exchange="exchange/me/v2", cc=(template,))


def test_v1_has_no_other_types() -> None:
    assert PulseSettings(url="amqp://h", exchange="exchange/me/v1", stream="v1").types == ("changegroup.1",)
    with pytest.raises(ValueError, match=r"types: the stream v1 has changegroup\.1 only"):
        PulseSettings(url="amqp://h", exchange="exchange/me/v1", stream="v1", types=("newrepo.1",))


def test_missing_secret_is_named_when_it_is_needed() -> None:
    settings = PulseSettings(url="amqp://me@h", exchange="exchange/me/v2", password=Secret(env="NOT_THERE"))
    with pytest.raises(Unavailable, match="the environment variable NOT_THERE is not set"):
        opened(settings).start()


def test_message_is_durable_json_with_its_id_and_the_one_before(pulse: PulseReceiver) -> None:
    destination = opened(pulse.settings())
    message = a_message()
    assert send(destination, message) == [DeliveryOutcome(number=0)]
    eventually(pulse.told)
    [arrived], [content] = pulse.messages, pulse.bodies
    assert arrived.properties["message_id"] == message.id
    assert arrived.properties["type"] == "changegroup.1"
    assert arrived.headers == {"previous": message.previous, "repository": message.repository, "sequence": 2}
    assert arrived.delivery_info["routing_key"] == "integration/autoland"
    assert (arrived.content_type, arrived.properties["delivery_mode"]) == ("application/json", 2)
    assert content["_meta"]["routing_key"] == "integration/autoland"
    assert content["payload"] == {"type": "changegroup.1", "data": message.data}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", content["_meta"]["sent"])
    destination.close()


def test_exchange_is_there_as_soon_as_the_notifier_is_ready(notifier: Notifier, rabbitmq: Any) -> None:
    receiver = PulseReceiver(rabbitmq, "v2")
    settings = replace(receiver.settings(), exchange=receiver.exchange + "/more")
    notifier.start(it=settings)
    with kombu.Connection(receiver.url) as connection:
        connection.channel().exchange_declare(receiver.exchange + "/more", "topic", passive=True)
    receiver.close()


def test_copies_go_to_the_configured_keys(pulse: PulseReceiver) -> None:
    settings = replace(pulse.settings(), cc=("type.{type}", "all"))
    with kombu.Connection(pulse.url) as connection:
        queue = kombu.Queue(
            "", kombu.Exchange(pulse.exchange, type="topic", durable=True), "type.changegroup.1", exclusive=True
        )
        bound = queue(connection.channel())
        bound.declare()
        destination = opened(settings)
        assert send(destination, a_message()) == [DeliveryOutcome(number=0)]
        assert eventually(bound.get) is not None
        destination.close()


def test_an_exchange_made_again_is_named_until_a_queue_gets_a_message(rabbitmq: Any, unique_name: str) -> None:
    exchange, url = f"exchange/guest/{unique_name}", rabbitmq.vhost()
    destination = opened(PulseSettings(url=url, exchange=exchange))
    assert isinstance(destination, PartedDestination)
    with kombu.Connection(url) as connection:

        def bind() -> None:
            queue = kombu.Queue(f"queue/guest/{unique_name}", kombu.Exchange(exchange, type="topic"), routing_key="#")
            queue(connection.default_channel).declare()

        [outcome] = send(destination, a_message())
        assert (outcome.error, destination.find_troubles()) == (None, ())  # a new exchange has no queue yet
        bind()
        destination.close()
        assert send(destination, a_message())[0].error is None
        assert destination.find_troubles() == ()
        connection.default_channel.exchange_delete(exchange)
        send(destination, a_message())
        send(destination, a_message(), a_message("x"))
        [trouble] = destination.find_troubles()
        assert f"destination pulse: {exchange} was gone and was made again without its bindings" in trouble.text
        bind()
        [outcome] = send(destination, a_message())
        assert (outcome.error, destination.find_troubles()) == (None, ())
    destination.close()


def test_mandatory_refuses_what_no_queue_gets(rabbitmq: Any, unique_name: str) -> None:
    settings = PulseSettings(url=rabbitmq.vhost(), exchange=f"exchange/guest/{unique_name}", patience=FAST)
    silent, mandatory = opened(settings), opened(replace(settings, mandatory=True))
    assert send(silent, a_message()) == [DeliveryOutcome(number=0)]
    [outcome] = send(mandatory, a_message())
    assert isinstance(outcome.error, Rejected)
    assert "no queue is bound" in str(outcome.error)
    for destination in (silent, mandatory):
        destination.close()


@contextmanager
def full_queue(pulse: PulseReceiver) -> Iterator[Any]:
    """Another consumer's queue on the exchange, which has room for one message and takes no other."""
    with kombu.Connection(pulse.url) as connection:
        exchange = kombu.Exchange(pulse.exchange, type="topic", durable=True)
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = kombu.Queue("", exchange, "#", exclusive=True, queue_arguments=limits)(connection.channel())
        queue.declare()
        yield queue


def test_a_full_queue_costs_the_others_neither_copies_nor_messages(
    log: Log, notifier: Notifier, pulse: PulseReceiver
) -> None:
    before = value_of(REFUSED.labels("it"))
    with full_queue(pulse):
        notifier.start(it=pulse.settings())
        for path in "xy":
            publish_pushes(log, path, 1, 10)
        notifier.settled("it")
        eventually(lambda: len(pulse.told()) >= 20, "all messages")
        publish_pushes(log, "z", 1, 1)  # behind any copy
        eventually(lambda: ("z", 1) in pulse.told())
    assert sorted(pulse.told()) == [*(("x", n) for n in range(1, 11)), *(("y", n) for n in range(1, 11)), ("z", 1)]
    assert [seq for path, seq in pulse.told() if path == "x"] == list(range(1, 11))
    assert notifier.errors() == []
    assert value_of(REFUSED.labels("it")) - before >= 19


def test_a_message_that_every_queue_must_have_is_sent_until_it_is_taken(pulse: PulseReceiver) -> None:
    with full_queue(pulse) as queue:
        destination = opened(replace(pulse.settings(), on_nack=OnNack.RETRY))
        outcomes = [send(destination, a_message(seq=seq))[0].error for seq in (1, 2)]
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Unavailable)
        assert "nack" in str(outcomes[1])
        eventually(lambda: queue.get(no_ack=True))
        assert send(destination, a_message(seq=2)) == [DeliveryOutcome(number=0)]
        destination.close()


def test_large_message_is_shortened_on_request(pulse: PulseReceiver) -> None:
    event = an_event("try", 2)
    heads = tuple(f"{number:040x}" for number in range(500))
    [message] = messages(a_notice(replace(event, changes=replace(event.changes, heads_added=heads))), 0, PUBLIC)
    destination = opened(replace(pulse.settings(), shorten=True))
    assert send(destination, message) == [DeliveryOutcome(number=0)]
    eventually(pulse.told)
    data = pulse.bodies[0]["payload"]["data"]
    assert (data["heads"], data["shortened"]) == ([], True)
    assert data["pushlog_pushes"] == message.data["pushlog_pushes"]
    destination.close()


def test_message_over_the_limit_is_refused_before_it_is_sent(pulse: PulseReceiver) -> None:
    destination = opened(replace(pulse.settings(), max_bytes=100))
    [outcome] = send(destination, a_message())
    assert isinstance(outcome.error, Rejected)
    destination.close()


# -- what happens to brokers


def test_deleted_exchange_is_declared_again(log: Log, notifier: Notifier, pulse: PulseReceiver) -> None:
    notifier.start(it=pulse.settings())
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    with kombu.Connection(pulse.url) as connection:
        connection.channel().exchange_delete(pulse.exchange)
    publish_pushes(log, "x", 4, 6)
    notifier.settled("it")
    with kombu.Connection(pulse.url) as connection:
        connection.channel().exchange_declare(pulse.exchange, "topic", passive=True)


def test_the_rights_of_the_page_suffice(rabbitmq: Any) -> None:
    page = (CHECKOUT / "docs/destinations.md").read_text()
    [add, allow] = re.findall(r"^rabbitmqctl (.+)$", page, re.MULTILINE)
    [exchange] = re.findall(r'^exchange = "(.+?)"', page, re.MULTILINE)
    assert re.fullmatch(r"add_user (\w+)", add)
    verb, *_, name, configure, write, read = shlex.split(allow)
    assert (verb, name) == ("set_permissions", add.split()[1])
    url = rabbitmq.vhost()
    vhost = url.rpartition("/")[2]
    user = f"{name}-{vhost}"
    rights = ", ".join(f'<<"{each}">>' for each in (user, vhost, configure, write, read, "test"))
    rabbitmq.evaluate(f'rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"secret">>, <<"test">>)')
    try:
        rabbitmq.evaluate(f"rabbit_auth_backend_internal:set_permissions({rights})")
        destination = opened(PulseSettings(url=url.replace("guest:guest", f"{user}:secret"), exchange=exchange))
        assert send(destination, a_message()) == [DeliveryOutcome(number=0)]
        destination.close()
    finally:
        rabbitmq.evaluate(f'rabbit_auth_backend_internal:delete_user(<<"{user}">>, <<"test">>)')


def test_exchange_that_is_not_ours_to_declare_is_waited_for(rabbitmq: Any, unique_name: str) -> None:
    settings = PulseSettings(url=rabbitmq.vhost(), exchange=f"exchange/guest/{unique_name}", declare=False)
    destination = opened(settings)
    with pytest.raises(Unavailable, match="no exchange"):
        destination.start()
    with kombu.Connection(settings.url) as connection:
        connection.channel().exchange_declare(settings.exchange, "topic", durable=True, auto_delete=False)
        destination.start()
    destination.close()


def test_exchange_of_another_kind_is_named_in_the_trouble(rabbitmq: Any, unique_name: str) -> None:
    settings = PulseSettings(url=rabbitmq.vhost(), exchange=f"exchange/guest/{unique_name}")
    with kombu.Connection(settings.url) as connection:
        connection.channel().exchange_declare(settings.exchange, "fanout", durable=True)
    with pytest.raises(Unavailable, match="inequivalent arg 'type'"):
        opened(settings).start()


@pytest.mark.parametrize(
    ("kind", "durable", "wrong"), [("direct", True, "type"), ("fanout", True, "type"), ("topic", False, "durable")]
)
def test_exchange_that_became_another_kind_meanwhile_confirms_no_message(
    rabbitmq: Any, unique_name: str, kind: str, durable: bool, wrong: str
) -> None:
    settings = PulseSettings(url=rabbitmq.vhost(), exchange=f"exchange/guest/{unique_name}")
    destination = opened(settings)
    assert send(destination, a_message()) == [DeliveryOutcome(number=0)]
    with kombu.Connection(settings.url) as connection:
        channel = connection.channel()
        channel.exchange_delete(settings.exchange)
        channel.exchange_declare(settings.exchange, kind, durable=durable, auto_delete=False)
    [outcome] = send(destination, a_message(seq=3))
    assert isinstance(outcome.error, Unavailable)
    assert f"inequivalent arg '{wrong}'" in str(outcome.error)
    destination.close()


def test_one_stream_failing_never_repeats_the_other(log: Log, notifier: Notifier, rabbitmq: Any) -> None:
    v1, v2 = PulseReceiver(rabbitmq, "v1"), PulseReceiver(rabbitmq, "v2")
    v1.down()
    notifier.start(v1=v1.settings(), v2=v2.settings())
    publish_pushes(log, "x", 1, 10)
    notifier.settled("v2")
    v1.up()
    notifier.settled("v1")
    expected = [("x", seq) for seq in range(1, 11)]
    eventually(lambda: len(v2.told()) >= 10)
    eventually(lambda: len(v1.told()) >= 10)
    assert v2.told() == expected
    assert list(dict.fromkeys(v1.told())) == expected
    for receiver in (v1, v2):
        receiver.close()


OwnService = Callable[[type[RabbitMQ]], RabbitMQ]


def test_wrong_password_is_waited_out_and_never_shown(rabbitmq: Any, tmp_path: Path) -> None:
    place = tmp_path / "password"
    place.write_text("Wr0ng!\n")
    place.chmod(0o600)
    url = rabbitmq.vhost().replace("guest:guest@", "guest@")
    destination = opened(PulseSettings(url=url, exchange="exchange/guest/v2", password=Secret(file=str(place))))
    with pytest.raises(Unavailable) as trouble:
        destination.start()
    refused = (
        f"login of user guest refused, mostly for a wrong password (from {place}) or an unknown user: (403) ACCESS"
    )
    assert f": {refused}" in str(trouble.value)
    assert "(0, 0)" not in str(trouble.value), "the numbers of no method"
    assert "Wr0ng!" not in str(trouble.value)
    place.write_text("guest\n")
    destination.start()
    destination.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", ["stopped", "killed", "hung", "alarm"])
def test_broker_in_trouble_costs_no_message_and_no_other_destination(
    log: Log, notifier: Notifier, own_service: OwnService, fault: str
) -> None:
    broker, other = own_service(RabbitMQ), Scripted()
    receiver = PulseReceiver(broker, "v2")
    notifier.start(it=replace(receiver.settings(), confirm_timeout=1.0), other=other)
    for path in "abcde":
        publish_pushes(log, path, 1, 20)
    receiver.close()
    begin, end = {
        "stopped": (broker.stop_app, broker.start_app),
        "killed": (broker.kill, broker.start),
        "hung": (broker.pause, broker.resume),
        "alarm": (broker.block_publishers, broker.unblock_publishers),
    }[fault]
    begin()
    for path in "abcde":
        publish_pushes(log, path, 21, 40)
    notifier.settled("other")
    eventually(lambda: notifier.state.conditions()["it"].get("trouble") or fault == "alarm", "trouble to show")
    end()
    receiver.listen()
    notifier.settled("it")
    eventually(lambda: len(set(receiver.told())) == 200, "all messages")
    for path in "abcde":
        assert list(dict.fromkeys(seq for name, seq in receiver.told() if name == path)) == list(range(1, 41))
        assert other.told(path) == list(range(1, 41))


def test_newrepo_goes_to_v2_only(log: Log, notifier: Notifier, rabbitmq: Any) -> None:
    v1, v2 = PulseReceiver(rabbitmq, "v1"), PulseReceiver(rabbitmq, "v2")
    notifier.start(v1=v1.settings(), v2=v2.settings())
    publish(log, a_notice(an_event("x", 1, type=Type.CREATED)), a_notice(an_event("x", 2)))
    notifier.settled("v1")
    notifier.settled("v2")
    eventually(lambda: v2.told() == [("x", 1), ("x", 2)])
    eventually(lambda: v1.told() == [("x", 2)])
    for receiver in (v1, v2):
        receiver.close()
