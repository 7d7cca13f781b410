# SPDX-License-Identifier: GPL-2.0-or-later
"""The queue's messages by repository, and when the worker works on each.

Pure: no clock, no I/O, no threads.

The worker works on a repository's messages in order, some at once. If a repository fails, its messages wait, and other
repositories go on. After a failure the worker takes the messages one by one, so that only the message that fails uses up
retries. Repositories whose newest work was slow leave one of the threads to others: a host that sends its answers byte by byte may
have several.

A repository that failed, whose work lasts, or whose clone cannot be used is *parked*: all of its messages lie in the database, not
here, and newer ones follow them there. It is unparked once the database has no more of them.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hgext.vcsreplicator.words.retry import Backoff

from ...messages.pushes import HgPushMessage
from .database import RepositoryKey

# Messages that are worked on at once.
MOST = 100

# Seconds of work after which a repository is slow, and parked.
SLOW = 10.0

# Slow repositories that are remembered, the newest.
SLOW_KEPT = 10_000

RepositoryName = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMessage:
    """A message at work.

    `tag` is its name on the connection, until it is parked. Then `row` is its row in the database.
    """

    tag: int = 0
    row: int | None = None
    body: bytes
    repository: RepositoryKey
    message: HgPushMessage

    @property
    def name(self) -> RepositoryName:
        return self.repository.source, self.repository.number


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryTurn:
    """A repository whose turn it is.

    The worker works on `messages` or, if the repository is parked, on the first `most` of its parked messages.
    """

    name: RepositoryName
    most: int
    messages: tuple[TakenMessage, ...]
    is_parked: bool


@dataclass(slots=True)
class _RepositoryBacklog:
    waiting: deque[TakenMessage] = field(default_factory=deque)
    is_parked: bool = False
    busy_since: float | None = None
    failures: int = 0
    is_alone: bool = False
    due: float = 0.0

    def is_slow(self, now: float) -> bool:
        return self.busy_since is not None and now - self.busy_since >= SLOW


class MessageBacklog:
    """The messages that are taken and not yet done; times are on the monotonic clock.

    So many `threads` work on them.
    """

    def __init__(self, retry: Backoff, retries: int, threads: int) -> None:
        self._retry, self._retries, self._threads = retry, retries, threads
        # Repositories whose newest work was slow.
        self._slow: OrderedDict[RepositoryName, None] = OrderedDict()
        self._backlogs: OrderedDict[RepositoryName, _RepositoryBacklog] = OrderedDict()

    def take_message(self, message: TakenMessage) -> None:
        """Add a message behind the others of its repository."""
        self._backlogs.setdefault(message.name, _RepositoryBacklog()).waiting.append(message)

    def next_turn(self, now: float) -> RepositoryTurn | None:
        """Return the next turn; None if there is nothing to do now."""
        slow = sum(self._is_held(name, backlog, now) for name, backlog in self._backlogs.items())
        for name, backlog in self._backlogs.items():
            if name in self._slow and slow >= max(1, self._threads - 1):
                continue
            if (backlog.waiting or backlog.is_parked) and backlog.busy_since is None and backlog.due <= now:
                most = 1 if backlog.failures else MOST
                messages = () if backlog.is_parked else tuple(backlog.waiting)[:most]
                return RepositoryTurn(name=name, most=most, messages=messages, is_parked=backlog.is_parked)
        return None

    def begin(self, name: RepositoryName, now: float) -> None:
        """Record that the worker begins to work on the messages of a turn."""
        self._backlogs[name].busy_since = now
        self._backlogs.move_to_end(name)

    def settle(self, messages: Sequence[TakenMessage], now: float) -> bool:
        """Record that these are done; return whether the caller still holds them.

        If so, the caller must acknowledge them, or take them out of the database. Otherwise their connection was lost.
        """
        name, backlog = messages[0].name, self._end_work(messages, now)
        backlog.failures, backlog.is_alone, backlog.due = 0, False, 0.0
        is_ours = messages[0].row is not None
        if not is_ours and list(backlog.waiting)[: len(messages)] == list(messages):
            is_ours = True
            for _ in messages:
                backlog.waiting.popleft()
        self._drop_if_empty(name)
        return is_ours

    def fail(self, messages: Sequence[TakenMessage], now: float, chance: float) -> bool:
        """Record that these failed; return whether the retries are used up.

        If so, there is one message: the caller keeps it elsewhere and settles it.
        """
        backlog = self._end_work(messages, now)
        if len(messages) > 1:
            backlog.failures = 1  # which one it was shows when they are taken one by one
            return False
        if backlog.failures >= self._retries:
            return True
        backlog.failures += 1
        backlog.due = now + self._retry.delay(backlog.failures, chance)
        return False

    def put_off(self, messages: Sequence[TakenMessage], now: float, delay: float, *, is_alone: bool = False) -> None:
        """Put these off for `delay` seconds, without using up a retry.

        A resource is unavailable. If only this repository needs it, the repository is parked, so that the others do not wait.
        """
        backlog = self._end_work(messages, now) if is_alone else self._backlogs[messages[0].name]
        backlog.busy_since, backlog.is_alone, backlog.due = None, is_alone, now + delay

    def _is_held(self, name: RepositoryName, backlog: _RepositoryBacklog, now: float) -> bool:
        """Return whether a slow repository, or one that becomes slow, has a thread."""
        return backlog.busy_since is not None and (name in self._slow or backlog.is_slow(now))

    def _end_work(self, messages: Sequence[TakenMessage], now: float) -> _RepositoryBacklog:
        """Record that the work on these has ended, if it has not yet, and whether it was slow."""
        name, backlog = messages[0].name, self._backlogs[messages[0].name]
        if backlog.busy_since is not None:
            self._slow.pop(name, None)
            if backlog.is_slow(now):
                self._slow[name] = None
            if len(self._slow) > SLOW_KEPT:
                self._slow.popitem(last=False)
        backlog.busy_since = None
        return backlog

    def to_park(self, now: float) -> list[TakenMessage]:
        """Return the messages to park.

        These are all taken messages of each repository that is parked, has failed, is slow, or was put off alone.
        """
        return [
            message
            for backlog in self._backlogs.values()
            if backlog.is_parked or backlog.failures or backlog.is_alone or backlog.is_slow(now)
            for message in backlog.waiting
        ]

    def park(self, messages: Collection[TakenMessage]) -> None:
        """Record that these are in the database, and hold them no longer."""
        for name in {message.name for message in messages}:
            self._backlogs[name].waiting.clear()
            self._backlogs[name].is_parked = True

    def unpark(self, name: RepositoryName) -> None:
        """Record that the database has no more messages of a repository."""
        self._backlogs[name].is_parked = False
        self._drop_if_empty(name)

    def restore(self, parked: Collection[RepositoryName]) -> None:
        """Begin a connection: mark these repositories as parked, and no others.

        They are the repositories with messages in the database.
        """
        for name in parked:
            self._backlogs.setdefault(name, _RepositoryBacklog())
        for name, backlog in self._backlogs.items():
            backlog.is_parked = name in parked

    def forget(self) -> None:
        """Drop all messages, which the broker sends again; work under way ends by itself."""
        for name, backlog in list(self._backlogs.items()):
            backlog.waiting.clear()
            if backlog.busy_since is None and not backlog.failures:
                del self._backlogs[name]

    def _drop_if_empty(self, name: RepositoryName) -> None:
        backlog = self._backlogs[name]
        if not (backlog.waiting or backlog.is_parked or backlog.failures):
            del self._backlogs[name]
