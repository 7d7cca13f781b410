# SPDX-License-Identifier: GPL-2.0-or-later
"""The service of each kind that a test run uses: the one an environment variable points to, else its own.

Several workers of one run share theirs (`keeper.py`).

    VCSREPLICATOR_TEST_KAFKA=host:port    VCSREPLICATOR_TEST_AMQP=amqp://user:password@host:port//    VCSREPLICATOR_TEST_AWS=http://host:port

All tests of a run share it, perhaps other programs too: a test uses unique names, and destroys only services of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testing.services.aws import Aws
from testing.services.kafka import Kafka
from testing.services.keeper import ADDRESS, Keeper, ask
from testing.services.rabbitmq import RabbitMQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A service that runs elsewhere and that we only use."""

    url: str

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka's clients want it."""
        return self.url.partition("://")[2]

    def vhost(self) -> str:
        """Where a test may declare exchanges and queues: all of it, as long as their names are unique."""
        return self.url


class KeptRabbitMQ(Existing):
    """The RabbitMQ that all workers of this run share."""

    def vhost(self) -> str:
        """The URL of a new, empty virtual host."""
        return str(ask("rabbitmq", "vhost"))

    def control(self, *arguments: str) -> str:
        """What `rabbitmqctl` prints for these arguments."""
        return str(ask("rabbitmq", "control", *arguments))


def keeper() -> Keeper:
    """What keeps the services of a run of several workers."""
    return Keeper({kind.name: kind for kind in (Kafka, RabbitMQ, Aws)})


@contextmanager
def shared_kafka() -> Iterator[Kafka | Existing]:
    """The Kafka of this run."""
    if address := os.environ.get("VCSREPLICATOR_TEST_KAFKA"):
        yield Existing(url=f"kafka://{address}")
    elif ADDRESS in os.environ:
        yield Existing(url=ask("kafka", "url"))
    else:
        with Kafka() as own:
            yield own


@contextmanager
def shared_rabbitmq() -> Iterator[RabbitMQ | Existing]:
    """The RabbitMQ of this run."""
    if url := os.environ.get("VCSREPLICATOR_TEST_AMQP"):
        yield Existing(url=url)
    elif ADDRESS in os.environ:
        yield KeptRabbitMQ(url=ask("rabbitmq", "url"))
    else:
        with RabbitMQ() as own:
            yield own


@contextmanager
def shared_aws() -> Iterator[Aws | Existing]:
    """The SNS, S3 and SQS of this run."""
    if url := os.environ.get("VCSREPLICATOR_TEST_AWS"):
        yield Existing(url=url)
    elif ADDRESS in os.environ:
        yield Existing(url=ask("aws", "url"))
    else:
        with Aws() as own:
            yield own
