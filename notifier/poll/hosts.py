# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits how often the poller asks a host.

A host gets at most `at_once` requests at a time, and none while it rests after a failure.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.retry import Backoff

# How long a host in trouble rests, in seconds.
REST = Backoff(first=1.0, longest=300.0)

# The longest rest that a host may ask for, in seconds.
LONGEST = 3600.0


class HostUnavailable(Unavailable):
    """A host does not answer, or asks for fewer questions.

    `retry_after` is the wait that the host asked for, in seconds.
    """

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Host:
    """One host; times are those of the event loop."""

    def __init__(self, at_once: int, chance: Callable[[], float]) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._chance = chance
        self._failures = 0
        self._rests_until = 0.0

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for the right to ask, and hold it within the block.

        If the block raises HostUnavailable, the host rests.
        """
        async with self._slots:
            loop = asyncio.get_running_loop()
            while (wait := self._rests_until - loop.time()) > 0:
                await asyncio.sleep(wait)
            try:
                yield
            except HostUnavailable as error:
                self._failures += 1
                rest = max(REST.delay(self._failures, self._chance()), min(error.retry_after, LONGEST))
                self._rests_until = max(self._rests_until, loop.time() + rest)
                raise
            self._failures = 0
