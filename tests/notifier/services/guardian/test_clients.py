# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients on a real broker: what each may do, and what the broker itself refuses."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from amqp.exceptions import AccessRefused

from hgext.vcsreplicator.words.errors import Refused
from notifier.services.guardian.broker import connected
from notifier.services.guardian.clients import Clients, client_of, is_queue_name, permissions
from notifier.services.guardian.management import Management
from tests.notifier.services.guardian.conftest import Guarded, some_settings

Attempt = Callable[[Any, str], Any]


def publish(channel: Any, exchange: str, key: str) -> None:
    """Publish, and wait for what the broker says to it."""
    channel.confirm_select()
    channel.basic_publish(channel.prepare_message("{}", content_encoding="utf-8"), exchange=exchange, routing_key=key)
    channel.exchange_declare("amq.topic", "topic", passive=True)


def dead_letters(to: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": to, "x-dead-letter-routing-key": "queue/bob/q"}


# What a client may not do; `me` is its name, and bob's exchange and queue exist.
REFUSED: dict[str, Attempt] = {
    "an exchange of another client": lambda ch, me: ch.exchange_declare("exchange/bob/new", "topic", durable=True),
    "an exchange of a client whose name begins so": lambda ch, me: ch.exchange_declare(f"exchange/{me}x/e", "topic"),
    "an exchange where the dot of its name is a letter": lambda ch, me: ch.exchange_declare(
        f"exchange/{me.replace('.', 'x')}/e", "topic"
    ),
    "an exchange without a name": lambda ch, me: ch.exchange_declare(f"exchange/{me}/", "topic"),
    "an exchange without prefix": lambda ch, me: ch.exchange_declare("hgpushes", "topic"),
    "an exchange with something before the prefix": lambda ch, me: ch.exchange_declare(f"x/exchange/{me}/e", "topic"),
    "deleting an exchange of another client": lambda ch, me: ch.exchange_delete("exchange/bob/e"),
    "a queue of another client": lambda ch, me: ch.queue_declare("queue/bob/new"),
    "a queue without prefix": lambda ch, me: ch.queue_declare("mine"),
    "a queue that the broker names": lambda ch, me: ch.queue_declare("", exclusive=True),
    "deleting a queue of another client": lambda ch, me: ch.queue_delete("queue/bob/q"),
    "emptying a queue of another client": lambda ch, me: ch.queue_purge("queue/bob/q"),
    "reading a queue of another client": lambda ch, me: ch.basic_get("queue/bob/q"),
    "consuming a queue of another client": lambda ch, me: ch.basic_consume("queue/bob/q"),
    "binding a queue of another client": lambda ch, me: ch.queue_bind("queue/bob/q", f"exchange/{me}/e", "#"),
    "binding to amq.topic": lambda ch, me: ch.queue_bind(f"queue/{me}/q", "amq.topic", "#"),
    "binding to the broker's trace": lambda ch, me: ch.queue_bind(f"queue/{me}/q", "amq.rabbitmq.trace", "#"),
    "binding to the default exchange": lambda ch, me: ch.queue_bind(f"queue/{me}/q", "", "#"),
    "feeding another client's exchange": lambda ch, me: ch.exchange_bind("exchange/bob/e", f"exchange/{me}/e", "#"),
    "publishing to another client's exchange": lambda ch, me: publish(ch, "exchange/bob/e", "key"),
    "publishing to amq.topic": lambda ch, me: publish(ch, "amq.topic", "key"),
    "publishing to a queue of another client": lambda ch, me: publish(ch, "", "queue/bob/q"),
    "dead letters to another client's exchange": lambda ch, me: ch.queue_declare(
        f"queue/{me}/dead", arguments=dead_letters("exchange/bob/e")
    ),
    "dead letters to the default exchange": lambda ch, me: ch.queue_declare(
        f"queue/{me}/dead", arguments=dead_letters("")
    ),
    "unroutable messages to another client's exchange": lambda ch, me: ch.exchange_declare(
        f"exchange/{me}/alternate", "topic", arguments={"alternate-exchange": "exchange/bob/e"}
    ),
}
ALLOWED: dict[str, Attempt] = {
    "publishing": lambda ch, me: publish(ch, f"exchange/{me}/e", "key"),
    "binding to another client's exchange": lambda ch, me: ch.queue_bind(f"queue/{me}/q", "exchange/bob/e", "#"),
    "consuming": lambda ch, me: ch.basic_consume(f"queue/{me}/q"),
    "feeding its exchange from another client's": lambda ch, me: ch.exchange_bind(
        f"exchange/{me}/e", "exchange/bob/e", "#"
    ),
    "dead letters to its exchange": lambda ch, me: ch.queue_declare(
        f"queue/{me}/dead", arguments=dead_letters(f"exchange/{me}/e")
    ),
    "deleting its queue": lambda ch, me: ch.queue_delete(f"queue/{me}/q"),
    # The broker's expressions cannot tell an exchange from a queue; `guardian check` and `watch` name such a queue.
    "a queue in the name of an exchange": lambda ch, me: ch.queue_declare(f"exchange/{me}/queue", auto_delete=True),
}


@pytest.fixture
def me(guarded: Guarded) -> str:
    """A client with an exchange and a queue, beside bob's."""
    me = guarded.add("al.ice")
    mine, all_rights = guarded.channel(me), guarded.channel()
    mine.exchange_declare(f"exchange/{me}/e", "topic", durable=True, auto_delete=False)
    mine.queue_declare(f"queue/{me}/q", durable=True, auto_delete=False)
    all_rights.exchange_declare("exchange/bob/e", "topic", durable=True, auto_delete=False)
    all_rights.queue_declare("queue/bob/q", durable=True, auto_delete=False)
    return me


def test_the_broker_refuses_what_a_client_may_not_do(guarded: Guarded, me: str) -> None:
    for what, attempt in REFUSED.items():
        channel = guarded.channel(me)
        with pytest.raises(AccessRefused):
            pytest.fail(f"allowed: {what}: {attempt(channel, me)}")


def test_the_broker_allows_what_a_client_needs(guarded: Guarded, me: str) -> None:
    for what, attempt in ALLOWED.items():
        try:
            attempt(guarded.channel(me), me)
        except AccessRefused as error:
            pytest.fail(f"{what}: {error}")


def test_a_new_token_ends_the_old_one(guarded: Guarded) -> None:
    me = guarded.add()
    old = guarded.tokens[me]
    new = guarded.clients.renew_token(me, lambda _: None)
    with connected(guarded.settings, me, new):
        pass
    with pytest.raises(Exception, match="ACCESS_REFUSED"), connected(guarded.settings, me, old):
        pass


def test_a_new_token_restores_rights_that_were_changed(guarded: Guarded) -> None:
    me = guarded.add()
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    guarded.management.put("permissions", guarded.settings.vhost, me, content=every)
    assert not confined(guarded, me)
    guarded.clients.renew_token(me, lambda _: None)
    assert confined(guarded, me)


def test_a_client_with_a_tag_is_shown_as_changed(guarded: Guarded) -> None:
    me = guarded.add()
    guarded.management.put("users", me, content={"password": "x", "tags": "monitoring"})
    assert not confined(guarded, me)


def confined(guarded: Guarded, client: str) -> bool:
    [found] = [each for each in guarded.clients.all() if each.name == client]
    return found.is_confined


def test_a_removed_client_cannot_connect(guarded: Guarded) -> None:
    me = guarded.add()
    guarded.clients.remove(me)
    with pytest.raises(Exception, match="ACCESS_REFUSED"), connected(guarded.settings, me, guarded.tokens[me]):
        pass
    assert me not in guarded.clients.owners()


def test_users_that_the_guardian_did_not_make_are_left_alone(guarded: Guarded) -> None:
    for act in (
        lambda: guarded.clients.remove("guest"),
        lambda: guarded.clients.renew_token("guest", lambda _: None),
        lambda: guarded.clients.change_owner("guest", "a@b.example"),
        lambda: guarded.clients.add("guest", "a@b.example", lambda _: None),
    ):
        with pytest.raises(Refused, match="guest"):
            act()


def test_a_client_whose_making_was_cut_off_can_be_made_again(guarded: Guarded) -> None:
    def cut_off(token: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded.clients.add("cutoff", "a@b.example", cut_off)
    [found] = [each for each in guarded.clients.all() if each.name == "cutoff"]
    assert (found.is_user, found.is_confined) == (False, False)
    guarded.tokens["cutoff"] = guarded.clients.add("cutoff", "a@b.example", lambda _: None)
    assert confined(guarded, "cutoff")


OFFLINE = Clients(Management(some_settings(), "guardian.toml"), "/")


@pytest.mark.parametrize("client", ["", "a/b", ".*", "a b", "a\n", "-a", "ä", "a" * 101])
def test_a_name_that_could_be_another_expression_or_path_is_refused(client: str) -> None:
    with pytest.raises(Refused, match="CLIENT: expected letters"):
        OFFLINE.add(client, "a@b.example", lambda _: None)


@pytest.mark.parametrize("owner", ["", "a", "a@b\nBcc: c@d", "a@b, c@d", "A <a@b>", "a@b\x00"])
def test_an_owner_that_is_not_one_address_is_refused(owner: str) -> None:
    with pytest.raises(Refused, match="owner: expected a mail address"):
        OFFLINE.add("client", owner, lambda _: None)


def test_names_say_whose_they_are() -> None:
    assert client_of("queue/a.b/x/y") == "a.b"
    assert [client_of(name) for name in ("queue/a/", "queue//x", "a/b/c", "xqueue/a/b")] == [None] * 4
    assert is_queue_name("queue/a/b")
    assert not is_queue_name("exchange/a/b")


def test_expressions_end_where_the_name_does() -> None:
    own = permissions("a.b")["configure"]
    assert own == r"^(exchange|queue)/a\.b/.+\z"
    assert re.match(own.replace(r"\z", r"\Z"), "queue/a.b/x")
