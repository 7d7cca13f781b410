# SPDX-License-Identifier: GPL-2.0-or-later
"""The lookup of a push's changesets, which a notice does not name.

The lookup asks a mirror. Every mirror answers `push_json_url` when the notice is sent. If the changesets are no longer available
(the repository is gone, or the push was stripped), the lookup gives the heads instead, so that a late lookup loses no push.
"""

import re
from dataclasses import dataclass

import structlog
import urllib3

from hgext.vcsreplicator.words.errors import Unavailable

from ..authorities import trusting
from ..message import Message
from ..webhook.connection import ConnectionPool, TlsPool, read_in_time
from .message import LARGEST, NotPushes, QueuedPush, read_answer

logger = structlog.get_logger()

# Seconds that a mirror may take to answer, however slowly its bytes come.
ANSWER = 30.0

# Questions to mirrors at a time.
AT_ONCE = 8

_ORIGIN = re.compile(r"https?://[^/?#@]+\Z")


def check_mirror_url(url: str | None) -> None:
    """Raise ValueError unless the URL is None, or scheme and host alone."""
    if url is not None and not _ORIGIN.match(url):
        raise ValueError(f"mirror_url: expected https://HOST or http://HOST:PORT without a path, got {url!r}")


class ChangesetLookup:
    """Asks mirrors for changesets; used by AT_ONCE threads.

    `mirror_url` replaces scheme and host of the public URLs.
    """

    def __init__(self, mirror_url: str | None, ca_file: str | None) -> None:
        self._mirror_url = mirror_url
        self._http = urllib3.PoolManager(maxsize=AT_ONCE, retries=False, timeout=ANSWER, ssl_context=trusting(ca_file))
        self._http.pool_classes_by_scheme = {"http": ConnectionPool, "https": TlsPool}

    def pushes(self, message: Message) -> tuple[QueuedPush, ...]:
        """Return the pushes of a message with their changesets.

        Returns none for a change without a push. Raises Unavailable, or MalformedEvent for an answer that makes no sense.
        """
        return tuple(map(self._look_up_push, _read_entries(message)))

    def close(self) -> None:
        """Drop the connections."""
        self._http.clear()

    def _look_up_push(self, entry: "PushReference") -> QueuedPush:
        changesets = self._fetch_changesets(entry.url, entry.id) or entry.heads
        return QueuedPush(id=entry.id, date=entry.date, user=entry.user, changesets=changesets)

    def _fetch_changesets(self, url: str, number: int) -> tuple[str, ...]:
        """Return the changesets of a push; () if no mirror can list them.

        The mirrors no longer know the push, or their answer is longer than a message of this queue may be. Raises Unavailable,
        also for what is no answer of a pushlog, and MalformedEvent for one that makes no sense.
        """
        if self._mirror_url is not None:
            url = f"{self._mirror_url}/{url.split('://', 1)[1].partition('/')[2]}"
        try:
            answer = self._http.request("GET", url, preload_content=False)
            text = read_in_time(answer, LARGEST + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"{url}: {error}") from error
        if answer.status == 404:
            return ()
        if answer.status != 200:
            raise Unavailable(f"{url}: status {answer.status}, expected 200")
        if len(text) > LARGEST:
            logger.warning("only the heads are sent", url=url, reason=f"answer of more than {LARGEST} bytes")
            return ()
        try:
            answered = read_answer(text, url)
        except NotPushes as error:
            raise Unavailable(str(error)) from error
        return next((push.changesets for push in answered.pushes if push.id == number), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReference:
    """A push as a message names it."""

    id: int
    date: int
    user: str
    url: str
    heads: tuple[str, ...]


def _read_entries(message: Message) -> list[PushReference]:
    """Return the pushes of a message; none for a change without a push."""
    heads = tuple(message.data["heads"])
    return [
        PushReference(id=each["pushid"], date=each["time"], user=each["user"], url=each["push_json_url"], heads=heads)
        for each in message.data["pushlog_pushes"]
    ]
