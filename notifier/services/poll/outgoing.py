# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends pushes to the queue in a thread of its own, and remembers them.

Rules of this file: send, wait for the broker's confirmation, remember, and only then report to the poller, which has one message
of a repository under way at a time. After a kill at any step, the next start sends unremembered pushes again. So does a poller that
takes over: of each repository at most one message is doubled. The thread waits for a failing broker or log.
"""

import asyncio
import itertools
import queue
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Fenced, ReplicationError
from hgext.vcsreplicator.words.retry import RECONNECT

from ...clients.amqp.outgoing import OutgoingMessage
from ...clients.amqp.pushes import open_queue, push_message
from ...delivery.destination import DOWN, take_all
from ...messages.pushes import QueuedPush, to_body
from .following import Followed
from .settings import PollSettings
from .state import PollState

# Seconds that one wait may last.
BLINK = 0.1

# The same while messages are unconfirmed.
BUSY_BLINK = 0.01

logger = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Item:
    """A message, and what to remember of the repository once it is confirmed."""

    followed: Followed
    message: OutgoingMessage | None = None
    is_anew: bool = False
    done: "Future[Followed]" = field(default_factory=Future)


class PushSender(threading.Thread):
    """The thread that sends, with coroutines for the event loop.

    The coroutines return once their result is durable. The thread ends early once another poller took over: then `fenced` says so.
    """

    def __init__(self, settings: PollSettings, state: PollState, clock: Clock) -> None:
        super().__init__(name="outgoing", daemon=True)
        self._settings, self._state, self._clock = settings, state, clock
        self.fenced: Fenced | None = None
        self._asked: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._ended = threading.Event()

    async def deliver(self, followed: Followed, pushes: Sequence[QueuedPush]) -> Followed:
        """Send one message, and return the repository's position after it.

        Raises Rejected if the message is larger than receivers take.
        """
        source, queue = self._settings.source, self._settings.queue
        message_id = f"{source}-{followed.number}-{pushes[0].id}"
        headers = {"source": source, "repository": followed.url}
        body = to_body(followed.number, pushes)
        message = push_message(queue, message_id, body, headers, int(self._clock.now()))
        return await self._perform_item(_Item(followed=followed.after(pushes[-1]), message=message))

    async def begin_at(self, followed: Followed) -> Followed:
        """Remember this position of the repository, without a message."""
        return await self._perform_item(_Item(followed=followed))

    async def begin_anew(self, followed: Followed) -> Followed:
        """Give the repository a new number, with nothing sent."""
        return await self._perform_item(_Item(followed=followed, is_anew=True))

    async def _perform_item(self, item: _Item) -> Followed:
        self._asked.put(item)
        return await asyncio.wrap_future(item.done)

    def stop(self) -> None:
        """End the thread; the next start sends unremembered pushes again."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        channel, failures = open_queue("poll", self._settings, self._settings.queue, self._clock), 0
        down = DOWN.labels("poll")
        unsent: list[_Item] = []
        unconfirmed: dict[int, _Item] = {}
        confirmed: list[_Item] = []
        numbers = itertools.count()
        try:
            while not self._ended.is_set():
                unsent += take_all(self._asked, 0 if unconfirmed or unsent or confirmed else BLINK)
                try:
                    self._state.check()
                    channel.start()
                    while unsent and not channel.is_blocked:
                        if unsent[0].message is None:
                            confirmed.append(unsent.pop(0))
                            continue
                        number = next(numbers)
                        channel.send(number, unsent[0].message)
                        unconfirmed[number] = unsent.pop(0)
                    trouble: ReplicationError | None = None
                    for outcome in channel.outcomes(BUSY_BLINK if unconfirmed or channel.is_blocked else 0):
                        item = unconfirmed.pop(outcome.number)
                        (confirmed if outcome.error is None else unsent).append(item)
                        trouble = outcome.error or trouble
                    _remember(self._state, confirmed)
                    if trouble is not None:
                        raise trouble
                    failures = 0
                    if not unsent and not unconfirmed:
                        down.set(0)
                except Fenced as error:
                    self.fenced = error
                    return
                except ReplicationError as error:
                    failures += 1
                    down.set(1)
                    delay = RECONNECT.delay(failures, random.random())
                    logger.warning("pushes not sent", reason=str(error), retry_in=round(delay, 1))
                    self._ended.wait(delay)
        finally:
            channel.close()


def _remember(state: PollState, confirmed: list[_Item]) -> None:
    """Store the positions of the repositories, then report them to the poller.

    Raises Fenced or Unavailable. Then the rest of the list is not reported, and the next call stores it.
    """
    moved = [item.followed for item in confirmed if not item.is_anew]
    state.advance(moved)
    while confirmed:
        item = confirmed[-1]
        now = state.begin_anew(item.followed) if item.is_anew else item.followed
        confirmed.pop()
        if item.done.set_running_or_notify_cancel():
            item.done.set_result(now)
