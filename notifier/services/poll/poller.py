# SPDX-License-Identifier: GPL-2.0-or-later
"""Asks each repository at intervals, and hands on new pushes.

One task follows one repository, so its pushes are handed on in order. The poller asks a repository or host in trouble less and
less often, and the trouble holds up no other. While the broker is away, a repository with news waits and is not asked again.
"""

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import structlog
from prometheus_client import Counter, Gauge

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.log.turns import work_in_turns
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import POLL_KEY
from hgext.vcsreplicator.words.retry import Backoff

from ...clients.amqp.settings import check_credentials
from ...messages.pushes import PushesAnswer
from .asking import AnswerTooLarge, Asked, Asker, Host
from .following import (
    UNDECIDED,
    Followed,
    Question,
    RepositoryReplaced,
    find_news,
    first_question,
    next_question,
    split,
)
from .outgoing import PushSender
from .settings import OnReplaced, PollSettings, StartAt
from .state import open_state

# Answers in a row that must show a repository as replaced before another is followed: one of several mirrors may be behind.
CONFIRMATIONS = 3

# Part of the interval by which questions are spread.
JITTER = 0.1

# The longest pause between questions about a repository in trouble, in seconds.
LONGEST = 3600.0

ACTIVE = Gauge("vcsreplicator_poll_active", "Whether this process polls (1) or stands by (0)")
QUESTIONS = Counter("vcsreplicator_poll_questions", "Requests to hosts, by result", ["result"])
PUSHES = Counter("vcsreplicator_poll_pushes", "Pushes confirmed by the queue")
FOLLOWED = Gauge("vcsreplicator_poll_followed_repositories", "Repositories that are polled")
FAILING = Gauge("vcsreplicator_poll_failing_repositories", "Repositories whose last request failed")
REPLACED = Gauge("vcsreplicator_poll_replaced_repositories", "Repositories that lost or changed pushes, and wait")

logger = structlog.get_logger()


def run(
    settings: PollSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    instance: str | None = None,
) -> None:
    """Poll, or stand by for another poller of this source, until `stop`; raises BadConfig.

    Heartbeats name this poller by `instance`, or else by its process.
    """
    clock = SystemClock()
    check_credentials(settings, "poll")

    def work(ready: Callable[[], None]) -> None:
        with closing(open_state(settings, log, clock)) as state:
            known = state.add(settings.repositories, UNDECIDED if settings.start_at is StartAt.END else 0)
            outgoing = PushSender(settings, state, clock)
            outgoing.start()
            ACTIVE.set(1)
            try:
                asyncio.run(_poll(settings, known, outgoing, clock, stop=stop, ready=ready))
            finally:
                outgoing.stop()
                for gauge in (ACTIVE, FOLLOWED, FAILING, REPLACED):
                    gauge.set(0)

    work_in_turns(
        log,
        POLL_KEY,
        settings.source,
        work,
        patience=settings.takeover_after,
        stop=stop,
        ready=ready,
        clock=clock,
        instance=instance,
    )


async def _poll(
    settings: PollSettings,
    known: Sequence[Followed],
    outgoing: PushSender,
    clock: Clock,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    asker = Asker(settings, clock)
    following = asyncio.create_task(Poller(settings, asker, outgoing).follow(known))
    ready()
    try:
        while not stop.is_set() and outgoing.is_alive() and not following.done():
            await asyncio.sleep(0.1)
    finally:
        following.cancel()
        [failure] = await asyncio.gather(following, return_exceptions=True)
        await asker.close()
    if outgoing.fenced is not None:
        raise outgoing.fenced
    if not stop.is_set():
        raise RuntimeError("a part of the poller ended") from failure


class Poller:
    """Follows repositories; `asking` and `delivering` are its two sides."""

    def __init__(
        self, settings: PollSettings, asking: Asker, delivering: PushSender, chance: Callable[[], float] = random.random
    ) -> None:
        self._settings, self._asking, self._delivering, self._chance = settings, asking, delivering, chance
        self._hosts = defaultdict[str, Host](lambda: Host(settings.per_host, chance))

    async def follow(self, known: Sequence[Followed]) -> None:
        """Follow these repositories until cancelled."""
        FOLLOWED.set(len(known))
        async with asyncio.TaskGroup() as tasks:
            for followed in known:
                tasks.create_task(self._follow(followed))

    async def _follow(self, followed: Followed) -> None:
        loop = asyncio.get_running_loop()
        pace = Backoff(first=self._settings.interval, longest=max(LONGEST, self._settings.interval), jitter=JITTER)
        repository = _PolledRepository(followed=followed, page=self._settings.page)
        await asyncio.sleep(self._chance() * self._settings.interval)
        while True:
            began = loop.time()
            failures = repository.failures
            try:
                await self._ask_for_all(repository)
                repository.failures = 0
            except RepositoryReplaced as error:
                await self._count_replaced(repository, error)
            except Exception as error:
                self._log_failure(repository, error)
            FAILING.inc((repository.failures > 0) - (failures > 0))
            delay = pace.delay(max(repository.failures, 1), self._chance())
            await asyncio.sleep(max(0.0, began + delay - loop.time()))

    async def _ask_for_all(self, repository: "_PolledRepository") -> None:
        """Ask until the repository is caught up; hand on each part before the next."""
        if repository.followed.last == UNDECIDED:
            await self._begin_at_the_end(repository)
        question: Question | None = first_question(repository.followed, repository.page)
        etag = repository.etag
        while question is not None:
            try:
                asked = await self._ask(question.url(repository.followed.url), etag)
            except AnswerTooLarge:
                if question.link is not None or question.span == 1:
                    raise
                question, etag = replace(question, span=question.span // 2), None
                repository.page = min(repository.page, question.span)
                continue
            if asked.answer is None:
                break
            news = find_news(repository.followed, question, asked.answer)
            is_first = question == first_question(repository.followed, repository.page)
            question = next_question(question, asked.answer, asked.link, repository.page)
            # The next time begins with this question again, unless there is news.
            repository.etag = asked.etag if is_first and question is None and not news else None
            etag = None
            for portion in split(news):
                repository.followed = await self._delivering.deliver(repository.followed, portion)
                PUSHES.inc(len(portion))
        self._end_replaced(repository)

    async def _begin_at_the_end(self, repository: "_PolledRepository") -> None:
        """Take the newest push as sent already."""
        followed = repository.followed
        newest = (await self._answer(followed, Question(after=0, span=1))).last
        begin = replace(followed, last=0)
        if newest:
            answer = await self._answer(followed, Question(after=newest - 1, span=1))
            if not answer.pushes:
                raise Unavailable(f"{followed.url}: push {newest}, the last one, is not shown")
            begin = followed.after(answer.pushes[-1])
        repository.followed = await self._delivering.begin_at(begin)

    async def _answer(self, followed: Followed, question: Question) -> PushesAnswer:
        asked = await self._ask(question.url(followed.url), None)
        assert asked.answer is not None  # no etag was sent
        return asked.answer

    async def _ask(self, url: str, etag: str | None) -> Asked:
        origin = url.split("/")[2]
        result = "failed"
        try:
            async with self._hosts[origin].slot():
                asked = await self._asking.ask(url, etag)
            result = "unchanged" if asked.answer is None else "answered"
        finally:
            QUESTIONS.labels(result).inc()
        return asked

    def _log_failure(self, repository: "_PolledRepository", error: Exception) -> None:
        """Log once that a repository is in trouble, with a traceback if unexpected."""
        repository.failures += 1
        if repository.failures == 1:
            known = isinstance(error, ReplicationError)
            reason = str(error) if known else f"unexpected {type(error).__name__}: {error}"
            url = repository.followed.url
            logger.warning("repository not followed", repository=url, reason=reason, exc_info=not known)

    def _end_replaced(self, repository: "_PolledRepository") -> None:
        if repository.replaced:
            logger.info("repository is as it was", repository=repository.followed.url)
            REPLACED.dec()
        repository.replaced = 0

    async def _count_replaced(self, repository: "_PolledRepository", error: RepositoryReplaced) -> None:
        """Log once that another repository has replaced this one.

        If `on_replaced` is FOLLOW and `CONFIRMATIONS` answers have shown it, the poller follows the new repository from its
        beginning, under a new number.
        """
        repository.etag = None
        repository.failures = 0
        repository.replaced += 1
        if repository.replaced == 1:
            REPLACED.inc()
            step = 'nothing of it is sent until this ends; on-replaced = "follow" would follow it as a new repository'
            if self._settings.on_replaced is OnReplaced.FOLLOW:
                step = "if it stays so, it is followed from scratch"
            logger.error("repository replaced", repository=repository.followed.url, reason=str(error), next_step=step)
        if self._settings.on_replaced is OnReplaced.FOLLOW and repository.replaced >= CONFIRMATIONS:
            repository.followed = await self._delivering.begin_anew(repository.followed)
            logger.warning(
                "repository followed from scratch",
                repository=repository.followed.url,
                number=repository.followed.number,
            )
            self._end_replaced(repository)


@dataclass(slots=True, kw_only=True)
class _PolledRepository:
    followed: Followed
    page: int
    etag: str | None = None
    failures: int = 0
    replaced: int = 0
