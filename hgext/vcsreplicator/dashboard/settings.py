# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[dashboard]` of the services' file."""

import enum
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from ..config import Config, address
from ..words.errors import BadConfig, quote_value
from ..words.secrecy import Exposure, is_loopback
from ..words.shape import absolute

# Characters of the name of an installation.
LONGEST = 60

# The name of a header: a token of HTTP.
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")


class DashboardRole(enum.StrEnum):
    """What a user sees and may do.

    A guest sees names of public repositories only, a reader sees everything, and an operator may act too.
    """

    GUEST = "guest"
    READER = "reader"
    OPERATOR = "operator"

    @property
    def sees_all(self) -> bool:
        """Whether all names and texts are shown."""
        return self is not DashboardRole.GUEST

    @property
    def may_act(self) -> bool:
        return self is DashboardRole.OPERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Where the dashboard listens, and who may read it.

    `listen` is host:port. `users` is a file with a line `NAME:ROLE:SHA-256 of the token` for each user, or `NAME:ROLE:-` for one
    that only a proxy names. `anonymous` is the role without a token. `proxy_header` has the name of the user in requests from
    `trusted_proxies` (IP addresses). `hosts` are the names under which clients reach the dashboard, beside its address. `acts` is
    the path of the database that records the acts of operators. `socket` is the path of the Unix socket at which `status` and
    `check` ask, `socket_users` are the names of the users who may ask there in addition to root and the dashboard's own. `name` is
    the installation's, which each page shows. `runbook` is the URL of the page to which findings lead. `history` is the path of
    the database that keeps what the graphs show.
    """

    listen: str
    users: str | None = None
    anonymous: DashboardRole | None = None
    proxy_header: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    acts: str | None = None
    socket: str | None = None
    socket_users: tuple[str, ...] = ()
    name: str | None = None
    runbook: str | None = None
    history: str | None = None

    def __post_init__(self) -> None:
        if self.users is None and self.anonymous is None:
            raise ValueError('users: expected the path of a file of users, or anonymous = "guest"')
        absolute(self, "users", "acts", "socket", "history")
        if self.socket_users and self.socket is None:
            raise ValueError("socket-users: expected together with socket")
        if any(not name or name.isdigit() for name in self.socket_users):
            raise ValueError(f"socket-users: expected names of users, got {quote_value(list(self.socket_users))}")
        if self.name is not None and (not 0 < len(self.name) <= LONGEST or not self.name.isprintable()):
            raise ValueError(f"name: expected 1 to {LONGEST} characters in one line, got {quote_value(self.name)}")
        if self.runbook is not None and not self.runbook.startswith(("https://", "http://")):
            raise ValueError(f"runbook: expected a URL, got {quote_value(self.runbook)}")
        if self.anonymous is DashboardRole.OPERATOR:
            raise ValueError('anonymous: an act is recorded with who did it; expected "guest" or "reader"')
        if self.anonymous is DashboardRole.READER and not self.is_local:
            raise ValueError('anonymous: "reader" shows all names; on an address that others reach, expected "guest"')
        if (self.proxy_header is None) != (not self.trusted_proxies):
            raise ValueError("proxy-header: expected together with trusted-proxies")
        for proxy in self.trusted_proxies:
            if parse_address(proxy) is None:
                raise ValueError(
                    f"trusted-proxies: expected IP addresses, without names and networks, got {quote_value(proxy)}"
                )
        if self.proxy_header is not None and not _HEADER.match(self.proxy_header):
            raise ValueError(f"proxy-header: expected the name of a header, got {quote_value(self.proxy_header)}")
        if self.proxy_header is not None and self.proxy_header.lower() == "authorization":
            raise ValueError(
                "proxy-header: Authorization carries tokens; expected a header of its own for the user's name"
            )
        if self.proxy_header is not None and self.users is None:
            raise ValueError("users: expected a file that gives a role to each user that the proxy names")
        if any(not host or "*" in host or ":" in host for host in self.hosts):
            raise ValueError(f"hosts: expected names without port and *, got {quote_value(list(self.hosts))}")

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the dashboard."""
        return is_loopback(self.listen.rpartition(":")[0].strip("[]"))


def read(config: Config) -> DashboardSettings:
    """Read the section [dashboard]; raises BadConfig, also for tokens in plain text."""
    settings = config.settings(DashboardSettings, "dashboard")
    address(settings.listen, f"{config.file}: dashboard.listen")
    if not settings.is_local and Exposure.PLAIN_TEXT.value not in config.tables.get("insecure", ()):
        found = f"tokens in plain text to {settings.listen}, expected a loopback address behind a proxy with TLS"
        raise BadConfig(f'{config.file}: dashboard.listen: {found}; if it is meant, write insecure = ["plain-text"]')
    return settings


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address; None if the text is none.

    An IPv4 address that IPv6 carries is the IPv4 address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
