# SPDX-License-Identifier: GPL-2.0-or-later
"""When the relay tries again to store a bundle that the blob store refused.

A bundle takes seconds to make, write and upload, and a failing store takes none: it is made again after 1 s, 2 s and so on, up to
LONGEST. The other attempts to send fail with the same reason.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from ..words.clock import Clock
from ..words.errors import BlobsUnavailable
from ..words.retry import Backoff

# Seconds: a store that is back, and a push, wait as long at most.
LONGEST = 10.0
_PAUSES = Backoff(first=1.0, longest=LONGEST)


class BlobRetries:
    """The repositories whose newest bundle the store `refused`, by folder.

    Each with why, how often in a row, and when it is due by the monotonic clock. Any thread may use it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.refused: dict[str, tuple[BlobsUnavailable, int, float]] = {}

    @contextmanager
    def trying(self, folder: str) -> Iterator[None]:
        """Send a repository's events in the block, unless its bundle is not due.

        Raises BlobsUnavailable then, with the reason of the newest attempt.
        """
        failure, count, due = self.refused.get(folder, (None, 0, 0.0))
        if failure is not None and self._clock.monotonic() < due:
            raise _copy_error(failure)
        try:
            yield
        except BlobsUnavailable as error:
            due = self._clock.monotonic() + _PAUSES.delay(count + 1, random.random())
            # Anew: the traceback of the error holds the bundle.
            self.refused[folder] = _copy_error(error), count + 1, due
            raise
        self.refused.pop(folder, None)

    def forget_gone(self) -> None:
        """Forget the repositories that are not there any more."""
        for folder in list(self.refused):
            if not os.path.isdir(folder):
                self.refused.pop(folder, None)


def _copy_error(error: BlobsUnavailable) -> BlobsUnavailable:
    """Return the error anew, without a traceback: several threads raise it."""
    return type(error)(*error.args)
