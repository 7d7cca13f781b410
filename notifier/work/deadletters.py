# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue: what can never be recorded, with the reason.

A message is acknowledged, or taken out of the database, once its letter is confirmed. A broker that blocks publishers holds up
letters only.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.words.clock import Clock

from ..amqp.channel import OutgoingMessage
from ..hgpush.queue import open_queue, push_message
from .settings import WorkSettings

DEAD = Counter("vcsreplicator_work_dead_messages", "Messages kept in the dead-letter queue")

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingLetter:
    """A letter, and what to do once it is confirmed."""

    number: int
    message: OutgoingMessage
    done: Callable[[], None]


class DeadLetters:
    """Letters under way, and what to do once each is confirmed; used by one thread."""

    def __init__(self, settings: WorkSettings, clock: Clock) -> None:
        self._queue, self._clock = settings.dead_queue, clock
        self._channel = open_queue("work", settings, self._queue, clock)
        self._numbers = itertools.count(1)
        self._unsent = deque[OutgoingLetter]()
        self._sent: dict[int, OutgoingLetter] = {}

    @property
    def are_sent(self) -> bool:
        """Whether every letter is confirmed."""
        return not self._unsent and not self._sent

    def keep(self, body: bytes, reason: str, headers: Mapping[str, str], done: Callable[[], None]) -> None:
        """Keep a message with the reason; `done` is called once that is confirmed."""
        text, now, number = body.decode("utf-8", "replace"), int(self._clock.now()), next(self._numbers)
        said = {**headers, "error": reason}
        self._unsent.append(
            OutgoingLetter(
                number=number, message=push_message(self._queue, f"dead-{number}", text, said, now), done=done
            )
        )

    def send(self) -> None:
        """Send what can be sent, and call what waits for those that are confirmed now. Raises Unavailable."""
        while self._unsent and not self._channel.is_blocked:
            letter = self._unsent[0]
            self._channel.send(letter.number, letter.message)
            self._sent[letter.number] = letter
            self._unsent.popleft()
        for outcome in self._channel.outcomes(0):
            if outcome.error is not None:
                raise outcome.error
            letter = self._sent.pop(outcome.number)
            reason = letter.message.headers["error"]
            logger.error("message kept in the dead-letter queue", queue=self._queue, reason=reason)
            DEAD.inc()
            letter.done()

    def forget(self) -> None:
        """Forget all letters: the consumer's connection is lost, and their messages come again."""
        self._unsent.clear()
        self._sent.clear()
        self._channel.close()

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()
