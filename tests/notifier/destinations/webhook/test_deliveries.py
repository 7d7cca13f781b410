# SPDX-License-Identifier: GPL-2.0-or-later
"""The attempts of deliveries that the database keeps."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from notifier.clients.database import NOWHERE
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries, DeliveryState
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.message import messages
from testing.builders.notifier.notices import a_notice, an_event
from testing.builders.notifier.notifying import PUBLIC


@pytest.fixture
def deliveries() -> Iterator[Deliveries]:
    """One delivery, number 1, that waits."""
    with closing(Deliveries(NOWHERE)) as opened:
        wanted = Subscription(url="https://ci.example/")
        opened.subscriptions.add("ci", wanted, origin="command", who="dana", now=1.0)
        opened.enqueue([(messages(a_notice(an_event("x", 1)), 1, PUBLIC)[0], opened.subscriptions.all())], 1.0)
        yield opened


def attempt(deliveries: Deliveries, time: float, answer: str = "busy", **more: object) -> None:
    """Record that the delivery was attempted, by default in vain."""
    [item] = deliveries.queued()
    members = {"state": DeliveryState.QUEUED, "attempt": 1, "mature_at": time, "status": 503, "error": "status 503"}
    deliveries.record([AttemptEnd(begun=item, duration=0.5, answer=answer, **{**members, **more})], time)  # type: ignore[arg-type]


def test_each_attempt_is_kept_with_its_time_and_answer(deliveries: Deliveries) -> None:
    attempt(deliveries, 2.0)
    attempt(deliveries, 9.0, "ok\n\0", state=DeliveryState.DELIVERED, status=200, error=None)
    delivered, failed = deliveries.list_attempts(1)
    assert failed == {
        "number": 1, "ended_at": 2.0, "duration": 0.5, "status": 503, "error": "status 503", "answer": "busy",
    }  # fmt: skip
    assert (delivered["number"], delivered["status"], delivered["answer"]) == (2, 200, "ok\n\0")
    shown = deliveries.show(1)
    assert shown is not None
    assert shown["attempts"] == [delivered, failed]


def test_of_many_attempts_of_a_delivery_the_newest_are_kept(deliveries: Deliveries) -> None:
    for number in range(1, 48):
        attempt(deliveries, float(number))
    assert [each["number"] for each in deliveries.list_attempts(1, 1000)] == list(range(47, 27, -1))
    assert [each["number"] for each in deliveries.list_attempts(1, 2)] == [47, 46]


def test_attempts_go_with_their_delivery(deliveries: Deliveries) -> None:
    attempt(deliveries, 2.0, state=DeliveryState.DELIVERED)
    deliveries.purge(delivered_before=9.0, failed_before=9.0)
    assert (deliveries.show(1), deliveries.list_attempts(1)) == (None, [])


def test_an_attempt_that_ends_after_its_delivery_is_gone_leaves_nothing(deliveries: Deliveries) -> None:
    [item] = deliveries.queued()
    deliveries.subscriptions.remove("ci", who="dana", now=2.0)
    deliveries.purge(delivered_before=9.0, failed_before=9.0)
    end = AttemptEnd(begun=item, state=DeliveryState.DELIVERED, attempt=1, mature_at=2.0, status=200, error=None)
    deliveries.record([end], 3.0)
    assert deliveries.list_attempts(1) == []
