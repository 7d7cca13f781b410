# SPDX-License-Identifier: GPL-2.0-or-later
"""Subscriptions of webhooks, checked whole before they are stored."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.secrecy import split_url
from hgext.vcsreplicator.words.shape import Seconds, Time, within

from ...clients.secret import Secret
from ...delivery.destination import DOCUMENTED, check_types
from .filter import check_filter
from .signing import read_keys, signing_key

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_OURS = ("webhook-", "vcsreplicator-", "content-", "proxy-")
_RESERVED = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"}

# Rotations whose former keys sign at the same time: each adds 48 characters to a header.
MOST_FORMER = 9


class Order(enum.StrEnum):
    """The order of a subscription's messages.

    `strict`: a repository's messages go one after the other; `speed`: none waits for another.
    """

    STRICT = "strict"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerKeys:
    """Keys that a rotation replaced; they sign too before `until`, seconds since the epoch."""

    until: Time
    key: str | None = field(default=None, repr=False)
    secrets: tuple[Secret, ...] = ()

    def __post_init__(self) -> None:
        if self.key is not None:
            signing_key(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One endpoint and what it wants; docs/destinations.md explains each key.

    `key` is a secret that `subscription add` or `rotate` made: the log has it, and the file may not. `former` are those that it
    replaced, the newest first.
    """

    url: str
    method: str = "POST"
    types: tuple[str, ...] = DOCUMENTED
    filter: str | None = None
    headers: Mapping[str, str] | None = None
    secrets: tuple[Secret, ...] = ()
    key: str | None = field(default=None, repr=False)
    former: tuple[FormerKeys, ...] | None = None
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
    def is_from_elsewhere(self) -> bool:
        """Whether a secret is not in a file, as only the configuration may have it."""
        former = [secret for each in self.former or () for secret in each.secrets]
        return not all(secret.file for secret in (*self.secrets, *former))

    def list_former(self, now: float) -> tuple[FormerKeys, ...]:
        """Return the replaced keys that still sign."""
        return tuple(each for each in self.former or () if now < each.until)

    def read_keys(self, now: float) -> list[bytes]:
        """Return the keys that sign a request now, the newest first.

        Raises BadConfig, which names the first secret that cannot be read or is no key.
        """
        keys = list[bytes]()
        signing: list[Subscription | FormerKeys] = [self, *self.list_former(now)]
        for each in signing:
            keys += [] if each.key is None else [signing_key(each.key)]
            keys += read_keys(each.secrets)
        return keys

    def rotate(self, key: str, overlap: float, now: float) -> "Subscription":
        """Return the subscription with a new key; former keys sign for `overlap` seconds at most.

        Raises ValueError, which quotes nothing of the key, if it is invalid, or if too many former keys still sign.
        """
        end = now + overlap
        former = [replace(each, until=min(each.until, end)) for each in self.list_former(now)]
        if self.is_signed:
            former.insert(0, FormerKeys(until=end, key=self.key, secrets=self.secrets))
        if len(former) > MOST_FORMER and overlap:
            raise ValueError(f"{MOST_FORMER} former keys sign; wait until one ends, or let them end with --overlap 0")
        return replace(self, key=key, secrets=(), former=tuple(former) if former and overlap else None)

    @property
    def is_https(self) -> bool:
        """Whether requests to the endpoint are encrypted."""
        return urlsplit(self.url).scheme == "https"
