# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue: messages that can never be recorded, with the reason.

Once the broker has confirmed a letter, the worker acknowledges the message or takes it out of the database. A broker that blocks
publishers holds up letters only.
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
    """Letters under way, and the call to make once each is confirmed; for one thread."""

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
        """Keep a message and the reason as a letter for `send`.

        `send` calls `done` once the broker has confirmed the letter.
        """
        text, now, number = body.decode("utf-8", "replace"), int(self._clock.now()), next(self._numbers)
        message = push_message(self._queue, f"dead-{number}", text, {**headers, "error": reason}, now)
        self._letters[number] = message, done
        self._unsent.append(number)

    def send(self) -> None:
        """Send the letters that can be sent; call `done` of those confirmed now.

        Raises Unavailable, or what `done` raises.
        """
        while self._unsent and not self._channel.is_blocked:
            number = self._unsent[0]
            self._channel.send(number, self._letters[number][0])
            self._unsent.popleft()
        for outcome in self._channel.outcomes(0):
            if outcome.error is not None:
                raise outcome.error
            message, done = self._letters.pop(outcome.number)
            fields = {"repository": message.headers.get("repository"), "reason": message.headers["error"]}
            logger.error("message kept in the dead-letter queue", queue=self._queue, **fields)
            DEAD.inc()
            done()

    def forget(self) -> None:
        """Forget all letters, and drop their connection.

        The consumer's connection is lost, and the messages of these letters come again.
        """
        self._unsent.clear()
        self._letters.clear()
        self._channel.close()

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()
