# SPDX-License-Identifier: GPL-2.0-or-later
"""The service of each kind that a test run uses: the one an environment variable points to, else its own.

Several workers of one run share theirs (`keeper.py`).

    VCSREPLICATOR_TEST_KAFKA=host:port    VCSREPLICATOR_TEST_AMQP=amqp://user:password@host:port//    VCSREPLICATOR_TEST_AWS=http://host:port
    VCSREPLICATOR_TEST_AMQP_MANAGEMENT=http://user:password@host:port    (beside VCSREPLICATOR_TEST_AMQP)

All tests of a run share it, perhaps other programs too: a test uses unique names, and destroys only services of its own.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from testing.services.aws import Aws
from testing.services.kafka import Kafka
from testing.services.keeper import ADDRESS, Keeper, ask
from testing.services.postgresql import PostgreSQL
from testing.services.process import Service, ServiceMissing
from testing.services.rabbitmq import RabbitMQ, TlsRabbitMQ
from testing.warm_hg import KIND, warm_hg_for

# What a run may share, each with the variable that points to one that runs elsewhere.
SHARED: dict[type[Service], str] = {
    Kafka: "VCSREPLICATOR_TEST_KAFKA",
    RabbitMQ: "VCSREPLICATOR_TEST_AMQP",
    PostgreSQL: "VCSREPLICATOR_TEST_POSTGRESQL",
    Aws: "VCSREPLICATOR_TEST_AWS",
}
# What a run shares of which none can run elsewhere.
SHARED_HERE: tuple[type[Service], ...] = (TlsRabbitMQ,)
# What the workers of a run share in place of a kind: it does all that the kind does, and a second one would start and idle.
IN_PLACE_OF: dict[type[Service], type[Service]] = {RabbitMQ: TlsRabbitMQ}
AnyService = TypeVar("AnyService", bound=Service)


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A service that another process keeps and that we only use."""

    url: str

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka's clients want it."""
        return self.url.partition("://")[2]


@dataclass(frozen=True, kw_only=True)
class Existing(Remote):
    """A service that runs elsewhere."""

    def management_url(self) -> str:
        """The address of RabbitMQ's management API, which `VCSREPLICATOR_TEST_AMQP_MANAGEMENT` names."""
        if url := os.environ.get("VCSREPLICATOR_TEST_AMQP_MANAGEMENT"):
            return url
        raise ServiceMissing("VCSREPLICATOR_TEST_AMQP is set without VCSREPLICATOR_TEST_AMQP_MANAGEMENT")

    def vhost(self) -> str:
        """Where a test may declare exchanges and queues: all of it, as long as their names are unique."""
        return self.url

    def remove_vhost(self, url: str) -> None:
        """Leave what a test declared: others may use the same virtual host."""

    def database(self) -> str:
        """A database for tests of tables, which must be empty."""
        return self.url


@dataclass(frozen=True, kw_only=True)
class Kept(Remote):
    """A service that all workers of this run share; its methods take texts and answer what JSON can say."""

    name: str

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return functools.partial(ask, self.name, method)


@dataclass(frozen=True, kw_only=True)
class Lent(Kept):
    """A service that this test alone uses, and others before and after it; `url` is an empty place in it."""

    @property
    def port(self) -> int:
        """Where it listens on the loopback."""
        return urlsplit(self.url).port or 0

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(ask(self.name, "folder"))


def keeper() -> Keeper:
    """What keeps the services of a run of several workers, and a warm `hg` for each environment."""
    return Keeper({kind.name: kind for kind in (*SHARED, *SHARED_HERE)}, {KIND: warm_hg_for})


def list_slow_starts() -> list[str]:
    """The names of services that a whole run needs, start slowly and do not run elsewhere."""
    return [kind.name for kind in (TlsRabbitMQ, Kafka) if SHARED.get(kind, "") not in os.environ]


# What a test may have for itself that another had before: what starts slowly and is cleared at once.
LENT: tuple[type[Service], ...] = (RabbitMQ, Kafka)


@contextmanager
def own(kind: type[AnyService]) -> Iterator[AnyService | Lent]:
    """A service of this kind that the block alone uses: lent by the keeper of the run, or a new one."""
    if kind not in LENT or ADDRESS not in os.environ:
        with kind() as new:
            yield new
        return
    name = ask(kind.name, "lend")
    try:
        yield Lent(url=ask(name, "place"), name=name)
    finally:
        ask(name, "take_back")


@contextmanager
def shared(kind: type[AnyService]) -> Iterator[AnyService | Existing | Kept]:
    """The service of this kind that all tests of this run use."""
    if kind in SHARED and (address := os.environ.get(SHARED[kind])):
        yield Existing(url=f"kafka://{address}" if kind is Kafka else address)
    elif ADDRESS in os.environ:
        name = IN_PLACE_OF.get(kind, kind).name
        yield Kept(url=ask(name, "url"), name=name)
    else:
        with kind() as own:
            yield own
