# SPDX-License-Identifier: GPL-2.0-or-later
"""The dead-letter queue: messages that can never be recorded, with the reason.

Once the broker has confirmed a letter, the worker acknowledges the message or takes it out of the database. A queue that takes no
letters, and a broker that blocks publishers, hold up letters only: until then their messages stay where they are.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping

import structlog
from prometheus_client import Counter

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.retry import Backoff

from ...clients.amqp.outgoing import OutgoingMessage
from ...clients.amqp.pushes import open_queue, push_message
from .settings import WorkSettings

# The delays before letters that the queue did not take are sent again.
AGAIN = Backoff(first=0.1, longest=10.0)

DEAD = Counter("vcsreplicator_work_dead_messages", "Messages kept in the dead-letter queue")

logger = structlog.get_logger()


class DeadLetters:
    """Letters under way, and the call to make once each is confirmed; for one thread."""

    def __init__(self, settings: WorkSettings, clock: Clock) -> None:
        self._queue, self._clock = settings.dead_queue, clock
        self._channel = open_queue("work", settings, self._queue, clock)
        self._numbers = itertools.count(1)
        self._unsent = deque[int]()
        # Unconfirmed letters, each with the function to call after its confirmation.
        self._letters: dict[int, tuple[OutgoingMessage, Callable[[], None]]] = {}
        # Attempts in a row that failed, and when the next is due.
        self._failures, self._due = 0, 0.0

    @property
    def are_sent(self) -> bool:
        return not self._letters

    def keep(self, body: bytes, reason: str, headers: Mapping[str, str], on_confirmed: Callable[[], None]) -> None:
        """Keep a message and the reason as a letter for `send`.

        `send` calls `on_confirmed` once the broker has confirmed the letter.
        """
        now, number = int(self._clock.now()), next(self._numbers)
        message = push_message(self._queue, f"dead-{number}", body, {**headers, "error": reason}, now)
        self._letters[number] = message, on_confirmed
        self._unsent.append(number)

    def send(self) -> None:
        """Send the letters that can be sent; call `on_confirmed` of those confirmed now.

        A letter that could not be sent is sent again later, behind the others. Raises what `on_confirmed` raises.
        """
        trouble: Exception | None = None
        while self._unsent and not self._channel.is_blocked and self._clock.monotonic() >= self._due:
            try:
                self._channel.send(self._unsent[0], self._letters[self._unsent[0]][0])
            except Unavailable as error:
                trouble = error
                break
            self._unsent.popleft()
        confirmed = []
        for outcome in self._channel.outcomes(0):
            if outcome.error is None:
                confirmed.append(outcome.number)
            else:
                self._unsent.append(outcome.number)
                trouble = outcome.error
        if trouble is not None:
            self._put_off(trouble)
        elif confirmed:
            self._failures = 0
        for number in confirmed:
            self._finish(number)

    def _put_off(self, trouble: Exception) -> None:
        """Plan the next attempt, and log the first failure of several."""
        self._failures += 1
        self._due = self._clock.monotonic() + AGAIN.delay(self._failures, random.random())
        if self._failures == 1:
            logger.error("dead letters not sent; they wait", queue=self._queue, reason=str(trouble))

    def _finish(self, number: int) -> None:
        message, on_confirmed = self._letters.pop(number)
        fields = {"repository": message.headers.get("repository"), "reason": message.headers["error"]}
        logger.error("message kept in the dead-letter queue", queue=self._queue, **fields)
        DEAD.inc()
        on_confirmed()

    def forget(self) -> None:
        """Forget all letters, whose messages come again, and drop their connection."""
        self._unsent.clear()
        self._letters.clear()
        self._channel.close()
