# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker: takes messages, pulls, records, and only then acknowledges.

One thread has the connection; others pull and record, one repository each. The consumer is exclusive: a second worker is refused by
the broker, waits, and takes over when the first is gone. Killed anywhere, what was not acknowledged comes again, harmlessly.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, ReplicationError, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ..amqp.channel import declare_queues
from ..amqp.connection import BrokerRefusal
from ..amqp.consumer import QueueConsumer, body_of
from ..amqp.settings import check_credentials
from ..hgpush.destination import check_source
from ..hgpush.message import LARGEST, from_body
from .clones import Clones
from .commandserver import CommandServer
from .database import RepositoryKey, WorkDatabase
from .deadletters import DeadLetters
from .lanes import Lanes, TakenMessage
from .reporting import FailureReporter
from .settings import Migrate, WorkSettings

# Seconds that one wait may last, and the same while there is work.
BLINK, BUSY_BLINK = 0.2, 0.01

# Characters of a repository's URL: longer ones cannot be in an index.
LONGEST_URL = 1000

# Seconds between two attempts to become the one worker.
TURN = 1.0

RECORDED = Counter("vcsreplicator_work_recorded_pushes", "Pushes in the database")
FAILED = Counter("vcsreplicator_work_failed_attempts", "Attempts that failed")
WAITING = Gauge("vcsreplicator_work_waiting_flag", "1 while another worker has the queue")

logger = structlog.get_logger()


def run(
    settings: WorkSettings, *, stop: threading.Event, ready: Callable[[], None], clock: Clock | None = None
) -> None:
    """Work until `stop` is set; raises BadConfig, or Unavailable for a database that is away at start."""
    database = WorkDatabase(settings.database_url, settings.database_password)
    reporter = FailureReporter(settings.sentry_dsn)
    try:
        if settings.migrate is Migrate.AT_START:
            database.migrate()
        database.check()
        check_credentials(settings, "work")
        worker = PushRecorder(settings, database, reporter, clock or SystemClock())
        try:
            ready()
            worker.run(stop)
        finally:
            worker.close()
    finally:
        reporter.close()
        database.close()


class PushRecorder:
    """Messages at work, from connection to connection."""

    def __init__(self, settings: WorkSettings, database: WorkDatabase, reporter: FailureReporter, clock: Clock) -> None:
        self._settings, self._database, self._reporter, self._clock = settings, database, reporter, clock
        self._clones = Clones(settings.clones)
        self._clones.prepare()
        self._lanes = Lanes(settings.retry, settings.max_hg_retries)
        self._pool = ThreadPoolExecutor(settings.at_once, thread_name_prefix="work")
        self._servers: SimpleQueue[CommandServer] = SimpleQueue()
        self._all_servers = [
            CommandServer(timeout=settings.hg_timeout, memory=settings.hg_memory_bytes, ca_file=settings.hosts_ca_file)
            for _ in range(settings.at_once)
        ]
        for server in self._all_servers:
            self._servers.put(server)
        self._under_way: dict[Future[None], list[TakenMessage]] = {}
        self._letters = DeadLetters(settings, self._clock)
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        """Work until the event is set; a broker that is away is waited for."""
        while not stop.is_set():
            try:
                self._consume(stop)
            except Unavailable as error:
                if isinstance(error, BrokerRefusal) and "exclusive" in str(error):
                    WAITING.set(1)
                    stop.wait(TURN)
                    continue
                self._failures += 1
                delay = RECONNECT.delay(self._failures, random.random())
                logger.warning("not connected", reason=str(error), retry_in=round(delay, 1))
                stop.wait(delay)

    def close(self) -> None:
        """Stop; commands of Mercurial are ended, and what was not acknowledged comes again."""
        for server in self._all_servers:
            server.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._letters.close()

    def _consume(self, stop: threading.Event) -> None:
        settings = self._settings
        consumer = QueueConsumer(
            settings.client("work"),
            settings.place,
            settings.queue,
            declare=lambda channel: declare_queues(channel, settings.queue),
            prefetch=settings.prefetch,
            largest=LARGEST,
            is_exclusive=True,
        )
        with contextlib.closing(consumer), contextlib.ExitStack() as taken:
            taken.callback(self._lanes.forget)
            taken.callback(self._letters.forget)
            WAITING.set(0)
            self._failures = 0
            logger.info("consuming", queue=settings.place)
            while not stop.is_set():
                for arrived in consumer.receive(BUSY_BLINK if self._under_way else BLINK):
                    self._take(arrived)
                self._collect(consumer)
                for tag in self._letters.kept():
                    consumer.acknowledge(tag)
                self._begin()
            consumer.finish()

    def _take(self, arrived: Any) -> None:
        body = body_of(arrived)
        try:
            message = from_body(body)
            repository = self._repository(arrived.headers or {}, message.repository_id)
        except MalformedEvent as error:
            self._letters.keep(arrived.delivery_tag, body, error, {})
            return
        self._lanes.take(TakenMessage(tag=arrived.delivery_tag, body=body, repository=repository, message=message))

    def _repository(self, headers: Any, number: int) -> RepositoryKey:
        """Return the repository that the headers name; raises MalformedEvent."""
        source, url = headers.get("source"), headers.get("repository")
        if not isinstance(source, str) or not isinstance(url, str):
            raise MalformedEvent("headers: expected source and repository")
        try:
            check_source(source)
        except ValueError as error:
            raise MalformedEvent(f"headers: {error}") from error
        is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST_URL
        if not url.startswith(self._settings.repositories) or not is_plain:
            expected = f"expected the beginning of one of work.repositories, and at most {LONGEST_URL} characters"
            raise MalformedEvent(f"headers: repository {url[:200]!r}: {expected}")
        return RepositoryKey(source=source, number=number, url=url)

    def _begin(self) -> None:
        """Give each free thread a repository with messages."""
        while len(self._under_way) < self._settings.at_once:
            messages = self._lanes.begin(self._clock.monotonic())
            if not messages:
                return
            self._under_way[self._pool.submit(self._record, messages)] = messages

    def _record(self, messages: Sequence[TakenMessage]) -> None:
        """Pull what is new, and record it; in a thread."""
        hg = self._servers.get()
        try:
            repository = messages[-1].repository
            pushes = {push.id: push for each in messages for push in each.message.pushes}
            nodes = list(dict.fromkeys(node for push in pushes.values() for node in push.changesets))
            known = self._database.known(nodes)
            new = [node for node in nodes if node not in known]
            found = self._clones.read(hg, repository, new) if new else {}
            self._database.record(repository, list(pushes.values()), found)
            RECORDED.inc(len(pushes))
        finally:
            self._servers.put(hg)

    def _collect(self, consumer: QueueConsumer) -> None:
        """Acknowledge what is recorded, and plan what failed."""
        for future in [future for future in self._under_way if future.done()]:
            messages = self._under_way.pop(future)
            error = future.exception()
            if error is None:
                if self._lanes.settle(messages):
                    for each in messages:
                        consumer.acknowledge(each.tag)
            else:
                self._note_failure(messages, error)

    def _note_failure(self, messages: list[TakenMessage], error: BaseException) -> None:
        now, url = self._clock.monotonic(), messages[0].repository.url
        reason = str(error) if isinstance(error, ReplicationError) else f"{type(error).__name__}: {error}"
        logger.warning("pushes not recorded", repository=url, reason=reason[:300])
        if isinstance(error, Unavailable | BadConfig):  # the database is away, or an operator must see to it
            self._lanes.put_off(messages, now + RECONNECT.delay(5, random.random()))
            return
        FAILED.inc()
        if self._lanes.fail(messages, now, random.random()):
            [message] = messages
            headers = {"source": message.repository.source, "repository": message.repository.url}
            self._reporter.report(error, url)
            if self._lanes.settle(messages):
                self._letters.keep(message.tag, message.body, error, headers)
