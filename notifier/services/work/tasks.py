# SPDX-License-Identifier: GPL-2.0-or-later
"""The parallel variant of the worker: a task of Celery for each push.

The tasks run in any order.

A step of Celery's consumer makes tasks of the messages of hg-push. It acknowledges a message once the broker has confirmed the
message's tasks. Celery acknowledges a task once its push is recorded, the next attempt is with the broker, or the dead-letter
queue has the push. Work that was killed comes again, harmlessly. Celery's own `retry` is not used: it drops a task whose next
attempt cannot be sent.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import celery
import celery.worker.consumer
import kombu
import kombu.transport.pyamqp
import structlog
from celery import bootsteps, signals
from celery.exceptions import Reject

from hgext.vcsreplicator.words.errors import BadConfig, MalformedEvent, Unavailable
from hgext.vcsreplicator.words.shape import parse, read

from ...clients.amqp.connection import TolerantConnection, TolerantTransport
from ...clients.amqp.consumer import body_of
from ...clients.amqp.settings import check_credentials
from ...messages.pushes import LARGEST, TYPE, HgPushMessage, QueuedPush, to_body
from .clones import Clones
from .commandserver import CommandServer
from .database import RepositoryKey, WorkDatabase
from .recording import describe_failure, headers_of, read_message, read_repository, record_pushes
from .settings import Migrate, WorkSettings

# The one task, and characters of the id of a message of it.
TASK, LONGEST_ID = "vcsreplicator.record_push", 100

# Messages whose tasks are being made.
AT_ONCE = 20

# Seconds before an attempt: a broker takes a message back after 1800 s.
LONGEST_DELAY = 1500.0

# Seconds between two attempts to send messages that the broker did not take.
BROKER_DELAY = 1.0

logger = structlog.get_logger()

# Has no types.
_kombu: Any = kombu


def run(settings: WorkSettings, *, stop: threading.Event, ready: Callable[[], None]) -> None:
    """Work until a signal ends Celery's worker.

    Raises BadConfig, or Unavailable if the database or the folder of clones is unavailable at start, or if Celery's worker fails.
    """
    with closing(WorkDatabase(settings.database_url, settings.database_password)) as database:
        if settings.migrate is Migrate.AT_START:
            database.migrate()
        database.check()
    check_credentials(settings, "work")
    Clones(settings.clones).prepare()
    plain = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True, "quiet": True}
    made = make_app(settings).Worker(concurrency=settings.at_once, loglevel="WARNING", **plain)
    ready()
    made.start()
    if made.exitcode:
        raise Unavailable(f"Celery's worker ended with exit code {made.exitcode}")


def make_app(settings: WorkSettings) -> Any:
    """Return the application of Celery, with its one task."""
    app = celery.Celery("vcsreplicator", broker=settings.url, set_as_current=False)
    app.conf.update(_make_configuration(settings), worker_consumer=_make_consumer(app, settings))
    app.steps["consumer"].add(_make_step(app, settings, _add_task(app, settings)))
    return app


def _add_task(app: Any, settings: WorkSettings) -> Any:
    """Add the task that records a push, and return it."""
    recorder = TaskRecorder(settings)
    signals.worker_process_shutdown.connect(recorder.close, weak=False)

    @app.task(name=TASK, shared=False, acks_late=True, reject_on_worker_lost=True)  # type: ignore[untyped-decorator]
    def record_push(source: str, number: int, url: str, push: Mapping[str, Any], attempt: int = 0) -> None:
        """Record one push, as an example of a task; a repeat changes nothing."""
        body, headers = json.dumps([source, number, url, push, attempt], default=str), dict[str, str]()

        def try_again(count: int, delay: float) -> None:
            arguments = (source, number, url, push, count)
            record_push.apply_async(arguments, countdown=min(delay, LONGEST_DELAY))

        try:
            repository, found = _read_task(source, number, url, push, attempt, settings.repositories)
            body, headers = to_body(repository.number, [found]), headers_of(repository)
            recorder.record(repository, found)
        except Exception as error:
            logger.warning("push not recorded", repository=headers.get("repository"), reason=str(error)[:300])
            try:
                if isinstance(error, Unavailable | BadConfig):  # no retry is used up
                    try_again(attempt, settings.retry.longest)
                elif headers and attempt < settings.max_hg_retries:
                    try_again(attempt + 1, settings.retry.delay(attempt + 1, random.random()))
                else:
                    _keep_dead(app, settings, body, error, headers)
            except Exception as unsent:  # not confirmed: put this task back into its queue
                logger.warning("not sent", reason=str(unsent)[:300])
                time.sleep(BROKER_DELAY)
                raise Reject(str(unsent), requeue=True) from unsent

    return record_push


def _read_task(
    source: Any, number: Any, url: Any, push: Any, attempt: Any, prefixes: tuple[str, ...]
) -> tuple[RepositoryKey, QueuedPush]:
    """Check the arguments of a task, which any sender of messages may have written; raises MalformedEvent."""
    if type(attempt) is not int or attempt < 0:
        raise MalformedEvent(f"attempt: expected a count, got {str(attempt)[:60]!r}")
    message = read(HgPushMessage, {"type": TYPE, "repository_id": number, "pushes": [push]}, "task")
    return read_repository(source, message.repository_id, url, prefixes), message.pushes[0]


def _settle(message: Any, pass_on: Callable[[], None]) -> None:
    """Pass a message on, and acknowledge it; put it back into its queue if that fails."""
    try:
        pass_on()
    except Exception as error:  # with a lost connection `requeue` raises too, and Celery reconnects
        logger.warning("not sent", reason=str(error)[:300])
        time.sleep(BROKER_DELAY)
        message.requeue()
    else:
        message.ack()


def _make_consumer(app: Any, settings: WorkSettings) -> Any:
    """Make Celery's consumer, which takes tasks that this program could have sent, and no others.

    Celery ends, or connects again without an end, at most messages in another form.
    """

    class CheckedTasks(celery.worker.consumer.Consumer):  # type: ignore[misc]
        def create_task_handler(self, *arguments: Any, **more: Any) -> Any:
            take_task = super().create_task_handler(*arguments, **more)

            def take_message(message: Any) -> None:
                try:
                    _check_task_message(message)
                except Exception as error:  # malformed or unforeseen, it would fail again each time
                    reason = error
                    _settle(message, lambda: _keep_dead(app, settings, body_of(message), reason, {}))
                else:
                    take_task(message)

            return take_message

    return CheckedTasks


def _check_task_message(message: Any) -> None:
    """Check a message of a task, and leave nothing else in it that Celery would read; raises MalformedEvent."""
    headers, body = message.headers, body_of(message)
    if headers.get("task") != TASK:
        raise MalformedEvent(f"task: expected {TASK}, got {str(headers.get('task'))[:60]!r}")
    name = headers.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise MalformedEvent(f"id: expected text of 1 to {LONGEST_ID} characters")
    content = parse(body, "task", limit=2 * LARGEST)
    if not isinstance(content, list) or [type(each) for each in content] != [list, dict, dict]:
        raise MalformedEvent("task: expected a list of its arguments")
    if any(content[2].values()):
        raise MalformedEvent("task: expected that nothing follows it")
    message.headers = {"task": TASK, "id": name, "eta": _read_eta(headers.get("eta"))}
    message.content_type, message.content_encoding, message.body = "application/json", "utf-8", body


def _read_eta(text: Any) -> str | None:
    """Return when the next attempt is due; None for at once, also for a time that this program never sends."""
    try:
        due = datetime.fromisoformat(text)
        return due.isoformat() if 0 < (due - datetime.now(UTC)).total_seconds() <= 2 * LONGEST_DELAY else None
    except (TypeError, ValueError, OverflowError):
        return None


def _make_step(app: Any, settings: WorkSettings, record_push: Any) -> Any:
    """Make the step of Celery's consumer that makes tasks of messages."""

    class MessagesToTasks(bootsteps.ConsumerStep):  # type: ignore[misc]
        """The step that takes messages of the queue and makes tasks of their pushes."""

        def get_consumers(self, channel: Any) -> list[Any]:
            queue = _kombu.Queue(settings.queue, durable=True)
            channel.auto_decode = False  # the sender would choose the codec, and some take very long
            return [_kombu.Consumer(channel, queues=[queue], on_message=self.take_message, prefetch_count=AT_ONCE)]

        def take_message(self, message: Any) -> None:
            _settle(message, lambda: self.pass_on(message))

        def pass_on(self, message: Any) -> None:
            """Send the tasks of a message; confirmed on return.

            A message that cannot be read goes to the dead-letter queue instead, which is confirmed on return too.
            """
            body = body_of(message)
            try:
                repository, found = read_message(message.headers or {}, body, settings.repositories)
            except Exception as error:  # malformed or unforeseen, it would fail again each time
                _keep_dead(app, settings, body, error, {})
            else:
                for push in found.pushes:
                    plain = {"id": push.id, "date": push.date, "user": push.user, "changesets": push.changesets}
                    record_push.delay(repository.source, repository.number, repository.url, plain)

    return MessagesToTasks


def _make_configuration(settings: WorkSettings) -> dict[str, Any]:
    known = settings.client("work")
    return {
        "broker_password": known.password,
        "broker_use_ssl": known.ssl,
        "broker_heartbeat": settings.heartbeat,
        "broker_transport": _MandatoryTransport,
        "broker_transport_options": {"confirm_publish": True},
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "task_default_queue": f"{settings.queue}.tasks",
        "task_ignore_result": True,
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": False,
        "worker_hijack_root_logger": False,
    }


class _PackedMessage(kombu.transport.pyamqp.Message):
    """A received message as it came: kombu would unpack it by a header of its sender, to any size."""

    def __init__(self, message: Any, *arguments: Any, **more: Any) -> None:
        message.properties.get("application_headers", {}).pop("compression", None)
        super().__init__(message, *arguments, **more)  # type: ignore[no-untyped-call]


class _MandatoryChannel(kombu.transport.pyamqp.Channel):
    """A channel that calls nothing sent that no queue got, though it was confirmed."""

    Message = _PackedMessage  # type: ignore[assignment]

    def basic_publish_confirm(self, *arguments: Any, **more: Any) -> Any:
        returned: list[str] = []

        def record_returned(_error: Any, _exchange: str, routing_key: str, _message: Any) -> None:
            returned.append(routing_key)

        self.events["basic_return"].add(record_returned)
        try:
            sent = super().basic_publish_confirm(*arguments, **{**more, "mandatory": True})
        finally:
            self.events["basic_return"].discard(record_returned)
        if returned:
            raise Unavailable(f"no such queue: {returned[0]}")
        return sent


class _MandatoryConnection(TolerantConnection):
    Channel = _MandatoryChannel


class _MandatoryTransport(TolerantTransport):
    Connection = _MandatoryConnection


class TaskRecorder:
    """The means of a process of Celery to record pushes.

    The first task of the process opens the database and prepares Mercurial.
    """

    def __init__(self, settings: WorkSettings) -> None:
        self._settings, self._clones = settings, Clones(settings.clones)
        self._opened: tuple[WorkDatabase, CommandServer] | None = None

    def record(self, repository: RepositoryKey, push: QueuedPush) -> None:
        """Pull the new changesets of a push, and record it."""
        if self._opened is None:
            known = self._settings
            hg = CommandServer(timeout=known.hg_timeout, memory=known.hg_memory_bytes, ca_file=known.hosts_ca_file)
            self._opened = WorkDatabase(known.database_url, known.database_password), hg
        database, hg = self._opened
        record_pushes(database, self._clones, hg, repository, [push], self._settings.repositories)

    def close(self, **_: Any) -> None:
        """Close the database and end the command server, if they were opened.

        Celery passes arguments about the end of a process, which are ignored.
        """
        if self._opened is not None:
            for opened in self._opened:
                opened.close()
            self._opened = None


def _keep_dead(
    app: Any, settings: WorkSettings, body: bytes | str, error: BaseException, headers: Mapping[str, str]
) -> None:
    """Send a message to the dead-letter queue; confirmed on return."""
    reason = describe_failure(error)
    logger.error("message kept in the dead-letter queue", queue=settings.dead_queue, reason=reason)
    with app.producer_or_acquire() as producer:
        # Kombu remembers what it declared, and the queue may have been deleted since.
        _kombu.Queue(settings.dead_queue, durable=True)(producer.channel).declare()
        producer.publish(
            body,
            routing_key=settings.dead_queue,
            headers={**headers, "error": reason},
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
        )
