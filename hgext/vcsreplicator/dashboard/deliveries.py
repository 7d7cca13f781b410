# SPDX-License-Identifier: GPL-2.0-or-later
"""Destinations and deliveries in the databases on the notifier's machine.

Call `is_there` for the notifier's state first: opening creates the file. The functions raise BadConfig or Unavailable.
"""

from contextlib import closing
from typing import Any

from notifier.clients.database import is_there
from notifier.destinations.state import StateDatabase
from notifier.destinations.webhook.deliveries import Deliveries, DeliveryState
from notifier.destinations.webhook.destination import WebhookSettings
from notifier.publishing.settings import NotifierSettings

from ..log.requests import OperatorRequest
from ..status.destinations import is_overdue

# Requests to destinations, and deliveries of each destination, that are listed.
REQUESTS, DELIVERIES = 10, 50

# Attempts of each delivery that are listed, and characters of an answer.
ATTEMPTS, ANSWER = 5, 200

# States of a delivery.
STATES = [state.value for state in DeliveryState]


def list_destinations(
    settings: NotifierSettings, now: float, only: str | None = None
) -> tuple[list[dict[str, Any]], list[OperatorRequest]]:
    """List the destinations as of `now`, and the newest requests to them.

    If `only` names a destination, the requests are those to it.

    Each has its `name`, what the notifier last `reported` of it, in `retry` the longest time between its attempts, in seconds, and
    `is_silent` if the notifier's next report is overdue.
    """
    with closing(StateDatabase(settings.state)) as state:
        reported, requests = state.conditions(), state.requests.list_newest(REQUESTS, only)
    rows = [
        {
            "name": name,
            "reported": reported.get(name),
            "retry": each.patience.retry.longest,
            "is_silent": name in reported and is_overdue(reported[name]["time"], now),
        }
        for name, each in settings.destinations.items()
    ]
    return rows, requests


def list_deliveries(settings: NotifierSettings, state: str | None) -> list[dict[str, Any]]:
    """List each webhook destination with its newest deliveries, by state.

    It has its `destination`, the `deliveries`, each with its newest `attempts`, and in `counts` the number in each state.
    """
    found = []
    for name, each in settings.destinations.items():
        if isinstance(each, WebhookSettings) and is_there(each.database):
            with closing(Deliveries(each.database)) as deliveries:
                newest, counts = deliveries.newest(state=state, limit=DELIVERIES), deliveries.counts()
                for row in newest:
                    row["attempts"] = deliveries.list_attempts(row["id"], ATTEMPTS)
                    for attempt in row["attempts"]:
                        attempt["answer"] = attempt["answer"][:ANSWER]
            found.append({"destination": name, "deliveries": newest, "counts": counts})
    return found
