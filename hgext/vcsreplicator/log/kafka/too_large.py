# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of the messages that were sent together are too large for their topics."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...words.errors import ReplicationError
from .. import LargeRecord, NewRecord, TooLarge, measure_message
from .clients import TOO_LARGE


def describe_refused(
    messages: Sequence[NewRecord], futures: Sequence[Any], find_limit: Callable[[str], int | None]
) -> TooLarge | None:
    """Return an error that names the messages that are too large for topics.

    `futures` belong to the messages; `find_limit` returns the bytes that a topic takes, as `Log.largest` does. None if the brokers
    refused none of them. A broker answers to the first ones only, so all messages are compared with what their topics take; the
    largest failed record is named if the brokers do not say that.
    """
    failed = [
        message for message, future in zip(messages, futures, strict=False) if isinstance(future.exception, TOO_LARGE)
    ]
    if not failed:
        return None
    limits: dict[str, int | None] = {}
    for topic in {message.topic for message in messages}:
        limits[topic] = None
        with suppress(ReplicationError):
            limits[topic] = find_limit(topic)

    def describe(message: NewRecord) -> LargeRecord:
        size, limit = measure_message(message), limits[message.topic]
        return LargeRecord(topic=message.topic, key=message.key, size=size, limit=limit)

    refused = [each for each in map(describe, messages) if each.limit is not None and each.size > each.limit]
    named = refused or [describe(max(failed, key=measure_message))]
    advice = ": message too large for the broker (max.message.bytes); see: vcsreplicator topics check"
    return TooLarge(tuple(named), advice)
