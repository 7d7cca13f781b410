# SPDX-License-Identifier: GPL-2.0-or-later
"""Subscriptions of webhooks: where to send, what, and how; checked whole before they are stored."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from .destination import DOCUMENTED
from .filter import check_filter, matches
from .message import Message
from .secret import Secret

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_RESERVED = ("webhook-", "vcsreplicator-", "host", "content-length", "transfer-encoding", "connection")


class Order(enum.StrEnum):
    """`strict`: a repository's messages one after the other; `speed`: none waits for another."""

    STRICT = "strict"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One endpoint and what it wants.

    `filter` is a JMESPath expression over `{"type": …, "data": …}`; what it finds true is sent. `secrets` sign each request, each
    with a signature of its own, so a new one can be added before the old one is removed. `timeout` in seconds, `concurrency`
    requests at once.
    """

    url: str
    method: str = "POST"
    types: tuple[str, ...] = DOCUMENTED
    filter: str | None = None
    headers: Mapping[str, str] | None = None
    secrets: tuple[Secret, ...] = ()
    timeout: float = 10.0
    concurrency: int = 4
    order: Order = Order.STRICT

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
            raise ValueError("url: expected https://HOST/… without user and fragment")
        if not self.url.isascii() or any(character <= " " for character in self.url):
            raise ValueError("url: expected ASCII without blanks; encode the rest with %")
        if self.method not in ("POST", "PUT"):
            raise ValueError(f"method: expected POST or PUT, got {self.method!r}")
        if not 1 <= self.concurrency <= 64 or not 0 < self.timeout <= 120:
            raise ValueError("concurrency: expected 1 to 64; timeout: expected up to 120 seconds")
        for name, value in (self.headers or {}).items():
            if not _TOKEN.match(name) or name.lower().startswith(_RESERVED) or not value.isprintable():
                raise ValueError(f"headers.{name}: not allowed")
        if self.filter is not None:
            check_filter(self.filter)

    def wants(self, message: Message) -> bool:
        """Whether this message is to be sent there. Raises FilterFailed."""
        return message.type.value in self.types and (self.filter is None or matches(self.filter, message.envelope))
