# SPDX-License-Identifier: GPL-2.0-or-later
"""The dispatcher of webhook deliveries.

It begins what is due, records how attempts ended, and pauses endpoints that fail for long.

Rules of this file: a row changes only after its attempt ended, so a crash repeats an attempt and never forgets one. The row
changes first, then the queues. The outcome of an attempt without an answer in time is unknown, and the attempt is repeated:
duplication over loss. Requests run in threads, everything else in one.
"""

import queue
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable, visible
from hgext.vcsreplicator.words.retry import LONGEST_WAIT

from ...delivery.destination import take_all
from .deliveries import AttemptEnd, Deliveries, DeliveryAttempt, DeliveryState
from .fairness import AttemptLane, Member, Queues, WaitingDelivery
from .request import AttemptResult, DeliveryVerdict, RequestSender
from .settings import DeliverySettings
from .subscription import Subscription
from .subscriptions import StoredSubscription

# Seconds of one wait.
IDLE_WAIT = 0.2
# Seconds between two purges.
PURGE_EVERY = 60.0
# Seconds for requests under way at the end.
CLOSE_PATIENCE = 5.0
# Rows and results taken at once; a purge that removes fewer deliveries has ended.
BATCH = 200

# Part of `pause_after`. An endpoint for which nothing was queued for longer is not known to have failed all the time.
QUIET_PART = 1 / 3

# Seconds after a failed attempt before which neither a success of others nor a new delivery hastens the next one.
EARLY = 10.0

# Seconds by which the clock may differ from the monotonic one before it counts as set.
CLOCK_SET = 1.0

_LABELS = ["destination", "subscription"]
ATTEMPTS = Counter("vcsreplicator_notifier_webhook_attempts", "Attempts by how they ended", [*_LABELS, "result"])
PAUSED = Gauge("vcsreplicator_notifier_subscription_paused_flag", "1 while a subscription is paused", _LABELS)
FAILING = Gauge(
    "vcsreplicator_notifier_subscription_failing_seconds",
    "Time for which a subscription has failed without a success; 0 while it is paused",
    _LABELS,
)
QUEUED = Gauge(
    "vcsreplicator_notifier_webhook_queued_deliveries",
    "Queued deliveries, including those not yet due",
    ["destination"],
)

logger = structlog.get_logger()


class Dispatcher(threading.Thread):
    """Begins due deliveries, records ended ones, and follows operators' changes."""

    def __init__(self, name: str, settings: DeliverySettings, clock: Clock) -> None:
        super().__init__(name=f"webhook-{name}", daemon=True)
        self.destination, self.settings, self.clock = name, settings, clock
        self.sender = RequestSender(
            networks=settings.networks(), allow_http=settings.allow_http, ca_file=settings.ca_file
        )
        self._pools = {lane: ThreadPoolExecutor(settings.workers, thread_name_prefix="webhook") for lane in AttemptLane}
        self._inbox: queue.SimpleQueue[list[WaitingDelivery] | tuple[WaitingDelivery, AttemptResult] | None] = (
            queue.SimpleQueue()
        )
        self._under_way: dict[int, WaitingDelivery] = {}
        self._stop_asked = threading.Event()
        self._subscriptions: dict[int, StoredSubscription] = {}
        self._queues = Queues(workers=settings.workers)
        self._change, self._loaded_to, self._paused = -1, 0, 0
        self._purged_at = float("-inf")
        self._time_of_start = self._find_start()
        # Why nothing is delivered, and since when; None while it is. Any thread may read it.
        self.failure: tuple[str, float] | None = None

    def take_rows(self, items: list[WaitingDelivery]) -> None:
        """Take new rows; any thread may call it."""
        if items:
            self._inbox.put(items)

    def try_endpoint(self, outgoing: DeliveryAttempt, subscription: Subscription) -> Future[AttemptResult]:
        """Send this beside the deliveries, with a worker of the repeats; any thread may call it.

        The result changes neither a row nor the health of the subscription. `stop` cancels what has not begun.
        """
        return self._pools[AttemptLane.REPEAT].submit(self._attempt_request, outgoing, subscription)

    def stop(self) -> None:
        """Stop; wait some seconds for what is under way. The next start continues."""
        self._stop_asked.set()
        self._inbox.put(None)
        if self.is_alive():
            self.join(CLOSE_PATIENCE + 1)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self.sender.close()

    def run(self) -> None:
        structlog.contextvars.bind_contextvars(destination=self.destination)
        failures = 0
        while not self._stop_asked.is_set():
            try:
                self._dispatch_deliveries()
            except Exception as error:
                failures += 1
                self.failure = (
                    visible(str(error)) or type(error).__name__,
                    self.clock.now() if self.failure is None else self.failure[1],
                )
                logger.error("dispatcher failed", reason=str(error), exc_info=not isinstance(error, Unavailable))
                self._stop_asked.wait(min(5.0, 0.1 * 2 ** min(failures, 10)))

    def _dispatch_deliveries(self) -> None:
        with closing(Deliveries(self.settings.database)) as deliveries:
            self._change = -1
            # The clock may have been set back since these were planned.
            longest = max(max(self.settings.ladder) * (1 + self.settings.jitter), LONGEST_WAIT)
            deliveries.bound_repeats(self.clock.now() + longest)
            while not self._stop_asked.is_set():
                self._follow_clock(deliveries)
                self._read_changes(deliveries)
                self._begin_attempts(deliveries)
                self._take_in(deliveries, self._idle_time())
                self._purge_finished(deliveries)
                self.failure = None
            end = self.clock.monotonic() + CLOSE_PATIENCE
            while self._under_way and self.clock.monotonic() < end:
                self._take_in(deliveries, IDLE_WAIT)

    def _find_start(self) -> float:
        """Return when the monotonic clock began: it moves only if the time of day is set."""
        return self.clock.now() - self.clock.monotonic()

    def _follow_clock(self, deliveries: Deliveries) -> None:
        """Follow a clock that was set, or a machine that slept.

        If it was set back, repeats would wait longer. If it was set forward, an endpoint that fails would seem to fail for long,
        and its subscription would be paused; and finished deliveries would be removed as old.
        """
        start = self._find_start()
        passed = start - self._time_of_start
        if abs(passed) > CLOCK_SET:
            logger.warning("clock set", seconds=round(passed))
            deliveries.follow_clock(passed, self.clock.now())
            self._time_of_start = start
            for number, each in self._subscriptions.items():
                if each.failing_since is not None:
                    self._subscriptions[number] = replace(each, failing_since=each.failing_since + passed)
            self._change = -1
        self._time_of_start = start

    def _read_changes(self, deliveries: Deliveries) -> None:
        """Read subscriptions and queues again if an operator changed any."""
        change = deliveries.subscriptions.last_change()
        if change != self._change:
            self._load_queues(deliveries)
            self._change = change
        now = self.clock.now()
        for each in self._subscriptions.values():
            since = None if each.paused_reason is not None else each.failing_since
            FAILING.labels(self.destination, each.name).set(0.0 if since is None else max(0.0, now - since))
        QUEUED.labels(self.destination).set(self._queues.waiting + self._paused)

    def _load_queues(self, deliveries: Deliveries) -> None:
        """Read subscriptions and rows; rows of paused subscriptions stay on disk."""
        # Before the subscriptions: what comes after a pause must not meet a subscription from before it. And the count first:
        # all rows up to its newest are among these.
        self._paused, newest_paused = deliveries.count_paused()
        queued = deliveries.queued()
        former = {each.name for each in self._subscriptions.values()}
        self._subscriptions = {each.id: each for each in deliveries.subscriptions.all()}
        for name in former - {each.name for each in self._subscriptions.values()}:
            for gauge in (PAUSED, FAILING):
                gauge.remove(self.destination, name)
        queues = Queues(workers=self.settings.workers)
        for number, each in self._subscriptions.items():
            PAUSED.labels(self.destination, each.name).set(each.paused_reason is not None)
            queues.members[number] = Member(
                concurrency=each.subscription.concurrency,
                strict=each.subscription.order.value == "strict",
                paused=each.paused_reason is not None,
                failing=each.failing_since is not None,
            )
        queues.add(queued, self._under_way)
        for number, member in queues.members.items():
            if not member.failing:  # a kill may have come between its success and its repeats
                queues.hasten(number, self.clock.now())
        tried = {item.subscription for item in queued if item.attempt}
        for number, member in queues.members.items():
            known = self._queues.members.get(number)
            if known is not None:
                member.idle_since = known.idle_since
            elif member.failing and number not in tried:
                # No delivery is left of its newest failure before the start: it has been idle since then.
                last = deliveries.last_given_up(number)
                now = self.clock.now()
                member.idle_since = float("-inf") if last is None else self.clock.monotonic() - (now - last)
        self._queues = queues
        self._loaded_to = max(self._loaded_to, newest_paused, *(item.id for item in queued))

    def _begin_attempts(self, deliveries: Deliveries) -> None:
        # All are read before any begins: if that raises, the next load reads them again.
        begun = [(item, deliveries.outgoing(item.id)) for item in self._queues.next(self.clock.now())]
        for item, outgoing in begun:
            self._under_way[item.id] = item
            if outgoing is None:  # cancelled meanwhile
                self._finish_attempt(item)
                continue
            subscription = self._subscriptions[item.subscription].subscription
            self._pools[item.lane].submit(self._make_attempt, item, outgoing, subscription)

    def _make_attempt(self, item: WaitingDelivery, outgoing: DeliveryAttempt, subscription: Subscription) -> None:
        self._inbox.put((item, self._attempt_request(replace(outgoing, attempt=item.attempt), subscription)))

    def _attempt_request(self, outgoing: DeliveryAttempt, subscription: Subscription) -> AttemptResult:
        begun = self.clock.monotonic()
        try:
            now = self.clock.now()
            answer = self.sender.send(outgoing, subscription, subscription.read_keys(now), now)
        except BadConfig as error:
            answer = AttemptResult(verdict=DeliveryVerdict.AGAIN, error=str(error))
        except Exception as error:  # a worker that dies would forget its delivery
            logger.exception("attempt failed")
            answer = AttemptResult(verdict=DeliveryVerdict.AGAIN, error=f"{type(error).__name__}: {error}"[:300])
        return replace(answer, duration=self.clock.monotonic() - begun)

    def _take_in(self, deliveries: Deliveries, wait: float) -> None:
        """Take in new rows and results, waiting up to `wait` seconds for the first."""
        found = take_all(self._inbox, wait, limit=BATCH)
        # Results first: if this fails, rows are read again from the table, and results would be forgotten.
        if ended := [each for each in found if isinstance(each, tuple)]:
            self._record_ended(deliveries, ended)
        for each in found:
            if isinstance(each, list):
                self._add_new(each)

    def _add_new(self, items: list[WaitingDelivery]) -> None:
        """Add the rows that the last load has not read already.

        Rows of a paused subscription stay on disk: its resumption loads them.
        """
        if any(item.subscription not in self._subscriptions for item in items):
            self._change = -1  # of a subscription newer than our last look: load all
            return
        new = [item for item in items if item.id > self._loaded_to]
        active = [item for item in new if self._subscriptions[item.subscription].paused_reason is None]
        self._paused += len(new) - len(active)
        self._queues.add(active)
        for item in active:
            self._queues.hasten_before(item, self.clock.now())

    def _record_ended(self, deliveries: Deliveries, ended: Sequence[tuple[WaitingDelivery, AttemptResult]]) -> None:
        """Record how attempts ended: first on disk, then in the queues."""
        try:
            self._follow_clock(deliveries)  # it may have been set while they were under way
            now = self.clock.now()
            results = [(item, answer, self._find_next(item, answer, now)) for item, answer in ended]
            given_up = [(item, answer) for item, answer, after in results if after.state is DeliveryState.EXHAUSTED]
            names = [deliveries.names(item.id) for item, _ in given_up]
            redelivered = deliveries.record([after for _, _, after in results], now)
        except Unavailable:
            for each in ended:
                self._inbox.put(each)
            raise
        for (item, answer), named in zip(given_up, names, strict=True):
            if item.id in redelivered:
                continue
            where = {"delivery": item.id, "subscription": self._subscription_name(item)}
            logger.error("delivery given up", **where, **named, reason=answer.error)
        if redelivered:
            self._change = -1  # the queues are read again before the next attempt begins
        for item, answer, after in results:
            if item.id in redelivered:
                self._under_way.pop(item.id, None)
                self._queues.again(item, item)
            elif after.state is DeliveryState.QUEUED:
                self._under_way.pop(item.id, None)
                later = replace(item, attempt=after.attempt, mature_at=after.mature_at, planned=None)
                self._queues.again(item, replace(later, early_at=now + max(EARLY, answer.wait)))
            else:
                self._finish_attempt(item)
        for item, answer in ended:
            ATTEMPTS.labels(self.destination, self._subscription_name(item), answer.verdict.value).inc()
            self._update_health(deliveries, item, answer, now)

    def _find_next(self, item: WaitingDelivery, answer: AttemptResult, now: float) -> AttemptEnd:
        """Return what becomes of a delivery after an attempt.

        A hastened attempt that fails costs none of the ladder: an endpoint that comes and goes would use it up within seconds.
        """
        attempt, state, mature_at = item.attempt + 1, DeliveryState.QUEUED, now
        if answer.verdict is DeliveryVerdict.DELIVERED:
            state = DeliveryState.DELIVERED
        elif answer.verdict is DeliveryVerdict.GONE:
            attempt = item.attempt  # not its fault: it waits for the subscription
        elif answer.verdict is DeliveryVerdict.AGAIN and item.planned is not None and now < item.planned:
            attempt, mature_at = item.attempt, max(item.planned, now + answer.wait)
        elif answer.verdict is DeliveryVerdict.WRONG or attempt >= len(self.settings.ladder):
            state = DeliveryState.EXHAUSTED
        else:
            spread = 1 + self.settings.jitter * (2 * random.random() - 1)
            mature_at = now + max(self.settings.ladder[attempt] * spread, answer.wait)
        return AttemptEnd(
            begun=item,
            state=state,
            attempt=attempt,
            mature_at=mature_at,
            status=answer.status,
            error=answer.error,
            duration=answer.duration,
            answer=answer.answer,
        )

    def _update_health(self, deliveries: Deliveries, item: WaitingDelivery, answer: AttemptResult, now: float) -> None:
        """Record whether an endpoint fails; pause it if it is gone or fails for long.

        A failing endpoint gets one first attempt and one repeat at a time. The time for which it fails begins anew if no delivery
        was queued for long, since one attempt says nothing about that while.
        """
        stored, member = self._subscriptions.get(item.subscription), self._queues.members.get(item.subscription)
        if stored is None or member is None or member.paused:
            return
        if answer.verdict is DeliveryVerdict.DELIVERED:
            if member.failing:
                self._set_failing(deliveries, stored, None, answer)
            return
        moment = now - self._time_of_start  # by the monotonic clock
        idle_for = 0.0 if member.idle_since is None else moment - member.idle_since
        if not member.failing or idle_for > QUIET_PART * self.settings.pause_after:
            self._set_failing(deliveries, stored, now, answer)
            stored = self._subscriptions[item.subscription]
        member.idle_since = moment if member.queued == 0 else None
        since = stored.failing_since or now
        if answer.verdict is DeliveryVerdict.GONE:
            self._pause_subscription(deliveries, stored, answer.error or "gone", now)
        elif now - since > self.settings.pause_after:
            hours = (now - since) / 3600
            self._pause_subscription(deliveries, stored, f"failing for {hours:.0f} hours, last: {answer.error}", now)

    def _set_failing(
        self, deliveries: Deliveries, stored: StoredSubscription, since: float | None, answer: AttemptResult
    ) -> None:
        deliveries.subscriptions.failing(stored.id, since)
        self._subscriptions[stored.id] = replace(stored, failing_since=since)
        self._queues.members[stored.id].failing = since is not None
        if since is None:
            self._queues.hasten(stored.id, self.clock.now())
            logger.info("subscription answers again", subscription=stored.name)
        else:
            logger.warning("subscription fails", subscription=stored.name, reason=answer.error)

    def _pause_subscription(self, deliveries: Deliveries, stored: StoredSubscription, reason: str, now: float) -> None:
        deliveries.subscriptions.pause(stored.name, reason, who="vcsreplicator", now=now)
        self._queues.members[stored.id].paused = True
        PAUSED.labels(self.destination, stored.name).set(1)
        logger.error(
            "subscription paused", subscription=stored.name, reason=reason, resume="vcsreplicator subscription resume"
        )

    def _finish_attempt(self, item: WaitingDelivery) -> None:
        self._under_way.pop(item.id, None)
        self._queues.finished(item)

    def _purge_finished(self, deliveries: Deliveries) -> None:
        now = self.clock.monotonic()
        if now - self._purged_at < PURGE_EVERY:
            return
        today = self._time_of_start + now  # not the time of a clock that was set just now
        removed = deliveries.purge(
            delivered_before=today - self.settings.keep_delivered, failed_before=today - self.settings.keep_failed
        )
        if removed < BATCH:  # else there is more: soon again
            self._purged_at = now

    def _subscription_name(self, item: WaitingDelivery) -> str:
        stored = self._subscriptions.get(item.subscription)
        return "removed" if stored is None else stored.name

    def _idle_time(self) -> float:
        wakes_at = self._queues.wakes_at()
        return IDLE_WAIT if wakes_at is None else min(IDLE_WAIT, max(0.0, wakes_at - self.clock.now()))
