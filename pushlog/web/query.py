# SPDX-License-Identifier: GPL-2.0-or-later
"""The SQL that finds the pushes of a request, from its parameters.

Pure: the caller resolves names of changesets.

Precedence: startdate over fromchange over startID, enddate over tochange over endID. Without any start, user or changeset the
answer is one page of the newest pushes, and the ends mean nothing. afterID goes with startdate, where an answer was cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from mercurial.hgweb import common

from ..store.database import LARGEST
from . import dates

# Pushes of a page.
PAGE_SIZE = 10
# The conditions in SQL that a push must meet, each with its values.
PushWindow = list[tuple[str, Sequence[int | str]]]


class BadRequest(common.ErrorResponse):
    """A parameter that cannot be understood; the text is for the user."""

    def __init__(self, text: str) -> None:
        super().__init__(common.HTTP_BAD_REQUEST, text.encode())


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


def parse(parameters: Mapping[str, Sequence[str]], now: int) -> Query:
    """Return the query of a request; raises `BadRequest`.

    The last value of a parameter counts, except for user and changeset.
    """
    last = {name: values[-1] for name, values in parameters.items() if values}
    query = Query(
        start=_parse_bound(last, "startdate", "fromchange", "startID", now),
        after_id=parse_number("afterID", last["afterID"]) if "afterID" in last else None,
        users=tuple(parameters.get("user", ())),
        changesets=tuple(parameters.get("changeset", ())),
        branch=last.get("branch", ""),
        is_tips_only=last.get("tipsonly") == "1",
        is_full="full" in last,
        page=_parse_page(last.get("node", "1")),
    )
    end = None if query.is_paged else _parse_bound(last, "enddate", "tochange", "endID", now)
    return dataclasses.replace(query, end=end)


def parse_version(parameters: Mapping[str, Sequence[str]]) -> int:
    """Return 1 or 2; raises `ErrorResponse` for anything else."""
    values = parameters.get("version")
    if not values:
        return 1
    try:
        version = int(values[-1])
    except ValueError:
        raise common.ErrorResponse(common.HTTP_SERVER_ERROR, b"version parameter must be an integer") from None
    if version not in (1, 2):
        raise common.ErrorResponse(common.HTTP_SERVER_ERROR, b"version parameter must be 1 or 2")
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
    return max(-LARGEST, min(number, LARGEST))


def _parse_page(text: str) -> int:
    return max(1, min(int(text), 1 << 40)) if text.isascii() and text.isdigit() and len(text) < 20 else 1


def window(query: Query, push_id_of: Callable[[str, str], int], limit: int | None) -> PushWindow:
    """Return the conditions of a query, its changesets resolved to push ids.

    ``push_id_of(parameter, changeset)`` returns the id of a changeset's push, or 0 if it was never pushed; its exceptions are not
    caught. ``limit`` is the last push id that may be shown.
    """
    start, end = query.start, query.end
    window: PushWindow = []
    if start is not None and start.kind != "date":
        window.append(("id > ?", [start.value if start.kind == "id" else push_id_of("fromchange", start.text)]))
    elif query.after_id is not None:
        window.append(("id > ?", [query.after_id]))
    if end is not None and end.kind != "date":
        window.append(("id <= ?", [end.value if end.kind == "id" else push_id_of("tochange", end.text)]))
    if start is not None and start.kind == "date":
        window.append(("date > ?", [start.value]))
    if end is not None and end.kind == "date":
        window.append(("date < ?", [end.value]))
    if limit is not None:
        window.append(("id <= ?", [limit]))
    if query.users:
        window.append((f"user IN ({_join_marks(query.users)})", query.users))
    if query.changesets:
        pushes = sorted({push_id_of("changeset", name) for name in query.changesets})
        window.append((f"id IN ({_join_marks(pushes)})", pushes))
    return window


def select_ids(window: PushWindow) -> tuple[str, list[int | str]]:
    """Return SQL for the ids of a window's non-empty pushes, ascending.

    It uses an index of date or user if the window has either.
    """
    by_other_index = any(condition.startswith(("date", "user")) for condition, _values in window)
    where, values = _join_conditions([*window, ("EXISTS (SELECT 1 FROM changesets WHERE pushid = pushlog.id)", ())])
    return f"SELECT id FROM pushlog{where} ORDER BY {'+id' if by_other_index else 'id'}", values


def select_newest_ids(window: PushWindow) -> tuple[str, list[int | str]]:
    """Return SQL for the ids of a window, newest first."""
    where, values = _join_conditions(window)
    return f"SELECT id FROM pushlog{where} ORDER BY id DESC", values


def count(window: PushWindow) -> tuple[str, list[int | str]]:
    """Return SQL for the number of pushes in a window."""
    where, values = _join_conditions(window)
    return f"SELECT count(*) FROM pushlog{where}", values


def _join_conditions(window: PushWindow) -> tuple[str, list[int | str]]:
    """Return the WHERE clause of a window on `pushlog` alone, and its values."""
    where = " AND ".join(condition for condition, _values in window)
    return f" WHERE {where}" if where else "", [value for _condition, values in window for value in values]


def _join_marks(values: Sequence[int | str]) -> str:
    return ", ".join("?" * len(values))
