# SPDX-License-Identifier: GPL-2.0-or-later
"""Ids of messages that were delivered, so that a repeat of one is seen.

An id is remembered after its delivery is complete, so each is let through at least once. A store that is away makes repeats, never
a loss: then no id is known, and none is remembered.
"""

import contextlib
import random
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, ReplicationError, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ..database import open_database, trouble
from .settings import NONE, REDIS, DecodeSettings

# Seconds that Redis may take for an answer.
_REDIS_PATIENCE = 2.0

# Ids that one statement of SQLite names.
_NAMED = 500

# Expired ids that are removed for each remembered one, so that the table does not grow.
_REMOVED_FOR_ONE = 2

AWAY = Gauge("vcsreplicator_decode_repeats_away_flag", "1 while the store of ids does not answer: repeats pass")

logger = structlog.get_logger()

_SCHEMA = """
CREATE TABLE IF NOT EXISTS repeats(id BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS repeats_at ON repeats(at);
"""
_FIND = "SELECT id FROM repeats WHERE at > ? AND id IN ({})"
_REMEMBER = "INSERT OR REPLACE INTO repeats(id, at) VALUES (?, ?)"
# With the index repeats_at.
_FORGET = "DELETE FROM repeats WHERE id IN (SELECT id FROM repeats WHERE at <= ? LIMIT ?)"


class IdStore(Protocol):
    """A store of ids; used by one thread. Every method raises Unavailable."""

    def known(self, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that are remembered."""

    def remember(self, ids: Sequence[str]) -> None:
        """Remember the ids from now on."""

    def close(self) -> None:
        """Free everything."""


class SqliteIds:
    """Ids in an SQLite file, for one process."""

    def __init__(self, path: str, remember: float, clock: Clock) -> None:
        self._path, self._remember, self._clock = path, remember, clock
        self._connection = open_database(path, "decode.repeats", _SCHEMA)

    def known(self, ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        expired = int(self._clock.now() - self._remember)
        for begin in range(0, len(ids), _NAMED):
            some = [uuid.UUID(each).bytes for each in ids[begin : begin + _NAMED]]
            rows = self._execute(_FIND.format(",".join("?" * len(some))), [expired, *some])
            found.update(str(uuid.UUID(bytes=row[0])) for row in rows)
        return found

    def remember(self, ids: Sequence[str]) -> None:
        now = int(self._clock.now())
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(_REMEMBER, [(uuid.UUID(each).bytes, now) for each in ids])
                limit = _REMOVED_FOR_ONE * len(ids)
                self._connection.execute(_FORGET, (int(now - self._remember), limit))
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, values: Sequence[Any]) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        return Unavailable(str(trouble(error, "decode.repeats", self._path)))


class RedisIds:
    """Ids in Redis, for several processes; Redis forgets them by itself."""

    def __init__(self, settings: DecodeSettings) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = (redis.RedisError, OSError)
        self._seconds = max(1, int(settings.remember))
        more: dict[str, Any] = {}
        try:
            if settings.redis_password is not None:
                more["password"] = settings.redis_password.read()
        except BadConfig as error:
            raise Unavailable(str(error)) from error
        if settings.redis_ca_file is not None:
            more["ssl_ca_certs"] = settings.redis_ca_file
        self._client: Any = redis.Redis.from_url(
            settings.redis or "",
            socket_timeout=_REDIS_PATIENCE,
            socket_connect_timeout=_REDIS_PATIENCE,
            retry=Retry(NoBackoff(), 1),  # a connection that Redis closed while it was idle
            **more,
        )

    def known(self, ids: Sequence[str]) -> set[str]:
        try:
            found = self._client.mget([_redis_key(each) for each in ids])
        except self._errors as error:
            raise Unavailable(f"decode.redis: {error}") from error
        return {each for each, value in zip(ids, found, strict=True) if value is not None}

    def remember(self, ids: Sequence[str]) -> None:
        try:
            pipeline = self._client.pipeline(transaction=False)
            for each in ids:
                pipeline.set(_redis_key(each), b"", ex=self._seconds)
            pipeline.execute()
        except self._errors as error:
            raise Unavailable(f"decode.redis: {error}") from error

    def close(self) -> None:
        self._client.close()


class Repeats:
    """The ids that were delivered, as far as their store answers; `None` remembers nothing."""

    def __init__(self, open_store: Callable[[], IdStore] | None, clock: Clock) -> None:
        self._open_store, self._clock = open_store, clock
        self._store: IdStore | None = None
        self._failures, self._rests_until = 0, float("-inf")

    def known(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that were delivered before; none while the store is away."""
        return self._ask(lambda store: store.known(ids), set()) if ids else set()

    def remember(self, ids: Sequence[str]) -> None:
        """Remember delivered ids; while the store is away their repeats will pass."""
        if ids:
            self._ask(lambda store: store.remember(ids), None)

    def close(self) -> None:
        """Free the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _ask(self, question: Callable[[IdStore], Any], otherwise: Any) -> Any:
        """Return the store's answer, or `otherwise`; leave a store that fails alone for a while."""
        if self._open_store is None or self._clock.monotonic() < self._rests_until:
            return otherwise
        try:
            if self._store is None:
                self._store = self._open_store()
            answer = question(self._store)
        except (Unavailable, BadConfig) as error:
            self._rest(error)
            return otherwise
        if self._failures:
            logger.info("ids are remembered again")
        self._failures = 0
        AWAY.set(0)
        return answer

    def _rest(self, error: ReplicationError) -> None:
        self.close()
        self._failures += 1
        delay = RECONNECT.delay(self._failures, random.random())
        self._rests_until = self._clock.monotonic() + delay
        AWAY.set(1)
        logger.warning("ids not remembered, repeats pass", reason=str(error), retry_in=round(delay, 1))


def open_repeats(settings: DecodeSettings, clock: Clock) -> Repeats:
    """Open the store that the settings name; raises BadConfig for a file that only an operator can put right."""
    if settings.repeats == NONE:
        return Repeats(None, clock)
    if settings.repeats == REDIS:
        return Repeats(lambda: RedisIds(settings), clock)
    with contextlib.suppress(Unavailable):
        SqliteIds(settings.repeats, settings.remember, clock).close()
    return Repeats(lambda: SqliteIds(settings.repeats, settings.remember, clock), clock)


def _redis_key(document_id: str) -> bytes:
    return b"vcsreplicator:decoded:" + document_id.encode("ascii")
