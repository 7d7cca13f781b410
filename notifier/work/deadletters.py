# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue: what can never be recorded, with the reason.

A message is acknowledged, or taken out of the database, once its letter is confirmed. A broker that blocks publishers holds up
letters only.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.words.clock import Clock

from ..amqp.channel import OutgoingMessage
from ..hgpush.queue import open_queue, push_message
from .settings import WorkSettings

DEAD = Counter("vcsreplicator_work_dead_messages", "Messages kept in the dead-letter queue")

logger = structlog.get_logger()


class DeadLetters:
    """Letters under way, and what to do once each is confirmed; used by one thread."""

    def __init__(self, settings: WorkSettings, clock: Clock) -> None:
        self._queue, self._clock = settings.dead_queue, clock
        self._channel = open_queue("work", settings, self._queue, clock)
        self._numbers = itertools.count(1)
        self._unsent = deque[int]()
        # Letters that are not confirmed, and what to do once each is.
        self._letters: dict[int, tuple[OutgoingMessage, Callable[[], None]]] = {}

    @property
    def are_sent(self) -> bool:
        """Whether every letter is confirmed."""
        return not self._letters

    def keep(self, body: bytes, reason: str, headers: Mapping[str, str], done: Callable[[], None]) -> None:
        """Keep a message with the reason; `done` is called once that is confirmed."""
        text, now, number = body.decode("utf-8", "replace"), int(self._clock.now()), next(self._numbers)
        message = push_message(self._queue, f"dead-{number}", text, {**headers, "error": reason}, now)
        self._letters[number] = message, done
        self._unsent.append(number)

    def send(self) -> None:
        """Send what can be sent, and call what waits for those that are confirmed now. Raises Unavailable."""
        while self._unsent and not self._channel.is_blocked:
            number = self._unsent[0]
            self._channel.send(number, self._letters[number][0])
            self._unsent.popleft()
        for outcome in self._channel.outcomes(0):
            if outcome.error is not None:
                raise outcome.error
            message, done = self._letters.pop(outcome.number)
            reason = message.headers["error"]
            logger.error("message kept in the dead-letter queue", queue=self._queue, reason=reason)
            DEAD.inc()
            done()

    def forget(self) -> None:
        """Forget all letters: the consumer's connection is lost, and their messages come again."""
        self._unsent.clear()
        self._letters.clear()
        self._channel.close()

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()
