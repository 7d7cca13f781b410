# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens, migrates and fills the database of the worker: SQLite or PostgreSQL.

Changesets come first, in portions. Then one transaction records the pushes that have them, so no reader sees a part of a push.
Recording again changes nothing, so messages may be repeated.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    Table,
    create_engine,
    delete,
    event,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from hgext.vcsreplicator.words.errors import BadConfig, Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.secrecy import is_loopback

from ...clients.database import own
from ...clients.secret import Secret
from ...messages.message import clean
from ...messages.pushes import QueuedPush
from .schema import BRANCHES, CHANGESETS, FILES, LONGEST_BRANCH, PUSH_CHANGESETS, PUSHES, REPOSITORIES

KEY = "work.database-url"

# Values in one question to the database, and rows in one statement.
AT_ONCE = 500

# Defaults against silently dead connections to PostgreSQL, in seconds; `tcp_user_timeout` in milliseconds.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

# How long PostgreSQL may take for a statement, which may wait for a lock, unless the server or the URL has a limit.
STATEMENT = "60s"

# Server messages about connections that waiting does not help.
_LASTING_ERRORS = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "unable to open",
    "no pg_hba.conf entry",
)

# PostgreSQL's states of a connection, or a server, on which no later statement succeeds: a read-only server (after a failover the
# former one goes on answering), a server that stops or starts, and broken connections.
_LOST = ("25006", "57P01", "57P02", "57P03", "08")

# The class of PostgreSQL's states for values beyond its limits.
_LIMIT_EXCEEDED = "54"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryKey:
    """A repository: its `number` at a `source`, and its present `url`."""

    source: str
    number: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesetRecord:
    """A changeset as it is recorded; `date` is in seconds since the epoch."""

    node: str
    author: str
    date: int
    description: str
    branch: str
    files: tuple[str, ...]


class WorkDatabase:
    """The worker's database, for several threads; raises Unavailable or BadConfig."""

    def __init__(self, url: str, password: Secret | None = None) -> None:
        """Prepare for the database without connecting to it; raises BadConfig."""
        known = make_url(url)
        if password is not None:
            known = known.set(password=password.read("work.database-password"))
        options: dict[str, Any] = {}
        if known.get_backend_name() == "sqlite":
            try:
                own(str(known.database))
            except OSError as error:
                raise BadConfig(f"{KEY}: {known.database}: {error.strerror}") from error
            options["timeout"] = 30.0
        else:
            options |= {name: value for name, value in _PATIENCE.items() if name not in known.query}
            if known.host and not is_loopback(known.host) and "sslmode" not in known.query:
                options |= {"sslmode": "verify-full", "sslrootcert": "system"}
        self._place = known.render_as_string(hide_password=True)
        self._engine: Engine = create_engine(known, connect_args=options, pool_pre_ping=True, hide_parameters=True)
        prepare = _prepare_sqlite if self._engine.dialect.name == "sqlite" else _prepare_postgresql
        event.listen(self._engine, "connect", prepare, insert=True)  # before SQLAlchemy asks anything
        event.listen(self._engine, "handle_error", _discard_lost)
        if password is not None and self._engine.dialect.name != "sqlite":
            # It may have been changed since the start.
            event.listen(
                self._engine,
                "do_connect",
                lambda dialect, record, positional, named: named.update(
                    password=password.read("work.database-password")
                ),
            )

    def check(self) -> None:
        """Raise BadConfig if the server refuses us, or has another release's tables."""
        with self.reading() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
        expected = ScriptDirectory(str(_MIGRATIONS)).get_current_head()
        if found != expected:
            raise BadConfig(
                f"{KEY}: {self._place}: its tables have revision {found or 'none'}, expected {expected}: "
                "run `vcsreplicator work --migrate`"
            )

    def migrate(self) -> None:
        """Bring the tables up to date, whole or not at all."""
        with self.writing() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # Python's module begins none for tables
            else:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            settings = Config()
            settings.set_main_option("script_location", str(_MIGRATIONS))
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")

    def known(self, nodes: Sequence[str]) -> set[str]:
        """Return which of these changesets are recorded."""
        with self.reading() as connection:
            return _find_known(connection, nodes)

    def present_url(self, repository: RepositoryKey, date: int) -> str:
        """Return the URL of a repository for a message whose newest push has this date.

        That is the message's URL, unless a later push is recorded: then the repository may have moved since. The numbers of pushes
        do not tell, since a repository that is restored counts from an earlier one.
        """
        with self.reading() as connection:
            return _present_url(connection, repository, date)

    def add_changesets(self, changesets: Sequence[ChangesetRecord]) -> None:
        """Record these changesets, unless they are recorded already; durable on return.

        Raises Rejected for data that the database cannot keep.
        """
        with self.writing() as connection:
            known = _find_known(connection, [each.node for each in changesets])
            new = sorted((each for each in changesets if each.node not in known), key=lambda each: each.node)
            names = sorted({each.branch for each in new})
            if any(len(name) > LONGEST_BRANCH for name in names):
                raise Rejected(f"a branch with a name of more than {LONGEST_BRANCH} characters")
            self._insert(connection, BRANCHES, [{"name": kept_text(name)} for name in names], key=("name",))
            ids: dict[str, int] = {}
            for portion in _cut_portions([kept_text(name) for name in names]):
                found = connection.execute(select(BRANCHES.c.name, BRANCHES.c.id).where(BRANCHES.c.name.in_(portion)))
                ids.update({row.name: row.id for row in found})
            rows = (
                {
                    "node": each.node,
                    "author": kept_text(each.author),
                    "date": each.date,
                    "description": kept_text(each.description),
                    "branch_id": ids[kept_text(each.branch)],
                }
                for each in new
            )
            self._insert(connection, CHANGESETS, rows)
            files = (
                {"node": each.node, "position": position, "path": kept_text(path)}
                for each in new
                for position, path in enumerate(each.files)
            )
            self._insert(connection, FILES, files)

    def record(self, repository: RepositoryKey, pushes: Sequence[QueuedPush]) -> None:
        """Record pushes, whose changesets are recorded already; durable on return.

        Raises Rejected for data that the database cannot keep.
        """
        with self.writing() as connection:
            number = self._find_repository(connection, repository, max((push.date for push in pushes), default=0))
            rows = [
                {"repository_id": number, "id": push.id, "date": push.date, "user": kept_text(push.user)}
                for push in pushes
            ]
            self._insert(connection, PUSHES, rows, update=("date", "user"))
            for portion in _cut_portions([push.id for push in pushes]):
                connection.execute(
                    delete(PUSH_CHANGESETS).where(
                        PUSH_CHANGESETS.c.repository_id == number, PUSH_CHANGESETS.c.push_id.in_(portion)
                    )
                )
            members = (
                {"repository_id": number, "push_id": push.id, "position": position, "node": node}
                for push in pushes
                for position, node in enumerate(push.changesets)
            )
            self._insert(connection, PUSH_CHANGESETS, members)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Make what the block executes one transaction, durable at its end."""
        with self._translate_errors(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Hold a connection for queries within the block."""
        with self._translate_errors(), self._engine.connect() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _find_repository(self, connection: Connection, repository: RepositoryKey, date: int) -> int:
        url = _present_url(connection, repository, date)
        row = connection.execute(
            select(REPOSITORIES.c.id, REPOSITORIES.c.url).where(*_match_repository(repository))
        ).one_or_none()
        if row is None or row.url != url:
            values = {"source": repository.source, "number": repository.number, "url": url}
            self._insert(connection, REPOSITORIES, [values], update=("url",), key=("source", "number"))
        return int(connection.execute(select(REPOSITORIES.c.id).where(*_match_repository(repository))).scalar_one())

    def _insert(
        self,
        connection: Connection,
        table: Table,
        rows: Iterable[Mapping[str, Any]],
        *,
        update: Sequence[str] = (),
        key: Sequence[str] = (),
    ) -> None:
        """Insert rows; in a row that exists, change only the members to `update`."""
        insert: Any = (sqlite if self._engine.dialect.name == "sqlite" else postgresql).insert(table)
        columns = list(key) or [column.name for column in table.primary_key]
        if update:
            insert = insert.on_conflict_do_update(
                index_elements=columns, set_={name: insert.excluded[name] for name in update}
            )
        else:
            insert = insert.on_conflict_do_nothing(index_elements=columns)
        left = iter(rows)
        while portion := list(itertools.islice(left, AT_ONCE)):
            connection.execute(insert, portion)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate the database's errors within the block.

        Rejected means that the data is at fault, BadConfig that an operator must act, Unavailable that a later attempt may
        succeed.
        """
        try:
            yield
        except DBAPIError as error:
            reason = " ".join(str(error.orig).split())[:300]
            raise _kind_of(error, reason)(f"{KEY}: {self._place}: {reason}") from error
        except SQLAlchemyError as error:
            raise Unavailable(f"{KEY}: {self._place}: {' '.join(str(error).split())[:300]}") from error


def _kind_of(error: DBAPIError, reason: str) -> type[ReplicationError]:
    """Return the class of the error to raise.

    Only an error that the data itself causes is Rejected. Every other cause would fail every message.
    """
    state = _state_of(error.orig)
    if isinstance(error, DataError | IntegrityError) or state.startswith(_LIMIT_EXCEEDED):
        return Rejected
    if isinstance(error, ProgrammingError) or any(words in reason for words in _LASTING_ERRORS):
        return BadConfig
    return Unavailable


_MIGRATIONS = Path(__file__).with_name("migrations")


def _match_repository(repository: RepositoryKey) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return REPOSITORIES.c.source == repository.source, REPOSITORIES.c.number == repository.number


def _present_url(connection: Connection, repository: RepositoryKey, date: int) -> str:
    is_later = PUSHES.select().where(PUSHES.c.repository_id == REPOSITORIES.c.id, PUSHES.c.date > date).exists()
    stored = connection.scalar(select(REPOSITORIES.c.url).where(*_match_repository(repository), is_later))
    return repository.url if stored is None else str(stored)


def _find_known(connection: Connection, nodes: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for portion in _cut_portions(nodes):
        found.update(connection.scalars(select(CHANGESETS.c.node).where(CHANGESETS.c.node.in_(portion))))
    return found


def _cut_portions(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[begin : begin + AT_ONCE] for begin in range(0, len(values), AT_ONCE))


def kept_text(value: str) -> str:
    """Return the text with U+FFFD for what a database does not keep.

    That is a NUL in PostgreSQL, and half a surrogate pair in both.
    """
    return clean(value).replace("\0", "\N{REPLACEMENT CHARACTER}")


def _discard_lost(context: ExceptionContext) -> None:
    """Have the pool open new connections where the present ones are of no use."""
    if _state_of(context.original_exception).startswith(_LOST):
        context.is_disconnect = True


def _state_of(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""


def _prepare_postgresql(connection: Any, _: Any) -> None:
    if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
        raise BadConfig(f"{KEY}: the database keeps texts in {encoding}, expected UTF8: make one WITH ENCODING 'UTF8'")
    limit = "SELECT set_config('statement_timeout', %s, false) WHERE current_setting('statement_timeout') = '0'"
    with connection.cursor() as cursor:
        cursor.execute(limit, (STATEMENT,))
    connection.commit()


def _prepare_sqlite(connection: Any, _: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
