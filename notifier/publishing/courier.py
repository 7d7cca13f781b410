# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop of one destination.

It reads notices, sends their messages, keeps in the topic `errors` what can never be delivered, and stores the position.

Rules of this file: one thread does all the work. The position is stored only after everything before it is settled. A reject is
in the topic `errors` before it is settled. Nothing blocks longer than a second, so the loop sees an operator's requests soon;
`wake` ends the wait for notices, so the loop sees a stop at once.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.log import NOTICES, NOTIFIER, Log, Record
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.shape import from_json
from hgext.vcsreplicator.words.wire import ID, names_of, read_connection

from ..delivery.destination import DOWN, DeliveryOutcome, Destination, DestinationSettings, KeepingDestination
from ..delivery.rejects import REJECTED, Rejects, judged
from ..delivery.window import Delivery, Window
from ..destinations.state import StateDatabase
from ..messages.message import Message
from .condition import OLDEST, WAITING, DestinationCondition
from .decoding import NoticeDecoder
from .orders import PAUSED, Orders
from .position import StoredPosition
from .reading import POSITION, NoticeReader, describe_missing, has_records
from .requests import SharedRequests, restore_requests
from .settings import NotifierSettings

# Seconds that any wait may last.
IDLE_WAIT = 1.0

# The same while deliveries are unconfirmed and new notices may come.
BUSY_WAIT = 0.02

# Seconds that a stop waits for unconfirmed deliveries.
DRAIN = 5.0
# Multiples of `takeover-after` for which a notifier that cannot read notices keeps others from its destination.
UNREAD_PATIENCE = 3

_LABEL = ["destination"]
DELIVERED = Counter("vcsreplicator_notifier_delivered_messages", "Confirmed by the destination", _LABEL)
FAILED = Counter("vcsreplicator_notifier_failed_attempts", "Attempts that failed", _LABEL)
RETRIED = Counter("vcsreplicator_notifier_retried_attempts", "Attempts that were not the first", _LABEL)
REPLAYED = Counter("vcsreplicator_notifier_replayed_messages", "Sent again on request", _LABEL)

logger = structlog.get_logger()


def clear_gauges(name: str) -> None:
    """Forget what only the notifier that delivers knows of a destination."""
    for gauge in (DOWN, OLDEST, PAUSED, POSITION, WAITING):
        gauge.remove(name)


@dataclass(slots=True)
class Courier:
    """One destination at work; `run` may be called again after it raised.

    While it `cannot_begin`, the log does not let it take the place of another notifier's. `unread_since` is since when it can
    read no notices, or not what was written for it, because the log does not answer it, on the monotonic clock.
    """

    name: str
    settings: DestinationSettings
    notifier: NotifierSettings
    log: Log
    clock: Clock
    stop: threading.Event
    decoder: NoticeDecoder
    requests: SharedRequests
    chance: Callable[[], float] = random.random
    started: threading.Event = field(default_factory=threading.Event)
    cannot_begin: bool = False
    unread_since: float | None = None
    _reader: NoticeReader | None = None
    _failing_since: float | None = None

    def run(self, position: StoredPosition) -> None:
        """Work until `stop` is set.

        Raises Fenced if another notifier of the destination began, BadConfig if the log is wrong, Unavailable if the log, the state
        or the destination is unavailable. A BadConfig of the destination becomes Unavailable, so that it stops no other
        destination: it is reported and retried.
        """
        position.check()
        with contextlib.ExitStack() as opened:
            try:
                # The notifier before this one may have written behind a transaction of another destination.
                with self.reading():
                    self.log.wait_for_transactions(NOTIFIER)
                missing = describe_missing(self.name, self.settings, self.log, self.notifier.state)
                if missing is not None and not has_records(self.name, self.log):
                    raise Unavailable(missing)
                with contextlib.closing(self._open_state()) as state:
                    follows_from = restore_requests(self.name, self.requests, state, position.write)
                destination = self.settings.open(self.name, self.clock, self.log)
                opened.callback(destination.close)
                if isinstance(destination, KeepingDestination):
                    destination.restore(position.write)
            except (BadConfig, Unavailable) as error:
                self._report_trouble(error, position)
                raise Unavailable(str(error)) from error
            self._failing_since = None
            state = opened.enter_context(contextlib.closing(self._open_state()))
            with self.reading():
                loop = _DeliveryLoop(self, destination, state, position, follows_from=follows_from)
            self.unread_since = None
            opened.callback(loop.close)
            self._reader = loop.reader
            loop.work()

    def keeps_others(self) -> bool:
        """Return whether other notifiers should leave the destination to this one.

        It may reach all brokers but one, which it needs.
        """
        unread = 0.0 if self.unread_since is None else self.clock.monotonic() - self.unread_since
        return not self.cannot_begin and unread < UNREAD_PATIENCE * self.notifier.takeover_after

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read within the block what the destination needs of the log, or note since when that fails."""
        try:
            yield
        except Unavailable:
            self.unread_since = self.clock.monotonic() if self.unread_since is None else self.unread_since
            raise

    def wake(self) -> None:
        """End the wait for notices, since `stop` is set; any thread may call it."""
        if self._reader is not None:
            self._reader.wake()

    def _open_state(self) -> StateDatabase:
        """Open a connection of this courier's own to the state.

        The file was right at start, so BadConfig becomes Unavailable now, and is retried.
        """
        try:
            return StateDatabase(self.notifier.state)
        except BadConfig as error:
            raise Unavailable(str(error)) from error

    def _report_trouble(self, error: ReplicationError, position: StoredPosition) -> None:
        """Report a destination that cannot start, for monitoring and `destination list`."""
        self.started.set()
        with contextlib.closing(self._open_state()) as state:
            stored, mark = self._find_position(state, position)
            if stored is not None:  # Kafka forgets a position that is not stored for a week
                position.store(stored, mark)
            condition = DestinationCondition(self.name, self.log, state, self.clock, since=self._failing_since)
            self._failing_since = condition.record_outage(error)
            condition.report(Window(self.settings.patience), stored, mark)

    def _find_start(self, state: StateDatabase, position: StoredPosition) -> tuple[int, str | None]:
        """Return the position to begin at, and its mark; store them if they are new."""
        stored, mark = self._find_position(state, position)
        if stored is None:
            known = self.log.beginnings(NOTICES) if self.settings.start_at == "beginning" else self.log.ends(NOTICES)
            stored = known[0]
            position.store(stored, mark)
        return stored, mark

    def _find_position(self, state: StateDatabase, position: StoredPosition) -> tuple[int | None, str | None]:
        """Return the stored position and its mark, each None at the very first start.

        Kafka forgets them after a week without the notifier, and if the topic is deleted. Then the last report counts, and its
        position is stored again: some notices may repeat, and none is passed over.
        """
        stored, mark = position.read()
        if stored is not None:
            return stored, mark
        reported = state.conditions().get(self.name, {})
        stored, mark = reported.get("position"), reported.get("mark")
        if stored is not None:
            logger.warning("the log lost the position", position=stored, reason="the last reported one counts")
            position.store(stored, mark)
        return stored, mark


class _DeliveryLoop:
    """One destination at work, from its opening until it is closed."""

    def __init__(
        self,
        courier: Courier,
        destination: Destination,
        state: StateDatabase,
        position: StoredPosition,
        *,
        follows_from: int | None = None,
    ) -> None:
        self.courier, self.destination, self.state = courier, destination, state
        self.name, self.clock, self.log = courier.name, courier.clock, courier.log
        self.window = Window(courier.settings.patience)
        self.rejects = Rejects(self.name, self.log, self.clock)
        keeper = destination if isinstance(destination, KeepingDestination) else None
        self.reader = NoticeReader(
            self.name,
            self.log,
            self.clock,
            courier.chance,
            position=position,
            start=courier._find_start(state, position),
            window=self.window,
            rejects=self.rejects,
            state=state,
            keeper=keeper,
        )
        self.orders = Orders(
            name=self.name,
            state=state,
            log=self.log,
            write=position.write,
            keeper=keeper,
            clock=self.clock,
            window=self.window,
            rejects=self.rejects,
            messages_of=self.messages_of,
            reader=self.reader,
            follows_from=follows_from,
        )
        self.condition = DestinationCondition(self.name, self.log, state, self.clock)
        self.delivered = DELIVERED.labels(self.name)
        for counter in (FAILED, RETRIED, REJECTED, REPLAYED):
            counter.labels(self.name)  # begins at 0, so that a rule sees the first one

    def work(self) -> None:
        self.orders.carry_out_requests()
        self.connect()
        self.courier.started.set()
        while not self.courier.stop.is_set():
            self.turn()
        self.drain()

    def turn(self) -> None:
        """Read, send, settle and store once; wait if there is nothing to do."""
        self.orders.carry_out_requests()
        has_read = self.read()
        if self.condition.trouble is not None and self.window.idle(self.clock.monotonic()):
            self.connect()
        if has_read:
            # What was confirmed during the read makes room. The destination works while the next notices are read.
            self.collect(0)
            self.begin()
        else:
            self.begin()
            self.collect(BUSY_WAIT if self.window.in_flight else 0)
        self.reader.store_position()
        self.report()

    def report(self) -> None:
        reader, replays = self.reader, self.orders.list_replays()
        place = self.window, reader.stored, reader.stored_mark, self.destination
        self.condition.report(*place, replays=replays)

    def connect(self) -> None:
        """Connect, and record it if the destination answers.

        Without a message to send, only this shows that the destination answers again.
        """
        if self.attempt(self.destination.start):
            self.condition.record_answer()

    def read(self) -> bool:
        """Read notices while the window has room; return whether there were any.

        Waits for the next notice only if nothing else is to be done.
        """
        has_read = False
        wait = 0.0 if self.window.in_flight else self._idle_time()
        if not self.window.room or self.reader.is_resting:
            self.courier.stop.wait(wait)
            return has_read
        try:
            with self.courier.reading():
                for record in self.reader.records(0.0 if self.orders.replaying else wait):
                    self.take_record(record)
                    has_read = True
                self.orders.read_replays()
            self.courier.unread_since = None
            if self.reader.record_answer():
                self.condition.note_log_answer()
        except Unavailable as error:
            self.reader.rest(error)
        return has_read

    def take_record(self, record: Record) -> None:
        """Put the messages of a record into the window, or reject the record."""
        try:
            found = [message for message in self.messages_of(record) if message.id not in self.reader.skipped]
        except Exception as error:  # the records behind this one must not wait for it
            wrong = judged(error)
            if not isinstance(wrong, Rejected):
                raise wrong from error
            self.rejects.keep(wrong, record.value or b"", record.offset, record.key)
            logger.error("notice rejected", **_name_event(record), offset=record.offset, reason=str(wrong))
            found = []
        self.window.take_record(record.offset, found)

    def messages_of(self, record: Record) -> list[Message]:
        """Return this destination's messages of a record.

        Raises MalformedEvent or UnknownEvent.
        """
        settings = self.courier.settings
        wanted = [message for message in self.courier.decoder.messages_of(record) if message.type in settings.types]
        if not getattr(settings, "takes_connections", False):
            return wanted
        connection = read_connection(record.headers)
        return [replace(message, connection=connection) for message in wanted]

    def begin(self) -> None:
        """Submit due deliveries; wait a while if the destination takes nothing.

        A notifier that was stopped for a while, and fenced, begins none.
        """
        self.reader.check_turn()
        due = self.window.next(self.clock.monotonic())
        for index, delivery in enumerate(due):
            if delivery.attempt > 1:
                RETRIED.labels(self.name).inc()
            if not self.attempt(lambda delivery=delivery: self.submit(delivery)):  # type: ignore[misc]
                for untried in reversed(due[index:]):
                    self.window.give_back(untried.number)
                return

    def submit(self, delivery: Delivery) -> None:
        """Submit one delivery; refuse a message that cannot be sent. Raises Unavailable."""
        try:
            self.destination.submit(delivery)
        except Exception as error:
            wrong = judged(error)
            if not isinstance(wrong, Rejected):
                raise wrong from error
            self._settle_outcome(DeliveryOutcome(number=delivery.number, error=wrong))

    def attempt(self, act: Callable[[], None]) -> bool:
        """Call `act`; return whether it worked.

        A destination that does not answer is left alone for a while.
        """
        try:
            act()
        except Unavailable as error:
            delay = self.window.down(self.clock.monotonic(), self.courier.chance())
            FAILED.labels(self.name).inc()
            self.condition.record_outage(error)
            logger.warning("destination unavailable", reason=str(error), retry_in=round(delay, 2))
            return False
        return True

    def collect(self, wait: float) -> None:
        """Settle, retry or refuse the deliveries that the destination answered."""
        for outcome in self.destination.outcomes(wait):
            self._settle_outcome(outcome)

    def _settle_outcome(self, outcome: DeliveryOutcome) -> None:
        error = outcome.error
        if error is None:
            self._count_confirmed(outcome.number, self.window.confirm(outcome.number))
            return
        delivery = self.window.delivery(outcome.number)
        FAILED.labels(self.name).inc()
        now, chance = self.clock.monotonic(), self.courier.chance()
        fields = {**delivery.message.names, "attempt": delivery.attempt, "reason": str(error)}
        if isinstance(error, Unavailable):
            logger.warning("delivery failed", **fields)
            self.condition.record_failure(outcome.number, error)
            self.window.retry(outcome.number, now, chance)
        elif self.window.refuse(outcome.number, now, chance):
            logger.warning("delivery refused", **fields)
        else:
            self._give_up(delivery, error)

    def _give_up(self, delivery: Delivery, reason: ReplicationError) -> None:
        """Keep the message as a reject, then settle it; retry while the log is away."""
        try:
            self.rejects.keep_message(delivery.message, reason)
        except Unavailable as error:
            self.reader.rest(error)
            self.window.retry(delivery.number, self.clock.monotonic(), self.courier.chance())
            return
        logger.error("delivery rejected", **delivery.message.names, attempt=delivery.attempt, reason=str(reason))
        self.window.settle(delivery.number)
        self.condition.forget_failure(delivery.number)

    def _count_confirmed(self, number: int, message: Message) -> None:
        self.delivered.inc()
        if message.replay is not None:
            REPLAYED.labels(self.name).inc()
            self.orders.count_confirmed(number)
        self.condition.forget_failure(number)
        self.condition.record_answer()

    def drain(self) -> None:
        """Begin nothing, wait at most `DRAIN` seconds for the rest, store the position."""
        end = self.clock.monotonic() + DRAIN
        while self.window.in_flight and self.clock.monotonic() < end:
            self.collect(BUSY_WAIT)
        self.reader.store_position(at_once=True)

    def close(self) -> None:
        self.orders.close()
        self.reader.close()

    def _idle_time(self) -> float:
        wakes_at = self.window.wakes_at
        return IDLE_WAIT if wakes_at is None else min(IDLE_WAIT, max(0.0, wakes_at - self.clock.monotonic()))


def _name_event(record: Record) -> dict[str, str | int]:
    """Return what is known of the event of a rejected notice, for a log line."""
    names: dict[str, str | int] = {**names_of(record.key, record.headers)}
    with contextlib.suppress(Exception):  # it may be rejected because it cannot be read
        event = from_json(Notice, record.value or b"").event
        names |= names_of(event.repository, {ID: event.id}) | {"seq": event.seq}
    return names
