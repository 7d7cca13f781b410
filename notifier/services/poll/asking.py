# SPDX-License-Identifier: GPL-2.0-or-later
"""One question to a host over HTTP, its answer, and the limits of a host.

A host gets at most `at_once` requests at a time, and none while it rests after a failure. The answer is untrusted: its size and
time are bounded, redirects are not followed, and cookies are not kept.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urljoin, urlsplit

import httpx

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.retry import Backoff, read_retry_after
from hgext.vcsreplicator.words.version import VERSION

from ...clients.authorities import trusting
from ...messages.pushes import LARGE, LARGEST, PushesAnswer, read_answer
from .settings import PollSettings

# How long a host in trouble rests, in seconds.
REST = Backoff(first=1.0, longest=300.0)

# The longest rest that a host may ask for, in seconds.
LONGEST = 3600.0

# Statuses after which the host itself is left alone for a while.
_HOST_TROUBLE = {429, 500, 502, 503, 504}


class HostUnavailable(Unavailable):
    """A host does not answer, or asks to wait `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Host:
    """One host; times are on the event loop's clock."""

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


class AnswerTooLarge(Unavailable):
    """An answer exceeds `LARGEST` bytes: ask for fewer pushes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The result of a question.

    `answer` is None if nothing changed since the answer with this `etag`. `link` leads to the next part.
    """

    answer: PushesAnswer | None
    etag: str | None = None
    link: str | None = None


class Asker:
    """Asks hosts over connections that are kept."""

    def __init__(self, settings: PollSettings, clock: Clock) -> None:
        self._timeout, self._clock, self._large = settings.timeout, clock, asyncio.Semaphore(1)
        self._client = httpx.AsyncClient(
            verify=trusting(settings.hosts_ca_file),
            timeout=settings.timeout,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=90),
            headers={"User-Agent": f"vcsreplicator-poll/{VERSION}", "Accept-Encoding": "identity"},
        )

    async def ask(self, url: str, etag: str | None) -> Asked:
        """Ask this address, and return the result.

        Raises HostUnavailable, Unavailable for trouble of this repository only, AnswerTooLarge, or MalformedEvent.
        """
        headers = {} if etag is None else {"If-None-Match": etag}
        try:
            async with asyncio.timeout(self._timeout), self._client.stream("GET", url, headers=headers) as response:
                self._check_status(url, response, has_etag=etag is not None)
                if response.status_code == 304:
                    return Asked(answer=None, etag=etag)
                text = await _read_body(url, response)
        except TimeoutError:
            raise HostUnavailable(f"{url}: no whole answer within {self._timeout:g} s") from None
        except httpx.HTTPError as error:
            raise HostUnavailable(f"{url}: {str(error) or type(error).__name__}") from error
        # Seconds for one of LARGEST bytes, while other hosts are answered.
        async with self._large if len(text) >= LARGE else contextlib.nullcontext():
            answer = await asyncio.to_thread(read_answer, text, url)
        return Asked(answer=answer, etag=find_etag(response), link=find_link(url, response))

    async def close(self) -> None:
        await self._client.aclose()

    def _check_status(self, url: str, response: httpx.Response, *, has_etag: bool) -> None:
        status = response.status_code
        if status == 200 or (status == 304 and has_etag):
            return
        if status in _HOST_TROUBLE:
            wait = read_retry_after(response.headers.get("retry-after"), self._clock.now())
            raise HostUnavailable(f"{url}: status {status}", wait)
        moved = f", moved to {response.headers['location'][:200]!r}" if "location" in response.headers else ""
        raise Unavailable(f"{url}: status {status}, expected 200{moved}")


async def _read_body(url: str, response: httpx.Response) -> bytes:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Unavailable(
            f"{url}: an answer in {encoding[:100]!r}, although 'identity' was asked for; look at its proxy"
        )
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise AnswerTooLarge(f"{url}: an answer of more than {LARGEST} bytes")
    return b"".join(parts)


def find_etag(response: httpx.Response) -> str | None:
    """Return the answer's ETag, if it is text that a request can have."""
    found = response.headers.get("etag", "")
    return found if found.isascii() and found.isprintable() and 0 < len(found) < 1000 else None


def find_link(url: str, response: httpx.Response) -> str | None:
    """Return the address of the next part, if it is on the same page and host."""
    try:
        found = response.links.get("next", {}).get("url")
        link = urljoin(url, found) if found else None
        same = link is not None and urlsplit(link)[:3] == urlsplit(url)[:3] and bool(httpx.URL(link))
    except (ValueError, httpx.InvalidURL):
        return None
    return link if same else None
