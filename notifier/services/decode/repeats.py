# SPDX-License-Identifier: GPL-2.0-or-later
"""Identities of delivered messages, by which the decoder recognizes repeats.

An identity, "id" in this file, is the digest of a message's origin, namespace, type and id, 16 bytes. It is remembered after the
delivery is complete, so each message is let through at least once. A store that is unavailable causes repeats, never a loss: then
no id is known, and none is remembered.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from prometheus_client import Gauge

from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.retry import RECONNECT

from ...clients.database import Database
from ...clients.secret import Secret
from .settings import NONE, REDIS, DecodeSettings

# Seconds that Redis may take for an answer.
_REDIS_PATIENCE = 2.0

# Ids that one statement of SQLite names.
_NAMED = 500

# Ids that may be fresh, in a table whose pages stay in SQLite's cache; a random id costs a page of a large table. With a million
# ids, one table took 28 µs for each, these four take 15 µs.
_FRESH = 50_000

# The tables of all other ids: one is filled, two are full.
_SLICES = ("slice0", "slice1", "slice2")

AWAY = Gauge("vcsreplicator_decode_repeats_away_flag", "1 while the store of ids does not answer, so duplicates pass")

logger = structlog.get_logger()

# Each id is in `fresh`, and later in one of the slices of time, which are filled in turn and emptied before they are filled again.
# An earlier version had its ids in `repeats`.
_SCHEMA = """
DROP TABLE IF EXISTS repeats;
CREATE TABLE IF NOT EXISTS fresh(id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slice0(id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slice1(id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slice2(id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS filling(one INTEGER PRIMARY KEY CHECK (one = 1), slice INTEGER NOT NULL, since REAL NOT NULL);
"""
_BEGIN = "INSERT OR IGNORE INTO filling VALUES (1, 0, ?)"
_FILLING = "SELECT slice, since FROM filling"
_FILL_NEXT = "UPDATE filling SET slice = ?, since = ?"
_FIND = " UNION ALL ".join(f"SELECT id FROM {table} WHERE id IN ({{0}})" for table in ("fresh", *_SLICES))
_REMEMBER = "INSERT OR IGNORE INTO fresh VALUES (?)"
_COUNT = "SELECT count(*) FROM fresh"
# In the order of the ids: each page of the slice is written once.
_MOVE = "INSERT OR IGNORE INTO {} SELECT id FROM fresh ORDER BY id"
_EMPTY = "DELETE FROM {}"


class SqliteIds:
    """Ids in an SQLite file, for one thread.

    An id is remembered for at least the set time, and at most half as long again. Raises Unavailable.
    """

    def __init__(self, path: str, remember: float, clock: Clock) -> None:
        self._remember, self._clock = remember, clock
        self._database = Database(path, "decode.repeats", _SCHEMA)
        try:
            with self._database.writing():
                self._database.run(_BEGIN, (clock.now(),))
            [(self._fresh,)] = self._database.rows(_COUNT)
        except Unavailable:
            self._database.close()
            raise

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        self._fill_next()
        found: set[bytes] = set()
        for begin in range(0, len(ids), _NAMED):
            some = ids[begin : begin + _NAMED]
            asked = ",".join(f"?{number}" for number in range(1, len(some) + 1))
            rows = self._database.rows(_FIND.format(asked), some)
            found.update(row[0] for row in rows)
        return found

    def remember(self, ids: Sequence[bytes]) -> None:
        self._fill_next()
        with self._database.writing():
            self._database.run_all(_REMEMBER, [(each,) for each in ids])
        self._fresh += len(ids)
        if self._fresh >= _FRESH:
            with self._database.writing():
                [(filling, _)] = self._database.rows(_FILLING)
                self._move(filling)

    def close(self) -> None:
        self._database.close()

    def _fill_next(self) -> None:
        """Go on to the slice of the present time, and empty expired slices."""
        [(filling, since)] = self._database.rows(_FILLING)
        if self._clock.now() < since:  # the clock was ahead
            since = self._clock.now()
            self._database.run(_FILL_NEXT, (filling, since))
        width = self._remember / (len(_SLICES) - 1)
        passed = int((self._clock.now() - since) / width)
        if passed <= 0:
            return
        with self._database.writing():
            self._move(filling)
            for _ in range(min(passed, len(_SLICES))):
                filling = (filling + 1) % len(_SLICES)
                self._database.run(_EMPTY.format(_SLICES[filling]))
            self._database.run(_FILL_NEXT, (filling, since + passed * width))

    def _move(self, filling: int) -> None:
        """Move the fresh ids into the slice, within the caller's transaction."""
        self._database.run(_MOVE.format(_SLICES[filling]))
        self._database.run(_EMPTY.format("fresh"))
        self._fresh = 0


class _Credentials:
    """User and present password, which the client asks for at each connection."""

    def __init__(self, user: str | None, secret: Secret) -> None:
        self._user, self._secret = user, secret

    def get_credentials(self) -> tuple[str, ...]:
        try:
            password = self._secret.read("decode.redis-password")
        except BadConfig as error:  # good once: perhaps a file is being replaced
            raise Unavailable(str(error)) from error
        return (password,) if self._user is None else (self._user, password)


class RedisIds:
    """Ids in Redis, for several processes; used as `SqliteIds`. Redis forgets them."""

    def __init__(self, settings: DecodeSettings) -> None:
        """Prepare the client without connecting; BadConfig for an unreadable password."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = (redis.RedisError, OSError, Unavailable)
        self._refusals = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
        self._seconds = max(1, int(settings.remember))
        more, url = dict[str, Any](), settings.redis or ""
        if (secret := settings.redis_password) is not None:
            secret.read("decode.redis-password")
            parts = urlsplit(url)
            url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            more["credential_provider"] = _Credentials(unquote(parts.username) if parts.username else None, secret)
        if settings.redis_ca_file is not None:
            more["ssl_ca_certs"] = settings.redis_ca_file
        self._client: Any = redis.Redis.from_url(
            url,
            socket_timeout=_REDIS_PATIENCE,
            socket_connect_timeout=_REDIS_PATIENCE,
            retry=Retry(NoBackoff(), 1),  # a connection that Redis closed while it was idle
            **more,
        )

    def check_credentials(self) -> None:
        """Raise BadConfig if Redis refuses user or password; other errors may pass."""
        try:
            self._client.mget([_redis_key(b"")])
        except self._refusals as error:
            raise BadConfig(f"decode.redis: {error}: expected user and password that Redis takes") from error
        except self._errors:
            pass

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        try:
            found = self._client.mget([_redis_key(each) for each in ids])
        except self._errors as error:
            raise Unavailable(f"decode.redis: {error}") from error
        return {each for each, value in zip(ids, found, strict=True) if value is not None}

    def remember(self, ids: Sequence[bytes]) -> None:
        try:
            pipeline = self._client.pipeline(transaction=False)
            for each in ids:
                pipeline.set(_redis_key(each), b"", ex=self._seconds)
            pipeline.execute()
        except self._errors as error:
            raise Unavailable(f"decode.redis: {error}") from error

    def close(self) -> None:
        self._client.close()


IdStore = SqliteIds | RedisIds


class Repeats:
    """The ids that were delivered, if their store answers; none without a store."""

    def __init__(self, open_store: Callable[[], IdStore] | None, clock: Clock) -> None:
        self._open_store, self._clock = open_store, clock
        self._store: IdStore | None = None
        self._failures, self._rests_until = 0, float("-inf")

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        """Return the ids that were delivered before; none while the store is unavailable."""
        return self._ask(lambda store: store.known(ids), set()) if ids else set()

    def remember(self, ids: Sequence[bytes]) -> None:
        """Remember delivered ids; while the store is unavailable, repeats of them pass."""
        if ids:
            self._ask(lambda store: store.remember(ids), None)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _ask(self, ask_store: Callable[[IdStore], Any], otherwise: Any) -> Any:
        """Return the store's answer, or `otherwise`, even for a while after a failure."""
        if self._open_store is None or self._clock.monotonic() < self._rests_until:
            return otherwise
        try:
            if self._store is None:
                self._store = self._open_store()
            answer = ask_store(self._store)
        except (Unavailable, BadConfig) as error:
            self.close()
            self._failures += 1
            delay = RECONNECT.delay(self._failures, random.random())
            self._rests_until = self._clock.monotonic() + delay
            AWAY.set(1)
            logger.warning("ids not remembered, repeats pass", reason=str(error), retry_in=round(delay, 1))
            return otherwise
        if self._failures:
            logger.info("ids are remembered again")
        self._failures = 0
        AWAY.set(0)
        return answer


def open_repeats(settings: DecodeSettings, clock: Clock) -> Repeats:
    """Open the store that the settings name.

    Raises BadConfig for a file or credentials that only an operator can put right.
    """
    if settings.repeats == NONE:
        return Repeats(None, clock)
    if settings.repeats == REDIS:
        with contextlib.closing(RedisIds(settings)) as store:
            store.check_credentials()
        return Repeats(lambda: RedisIds(settings), clock)
    with contextlib.suppress(Unavailable):
        SqliteIds(settings.repeats, settings.remember, clock).close()
    return Repeats(lambda: SqliteIds(settings.repeats, settings.remember, clock), clock)


def _redis_key(identity: bytes) -> bytes:
    return b"vcsreplicator:decoded:" + identity.hex().encode("ascii")
