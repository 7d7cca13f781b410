# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of webhook deliveries.

They say where the table of deliveries is, when attempts repeat, and to which addresses they may go.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.shape import Seconds, absolute, within

from ...delivery.destination import ALL_TYPES
from ...delivery.window import PATIENCE, Patience
from .addresses import IpNetwork
from .signing import find_wrong
from .subscription import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """How deliveries are made; docs/destinations.md explains each key."""

    database: str
    subscriptions: Mapping[str, Subscription] | None = None
    ladder: tuple[Seconds, ...] = (0, 10, 60, 300, 1800, 7200, 21600, 43200, 86400)
    jitter: float = 0.2
    allow: tuple[str, ...] = ()
    allow_http: bool = False
    ca_file: str | None = None
    workers: int = 32
    pause_after: Seconds = 3 * DAY
    keep_delivered: Seconds = DAY
    keep_failed: Seconds = 14 * DAY
    types: tuple[str, ...] = ALL_TYPES
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        if not self.ladder or self.ladder[0] != 0:
            raise ValueError("ladder: expected delays in seconds, the first 0")
        long = (0, 3650 * DAY)
        within(self, ladder=(0, 30 * DAY))
        within(self, jitter=(0, 1), workers=(1, 200), pause_after=long, keep_delivered=long, keep_failed=long)
        absolute(self, "database")
        self.networks()
        for name, subscription in (self.subscriptions or {}).items():
            if subscription.key is not None or subscription.former is not None:
                wrong = "key" if subscription.key is not None else "former"
                raise ValueError(f"subscriptions.{name}.{wrong}: expected none; name the file of a secret in secrets")

    @property
    def kept_in(self) -> str:
        return self.database

    def check_subscriptions(self) -> None:
        """Raise ValueError for an endpoint of the file that no delivery can reach.

        Not at start: there it pauses its subscription alone.
        """
        for name, subscription in (self.subscriptions or {}).items():
            try:
                self.check_scheme(subscription)
            except ValueError as error:
                raise ValueError(f"subscriptions.{name}.{error}") from None

    def check_secrets(self) -> None:
        """Raise BadConfig for a secret of the file's subscriptions that is no key."""
        for name, subscription in (self.subscriptions or {}).items():
            find_wrong(subscription.secrets, f"subscriptions.{name}.secrets")

    def check_scheme(self, subscription: Subscription) -> None:
        """Raise ValueError for an endpoint with http, unless `allow_http`."""
        if not (subscription.is_https or self.allow_http):
            raise ValueError("url: expected https; to allow http as well, set allow-http = true")

    def networks(self) -> list[IpNetwork]:
        """Return the networks that `allow` opens; raise ValueError."""
        try:
            return [ipaddress.ip_network(each, strict=False) for each in self.allow]
        except ValueError as error:
            raise ValueError(f"allow: {error}") from None
