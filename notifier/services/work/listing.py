# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads pushes, newest last, and parked messages from the worker's database."""

from typing import Any

from sqlalchemy import func, select

from .database import WorkDatabase
from .schema import BRANCHES, CHANGESETS, PARKED_MESSAGES, PUSH_CHANGESETS, PUSHES, REPOSITORIES


def find_repositories(database: WorkDatabase, name: str) -> list[tuple[int, str]]:
    """Return (id, URL) of repositories whose URL is the name or ends with `/NAME`."""
    with database.reading() as connection:
        rows = connection.execute(select(REPOSITORIES.c.id, REPOSITORIES.c.url).order_by(REPOSITORIES.c.id))
        return [(row.id, row.url) for row in rows if row.url == name or row.url.endswith(f"/{name}")]


def list_pushes(database: WorkDatabase, repository: int, since: int, limit: int) -> list[dict[str, Any]]:
    """Return the newest pushes of a repository, with their changesets.

    They are at most `limit` pushes since the second `since`, oldest first.
    """
    mine = PUSHES.c.repository_id == repository
    question = select(PUSHES).where(mine, PUSHES.c.date >= since).order_by(PUSHES.c.id.desc()).limit(limit)
    members = (
        select(PUSH_CHANGESETS.c.push_id, CHANGESETS, BRANCHES.c.name)
        .join(CHANGESETS, CHANGESETS.c.node == PUSH_CHANGESETS.c.node)
        .join(BRANCHES, BRANCHES.c.id == CHANGESETS.c.branch_id)
        .where(PUSH_CHANGESETS.c.repository_id == repository)
        .order_by(PUSH_CHANGESETS.c.push_id, PUSH_CHANGESETS.c.position)
    )
    with database.reading() as connection:
        rows = list(connection.execute(question))[::-1]
        pushes = {row.id: {"id": row.id, "date": row.date, "user": row.user, "changesets": []} for row in rows}
        if rows:
            between = PUSH_CHANGESETS.c.push_id.between(rows[0].id, rows[-1].id)
            for row in connection.execute(members.where(between)):
                if row.push_id in pushes:
                    found = {"node": row.node, "author": row.author, "branch": row.name, "description": row.description}
                    pushes[row.push_id]["changesets"].append(found)
    return list(pushes.values())


def list_parked(database: WorkDatabase) -> list[dict[str, Any]]:
    """Return how much is parked of each repository, the longest parked first.

    `dead` of its `messages` are for the dead-letter queue.
    """
    columns = PARKED_MESSAGES.c
    question = select(
        func.max(columns.url).label("repository"),
        func.count().label("messages"),
        func.count(columns.error).label("dead"),
        func.sum(func.length(columns.body)).label("bytes"),
        func.min(columns.parked_at).label("since"),
    )
    with database.reading() as connection:
        rows = connection.execute(question.group_by(columns.source, columns.number).order_by("since"))
        return [{**row, "bytes": int(row["bytes"])} for row in rows.mappings()]
