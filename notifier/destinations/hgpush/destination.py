# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `hg-push`: pushes to a durable AMQP queue.

It serves workers that follow repositories by pushes. A notice names the heads of a push alone; `lookup` asks mirrors for its
changesets.
"""

import queue
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Rejected, Unavailable
from hgext.vcsreplicator.words.streams import Stream

from ...clients.amqp.pushes import QueueSettings, open_queue, push_message
from ...delivery.destination import DeliveryOutcome, Destination, take_all
from ...delivery.rejects import judged
from ...delivery.window import PATIENCE, Delivery, Patience
from ...messages.pushes import QueuedPush, check_source, to_body
from ..state import StateDatabase
from .lookup import AT_ONCE, ChangesetLookup, check_mirror_url
from .numbers import RepositoryNumbers

# Seconds that one wait may last while lookups are under way.
BLINK = 0.02

# The default of the header `source`.
SOURCE = "notifier"

_TYPES = (Stream.CHANGEGROUP.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HgPushSettings(QueueSettings):
    """The table of a destination of type `hg-push`.

    `source` says whose numbers the repository ids are: two senders to one queue need two. To ask for changesets,
    `mirror_url` replaces scheme and host of the public URLs; `mirror_ca_file` holds the certificate authorities for it. `state`
    is not a key of the table: it is the notifier's, where former releases kept the numbers.
    """

    state: str
    source: str = SOURCE
    mirror_url: str | None = None
    mirror_ca_file: str | None = None
    types: tuple[str, ...] = _TYPES
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        QueueSettings.__post_init__(self)
        if self.types != _TYPES:
            raise ValueError(f"types: hg-push has {_TYPES[0]} only")
        check_source(self.source)
        check_mirror_url(self.mirror_url)

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return HgPush(name, self, clock, log)


class HgPush:
    """The destination `hg-push`: looks up in threads, sends in the courier's thread."""

    def __init__(self, name: str, settings: HgPushSettings, clock: Clock, log: Log) -> None:
        self.settings = settings
        with closing(StateDatabase(settings.state)) as state:
            self._numbers = RepositoryNumbers(settings.source, log, state.former_numbers())
        self._channel = open_queue(name, settings, settings.queue, clock)
        self._lookup = ChangesetLookup(settings.mirror_url, settings.mirror_ca_file, clock)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lookup")
        self._looked: queue.SimpleQueue[tuple[Delivery, Future[tuple[QueuedPush, ...]]]] = queue.SimpleQueue()
        self._looking = 0

    def start(self) -> None:
        self._channel.start()

    def submit(self, delivery: Delivery) -> None:
        self._channel.check_takes()
        self._looking += 1
        looking = self._pool.submit(self._lookup.pushes, delivery)
        looking.add_done_callback(lambda done: self._looked.put((delivery, done)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        pause = min(timeout, BLINK) if self._looking else 0
        found = [self._begin_sending(*looked) for looked in take_all(self._looked, pause)]
        known = [outcome for outcome in found if outcome is not None]
        patience = min(timeout, BLINK) if self._looking else timeout
        return known + self._channel.outcomes(0 if known else patience)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._channel.close()
        self._numbers.close()
        self._lookup.close()

    def _begin_sending(self, delivery: Delivery, looked: Future[tuple[QueuedPush, ...]]) -> DeliveryOutcome | None:
        """Begin to send looked-up pushes; return the outcome if it is known already."""
        self._looking -= 1
        message = delivery.message
        try:
            pushes = looked.result()
        except Exception as error:
            return DeliveryOutcome(number=delivery.number, error=judged(error))
        if not pushes:
            return DeliveryOutcome(number=delivery.number)
        try:
            number = self._numbers.number_of(message.repository)
            headers = {"source": self.settings.source, "repository": message.repo_url}
            if message.signed is not None:
                headers["signed"] = message.signed
            body = to_body(number, pushes)
            outgoing = push_message(self.settings.queue, message.id, body, headers, int(message.created))
            self._channel.send(delivery.number, outgoing)
        except (Unavailable, Rejected) as trouble:
            return DeliveryOutcome(number=delivery.number, error=trouble)
        return None
