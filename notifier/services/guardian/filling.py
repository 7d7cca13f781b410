# SPDX-License-Identifier: GPL-2.0-or-later
"""The states of a queue by its size, and the steps that follow. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .settings import Deletion, GuardianSettings

# A state ends below this share of the number at which it began, so that a queue near the limit does not cause a mail each round.
RECOVERED = 0.75

# Arguments and policies that bound a queue, except for streams.
_BOUNDS = ("max-length", "max-length-bytes")
_STREAM_BOUNDS = ("max-length-bytes", "max-age")


class Filling(enum.IntEnum):
    """How full a queue is."""

    FINE = 0
    NEAR = 1
    BEYOND = 2


class QueueStep(enum.StrEnum):
    """The guardian's step about a queue, as the owner reads it."""

    NOTHING = "nothing"
    WARN = "near its limit"
    REPORT = "beyond its limit"
    DELETE = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedQueue:
    """A queue as the broker lists it; `messages` is None if it has not counted them.

    `is_bounded` is None if no policy bounds it and its arguments were not listed.
    """

    name: str
    messages: int | None
    consumers: int
    durable: bool
    auto_delete: bool
    is_bounded: bool | None


def read_queue(row: Mapping[str, Any]) -> WatchedQueue:
    """Read a row of the management API; a member of another type counts as absent."""
    arguments, policy = row.get("arguments"), row.get("effective_policy_definition")
    given = {key.removeprefix("x-") for key in arguments} if isinstance(arguments, Mapping) else set()
    given |= set(policy) if isinstance(policy, Mapping) else set()
    is_stream = isinstance(arguments, Mapping) and arguments.get("x-queue-type") == "stream"
    messages, consumers = row.get("messages"), row.get("consumers")
    is_bounded = any(bound in given for bound in (_STREAM_BOUNDS if is_stream else _BOUNDS))
    return WatchedQueue(
        name=str(row.get("name")),
        messages=messages if isinstance(messages, int) else None,
        consumers=consumers if isinstance(consumers, int) else 0,
        durable=bool(row.get("durable")),
        auto_delete=bool(row.get("auto_delete")),
        is_bounded=is_bounded if is_bounded or "arguments" in row else None,
    )


def next_filling(messages: int, before: Filling, settings: GuardianSettings) -> Filling:
    """Return how full a queue is that has `messages` and was `before`."""
    if messages > settings.limit or (before is Filling.BEYOND and messages >= RECOVERED * settings.limit):
        return Filling.BEYOND
    if messages >= settings.warn_at or (before is not Filling.FINE and messages >= RECOVERED * settings.warn_at):
        return Filling.NEAR
    return Filling.FINE


def next_step(queue: WatchedQueue, before: Filling, settings: GuardianSettings) -> tuple[Filling, QueueStep]:
    """Return how full the queue is, and what to do.

    That is a mail once for each state that the queue reaches, or the deletion.
    """
    if queue.messages is None:
        return before, QueueStep.NOTHING
    filling = next_filling(queue.messages, before, settings)
    if may_delete(queue.messages, queue.consumers, settings):
        return filling, QueueStep.DELETE
    if filling <= before:
        return filling, QueueStep.NOTHING
    return filling, QueueStep.REPORT if filling is Filling.BEYOND else QueueStep.WARN


def may_delete(messages: int, consumers: int, settings: GuardianSettings) -> bool:
    if settings.delete is Deletion.NO or messages <= settings.limit:
        return False
    return settings.delete is Deletion.YES or consumers == 0
