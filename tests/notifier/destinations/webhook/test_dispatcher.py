# SPDX-License-Identifier: GPL-2.0-or-later
"""The dispatcher of webhooks over days, on a clock moved by hand: pauses, what waits for a paused endpoint, clocks that jump."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from hgext.vcsreplicator.words.clock import DAY
from notifier.delivery.window import Delivery
from notifier.destinations.webhook import dispatcher
from notifier.destinations.webhook.deliveries import AttemptEnd, Deliveries
from notifier.destinations.webhook.destination import Webhooks, WebhookSettings
from notifier.destinations.webhook.subscription import Subscription
from notifier.messages.message import messages
from testing.builders.notifier.endpoint import Endpoint, Reply
from testing.builders.notifier.notices import a_notice, an_event
from testing.builders.notifier.notifying import FAST, PUBLIC
from testing.builders.notifier.webhooks import open_webhooks
from testing.clock import HandClock
from testing.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

LABELS = {"destination": "hooks", "subscription": "ci"}


class Dispatching:
    """The destination `hooks` with the subscription `ci` of an endpoint that fails until the test replaces its reply."""

    def __init__(self, endpoint: Endpoint, settings: WebhookSettings, deliveries: Deliveries) -> None:
        self.endpoint, self.deliveries, self.clock = endpoint, deliveries, HandClock(time.time())
        self.settings = replace(settings, subscriptions={"ci": Subscription(url=endpoint.url, timeout=PATIENCE)})

    @contextmanager
    def running(self) -> Iterator[Webhooks]:
        with closing(open_webhooks(self.settings, self.clock)) as webhooks:
            yield webhooks

    def submit(self, webhooks: Webhooks, *seqs: int) -> None:
        for seq in seqs:
            [message] = messages(a_notice(an_event("x", seq)), seq, PUBLIC)
            webhooks.submit(Delivery(number=seq, message=message, attempt=1))
        assert [outcome.error for outcome in webhooks.outcomes(0)] == [None] * len(seqs)

    def wait_for(self, **counts: int) -> None:
        eventually(lambda: self.deliveries.counts() == counts)

    @property
    def paused_reason(self) -> str | None:
        return self.deliveries.subscriptions.all()[0].paused_reason

    @property
    def failing_since(self) -> float | None:
        return self.deliveries.subscriptions.all()[0].failing_since


Dispatch = Callable[..., Dispatching]


@pytest.fixture
def dispatch(tmp_path: Path) -> Iterator[Dispatch]:
    settings = WebhookSettings(
        database=str(tmp_path / "deliveries.db"),
        jitter=0,
        allow=("127.0.0.0/8",),
        allow_http=True,
        patience=FAST,
    )
    with Endpoint(lambda request: Reply(status=503)) as endpoint, closing(Deliveries(settings.database)) as deliveries:
        yield lambda **more: Dispatching(endpoint, replace(settings, **more), deliveries)


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_one_failed_attempt_pauses_no_webhook_without_waiting_messages(dispatch: Dispatch, restarts: bool) -> None:
    it = dispatch(ladder=(0,), pause_after=3 * DAY)
    with it.running() as webhooks:
        it.submit(webhooks, 1)
        it.wait_for(exhausted=1)
        it.clock.advance(10 * DAY)
        if not restarts:
            it.submit(webhooks, 2)
            it.wait_for(exhausted=2)
    if restarts:
        with it.running() as webhooks:
            it.submit(webhooks, 2)
            it.wait_for(exhausted=2)
    assert it.paused_reason is None
    assert it.failing_since == it.clock.now()


def test_nothing_waits_since_a_failure_however_long_it_takes_to_record_it(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, record, pauses = dispatch(ladder=(0,), pause_after=3 * DAY), Deliveries.record, [10 * DAY]

    def record_slowly(deliveries: Deliveries, ends: Sequence[AttemptEnd], now: float) -> set[int]:
        redelivered = record(deliveries, ends, now)
        it.clock.advance(pauses.pop() if pauses else 0.0)
        return redelivered

    monkeypatch.setattr(Deliveries, "record", record_slowly)
    with it.running() as webhooks:
        for seq in (1, 2):
            it.submit(webhooks, seq)
            it.wait_for(exhausted=seq)
    assert it.paused_reason is None
    assert it.failing_since == it.clock.now()


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_the_first_success_makes_all_due_that_waits_for_the_endpoint(dispatch: Dispatch, *, restarts: bool) -> None:
    it = dispatch(ladder=(0, 500, 5000))
    with it.running() as webhooks:
        submit_apart(webhooks, *range(1, 9))
        eventually(
            lambda: it.deliveries.counts() == {"queued": 8} and all(each.attempt for each in it.deliveries.queued())
        )
        it.clock.advance(dispatcher.EARLY + 1)
        it.endpoint.reply = lambda request: Reply()
        before = len(it.endpoint.told)
        if not restarts:
            submit_apart(webhooks, 9)
            it.wait_for(delivered=9)
            assert sorted(it.endpoint.told[before:]) == [(f"r{number}", 1) for number in range(1, 10)]
    if restarts:  # killed between the success and the repeats
        it.deliveries.subscriptions.failing(it.deliveries.subscriptions.all()[0].id, None)
        with it.running():
            it.wait_for(delivered=8)


def test_a_new_message_in_strict_order_finds_that_its_endpoint_answers_again(dispatch: Dispatch) -> None:
    it = dispatch(ladder=(0, 500))
    with it.running() as webhooks:
        it.submit(webhooks, 1)
        eventually(lambda: [each.attempt for each in it.deliveries.queued()] == [1])
        it.clock.advance(dispatcher.EARLY + 1)
        it.endpoint.reply = lambda request: Reply()
        it.submit(webhooks, 2)
        it.wait_for(delivered=2)


def test_an_endpoint_that_comes_and_goes_uses_up_no_ladder(dispatch: Dispatch) -> None:
    it = dispatch(ladder=(0, 500))
    with it.running() as webhooks:
        submit_apart(webhooks, 1)
        eventually(lambda: [each.attempt for each in it.deliveries.queued()] == [1])
        [before] = it.deliveries.queued()
        for number in range(2, 5):
            it.clock.advance(dispatcher.EARLY + 1)
            asked = len(it.endpoint.told)
            new = f"r{number}"
            it.endpoint.reply = lambda request, new=new: Reply(status=200 if new in str(request.body) else 503)
            submit_apart(webhooks, number)
            eventually(lambda asked=asked: len(it.endpoint.told) == asked + 2, "the new one, and the first again")
            eventually(lambda: it.failing_since is not None)
        assert it.deliveries.queued() == [before]
        assert it.deliveries.counts() == {"queued": 1, "delivered": 3}


def submit_apart(webhooks: Webhooks, *numbers: int) -> None:
    """Submit a message of another repository for each number."""
    for number in numbers:
        [message] = messages(a_notice(an_event(f"r{number}", 1)), number, PUBLIC)
        webhooks.submit(Delivery(number=number, message=message, attempt=1))
    assert [outcome.error for outcome in webhooks.outcomes(0)] == [None] * len(numbers)


def test_webhook_whose_deliveries_fail_one_behind_the_other_is_paused(dispatch: Dispatch) -> None:
    it = dispatch(ladder=(0, 2 * DAY), pause_after=3 * DAY)
    began = it.clock.now()
    with it.running() as webhooks:
        it.submit(webhooks, 1, 2)
        eventually(lambda: len(it.endpoint.requests) == 1 and it.failing_since)
        it.clock.advance(2 * DAY)
        it.wait_for(exhausted=1, queued=1)
        eventually(lambda: len(it.endpoint.requests) == 3)
        eventually(lambda: it.deliveries.newest()[0]["attempt"] == 1)
        assert it.failing_since == began
        it.clock.advance(2 * DAY)
        eventually(lambda: it.paused_reason)


@pytest.mark.parametrize(
    ("ladder", "hangs"), [((0,), 1), ((0, 0), 2), ((0, 2 * DAY), 1)], ids=["only", "last", "before a long delay"]
)
def test_a_redelivery_asked_for_during_a_failing_attempt_begins_at_once(
    dispatch: Dispatch, ladder: tuple[float, ...], hangs: int
) -> None:
    it, end = dispatch(ladder=ladder), threading.Event()
    it.endpoint.reply = lambda request: Reply(status=503, hang=end if len(it.endpoint.requests) == hangs else None)
    with it.running() as webhooks:
        it.submit(webhooks, 1)
        eventually(lambda: len(it.endpoint.requests) == hangs)
        it.clock.advance(1.0)
        assert it.deliveries.redeliver([1], who="dana", now=it.clock.now()) == [1]
        it.endpoint.reply = lambda request: Reply()
        end.set()
        it.wait_for(delivered=1)
    assert len(it.endpoint.requests) == hangs + 1


def test_a_redelivery_asked_for_during_a_success_sends_nothing_twice(dispatch: Dispatch) -> None:
    it, end = dispatch(ladder=(0,)), threading.Event()
    it.endpoint.reply = lambda request: Reply(hang=end)
    with it.running() as webhooks:
        it.submit(webhooks, 1)
        eventually(lambda: len(it.endpoint.requests) == 1)
        it.clock.advance(1.0)
        assert it.deliveries.redeliver([1], who="dana", now=it.clock.now()) == [1]
        end.set()
        it.wait_for(delivered=1)
        it.submit(webhooks, 2)
        it.wait_for(delivered=2)
    assert len(it.endpoint.requests) == 2


@pytest.mark.parametrize("runs", [[range(1, 6)], [range(1, 4), range(4, 6)]], ids=["running", "restarted"])
def test_a_webhook_with_final_answers_fails_since_the_first_of_them(dispatch: Dispatch, runs: list[range]) -> None:
    """Each delivery is given up at once, so nothing is queued between two of them."""
    it = dispatch(pause_after=3 * DAY)
    it.endpoint.reply = lambda request: Reply(status=400)
    began = it.clock.now()
    for run in runs:
        with it.running() as webhooks:
            for seq in run:
                it.submit(webhooks, seq)
                it.wait_for(exhausted=seq)
                eventually(lambda: it.failing_since == began)
                it.clock.advance(0.9 * DAY)
    eventually(lambda: it.paused_reason)


def test_deliveries_of_a_paused_subscription_stay_until_it_is_resumed(dispatch: Dispatch) -> None:
    def queued() -> float | None:
        return REGISTRY.get_sample_value("vcsreplicator_notifier_webhook_queued_deliveries", {"destination": "hooks"})

    it = dispatch(ladder=(0, 60))
    it.endpoint.reply = lambda request: Reply()
    table = it.deliveries.subscriptions
    with it.running() as webhooks:
        table.pause("ci", "maintenance", who="dana", now=it.clock.now())
        it.submit(webhooks, 1, 2, 3)
        eventually(lambda: queued() == 3)
        assert webhooks._dispatcher._queues.waiting == 0
        table.add_history("ci", "a line", now=it.clock.now())
        it.submit(webhooks, 4)
        eventually(lambda: queued() == 4)
        assert webhooks._dispatcher._queues.waiting == 0
        assert it.deliveries.queued() == []
        table.pause("ci", None, who="dana", now=it.clock.now())
        it.wait_for(delivered=4)
        eventually(lambda: queued() == 0)
    assert [seq for _, seq in it.endpoint.told] == [1, 2, 3, 4]


@pytest.mark.parametrize("days", [30, -30], ids=["forward", "back"])
def test_a_failed_delivery_is_kept_as_long_if_the_clock_is_set(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    monkeypatch.setattr(dispatcher, "PURGE_EVERY", 0.0)
    it = dispatch(ladder=(0,), keep_failed=14 * DAY)
    with it.running() as webhooks:
        it.submit(webhooks, 1)
        it.wait_for(exhausted=1)
        it.clock.set_back(-days * DAY)
        eventually(
            lambda: [each["finished_at"] for each in it.deliveries.newest()] == [pytest.approx(it.clock.now(), abs=1)]
        )
        it.clock.advance(13 * DAY)
        it.submit(webhooks, 2)
        it.wait_for(exhausted=2)
        it.clock.advance(2 * DAY)
        it.wait_for(exhausted=1)


def test_metric_says_for_how_long_a_subscription_fails(dispatch: Dispatch) -> None:
    def failing() -> float | None:
        return REGISTRY.get_sample_value("vcsreplicator_notifier_subscription_failing_seconds", LABELS)

    it = dispatch(ladder=(0, 60, 60))
    table = it.deliveries.subscriptions
    with it.running() as webhooks:
        eventually(lambda: failing() == 0)
        it.submit(webhooks, 1)
        eventually(lambda: it.failing_since)
        it.clock.advance(50)
        eventually(lambda: failing() == pytest.approx(50))
        table.pause("ci", "maintenance", who="dana", now=it.clock.now())
        eventually(lambda: failing() == 0)
        table.pause("ci", None, who="dana", now=it.clock.now())
        it.clock.advance(10)
        eventually(lambda: it.failing_since)
        it.clock.advance(30)
        eventually(lambda: failing() == pytest.approx(30))
        it.endpoint.reply = lambda request: Reply()
        it.clock.advance(30)
        it.wait_for(delivered=1)
        eventually(lambda: failing() == 0)
        table.remove("ci", who="dana", now=it.clock.now())
        eventually(lambda: failing() is None)
