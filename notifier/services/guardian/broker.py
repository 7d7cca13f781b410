# SPDX-License-Identifier: GPL-2.0-or-later
"""AMQP connections of the guardian, and the deletion of a queue.

The queue's size at that instant decides whether it is deleted.
"""

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from hgext.vcsreplicator.words.errors import BadConfig, Unavailable, visible

from ...clients.amqp.connection import TROUBLE, client, connect, limiting_waits, where
from .filling import may_delete
from .settings import Deletion, GuardianSettings

# Reply codes of the broker's refusals: no right, not found, exclusive to another connection, not in this state.
REFUSED, NOT_FOUND, LOCKED, PRECONDITION = 403, 404, 405, 406


class DeletionOutcome(enum.Enum):
    """The outcome for a queue that was to be deleted."""

    DELETED = enum.auto()
    GONE = enum.auto()
    SMALLER = enum.auto()
    IN_USE = enum.auto()


@contextmanager
def connected(settings: GuardianSettings, user: str | None = None, token: str | None = None) -> Iterator[Any]:
    """Connect for the block, as the guardian or as the client `user`.

    All waits have limits. Raises BadConfig if the broker refuses the guardian or the password cannot be read, else Unavailable.
    """
    url, password = settings.broker_url, settings.password.read("guardian.password") if settings.password else None
    if user is not None:
        parts = urlsplit(url)
        url, password = parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl(), token
    known = client(
        url, password=password, ca_file=settings.ca_file, heartbeat=20, properties={"product": "vcsreplicator guardian"}
    )
    try:
        connection = connect(known)
        try:
            yield connection
            with limiting_waits(connection):
                connection.close()
        finally:
            connection.collect()
    except TROUBLE as error:
        text = f"{where(url)}: {visible(str(error) or type(error).__name__)[:200]}"
        if code_of(error) == REFUSED and user is None:
            raise BadConfig(f"guardian.broker-url: {text}: expected a user with all rights") from error
        raise Unavailable(text) from error


def code_of(error: BaseException) -> int:
    """Return the code with which the broker refused, 0 for other trouble."""
    return int(getattr(error, "reply_code", 0) or 0)


def delete_queue(settings: GuardianSettings, queue: str) -> tuple[DeletionOutcome, int]:
    """Delete the queue if it is to be deleted as it is now.

    Returns the outcome, and how many messages it had. Messages that a consumer holds unacknowledged do not count. Raises
    Unavailable if the outcome is unknown.
    """
    with connected(settings) as connection, limiting_waits(connection):
        try:
            channel = connection.channel()
            now = channel.queue_declare(queue, passive=True)
            if not may_delete(now.message_count, now.consumer_count, settings):
                beyond = now.message_count > settings.limit
                return (DeletionOutcome.IN_USE if beyond else DeletionOutcome.SMALLER), now.message_count
            count = channel.queue_delete(queue, if_unused=settings.delete is Deletion.UNUSED)
            return DeletionOutcome.DELETED, int(count or 0)
        except TROUBLE as error:
            if code_of(error) == NOT_FOUND:
                return DeletionOutcome.GONE, 0
            if code_of(error) in (LOCKED, PRECONDITION):
                return DeletionOutcome.IN_USE, 0
            raise
