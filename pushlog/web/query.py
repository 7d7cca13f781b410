# SPDX-License-Identifier: GPL-2.0-or-later
"""The SQL that finds the pushes of a request, from its parameters.

Pure: the caller resolves names of changesets.

Precedence: startdate over fromchange over startID, enddate over tochange over endID. Without any start, user or changeset the
answer is one page of the newest pushes, and the ends mean nothing. afterID goes with startdate, where an answer was cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from . import dates

# Pushes of a page.
PAGE_SIZE = 10
# The largest number that SQLite holds.
_LARGEST = (1 << 63) - 1


class BadRequest(ValueError):
    """A parameter that cannot be understood; the text is for the user."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of a window: an id, a date or a change; `text` as the user put it."""

    kind: str
    value: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query of a request.

    ``page`` counts from 1 and matters only if `is_paged`, ``after_id`` is where an answer was cut.
    """

    start: Bound | None = None
    after_id: int | None = None
    end: Bound | None = None
    users: tuple[str, ...] = ()
    changesets: tuple[str, ...] = ()
    branch: str = ""
    is_tips_only: bool = False
    is_full: bool = False
    page: int = 1

    @property
    def is_paged(self) -> bool:
        return self.start is None and not self.users and not self.changesets


def parse(parameters: Mapping[str, Sequence[str]], page: str, now: int) -> Query:
    """Return the query of a request; raises `BadRequest`.

    The last value of a parameter counts, except for user and changeset.
    """
    last = {name: values[-1] for name, values in parameters.items() if values}
    users, changesets = tuple(parameters.get("user", ())), tuple(parameters.get("changeset", ()))
    start = _parse_bound(last, "startdate", "fromchange", "startID", now)
    is_paged = start is None and not users and not changesets
    return Query(
        start=start,
        after_id=parse_number("afterID", last["afterID"]) if "afterID" in last else None,
        end=None if is_paged else _parse_bound(last, "enddate", "tochange", "endID", now),
        users=users,
        changesets=changesets,
        branch=last.get("branch", ""),
        is_tips_only=last.get("tipsonly") == "1",
        is_full="full" in last,
        page=_parse_page(page),
    )


def parse_version(parameters: Mapping[str, Sequence[str]]) -> int:
    """Return 1 or 2; raises `BadRequest` for anything else."""
    values = parameters.get("version")
    if not values:
        return 1
    try:
        version = int(values[-1])
    except ValueError:
        raise BadRequest("version parameter must be an integer") from None
    if version not in (1, 2):
        raise BadRequest("version parameter must be 1 or 2")
    return version


def _parse_bound(last: Mapping[str, str], date: str, change: str, number: str, now: int) -> Bound | None:
    if date in last:
        try:
            return Bound(kind="date", value=dates.parse(last[date], now), text=last[date])
        except (ValueError, OverflowError) as error:
            raise BadRequest(f"{date}: {error}") from error
    if change in last:
        return Bound(kind="change", text=last[change])
    if number in last:
        return Bound(kind="id", value=parse_number(number, last[number]), text=last[number])
    return None


def parse_number(name: str, text: str) -> int:
    """Read a number that SQLite can hold; raises `BadRequest`."""
    try:
        if len(text) > 100:
            raise ValueError
        number = int(text)
    except ValueError:
        raise BadRequest(f"{name} parameter must be an integer, got {text[:100]!a}") from None
    return max(-_LARGEST, min(number, _LARGEST))


def _parse_page(text: str) -> int:
    return max(1, min(int(text), 1 << 40)) if text.isascii() and text.isdigit() and len(text) < 20 else 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """A query with every changeset resolved to the id of its push."""

    after_id: int | None = None
    up_to_id: int | None = None
    after_date: int | None = None
    before_date: int | None = None
    users: tuple[str, ...] = ()
    pushes: tuple[int, ...] | None = None
    # The last push id that may be shown.
    limit: int | None = None


def window(query: Query, push_id_of: Callable[[str, str], int], limit: int | None) -> ResolvedQuery:
    """Resolve the changesets of a query to push ids.

    ``push_id_of(parameter, changeset)`` returns the id of its push, 0 if it was never pushed; its exceptions pass.
    """
    start, end = query.start, query.end
    after_id, up_to_id = query.after_id, None
    if start is not None and start.kind != "date":
        after_id = start.value if start.kind == "id" else push_id_of("fromchange", start.text)
    if end is not None and end.kind != "date":
        up_to_id = end.value if end.kind == "id" else push_id_of("tochange", end.text)
    pushes = None
    if query.changesets:
        pushes = tuple(sorted({push_id_of("changeset", name) for name in query.changesets}))
    return ResolvedQuery(
        after_id=after_id,
        up_to_id=up_to_id,
        after_date=start.value if start is not None and start.kind == "date" else None,
        before_date=end.value if end is not None and end.kind == "date" else None,
        users=query.users,
        pushes=pushes,
        limit=limit,
    )


def conditions(window: ResolvedQuery) -> tuple[str, tuple[int | str, ...]]:
    """Return the WHERE clause of a window on `pushlog` alone, and its arguments."""
    clauses: list[str] = []
    arguments: list[int | str] = []

    def add(clause: str, *values: int | str) -> None:
        clauses.append(clause)
        arguments.extend(values)

    for clause, value in (
        ("id > ?", window.after_id),
        ("id <= ?", window.up_to_id),
        ("date > ?", window.after_date),
        ("date < ?", window.before_date),
        ("id <= ?", window.limit),
    ):
        if value is not None:
            add(clause, value)
    if window.users:
        add(f"user IN ({_join_marks(window.users)})", *window.users)
    if window.pushes is not None:
        add(f"id IN ({_join_marks(window.pushes)})", *window.pushes)
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), tuple(arguments)


def select_ids(window: ResolvedQuery) -> tuple[str, tuple[int | str, ...]]:
    """Return SQL for the ids of a window's non-empty pushes, ascending.

    It uses an index of date or user if the window has either.
    """
    where, arguments = conditions(window)
    where += (" AND " if where else " WHERE ") + "EXISTS (SELECT 1 FROM changesets WHERE pushid = pushlog.id)"
    by_other_index = window.users or window.after_date is not None or window.before_date is not None
    return f"SELECT id FROM pushlog{where} ORDER BY {'+id' if by_other_index else 'id'}", arguments


def select_newest_ids(window: ResolvedQuery) -> tuple[str, tuple[int | str, ...]]:
    """Return SQL for the ids of a window, newest first."""
    where, arguments = conditions(window)
    return f"SELECT id FROM pushlog{where} ORDER BY id DESC", arguments


def count(window: ResolvedQuery) -> tuple[str, tuple[int | str, ...]]:
    """Return SQL for the number of pushes in a window."""
    where, arguments = conditions(window)
    return f"SELECT count(*) FROM pushlog{where}", arguments


def _join_marks(values: Sequence[int | str]) -> str:
    return ", ".join("?" * len(values))
