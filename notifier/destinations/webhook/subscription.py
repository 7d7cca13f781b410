# SPDX-License-Identifier: GPL-2.0-or-later
"""Subscriptions of webhooks, checked whole before they are stored."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Seconds, within

from ...clients.secret import Secret
from ...delivery.destination import DOCUMENTED, check_types
from .filter import check_filter
from .signing import signing_key

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_OURS = ("webhook-", "vcsreplicator-", "content-", "proxy-")
_RESERVED = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}


class Order(enum.StrEnum):
    """The order of a subscription's messages.

    `strict`: a repository's messages go one after the other; `speed`: none waits for another.
    """

    STRICT = "strict"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One endpoint and what it wants; docs/destinations.md explains each key.

    `key` is a secret that `subscription add` made: the log has it, and the file may not.
    """

    url: str
    method: str = "POST"
    types: tuple[str, ...] = DOCUMENTED
    filter: str | None = None
    headers: Mapping[str, str] | None = None
    secrets: tuple[Secret, ...] = ()
    key: str | None = field(default=None, repr=False)
    timeout: Seconds = 10.0
    concurrency: int = 4
    order: Order = Order.STRICT

    def __post_init__(self) -> None:
        if not self.url.isascii() or any(character <= " " for character in self.url):
            raise ValueError("url: expected ASCII without blanks; encode the rest with %")
        parts = split_url(self.url, "http", "https")
        if parts is None or "@" in parts.netloc or parts.fragment:
            raise ValueError("url: expected https://HOST/… without user and fragment")
        check_types(self.types)
        if self.method not in ("POST", "PUT"):
            raise ValueError(f"method: expected POST or PUT, got {quote_value(self.method)}")
        within(self, concurrency=(1, 64), timeout=(0.001, 120))
        for name, value in (self.headers or {}).items():
            if not _TOKEN.match(name) or name.lower().startswith(_OURS) or name.lower() in _RESERVED:
                raise ValueError(f"headers.{name}: not allowed")
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"headers.{name}: expected printable ASCII")
        if self.filter is not None:
            check_filter(self.filter)
        if self.key is not None:
            signing_key(self.key)

    @property
    def is_signed(self) -> bool:
        """Whether a receiver can know who sent a request."""
        return bool(self.key or self.secrets)

    @property
    def is_https(self) -> bool:
        """Whether requests to the endpoint are encrypted."""
        return urlsplit(self.url).scheme == "https"
