# SPDX-License-Identifier: GPL-2.0-or-later
"""The service of each kind that a test run uses: the one an environment variable points to, else its own.

    VCSREPLICATOR_TEST_KAFKA=host:port    VCSREPLICATOR_TEST_AMQP=amqp://user:password@host:port//    VCSREPLICATOR_TEST_AWS=http://host:port

Shared by all tests of a run, and perhaps by others: a test uses names that nobody else has, and destroys only services of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testing.services.aws import Aws
from testing.services.kafka import Kafka
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


@contextmanager
def shared_kafka() -> Iterator[Kafka | Existing]:
    """The Kafka of this run."""
    if address := os.environ.get("VCSREPLICATOR_TEST_KAFKA"):
        yield Existing(url=f"kafka://{address}")
    else:
        with Kafka() as own:
            yield own


@contextmanager
def shared_rabbitmq() -> Iterator[RabbitMQ | Existing]:
    """The RabbitMQ of this run."""
    if url := os.environ.get("VCSREPLICATOR_TEST_AMQP"):
        yield Existing(url=url)
    else:
        with RabbitMQ() as own:
            yield own


@contextmanager
def shared_aws() -> Iterator[Aws | Existing]:
    """The SNS, S3 and SQS of this run."""
    if url := os.environ.get("VCSREPLICATOR_TEST_AWS"):
        yield Existing(url=url)
    else:
        with Aws() as own:
            yield own
