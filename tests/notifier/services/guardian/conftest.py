# SPDX-License-Identifier: GPL-2.0-or-later
"""A virtual host of a real RabbitMQ under guard, and a mail server."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from notifier.services.guardian.broker import connected
from notifier.services.guardian.clients import Clients
from notifier.services.guardian.management import Management
from notifier.services.guardian.settings import GuardianSettings
from testing.builders.notifier.mailbox import Mailbox

FILE = "guardian.toml"
OPERATOR = "operator@pulse.example"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


def some_settings(**changed: Any) -> GuardianSettings:
    """Settings that are right in form; nothing answers there."""
    settings = GuardianSettings(
        management_url="http://guest@127.0.0.1:9",
        broker_url="amqp://guest@127.0.0.1:10//",
        smtp_url="smtp://127.0.0.1:9",
        sender="guardian@pulse.example",
        operator=OPERATOR,
        warn_at=4,
        limit=8,
    )
    return replace(settings, **changed)


@pytest.fixture
def settings(rabbitmq: Any, mailbox: Mailbox, tmp_path: Path) -> GuardianSettings:
    return some_settings(
        management_url=rabbitmq.management_url(),
        broker_url=rabbitmq.vhost(),
        smtp_url=mailbox.url,
        state=str(tmp_path / "guardian.db"),
    )


@pytest.fixture
def management(settings: GuardianSettings) -> Iterator[Management]:
    management = Management(settings, FILE)
    yield management
    management.close()


@dataclass
class Guarded:
    """Clients of the virtual host, each with a name of its own."""

    settings: GuardianSettings
    management: Management
    tokens: dict[str, str] = field(default_factory=dict)
    open: ExitStack = field(default_factory=ExitStack)

    @property
    def clients(self) -> Clients:
        return Clients(self.management, self.settings.vhost)

    def add(self, name: str = "alice", owner: str | None = None) -> str:
        """A new client; its name begins so."""
        client = f"{name}{secrets.token_hex(3)}"
        self.tokens[client] = self.clients.add(client, owner or f"{client}@owners.example", lambda _: None)
        return client

    def channel(self, client: str | None = None) -> Any:
        """A channel of a client, or of the guardian, open until the test ends."""
        token = None if client is None else self.tokens[client]
        return self.open.enter_context(connected(self.settings, client, token)).channel()

    def queue(self, client: str, name: str = "q", messages: int = 0, **arguments: Any) -> str:
        """A durable queue of the client, with messages that wait in it."""
        queue = f"queue/{client}/{name}"
        channel = self.channel()
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
        self.fill(queue, messages)
        return queue

    def fill(self, queue: str, messages: int) -> None:
        """Publish so many messages into the queue."""
        channel = self.channel()
        for _ in range(messages):
            channel.basic_publish(channel.prepare_message("{}", content_encoding="utf-8"), "", queue)
        channel.queue_declare(queue, passive=True)  # behind them


@pytest.fixture
def guarded(settings: GuardianSettings, management: Management) -> Iterator[Guarded]:
    guarded = Guarded(settings, management)
    yield guarded
    try:
        guarded.open.close()
    except Exception:  # a channel that the broker refused ends its connection
        pass
    for client in guarded.tokens:
        management.delete("users", client)
        management.delete("global-parameters", f"vcsreplicator-guardian-owner.{client}")
