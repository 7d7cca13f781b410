# SPDX-License-Identifier: GPL-2.0-or-later
"""The port of a destination, and the table of all destinations.

A destination sends messages to another system and reports what became of each. It knows nothing of notices, of order or of
retries: the publisher hands it one message per repository at a time, and tries again what failed. To add one, write a file with a
settings class that has an `open`, and add an entry to `DESTINATIONS` (docs/destinations.md shows one whole).
"""

import contextlib
import importlib
import queue
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from prometheus_client import Gauge

from hgext.vcsreplicator.log import Log, NewRecord
from hgext.vcsreplicator.log.requests import OperatorRequest
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import SHOWN, ReplicationError, Unavailable, quote_value
from hgext.vcsreplicator.words.streams import Stream

from .rejects import judged
from .window import Delivery, Patience

T = TypeVar("T")

# Appends records to the log.
Write = Callable[[Sequence[NewRecord]], object]

DOWN = Gauge(
    "vcsreplicator_notifier_down_flag",
    "1 while the destination does not answer; of decode, poll and work: while they wait",
    ["destination"],
)

# `type` in the configuration → module and settings class; imported only when configured.
DESTINATIONS: Mapping[str, str] = {
    "jsonlines": "notifier.destinations.jsonlines:JsonLinesSettings",
    "stdout": "notifier.destinations.jsonlines:StdoutSettings",
    "pulse": "notifier.destinations.pulse.destination:PulseSettings",
    "sns": "notifier.destinations.sns.destination:SnsSettings",
    "hg-push": "notifier.destinations.hgpush.destination:HgPushSettings",
    "webhook": "notifier.destinations.webhook.destination:WebhookSettings",
    "decode": "notifier.destinations.decode:DecoderDestinationSettings",
}

# The message types sent unless a destination says otherwise.
DOCUMENTED = (Stream.CHANGEGROUP.value, Stream.NEWREPO.value, Stream.OBSOLETE.value)


ALL_TYPES = tuple(stream.value for stream in Stream)


def check_types(types: Sequence[str]) -> None:
    """Raise ValueError without types, or for a type that no message has."""
    if not types or set(types) - set(ALL_TYPES):
        raise ValueError(f"types: expected some of {', '.join(ALL_TYPES)}, got {', '.join(types)[:SHOWN] or 'none'}")


def check_common(settings: "DestinationSettings") -> None:
    """Check the settings that all destinations have; raises ValueError."""
    check_types(settings.types)
    if settings.start_at not in ("beginning", "end"):
        raise ValueError(f"start-at: expected beginning or end, got {quote_value(settings.start_at)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """The result of the delivery `number`.

    `error` is None if it is confirmed, Unavailable if it is to be retried, Rejected if the message is wrong.
    """

    number: int
    error: ReplicationError | None = None


class Destination(Protocol):
    """Sends messages; used by one thread."""

    def start(self) -> None:
        """Connect and declare, at start and after trouble; raises Unavailable."""

    def submit(self, delivery: Delivery) -> None:
        """Begin to send.

        Raises Unavailable if nothing can be sent now; then this delivery counts as not begun. Every other exception is about this
        message: the publisher tries it a few times, then rejects it. So a destination converts the message here, where a mistake
        has one culprit, and not in `outcomes`.
        """

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        """Return the known results, waiting up to `timeout` seconds for one.

        Every submitted delivery gets exactly one outcome in the end, even when connections break. Confirmed means that the other
        side has stored it.
        """

    def close(self) -> None:
        """Release everything; the next start sends again what is unconfirmed."""


class DestinationSettings(Protocol):
    """The settings that every destination has; each adds its own keys.

    Messages carry where a push came from only if the class says `takes_connections = True`. That is for the decoder, which
    removes it.
    """

    @property
    def types(self) -> tuple[str, ...]:
        """The message types that this destination gets."""

    @property
    def start_at(self) -> str:
        """The start of a destination without a position: `beginning` or `end`."""

    @property
    def patience(self) -> Patience:
        """Window and retries."""

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        """Create the destination, not yet connected; raises BadConfig or Unavailable.

        What it must still know if its machine is lost, it keeps in the `log`, topic `notifier`.
        """


@runtime_checkable
class KeepingSettings(Protocol):
    """Settings of a destination that keeps what its position has passed.

    If this is missing though the destination has a position, the destination waits, and nothing is made in its place.
    """

    @property
    def kept_in(self) -> str:
        """The path of the database."""


# The beginning of the key in topic `notifier` that a destination with a database writes, before its name: the log has what it owes.
DATABASE_KEY = "database/"


@runtime_checkable
class KeepingDestination(Protocol):
    """A destination that confirms messages before they are delivered, and owes the rest."""

    def restore(self, write: Write) -> None:
        """Bring the database and the log in line, once before `start`; raises BadConfig or Unavailable.

        From then on it appends its records with `write`, which appends all of them or none, and raises Fenced once another notifier
        delivers to the destination. So nothing is owed twice.
        """

    def carry_out(self, request: OperatorRequest) -> str | None:
        """Do what an operator asks of deliveries or subscriptions, and return the answer; a repeat changes nothing.

        Returns once the log has the change. Returns None while what was asked goes on: the next call returns its answer, or
        begins it anew after a kill. Raises Rejected if it can never be done, else Unavailable.
        """

    def secure(self, position: int) -> int:
        """Put into the log what is owed of messages before the position; raises Unavailable.

        Returns the position that may be stored: an earlier one if something before `position` may be settled in a moment.
        """


def settings_class(type_name: str) -> type[DestinationSettings]:
    """Return the settings class of a `type`; raises KeyError for an unknown one."""
    module, _, name = DESTINATIONS[type_name].partition(":")
    found: type[DestinationSettings] = getattr(importlib.import_module(module), name)
    return found


class DeliveryThreads:
    """A destination that calls a function for each delivery, in threads.

    The function sends one message and returns when the other side has stored it. It raises Unavailable or Rejected; an OSError
    counts as Unavailable, any other exception as Rejected. Up to `workers` threads call it at once.
    """

    def __init__(self, send: Callable[[Delivery], None], *, workers: int) -> None:
        self._send = send
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="send")
        self._outcomes: queue.SimpleQueue[DeliveryOutcome] = queue.SimpleQueue()

    def start(self) -> None:
        """Do nothing: each call of the function connects by itself."""

    def submit(self, delivery: Delivery) -> None:
        future = self._pool.submit(self._send, delivery)
        future.add_done_callback(lambda done: self._outcomes.put(_judge_outcome(delivery.number, done)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        return take_all(self._outcomes, timeout)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def take_all(waiting: "queue.SimpleQueue[T]", timeout: float, *, limit: int = sys.maxsize) -> list[T]:
    """Return at most `limit` items; wait up to `timeout` seconds for the first."""
    found: list[T] = []
    with contextlib.suppress(queue.Empty):
        found.append(waiting.get(timeout=timeout) if timeout > 0 else waiting.get_nowait())
        while len(found) < limit:
            found.append(waiting.get_nowait())
    return found


def _judge_outcome(number: int, done: "Future[None]") -> DeliveryOutcome:
    trouble: ReplicationError | None = None
    if done.cancelled():
        trouble = Unavailable("the destination was closed before it sent the message")
    elif (error := done.exception()) is not None:
        trouble = judged(error) if isinstance(error, Exception) else Unavailable(repr(error))
    return DeliveryOutcome(number=number, error=trouble)
