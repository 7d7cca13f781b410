# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker: takes messages, pulls, records, and only then acknowledges.

One thread has the connection; others pull and record, one repository each. The consumer is exclusive: the broker refuses a second
worker, which waits and takes over when the first is gone. After a kill at any step, unacknowledged messages come again, harmlessly.
"""

import functools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, ReplicationError, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ...clients.amqp.channel import declare_queues
from ...clients.amqp.connection import BrokerRefusal
from ...clients.amqp.consumer import QueueConsumer, body_of
from ...clients.amqp.settings import check_credentials
from ...delivery.destination import DOWN
from ...messages.pushes import LARGEST
from .backlog import MessageBacklog, TakenMessage
from .clones import Clones, CloneUnavailable
from .commandserver import CommandServer
from .database import WorkDatabase
from .deadletters import DeadLetters
from .parking import ParkedMessages
from .recording import describe_failure, headers_of, read_message, record_pushes
from .reporting import FailureReporter
from .settings import Migrate, WorkSettings

# Seconds of one wait.
BLINK = 0.2
# The same while there is work.
BUSY_BLINK = 0.01

# Seconds between two attempts to become the only worker.
TURN = 1.0

# Seconds that a stop waits for what is being recorded, so that its messages do not come again.
SETTLING = 1.0

# Dead letters read from the database at once.
DEAD_AT_ONCE = 100

RECORDED = Counter("vcsreplicator_work_recorded_pushes", "Pushes in the database")
FAILED = Counter("vcsreplicator_work_failed_attempts", "Attempts that failed")
WAITING = Gauge("vcsreplicator_work_waiting_flag", "1 while another worker has the queue")

logger = structlog.get_logger()


def run(settings: WorkSettings, *, stop: threading.Event, ready: Callable[[], None]) -> None:
    """Work until `stop` is set.

    Raises BadConfig, or Unavailable if the database or the folder of clones is unavailable at start.
    """
    with (
        closing(WorkDatabase(settings.database_url, settings.database_password)) as database,
        closing(FailureReporter(settings.sentry_dsn)) as reporter,
    ):
        if settings.migrate is Migrate.AT_START:
            database.migrate()
        database.check()
        check_credentials(settings, "work")
        with closing(PushRecorder(settings, database, reporter, SystemClock())) as worker:
            ready()
            worker.run(stop)


class PushRecorder:
    """Records the pushes of messages, from connection to connection."""

    def __init__(self, settings: WorkSettings, database: WorkDatabase, reporter: FailureReporter, clock: Clock) -> None:
        self._settings, self._database, self._reporter, self._clock = settings, database, reporter, clock
        self._clones = Clones(settings.clones)
        self._clones.prepare()
        self._backlog = MessageBacklog(settings.retry, settings.max_hg_retries, settings.at_once)
        self._pool = ThreadPoolExecutor(settings.at_once, thread_name_prefix="work")
        self._servers = [
            CommandServer(timeout=settings.hg_timeout, memory=settings.hg_memory_bytes, ca_file=settings.hosts_ca_file)
            for _ in range(settings.at_once)
        ]
        # As many as threads, so that each finds one.
        self._idle_servers = list(self._servers)
        self._under_way: dict[Future[None], list[TakenMessage]] = {}
        self._parked = ParkedMessages(database, settings.park_bytes)
        self._is_parking_full = False
        self._letters = DeadLetters(settings, self._clock)
        self._failures, self._down = 0, DOWN.labels("work")

    def run(self, stop: threading.Event) -> None:
        """Work until the event is set.

        While the broker or the database is unavailable, the worker waits; after each wait it starts from the beginning.
        """
        while not stop.is_set():
            try:
                self._consume(stop)
            except (Unavailable, BadConfig) as error:  # BadConfig: an operator must repair the database
                if isinstance(error, BrokerRefusal) and "exclusive" in str(error):
                    WAITING.set(1)
                    stop.wait(TURN)
                    continue
                self._failures += 1
                self._down.set(1)
                delay = RECONNECT.delay(self._failures, random.random())
                logger.warning("not working", reason=str(error), retry_in=round(delay, 1))
                stop.wait(delay)

    def close(self) -> None:
        """Stop, and end Mercurial; messages that were not acknowledged come again."""
        for server in self._servers:
            server.end()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for server in self._servers:
            server.close()
        self._letters.forget()

    def _consume(self, stop: threading.Event) -> None:
        settings = self._settings
        consumer = QueueConsumer(
            settings.client("work"),
            settings.place,
            settings.queue,
            declare=lambda channel: declare_queues(channel, settings.queue),
            prefetch=settings.prefetch,
            largest=LARGEST,
            drops_larger=True,
            is_exclusive=True,
        )
        with closing(consumer), ExitStack() as taken:
            taken.callback(self._backlog.forget)
            taken.callback(self._letters.forget)
            WAITING.set(0)
            self._backlog.restore(self._parked.load())
            self._failures = 0
            self._down.set(0)
            logger.info("consuming", queue=settings.place)
            while not stop.is_set():
                for arrived in consumer.receive(BUSY_BLINK if self._under_way else BLINK):
                    self._take_message(arrived, consumer)
                self._collect(consumer, stop)
                self._park(consumer)
                self._send_letters()
                self._begin_work()
            wait(self._under_way, SETTLING)
            self._collect(consumer, stop)
            consumer.finish()

    def _take_message(self, arrived: Any, consumer: QueueConsumer) -> None:
        body, headers = body_of(arrived), arrived.headers or {}
        try:
            if arrived.dropped:
                of = f"message of {arrived.dropped} bytes for repository {str(headers.get('repository'))[:200]!r}"
                raise MalformedEvent(f"{of}, expected at most {LARGEST}; its body was dropped")
            repository, message = read_message(headers, body, self._settings.repositories)
        except MalformedEvent as error:
            self._letters.keep(
                body, describe_failure(error), {}, functools.partial(consumer.acknowledge, arrived.delivery_tag)
            )
            return
        self._backlog.take_message(
            TakenMessage(tag=arrived.delivery_tag, body=body, repository=repository, message=message)
        )

    def _park(self, consumer: QueueConsumer) -> None:
        """Park the messages that would hold up others, then acknowledge them.

        Work under way goes on. If the messages do not fit under the limit, none is parked.
        """
        taken = self._backlog.to_park(self._clock.monotonic())
        if not taken:
            return
        if not self._parked.has_room(taken):
            if not self._is_parking_full:
                logger.error(
                    "no room to park messages; others wait once they fill prefetch", limit=self._settings.park_bytes
                )
            self._is_parking_full = True
            return
        self._is_parking_full = False
        parked = self._parked.add(taken, int(self._clock.now()))
        self._backlog.park(parked)
        moved = dict(zip(taken, parked, strict=True))
        for messages in self._under_way.values():
            messages[:] = [moved.get(message, message) for message in messages]
        for message in taken:
            consumer.acknowledge(message.tag)

    def _send_letters(self) -> None:
        """Send the dead letters; parked messages come in portions."""
        if self._parked.may_have_dead and self._letters.are_sent:
            for message, reason in self._parked.read_dead(DEAD_AT_ONCE):
                self._letters.keep(
                    message.body,
                    reason,
                    headers_of(message.repository),
                    functools.partial(self._parked.remove, [message]),
                )
        self._letters.send()

    def _begin_work(self) -> None:
        """Give each free thread a repository with messages."""
        while len(self._under_way) < self._settings.at_once:
            now = self._clock.monotonic()
            turn = self._backlog.next_turn(now)
            if turn is None:
                return
            messages = self._parked.read(turn.name, turn.most) if turn.is_parked else list(turn.messages)
            if not messages:
                self._backlog.unpark(turn.name)
                continue
            self._backlog.begin(turn.name, now)
            self._under_way[self._pool.submit(self._record, tuple(messages))] = messages

    def _record(self, messages: Sequence[TakenMessage]) -> None:
        """Pull new changesets, and record them; in a thread."""
        hg = self._idle_servers.pop()
        try:
            pushes = {push.id: push for each in messages for push in each.message.pushes}
            repository, allowed = messages[-1].repository, self._settings.repositories
            record_pushes(self._database, self._clones, hg, repository, list(pushes.values()), allowed)
            RECORDED.inc(len(pushes))
        finally:
            self._idle_servers.append(hg)

    def _collect(self, consumer: QueueConsumer, stop: threading.Event) -> None:
        """Finish recorded messages, and plan retries.

        A failure after the stop counts no attempt: the signal may have ended `hg`, too. Its messages come again.
        """
        for future in [future for future in self._under_way if future.done()]:
            messages = self._under_way.pop(future)
            error = future.exception()
            if error is None:
                self._down.set(0)
                if self._backlog.settle(messages, self._clock.monotonic()):
                    self._finish(messages, consumer)
            elif not stop.is_set():
                self._record_failure(messages, error, consumer)

    def _finish(self, messages: Sequence[TakenMessage], consumer: QueueConsumer) -> None:
        """Take recorded messages out of the database, or acknowledge them."""
        if messages[0].row is not None:
            self._parked.remove(messages)
            return
        for each in messages:
            consumer.acknowledge(each.tag)

    def _record_failure(self, messages: list[TakenMessage], error: BaseException, consumer: QueueConsumer) -> None:
        now, url = self._clock.monotonic(), messages[0].repository.url
        reason = str(error) if isinstance(error, ReplicationError) else f"{type(error).__name__}: {error}"
        logger.warning("pushes not recorded", repository=url, reason=reason[:300])
        if isinstance(error, Unavailable | BadConfig):  # the database is away, or an operator must act
            is_alone = isinstance(error, CloneUnavailable)
            delay = self._settings.retry.longest if is_alone else RECONNECT.delay(5, random.random())
            self._down.set(0 if is_alone else 1)
            self._backlog.put_off(messages, now, delay, is_alone=is_alone)
            return
        self._down.set(0)
        FAILED.inc()
        if self._backlog.fail(messages, now, random.random()):
            [message] = messages
            if message.row is not None:
                self._parked.bury(message.row, describe_failure(error))
            self._reporter.report(error, url)
            if self._backlog.settle(messages, now) and message.row is None:
                done = functools.partial(consumer.acknowledge, message.tag)
                self._letters.keep(message.body, describe_failure(error), headers_of(message.repository), done)
