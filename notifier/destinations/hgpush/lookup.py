# SPDX-License-Identifier: GPL-2.0-or-later
"""The lookup of a push's changesets, which a notice does not name.

The lookup asks a mirror. Every mirror that gates the repository answers `push_json_url` when the notice is sent. The lookup waits
for a mirror that is behind. If the changesets are no longer available (the repository is gone, or the push was stripped), the
lookup gives the heads instead, so that a late lookup loses no push. It logs each such push.

Rules of this file: only the mirror's answers and this process's own clock end a wait. The age of a push ends none, because old
pushes are looked up too: by a replay, by a new destination, after an outage.
"""

import contextlib
import re
import threading
from collections.abc import Collection
from functools import partial
from typing import NoReturn

import structlog
import urllib3

from hgext.vcsreplicator.words.clock import DAY, Clock
from hgext.vcsreplicator.words.errors import Unavailable, quote_value
from hgext.vcsreplicator.words.secrecy import split_url

from ...clients.authorities import trusting
from ...clients.http.connection import ConnectionPool, RunningAnswers, TlsPool, read_in_time
from ...delivery.window import Delivery
from ...messages.message import Json, Message
from ...messages.pushes import LARGE, LARGEST, NotPushes, QueuedPush, read_answer

logger = structlog.get_logger()

# Seconds in which a mirror's answer must be complete.
ANSWER = 30.0

# Seconds for which a mirror that does not show a push counts as behind. Later the push counts as stripped, or its repository as
# deleted or replaced.
BEHIND = 3600.0
# The same for a mirror that states that it lacks the event.
STATED_BEHIND = DAY

# Repositories whose waits are remembered, the newest; a forgotten wait begins again.
WAITS_KEPT = 10_000

# The header in which a mirror states the newest event that it shows.
RELEASED = "x-vcsreplicator-event"

# Questions to mirrors at a time.
AT_ONCE = 8

_ORIGIN = re.compile(r"https?://[^/?#@]+\Z")


def check_mirror_url(url: str | None) -> None:
    """Raise ValueError unless the URL is None, or scheme and host alone."""
    if url is not None and not (_ORIGIN.match(url) and split_url(url, "http", "https")):
        raise ValueError(
            f"mirror_url: expected https://HOST or http://HOST:PORT without a path, got {quote_value(url)}"
        )


class ChangesetLookup:
    """Asks mirrors for changesets; used by AT_ONCE threads.

    `mirror_url` replaces scheme and host of the public URLs. Changesets that became obsolete are returned only `with_obsolete`,
    because no client can pull them.
    """

    def __init__(
        self, mirror_url: str | None, ca_file: str | None, clock: Clock, *, with_obsolete: bool = False
    ) -> None:
        self._mirror_url, self._with_obsolete = mirror_url, with_obsolete
        self._waits = _WaitingTimes(clock)
        self._http = urllib3.PoolManager(maxsize=AT_ONCE, retries=False, timeout=ANSWER, ssl_context=trusting(ca_file))
        self._running, self._large = RunningAnswers(), threading.Lock()
        self._http.pool_classes_by_scheme = {
            "http": partial(ConnectionPool, running=self._running),  # type: ignore[dict-item]
            "https": partial(TlsPool, running=self._running),  # type: ignore[dict-item]
        }

    def pushes(self, delivery: Delivery) -> tuple[QueuedPush, ...]:
        """Return the pushes of a message with their changesets.

        Returns none for a change without a push. Raises Unavailable, or MalformedEvent for an answer that makes no sense.
        """
        return tuple(self._look_up_push(entry, delivery) for entry in delivery.message.data["pushlog_pushes"])

    def close(self) -> None:
        """Drop the connections; a lookup under way is cut."""
        self._running.cut()
        self._http.clear()

    def _look_up_push(self, entry: Json, delivery: Delivery) -> QueuedPush:
        """Look up an entry of the message's `pushlog_pushes`."""
        message = delivery.message
        url, heads = entry["push_json_url"], tuple(message.data["heads"])
        if self._mirror_url is not None:
            url = f"{self._mirror_url}/{url.split('://', 1)[1].partition('/')[2]}"
        try:
            found = self._fetch_push(url, entry["pushid"], delivery)
            changesets = _list_all(found, heads) if self._with_obsolete else found.changesets
            if not changesets:
                raise _NotListed("the push has no changesets any more")
            if _is_another(found, entry, heads):
                raise _NotListed("another push has this number now")
            if found.obsolete and not self._with_obsolete:
                logger.info("obsolete changesets left out", url=url, **message.names, count=len(found.obsolete))
        except _NotListed as error:
            logger.warning("only the heads are sent", url=url, **message.names, reason=str(error))
            changesets = heads
        return QueuedPush(id=entry["pushid"], date=entry["time"], user=entry["user"], changesets=changesets)

    def _fetch_push(self, url: str, number: int, delivery: Delivery) -> QueuedPush:
        """Return a push as the mirror lists it.

        Raises _NotListed if the mirror no longer knows the push, or its answer is longer than a message of this queue may be;
        Unavailable also if no pushlog gave the answer, and MalformedEvent if a pushlog's answer makes no sense.
        """
        try:
            answer = self._http.request("GET", url, preload_content=False, redirect=False)
            text = read_in_time(answer, LARGEST + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{url}: {error}") from error
        if answer.status == 404:  # of a new or renamed repository, too, where the mirror is behind
            self._waits.await_mirror(delivery, f"{url}: has no such repository")
        if answer.status != 200:
            raise Unavailable(f"{url}: status {answer.status}, expected 200")
        if len(text) > LARGEST:
            raise _NotListed(f"answer of more than {LARGEST} bytes")
        try:
            with self._large if len(text) >= LARGE else contextlib.nullcontext():
                answered = read_answer(text, url)
        except NotPushes as error:
            raise Unavailable(str(error)) from error
        push = next((push for push in answered.pushes if push.id == number), None)
        if push is None and answered.last < number:
            missing = f"{url}: shows pushes up to {answered.last}, expected {number}"
            stated = answer.headers.get(RELEASED, "")
            if not (stated.isascii() and stated.isdigit()):
                self._waits.await_mirror(delivery, missing)
            elif int(stated[:18]) < delivery.message.seq:
                self._waits.await_mirror(delivery, missing, STATED_BEHIND)
            # The mirror states that it shows the event: it lacks the push for good.
        self._waits.end(delivery.message)
        if push is None:
            raise _NotListed("the push is gone")
        return push


class _WaitingTimes:
    """How long repositories have waited for a mirror that lacks a push.

    Each replay waits by itself. Any thread may call it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[tuple[str, str | None], float] = {}

    def await_mirror(self, delivery: Delivery, missing: str, patience: float = BEHIND) -> NoReturn:
        """Raise Unavailable, or _NotListed after `patience` seconds.

        The seconds count from the beginning of the repository's wait, so that all pushes of a repository that is gone wait
        together, and never from before the push. A repository with a successor at its URL is gone: mirrors serve the successor,
        whose messages wait for this one.
        """
        if delivery.has_successor:
            raise _NotListed(f"{missing}, and another repository has the URL now")
        message, now = delivery.message, self._clock.monotonic()
        with self._lock:
            since = self._since.setdefault((message.repository, message.replay), now)
            if len(self._since) > WAITS_KEPT:
                del self._since[next(iter(self._since))]
        if min(now - since, self._clock.now() - message.created) < patience:
            raise Unavailable(f"{missing}: the mirror is behind")
        raise _NotListed(f"{missing}, for {patience / 3600:.0f} h")

    def end(self, message: Message) -> None:
        """Record that the mirror has what its repository waited for."""
        with self._lock:
            self._since.pop((message.repository, message.replay), None)


class _NotListed(Exception):
    """The mirror cannot list the changesets of a push; says why."""


def _is_another(push: QueuedPush, entry: Json, heads: Collection[str]) -> bool:
    """Return whether a push belongs to another repository at the entry's URL.

    Numbers begin at 1 in each repository. Heads may be stripped, so a push of the same time is the entry's without any of them.
    """
    return push.date != entry["time"] and not {*push.changesets, *push.obsolete}.intersection(heads)


def _list_all(push: QueuedPush, heads: Collection[str]) -> tuple[str, ...]:
    """Return the changesets of a push, obsolete ones included, the heads last.

    An answer names obsolete changesets apart, each list in the order of the changelog. They are hidden, so no other changeset
    descends from them, and each comes after its parents.
    """
    if not push.obsolete:
        return push.changesets
    return tuple(sorted((*push.changesets, *push.obsolete), key=lambda node: node in heads))
