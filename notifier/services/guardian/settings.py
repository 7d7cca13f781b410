# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[guardian]` of the TOML file."""

import enum
import re
import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import quote_value
from hgext.vcsreplicator.words.secrecy import is_loopback, split_url
from hgext.vcsreplicator.words.shape import Seconds, absolute, within

from ...clients.secret import Secret

# Our mail addresses: ASCII, and nothing that could end a header or name a second address.
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\Z")


class Deletion(enum.StrEnum):
    """Which queues beyond the limit are deleted."""

    NO = "no"
    UNUSED = "unused"
    YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianSettings:
    """A virtual host, and limits of its queues; docs/guardian.md explains each key."""

    management_url: str
    broker_url: str
    sender: str
    operator: str
    smtp_url: str
    password: Secret | None = None
    smtp_password: Secret | None = None
    ca_file: str | None = None
    smtp_ca_file: str | None = None
    state: str = "/var/lib/vcsreplicator/guardian.db"
    every: Seconds = 60.0
    warn_at: int = 2000
    limit: int = 8000
    delete: Deletion = Deletion.NO
    takeover_after: Seconds = 10.0

    def __post_init__(self) -> None:
        if split_url(self.management_url, "http", "https") is None:
            raise ValueError("management_url: expected https://USER@HOST:PORT")
        if split_url(self.broker_url, "amqp", "amqps") is None:
            raise ValueError("broker_url: expected amqps://USER@HOST/VHOST")
        if urlsplit(self.management_url).port in (urlsplit(self.broker_url).port or 5671, 5671, 5672):
            raise ValueError("management_url: expected the port of the management API (15671, 15672), got one of AMQP")
        if split_url(self.smtp_url, "smtp", "smtps", "smtp+starttls") is None:
            raise ValueError("smtp_url: expected smtps://USER@HOST or smtp+starttls://USER@HOST:PORT")
        for name in ("sender", "operator"):
            if not ADDRESS.match(getattr(self, name)):
                raise ValueError(f"{name}: expected a mail address, got {quote_value(getattr(self, name))}")
        absolute(self, "state")
        within(self, every=(1, DAY), takeover_after=(0.01, 3600), warn_at=(1, 10**9), limit=(2, 10**9))
        if self.warn_at >= self.limit:
            raise ValueError(f"warn_at: expected less than limit ({self.limit}), got {self.warn_at}")

    @property
    def vhost(self) -> str:
        """The guarded virtual host, as clients read it: `/` for no path, or `/` alone."""
        return unquote(urlsplit(self.broker_url).path[1:]) or "/"

    @property
    def name(self) -> str:
        """The virtual host's name in the log, such as `broker.example:5671/%2F`.

        A broker at a loopback address has this machine's name: another machine has another broker there.
        """
        parts = urlsplit(self.broker_url)
        host, port = parts.hostname or "", parts.port or (5671 if parts.scheme == "amqps" else 5672)
        return f"{socket.gethostname() if is_loopback(host) else host}:{port}/{quote(self.vhost, safe='')}"
