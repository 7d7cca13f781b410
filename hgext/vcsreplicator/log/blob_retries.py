# SPDX-License-Identifier: GPL-2.0-or-later
"""When the relay tries again to store a bundle that the blob store refused.

A bundle takes seconds to make, write and upload, and a failing store takes none. So the relay asks with a probe, a small blob,
before it makes the next one:

- While the store takes no probe, the relay probes it at each attempt to send, and stores the bundle as soon as the store takes a
  probe. A push does not wait longer than before.
- A store that takes the probe and not the bundle has a full disk, a quota or a limit. It gets the bundle again after 1 s, 2 s and
  so on, up to a minute.

A repository whose bundles the store took causes no probe.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..words.clock import Clock
from ..words.errors import BlobsUnavailable
from ..words.retry import Backoff
from .blobs import BlobStore

# For a store that takes the probe and not the bundle.
REFUSED = Backoff(first=1.0, longest=60.0)

# Seconds for which all repositories share the answer to one probe.
FRESH = 0.5

# The small blob. Its name is the same each time, and it goes by age as all blobs do.
PROBE = b"\0" * (1 << 16)


@dataclass(slots=True)
class _Refusal:
    """Why the store refused a repository's newest bundle, and how often in a row.

    `is_up` once it took a probe since; the bundle is then tried at `due`, by the monotonic clock.
    """

    error: BlobsUnavailable
    count: int
    due: float
    is_up: bool = False


class BlobRetries:
    """The repositories whose bundles a store `refused`, by folder.

    Any thread may use it.
    """

    def __init__(self, store: BlobStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.refused: dict[str, _Refusal] = {}
        self._turn = threading.Lock()
        # When the newest probe was answered, and why the store did not take it.
        self._probed = float("-inf")
        self._failure: BlobsUnavailable | None = None

    @contextmanager
    def trying(self, folder: str) -> Iterator[None]:
        """Send a repository's events in the block, unless its bundle is not worth making.

        Raises BlobsUnavailable then, with the reason of the newest attempt.
        """
        known = self.refused.get(folder)
        if known is not None:
            self._check(known)
        try:
            yield
        except BlobsUnavailable as error:
            count = 1 if known is None else known.count + 1
            due = self._clock.monotonic() + REFUSED.delay(count, random.random())
            # Anew: the traceback of the error holds the bundle.
            self.refused[folder] = _Refusal(_copy_error(error), count, due)
            raise
        self.refused.pop(folder, None)

    def forget_gone(self) -> None:
        """Forget the repositories that are not there any more."""
        for folder in list(self.refused):
            if not os.path.isdir(folder):
                self.refused.pop(folder, None)

    def _check(self, refusal: _Refusal) -> None:
        """Raise BlobsUnavailable until the store may take the bundle."""
        if not refusal.is_up:
            failure = self._probe(refusal)
            if failure is not None:
                refusal.due = float("-inf")
                raise _copy_error(failure)
            refusal.is_up = True
        if self._clock.monotonic() < refusal.due:
            raise _copy_error(refusal.error)

    def _probe(self, refusal: _Refusal) -> BlobsUnavailable | None:
        """Return why the store takes no probe; None if it does.

        One thread asks at a time. Another one has other repositories to send, so it does not wait for the answer.
        """
        if not self._turn.acquire(blocking=False):
            return self._failure or refusal.error
        try:
            if self._clock.monotonic() - self._probed >= FRESH:
                try:
                    self._store.put([PROBE])
                    self._failure = None
                except BlobsUnavailable as error:
                    self._failure = _copy_error(error)
                self._probed = self._clock.monotonic()
            return self._failure
        finally:
            self._turn.release()


def _copy_error(error: BlobsUnavailable) -> BlobsUnavailable:
    """Return the error anew, without a traceback: several threads raise it."""
    return type(error)(*error.args)
