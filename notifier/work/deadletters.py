# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue: what can never be recorded, with the reason.

A message is acknowledged once its letter is confirmed. A broker that blocks publishers holds up letters only.
"""

from collections import deque
from collections.abc import Mapping

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.words.clock import Clock

from ..amqp.channel import OutgoingMessage
from ..hgpush.queue import open_queue, push_message
from .settings import WorkSettings

DEAD = Counter("vcsreplicator_work_dead_messages", "Messages kept in the dead-letter queue")

logger = structlog.get_logger()


class DeadLetters:
    """Letters under way, by the tags of their messages on the connection of the consumer; used by one thread."""

    def __init__(self, settings: WorkSettings, clock: Clock) -> None:
        self._queue, self._clock = settings.dead_queue, clock
        self._channel = open_queue("work", settings, self._queue, clock)
        self._unsent = deque[tuple[int, OutgoingMessage]]()
        self._sent: dict[int, OutgoingMessage] = {}

    def keep(self, tag: int, body: bytes, error: BaseException, headers: Mapping[str, str]) -> None:
        """Keep a message with its error; `kept` will return its tag."""
        reason = " ".join(str(error).split())[:1000]
        text, now = body.decode("utf-8", "replace"), int(self._clock.now())
        letter = push_message(self._queue, f"dead-{tag}", text, {**headers, "error": reason}, now)
        self._unsent.append((tag, letter))

    def kept(self) -> list[int]:
        """Send what can be sent; return the tags that are confirmed now. Raises Unavailable."""
        while self._unsent and not self._channel.is_blocked:
            tag, letter = self._unsent[0]
            self._channel.send(tag, letter)
            self._sent[tag] = letter
            self._unsent.popleft()
        found = []
        for outcome in self._channel.outcomes(0):
            if outcome.error is not None:
                raise outcome.error
            reason = self._sent.pop(outcome.number).headers["error"]
            logger.error("message kept in the dead-letter queue", queue=self._queue, reason=reason)
            DEAD.inc()
            found.append(outcome.number)
        return found

    def forget(self) -> None:
        """Forget all letters: the consumer's connection is lost, and their messages come again."""
        self._unsent.clear()
        self._sent.clear()
        self._channel.close()

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()
