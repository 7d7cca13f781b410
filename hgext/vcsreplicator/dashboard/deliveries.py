# SPDX-License-Identifier: GPL-2.0-or-later
"""Destinations and deliveries in the databases on the notifier's machine.

Call `is_there` for the notifier's state first: opening creates the file. The functions raise BadConfig or Unavailable.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from notifier.clients.database import is_there
from notifier.destinations.state import StateDatabase
from notifier.destinations.webhook.deliveries import Deliveries, DeliveryState
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.publishing.settings import NotifierSettings

from ..log.requests import OperatorRequest
from ..status.findings import is_overdue

# Requests to destinations, and deliveries of each destination, that are listed.
REQUESTS, DELIVERIES = 10, 50

# States of a delivery.
STATES = [state.value for state in DeliveryState]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationRow:
    """A destination, and the notifier's last report of it.

    `retry` is the longest time between its attempts, in seconds. It is silent if the notifier's next report is overdue.
    """

    name: str
    reported: Mapping[str, Any] | None
    retry: float
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryList:
    """The newest deliveries of a webhook destination, and the count of each state."""

    destination: str
    deliveries: list[dict[str, Any]]
    counts: Mapping[str, int]


def list_destinations(settings: NotifierSettings, now: float) -> tuple[list[DestinationRow], list[OperatorRequest]]:
    """List the destinations as of `now`, and the newest requests to them."""
    with closing(StateDatabase(settings.state)) as state:
        reported, requests = state.conditions(), state.requests.list_newest(REQUESTS)
    rows = [
        DestinationRow(
            name=name,
            reported=reported.get(name),
            retry=each.patience.retry.longest,
            is_silent=name in reported and is_overdue(reported[name]["time"], now),
        )
        for name, each in settings.destinations.items()
    ]
    return rows, requests


def list_deliveries(settings: NotifierSettings, state: str | None) -> list[DeliveryList]:
    """List the newest deliveries of each webhook destination, in one state or in all."""
    found = []
    for name, each in settings.destinations.items():
        if isinstance(each, WebhookSettings) and is_there(each.database):
            with closing(Deliveries(each.database)) as deliveries:
                newest, counts = deliveries.newest(state=state, limit=DELIVERIES), deliveries.counts()
            found.append(DeliveryList(destination=name, deliveries=newest, counts=counts))
    return found
