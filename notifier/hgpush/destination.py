# SPDX-License-Identifier: GPL-2.0-or-later
"""The destination `hg-push`: pushes to a durable AMQP queue.

It serves workers that follow repositories by pushes. A notice names the heads of a push. The destination asks `push_json_url` for
the changesets; every mirror answers that when the notice is sent. Where the changesets cannot be had any more (the repository is
gone, the push was stripped), it sends the heads instead: a push that is sent late is not lost.
"""

import queue
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import urllib3

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import ReplicationError, Unavailable
from hgext.vcsreplicator.words.streams import Stream

from ..authorities import trusting
from ..destination import DeliveryOutcome, Destination, take_all
from ..message import Message
from ..rejects import judged
from ..state import StateDatabase
from ..webhook.connection import ConnectionPool, TlsPool, read_in_time
from ..window import PATIENCE, Delivery, Patience
from .message import LARGEST, QueuedPush, read_answer, to_body
from .queue import QueueSettings, open_queue, push_message

# Seconds that a mirror may take to answer, however slowly its bytes come.
ANSWER = 30.0

# Questions to mirrors at a time.
AT_ONCE = 8

# Seconds that one wait may last while lookups are under way.
BLINK = 0.02

# What the header `source` says by default.
SOURCE = "notifier"

_ORIGIN = re.compile(r"https?://[^/?#@]+\Z")
_SOURCE = re.compile(r"[a-z0-9][a-z0-9-]{0,59}\Z")
_TYPES = (Stream.CHANGEGROUP.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HgPushSettings(QueueSettings):
    """The table of a destination of type `hg-push`.

    `source` says whose numbers the repository ids are: two senders to one queue need two. `mirror_url` is the scheme and host to
    ask for changesets, in place of those of the public URLs; `mirror_ca_file` has the authorities for it. `state` is not a key:
    it is the notifier's, which keeps the numbers.
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
        if self.mirror_url is not None and not _ORIGIN.match(self.mirror_url):
            raise ValueError(
                f"mirror_url: expected https://HOST or http://HOST:PORT without a path, got {self.mirror_url!r}"
            )

    def open(self, name: str, clock: Clock) -> Destination:
        return HgPush(name, self, clock)


def check_source(source: str) -> None:
    """Raise ValueError unless the text can be a `source`."""
    if not _SOURCE.match(source):
        raise ValueError(f"source: expected lower-case letters, digits and hyphens, 60 at most, got {source[:80]!r}")


Looked = tuple[Delivery, tuple[QueuedPush, ...], ReplicationError | None]


class HgPush:
    """The destination `hg-push`.

    It looks changesets up in threads, and sends in the courier's thread.
    """

    def __init__(self, name: str, settings: HgPushSettings, clock: Clock) -> None:
        self.settings = settings
        self._channel = open_queue(name, settings, settings.queue, clock)
        self._numbers = StateDatabase(settings.state)
        self._http = urllib3.PoolManager(
            maxsize=AT_ONCE, retries=False, timeout=ANSWER, ssl_context=trusting(settings.mirror_ca_file)
        )
        self._http.pool_classes_by_scheme = {"http": ConnectionPool, "https": TlsPool}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lookup")
        self._looked: queue.SimpleQueue[Looked] = queue.SimpleQueue()
        self._looking = 0

    def start(self) -> None:
        self._channel.start()

    def submit(self, delivery: Delivery) -> None:
        self._channel.check_takes()
        self._looking += 1
        self._pool.submit(lambda: self._looked.put(self._look_up(delivery)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        pause = min(timeout, BLINK) if self._looking else 0
        found = [self._begin(*looked) for looked in take_all(self._looked, pause)]
        known = [outcome for outcome in found if outcome is not None]
        patience = min(timeout, BLINK) if self._looking else timeout
        return known + self._channel.outcomes(0 if known else patience)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._channel.close()
        self._numbers.close()
        self._http.clear()

    def _begin(self, delivery: Delivery, pushes: tuple[QueuedPush, ...], error: ReplicationError | None) -> Any:
        """Begin to send what was looked up; return the outcome if it is known already."""
        self._looking -= 1
        message = delivery.message
        if error is not None or not pushes:
            return DeliveryOutcome(number=delivery.number, error=error)
        try:
            number = self._numbers.repository_number(message.repository)
            headers = {"source": self.settings.source, "repository": message.repo_url}
            body = to_body(number, pushes)
            outgoing = push_message(self.settings.queue, message.id, body, headers, int(message.created))
            self._channel.send(delivery.number, outgoing)
        except Unavailable as trouble:
            return DeliveryOutcome(number=delivery.number, error=trouble)
        return None

    def _look_up(self, delivery: Delivery) -> Looked:
        try:
            return delivery, tuple(map(self._push, _entries(delivery.message))), None
        except Exception as error:
            return delivery, (), judged(error)

    def _push(self, entry: "PushReference") -> QueuedPush:
        changesets = self._changesets(entry.url, entry.id) or entry.heads
        return QueuedPush(id=entry.id, date=entry.date, user=entry.user, changesets=changesets)

    def _changesets(self, url: str, number: int) -> tuple[str, ...]:
        """Return the changesets of a push; () if the mirrors no longer know it.

        Raises Unavailable, or MalformedEvent for an answer that cannot be read.
        """
        if self.settings.mirror_url is not None:
            url = f"{self.settings.mirror_url}/{url.split('://', 1)[1].partition('/')[2]}"
        try:
            answer = self._http.request("GET", url, preload_content=False)
            text = read_in_time(answer, LARGEST + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{url}: {error}") from error
        if answer.status == 404:
            return ()
        if answer.status != 200:
            raise Unavailable(f"{url}: status {answer.status}, expected 200")
        return next((push.changesets for push in read_answer(text, url).pushes if push.id == number), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReference:
    id: int
    date: int
    user: str
    url: str
    heads: tuple[str, ...]


def _entries(message: Message) -> list[PushReference]:
    """Return the pushes of a message; none for a change without a push."""
    heads = tuple(message.data["heads"])
    return [
        PushReference(id=each["pushid"], date=each["time"], user=each["user"], url=each["push_json_url"], heads=heads)
        for each in message.data["pushlog_pushes"]
    ]
