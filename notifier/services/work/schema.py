# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables, as the newest migration makes them.

Their keys come from the data itself, so recording it again changes nothing.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

# Characters of a branch's name at most; a longer one cannot be in an index.
LONGEST_BRANCH = 500

METADATA = MetaData()

# `source` and `number` are the header `source` and the `repository_id` of messages.
REPOSITORIES = Table(
    "repositories",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("source", String(60), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("url", Text, nullable=False, index=True),
    UniqueConstraint("source", "number"),
)

# `id` is the pushlog's; `date` in seconds since the epoch.
PUSHES = Table(
    "pushes",
    METADATA,
    Column("repository_id", ForeignKey("repositories.id"), primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("date", BigInteger, nullable=False),
    Column("user", Text, nullable=False),
    Index("pushes_by_date", "repository_id", "date"),
)

BRANCHES = Table(
    "branches",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(LONGEST_BRANCH), nullable=False, unique=True),
)

# A changeset is the same in every repository that has it.
CHANGESETS = Table(
    "changesets",
    METADATA,
    Column("node", String(40), primary_key=True),
    Column("author", Text, nullable=False),
    Column("date", BigInteger, nullable=False),
    Column("description", Text, nullable=False),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
)

# `position` counts from 0; the head of a push comes last.
PUSH_CHANGESETS = Table(
    "push_changesets",
    METADATA,
    Column("repository_id", Integer, primary_key=True),
    Column("push_id", BigInteger, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("node", ForeignKey("changesets.node"), nullable=False, index=True),
    ForeignKeyConstraint(["repository_id", "push_id"], ["pushes.repository_id", "pushes.id"]),
)

# Messages that wait for the next attempt, in the order of `id`; with `error` for the dead-letter queue.
PARKED_MESSAGES = Table(
    "parked_messages",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("source", String(60), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("url", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("parked_at", BigInteger, nullable=False),
    Column("error", Text),
    Index("parked_messages_by_repository", "source", "number", "id"),
    sqlite_autoincrement=True,  # an id that was deleted is never given again
)

FILES = Table(
    "files",
    METADATA,
    Column("node", ForeignKey("changesets.node"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("path", Text, nullable=False),
)
