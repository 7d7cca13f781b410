# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `webhook`: each delivery is a row of a database.

For the notifier a message is confirmed when its rows are on disk (`deliveries`). From then on the dispatcher, a thread of this
destination, delivers it (`dispatcher`).
"""

import shlex
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.requests import NOTHING, OperatorRequest
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, ReplicationError, Unavailable, visible
from hgext.vcsreplicator.words.records import ServiceTrouble

from ...delivery.destination import DeliveryOutcome, Destination, Write
from ...delivery.rejects import judged
from ...delivery.window import Delivery
from ...messages.message import Message
from ..state import Kind
from .changes import carry_out, read_name
from .deliveries import Deliveries
from .dispatcher import Dispatcher
from .example import describe_test, make_example
from .filter import FilteredMessage, FilterFailed
from .records import WebhookRecords
from .request import AttemptResult
from .settings import DeliverySettings
from .subscriptions import StoredSubscription

FILTER_FAILED = Counter(
    "vcsreplicator_notifier_filter_failures", "Messages on which a filter failed", ["destination", "subscription"]
)

# Examples that may be under way at once: each takes a worker from the repeats.
MOST_TESTS = 4

# Seconds for which a delivery that failed may wait before it is named, unless its subscription is named by then as failing.
LATE, NAMED = 40.0, 60.0

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(DeliverySettings):
    """The table of a destination of type `webhook`."""

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return Webhooks(name, self, clock, log)


class Webhooks:
    """The destination `webhook`: it writes rows, which its dispatcher delivers."""

    def __init__(self, name: str, settings: WebhookSettings, clock: Clock, log: Log) -> None:
        self.name, self.settings, self.clock = name, settings, clock
        self._deliveries = Deliveries(settings.database)
        self._records = WebhookRecords(name, log, self._deliveries, clock)
        try:
            self._dispatcher = Dispatcher(name, settings, clock)
        except ReplicationError:
            self._deliveries.close()
            raise
        self._batch: list[Delivery] = []
        self._tests: dict[int, Future[AttemptResult]] = {}
        self._recorded_filters: set[tuple[int, str | None]] = set()
        self._seen_change = -1
        self._subscriptions: list[StoredSubscription] = []

    def restore(self, write: Write) -> None:
        self._records.restore(write)

    def start(self) -> None:
        if self._dispatcher.ident is None:
            try:  # not before operators' requests, which may change what contradicts the file
                self._deliveries.subscriptions.follow_file(self.settings.subscriptions or {}, now=self.clock.now())
            except BadConfig as error:
                raise Unavailable(str(error)) from error
            self._dispatcher.start()
        if not self._dispatcher.is_alive():
            raise Unavailable("webhook: the dispatcher ended")

    def submit(self, delivery: Delivery) -> None:
        self.start()
        self._batch.append(delivery)

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        batch, self._batch = self._batch, []
        return self._accept(batch) if batch else []

    def secure(self, position: int) -> int:
        return self._records.secure(position)

    def carry_out(self, request: OperatorRequest) -> str | None:
        if request.kind == Kind.TEST_SUBSCRIPTION:
            return self._test_subscription(request)
        result = carry_out(request, self._deliveries, self.settings, now=self.clock.now())
        self._records.record_changes()
        return result

    def _test_subscription(self, request: OperatorRequest) -> str | None:
        """Send an example to an endpoint, and return what it answered once it has.

        A paused subscription is tested too. No delivery waits for the answer. It is kept until another test begins, so that no
        endpoint gets an example each second while the log takes no results.
        """
        if (test := self._tests.get(request.id)) is not None:
            return describe_test(test.result()) if test.done() else None
        running = {number: each for number, each in self._tests.items() if not each.done()}
        if len(running) < MOST_TESTS:
            name = read_name(request)
            wanted = [each.subscription for each in self._deliveries.subscriptions.all() if each.name == name]
            if not wanted:
                return f"{NOTHING}sent: there is no subscription {name!r}"
            example = make_example(self.clock.now())
            self._tests = {**running, request.id: self._dispatcher.try_endpoint(example, wanted[0])}
        return None

    def find_troubles(self) -> Sequence[ServiceTrouble]:
        """Return which subscriptions are failing or paused, and which deliveries wait although others succeed in between.

        If the dispatcher fails, that is first: then nothing is delivered. Unsigned subscriptions are named, as meant, if a command
        added them.
        """
        found = []
        if (failure := self._dispatcher.failure) is not None:
            text = f"destination {self.name} delivers nothing: {failure[0]}; see: journalctl -u vcsreplicator-notifier"
            found.append(ServiceTrouble(text=text, since=failure[1]))
        for lost in self._deliveries.subscriptions.list_unreadable():
            text = (
                f"subscription {lost.name} of {self.name} cannot be read, and gets nothing: {visible(lost.reason)};"
                f" vcsreplicator subscription remove {shlex.quote(lost.name)} --yes, and add it again"
            )
            found.append(ServiceTrouble(text=text, since=lost.created_at, is_urgent=True))
        subscriptions = self._deliveries.subscriptions.all()
        for each in subscriptions:
            if each.origin == "command" and not each.subscription.is_signed:
                text = (
                    f"subscription {each.name} of {self.name} is unsigned; its receiver cannot know who sent a request;"
                    f" vcsreplicator subscription rotate {shlex.quote(each.name)} gives it a key"
                )
                found.append(ServiceTrouble(text=text, since=each.created_at, is_meant=True))
            paused, since, last = each.paused_reason, each.failing_since, None
            if since is not None:
                last = self._deliveries.last_error(each.id)
            elif paused:  # by an operator
                since = self._deliveries.subscriptions.last_pause(each.name) or each.created_at
            else:
                continue
            text = f"subscription {each.name} of {self.name} {f'is paused: {paused}' if paused else 'is failing'}"
            text += f", last: {last}" if last else ""
            way_out = f"to resume it: vcsreplicator subscription resume {shlex.quote(each.name)}"
            text += f"; {way_out if paused else 'see: vcsreplicator subscription list'}"
            is_meant = each.failing_since is None
            is_urgent = bool(paused) and not is_meant
            found.append(ServiceTrouble(text=text, since=since, is_urgent=is_urgent, is_meant=is_meant))
        now = self.clock.now()
        failing = {each.name: now - each.failing_since for each in subscriptions if each.failing_since is not None}
        for late in self._deliveries.list_late(now - LATE):
            if failing.get(late.subscription, 0.0) > NAMED:
                continue
            text = (
                f"subscription {late.subscription} of {self.name}: a delivery waits, though others succeed, last: {late.error};"
                f" see: vcsreplicator deliveries show {late.number}"
            )
            found.append(ServiceTrouble(text=text, since=late.created_at, is_urgent=True))
        return found

    def close(self) -> None:
        self._dispatcher.stop()
        self._deliveries.close()

    def _accept(self, batch: Sequence[Delivery]) -> list[DeliveryOutcome]:
        """Write rows for all of these or for none; for each alone if one is wrong."""
        trouble = None
        try:
            current = self._read_subscriptions()
            wanted = [(delivery.message, self._find_wanting(delivery.message, current)) for delivery in batch]
            self._dispatcher.take_rows(self._deliveries.enqueue(wanted, self.clock.now()))
            if any(delivery.message.replay is not None for delivery in batch):
                self._records.record_deliveries()  # the request of a replay ends with the last outcome, and no position waits
        except Fenced:
            raise
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, ReplicationError):
                return [outcome for delivery in batch for outcome in self._accept([delivery])]
            trouble = judged(error)
        return [DeliveryOutcome(number=delivery.number, error=trouble) for delivery in batch]

    def _find_wanting(self, message: Message, subscriptions: Sequence[StoredSubscription]) -> list[StoredSubscription]:
        """Return the subscriptions that want the message.

        A filter that fails is counted, and recorded once in the history.
        """
        found, filtered = [], FilteredMessage(message.envelope)
        for each in subscriptions:
            wanted = each.subscription
            try:
                if message.type in wanted.types and (wanted.filter is None or filtered.matches(wanted.filter)):
                    found.append(each)
            except FilterFailed as error:
                FILTER_FAILED.labels(self.name, each.name).inc()
                logger.warning("filter failed", subscription=each.name, **message.names, reason=str(error))
                if (each.id, each.subscription.filter) not in self._recorded_filters:
                    what = f"filter failed on {message.id}, which is not sent: {error}"
                    self._deliveries.subscriptions.add_history(each.name, what, now=self.clock.now())
                    self._recorded_filters.add((each.id, each.subscription.filter))
        return found

    def _read_subscriptions(self) -> list[StoredSubscription]:
        """Return the subscriptions, read again when an operator changed any."""
        change = self._deliveries.subscriptions.last_change()
        if change != self._seen_change:
            self._subscriptions, self._seen_change = self._deliveries.subscriptions.all(), change
        return self._subscriptions
