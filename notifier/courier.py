# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop of one destination.

It reads notices, sends their messages, keeps what can never work in `errors`, and moves the position.

Rules of this file: one thread; the position is stored only after what is before it is settled; a reject is in the topic
`errors` before it is settled; nothing blocks longer than a fifth of a second, so stop, pause and new notices are seen at once.
"""

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.log import NOTICES, Log, Reader, Record
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.event import check_event
from hgext.vcsreplicator.words.levels import Notice
from hgext.vcsreplicator.words.retry import RECONNECT
from hgext.vcsreplicator.words.shape import from_json

from .delivery import Delivery, Window
from .destination import DeliveryOutcome, Destination, DestinationSettings
from .message import Message, messages
from .orders import Orders
from .rejects import Rejects, judged
from .settings import NotifierSettings
from .state import StateDatabase

# Seconds that any wait may last.
BLINK = 0.2

# The same while deliveries are unconfirmed and new notices may come.
BUSY_BLINK = 0.02
TELL_EVERY = 2.0
STORE_EVERY = 0.5

# Seconds after which a position that did not move is stored again: Kafka forgets what nobody stores for a week.
RENEW_EVERY = 3600.0

DRAIN = 5.0
BATCH = 500

_LABEL = ["destination"]
DELIVERED = Counter("vcsreplicator_notifier_delivered_messages", "Confirmed by the destination", _LABEL)
FAILED = Counter("vcsreplicator_notifier_failed_attempts", "Attempts that failed", _LABEL)
RETRIED = Counter("vcsreplicator_notifier_retried_attempts", "Attempts that were not the first", _LABEL)
REJECTED = Counter("vcsreplicator_notifier_rejected_messages", "Kept in the topic errors", _LABEL)
REPLAYED = Counter("vcsreplicator_notifier_replayed_messages", "Sent again on request", _LABEL)
WAITING = Gauge("vcsreplicator_notifier_waiting_messages", "Read and not settled", _LABEL)
OLDEST = Gauge("vcsreplicator_notifier_oldest_age_seconds", "Age of the oldest message not settled", _LABEL)
POSITION = Gauge("vcsreplicator_notifier_position_offset", "First offset of notices that is not settled", _LABEL)
DOWN = Gauge("vcsreplicator_notifier_down_flag", "1 while the destination does not answer", _LABEL)

logger = structlog.get_logger()


def group(name: str) -> str:
    """Return the group whose stored position is the destination's."""
    return f"notifier-{name}"


@dataclass(slots=True)
class Courier:
    """One destination at work; `run` may be called again after it raised."""

    name: str
    settings: DestinationSettings
    notifier: NotifierSettings
    log: Log
    clock: Clock
    stop: threading.Event
    chance: Callable[[], float] = random.random
    started: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until `stop` is set.

        Raises BadConfig if the log is wrong; Unavailable when the log, the state or the destination is away. What is
        wrong with one destination stops no other: it is reported, and retried.
        """
        try:
            destination = self.settings.open(self.name, self.clock)
        except (BadConfig, Unavailable) as error:
            self._tell_trouble(error)
            raise Unavailable(str(error)) from error
        with contextlib.ExitStack() as opened:
            opened.callback(destination.close)
            state = opened.enter_context(contextlib.closing(self._state()))
            reader = self.log.reader({(NOTICES, 0): self._first_position()})
            shift = _Shift(self, destination, state, reader)
            opened.callback(shift.close)
            shift.work()

    def _state(self) -> StateDatabase:
        """Open a connection of its own; what was right at start is waited for."""
        try:
            return StateDatabase(self.notifier.state)
        except BadConfig as error:
            raise Unavailable(str(error)) from error

    def _tell_trouble(self, error: ReplicationError) -> None:
        """Report a destination that cannot even start.

        `vcsreplicator destination list` and monitoring show it.
        """
        DOWN.labels(self.name).set(1)
        self.started.set()
        stored = self.log.stored(group(self.name), NOTICES).get(0)
        if stored is not None:  # Kafka forgets what nobody stores for a week
            self.log.acknowledge(group(self.name), NOTICES, {0: stored})
        condition = {
            "paused": False,
            "position": stored,
            "waiting": 0,
            "oldest": None,
            "oldest_age": 0.0,
            "trouble": str(error),
        }
        with contextlib.closing(self._state()) as state:
            state.tell(self.name, condition, now=self.clock.now())

    def _first_position(self) -> int:
        stored = self.log.stored(group(self.name), NOTICES).get(0)
        if stored is not None:
            return stored
        known = self.log.beginnings(NOTICES) if self.settings.start_at == "beginning" else self.log.ends(NOTICES)
        self.log.acknowledge(group(self.name), NOTICES, {0: known[0]})
        return known[0]


class _Shift:
    """One destination at work, from its opening until it is closed."""

    def __init__(self, courier: Courier, destination: Destination, state: StateDatabase, reader: Reader) -> None:
        self.courier, self.destination, self.state, self.reader = courier, destination, state, reader
        self.name, self.clock, self.log = courier.name, courier.clock, courier.log
        self.window = Window(courier.settings.patience)
        [self.read_to] = reader.positions().values()
        self.stored = self.read_to
        self.untaken: deque[Record] = deque()
        self.rejects = Rejects(self.name, self.log, self.clock)
        self.orders = Orders(
            name=self.name,
            state=state,
            log=self.log,
            clock=self.clock,
            window=self.window,
            rejects=self.rejects,
            messages_of=self.messages_of,
        )
        self.skipped = state.skipped(self.name, self.read_to)
        self.told_at = self.stored_at = float("-inf")
        self.trouble: str | None = None
        self.log_failures, self.log_until = 0, 0.0

    def work(self) -> None:
        self.orders.obey()
        self.connect()
        self.courier.started.set()
        while not self.courier.stop.is_set():
            self.orders.obey()
            self.read()
            if self.trouble is not None and self.window.idle(self.clock.monotonic()):
                self.connect()
            self.begin()
            self.collect(BUSY_BLINK if self.window.in_flight else 0)
            self.store_position()
            self.tell()
        self.drain()

    def connect(self) -> None:
        """Connect at start, and after trouble while there is no message to send.

        Without a message nothing else would show that the destination answers again.
        """
        if self.attempt(self.destination.start):
            self._answers()

    def read(self) -> None:
        """Read notices into the window, as many as it has room for.

        It waits for the next only when there is nothing else to do.
        """
        more = self.window.room and self.orders.replaying
        wait = 0.0 if self.window.in_flight or more else self._idle_time()
        if not self.window.room or self.clock.monotonic() < self.log_until:
            self.courier.stop.wait(wait)
            return
        try:
            self._read_live(wait)
            self.orders.read_replays()
            self.log_failures = 0
        except Unavailable as error:
            self._log_trouble(error)

    def _read_live(self, wait: float) -> None:
        """Take the next records.

        A record that could not be taken, because its reject could not be kept, comes first at the next call.
        """
        try:
            if not self.untaken:
                self.untaken.extend(self.reader.poll(wait, limit=min(BATCH, self.window.room)))
        except Expired:
            self._pass_gap()
        while self.untaken:
            self.take(self.untaken[0])
            self.untaken.popleft()

    def take(self, record: Record) -> None:
        """Put the messages of a record into the window, or reject the record.

        Only messages of the types that this destination takes.
        """
        try:
            found = [message for message in self.messages_of(record) if message.id not in self.skipped]
        except Exception as error:  # whatever it is, the records behind this one must not wait for it
            wrong = judged(error)
            if not isinstance(wrong, Rejected):
                raise wrong from error
            self.rejects.keep(wrong, record.value or b"", record.offset, record.key)
            logger.error("notice rejected", offset=record.offset, reason=str(wrong))
            found = []
        self.window.take(record.offset, found)
        self.read_to = record.offset + 1

    def messages_of(self, record: Record) -> list[Message]:
        """Return this destination's messages of a record.

        Raises MalformedEvent or UnknownEvent.
        """
        notice = from_json(Notice, record.value or b"")
        check_event(notice.event)
        told = messages(notice, record.offset, self.courier.notifier.public)
        types = self.courier.settings.types
        return [message for message in told if message.type.value in types]

    def begin(self) -> None:
        """Submit what is due; wait a while if the destination takes nothing."""
        due = self.window.next(self.clock.monotonic())
        for index, delivery in enumerate(due):
            if delivery.attempt > 1:
                RETRIED.labels(self.name).inc()
            if not self.attempt(lambda delivery=delivery: self.submit(delivery)):  # type: ignore[misc]
                for untried in reversed(due[index:]):
                    self.window.give_back(untried.number)
                return

    def submit(self, delivery: Delivery) -> None:
        """Submit one delivery; refuse a message that cannot be sent.

        Raises Unavailable.
        """
        try:
            self.destination.submit(delivery)
        except Exception as error:
            wrong = judged(error)
            if not isinstance(wrong, Rejected):
                raise wrong from error
            self._settle(DeliveryOutcome(number=delivery.number, error=wrong))

    def attempt(self, action: Callable[[], None]) -> bool:
        """Return whether the action worked; if not, leave the destination alone.

        It fails when the destination as a whole does not answer, which is then left alone for a while.
        """
        try:
            action()
        except Unavailable as error:
            delay = self.window.down(self.clock.monotonic(), self.courier.chance())
            FAILED.labels(self.name).inc()
            self._in_trouble(error, delay)
            return False
        return True

    def collect(self, wait: float) -> None:
        """Settle, retry or refuse what the destination answered."""
        for outcome in self.destination.outcomes(wait):
            self._settle(outcome)

    def _settle(self, outcome: DeliveryOutcome) -> None:
        delivery, error = self.window.delivery(outcome.number), outcome.error
        if error is None:
            self.window.confirm(outcome.number)
            self._confirmed(delivery)
            return
        FAILED.labels(self.name).inc()
        now, chance = self.clock.monotonic(), self.courier.chance()
        fields = {"message": delivery.message.id, "attempt": delivery.attempt, "reason": str(error)}
        if isinstance(error, Unavailable):
            logger.warning("delivery failed", **fields)
            self.trouble = str(error)
            self.window.retry(outcome.number, now, chance)
        elif self.window.refuse(outcome.number, now, chance):
            logger.warning("delivery refused", **fields)
        else:
            self._give_up(delivery, error)

    def _give_up(self, delivery: Delivery, reason: ReplicationError) -> None:
        """Keep the message as a reject, then settle it.

        While the log cannot keep it, it is retried.
        """
        try:
            self.rejects.keep_message(delivery.message, reason)
        except Unavailable as error:
            self._log_trouble(error)
            self.window.retry(delivery.number, self.clock.monotonic(), self.courier.chance())
            return
        logger.error("delivery rejected", message=delivery.message.id, attempt=delivery.attempt, reason=str(reason))
        REJECTED.labels(self.name).inc()
        self.window.settle(delivery.number)

    def _confirmed(self, delivery: Delivery) -> None:
        DELIVERED.labels(self.name).inc()
        if delivery.message.replay is not None:
            REPLAYED.labels(self.name).inc()
        self._answers()

    def store_position(self) -> None:
        """Acknowledge what is settled.

        At once when nothing is left to do, else a few times a second.
        """
        position = self.window.position if self.window.position > self.stored else self.stored
        now = self.clock.monotonic()
        soon = STORE_EVERY if self.window.oldest is not None else 0.0
        if now - self.stored_at < (RENEW_EVERY if position == self.stored else soon):
            return
        try:
            self.log.acknowledge(group(self.name), NOTICES, {0: position})
        except Unavailable as error:
            self._log_trouble(error)
            return
        self.stored, self.stored_at = position, now
        POSITION.labels(self.name).set(position)

    def drain(self) -> None:
        """Wait for what is under way, begin nothing, store the position."""
        end = self.clock.monotonic() + DRAIN
        while self.window.in_flight and self.clock.monotonic() < end:
            self.collect(BUSY_BLINK)
        self.stored_at = float("-inf")
        self.store_position()

    def tell(self) -> None:
        """Publish status and metrics."""
        now = self.clock.monotonic()
        if now - self.told_at < TELL_EVERY:
            return
        self.told_at = now
        oldest = self.window.oldest
        age = 0.0 if oldest is None else max(0.0, self.clock.now() - oldest.created)
        WAITING.labels(self.name).set(self.window.waiting)
        OLDEST.labels(self.name).set(age)
        condition = {
            "paused": self.window.paused,
            "position": self.stored,
            "waiting": self.window.waiting,
            "oldest": None if oldest is None else oldest.id,
            "oldest_age": round(age, 1),
            "trouble": self.trouble,
        }
        try:
            self.state.tell(self.name, condition, now=self.clock.now())
        except Unavailable as error:
            logger.warning("condition not told", reason=str(error))

    def close(self) -> None:
        """Free the readers."""
        self.orders.close()
        self.reader.close()

    # -- trouble

    def _in_trouble(self, error: ReplicationError, delay: float) -> None:
        self.trouble = str(error)
        DOWN.labels(self.name).set(1)
        logger.warning("destination unavailable", reason=str(error), retry_in=round(delay, 2))

    def _answers(self) -> None:
        DOWN.labels(self.name).set(0)
        if self.trouble is not None:
            logger.info("delivering again")
            self.trouble = None

    def _log_trouble(self, error: ReplicationError) -> None:
        self.log_failures += 1
        delay = RECONNECT.delay(self.log_failures, self.courier.chance())
        self.log_until = self.clock.monotonic() + delay
        logger.warning("log unavailable", reason=str(error), retry_in=round(delay, 2))

    def _pass_gap(self) -> None:
        """Continue with the oldest notice, where the log lost the next ones.

        Nothing can bring them back, so the loss is reported as an error and a reject.
        """
        beginning = self.log.beginnings(NOTICES)[0]
        if self.read_to < beginning:
            self._skip_expired(beginning)
        else:
            self._go_back(beginning, self.log.ends(NOTICES)[0])
        old, self.reader = self.reader, self.log.reader({(NOTICES, 0): beginning})
        old.close()
        self.read_to = beginning

    def _skip_expired(self, beginning: int) -> None:
        """Pass over notices that expired before they were sent."""
        reason = f"notices {self.read_to} to {beginning - 1} left the log before they were delivered to {self.name}"
        self.rejects.keep(reason, b"", self.read_to, None)
        logger.error("notices lost", reason=reason)
        self.window.take(beginning - 1, [])

    def _go_back(self, beginning: int, end: int) -> None:
        """Send all notices again after the log lost its newest records.

        It gives their offsets to other records: a position that stayed would pass these over.
        """
        skipped = self.state.skipped(self.name, beginning)
        reason = f"the log lost notices: it ends at {end}, {self.name} had read to {self.read_to}; all that it has are sent again"
        self.rejects.keep(reason, b"", self.read_to, None)
        logger.error("log lost records", reason=reason)
        self.log.acknowledge(group(self.name), NOTICES, {0: beginning})
        self.window.go_back(beginning)
        self.stored, self.skipped = beginning, skipped

    def _idle_time(self) -> float:
        wakes_at = self.window.wakes_at
        return BLINK if wakes_at is None else min(BLINK, max(0.0, wakes_at - self.clock.monotonic()))
