# SPDX-License-Identifier: GPL-2.0-or-later
"""A message that goes to a broker. Loads no client of AMQP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HeaderValue = str | int | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A durable message of JSON.

    Without `exchange` it goes to the queue `routing_key`. `timestamp` is in seconds since the epoch.
    """

    routing_key: str
    body: str | bytes
    id: str
    exchange: str = ""
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    type: str | None = None
    timestamp: int | None = None
    mandatory: bool = True
