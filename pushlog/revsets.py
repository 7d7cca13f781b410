# SPDX-License-Identifier: GPL-2.0-or-later
"""Revsets about pushes. They show what the repository's view shows; over a small set their cost follows that set."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mercurial import error, registrar, revset, revset_predicates, revsetlang, smartset
from mercurial.i18n import _
from mercurial.node import hex
from mercurial.utils import dateutil

from . import database
from .entry import Push
from .pushed import local
from .storage import Pushlog

predicate = registrar.revsetpredicate()
_SMALL = 2000  # up to this many revisions are asked one by one


@predicate(b"pushhead()", safe=True, weight=10)
def pushhead(repo: Any, subset: Any, x: Any) -> Any:
    """The last changeset of every push."""
    revsetlang.getargs(x, 0, 0, _(b"pushhead takes no arguments"))
    log = Pushlog(repo)
    return _matching(
        log,
        subset,
        lambda push, node: push.nodes[-1] == node,
        lambda connection: (push.nodes[-1] for push in _all_pushes(connection) if push.nodes),
    )


@predicate(b"pushdate(interval)", safe=True, weight=10)
def pushdate(repo: Any, subset: Any, x: Any) -> Any:
    """Changesets that were pushed within the interval, see :hg:`help dates`."""
    (interval,) = revsetlang.getargs(x, 1, 1, _(b"pushdate requires one argument"))
    matches = dateutil.matchdate(revsetlang.getstring(interval, _(b"pushdate requires a string argument")))
    earliest, latest = _bounds(matches)
    log = Pushlog(repo)
    return _matching(
        log,
        subset,
        lambda push, _node: matches(push.date),
        lambda connection: database.nodes_pushed_between(connection, earliest, latest, matches),
    )


@predicate(b"pushuser(string)", safe=True, weight=10)
def pushuser(repo: Any, subset: Any, x: Any) -> Any:
    """Changesets that were pushed by users whose name contains the string, whatever its case; ``re:`` and ``literal:`` work."""
    (string,) = revsetlang.getargs(x, 1, 1, _(b"pushuser requires one argument"))
    pattern = revsetlang.getstring(string, _(b"pushuser requires a string argument"))
    _kind, _pattern, matches = revset_predicates._substringmatcher(pattern, casesensitive=False)
    log = Pushlog(repo)
    return _matching(
        log,
        subset,
        lambda push, _node: matches(local(push.user)),
        lambda connection: database.nodes_pushed_by(
            connection, [user for user in database.users(connection) if matches(local(database.text(user)))]
        ),
    )


@predicate(b"pushid(number)", safe=True, weight=10)
def pushid(repo: Any, subset: Any, x: Any) -> Any:
    """The changesets of the push with this number; none for an unknown number."""
    (number,) = revsetlang.getargs(x, 1, 1, _(b"pushid requires one argument"))
    wanted = revsetlang.getinteger(number, _(b"pushid expects a number"))
    log = Pushlog(repo)
    return _shown(log, subset, lambda connection: database.nodes(connection, wanted))


@predicate(b"pushrev(set)", safe=True, weight=10)
def pushrev(repo: Any, subset: Any, x: Any) -> Any:
    """All changesets of the pushes that brought those of the set."""
    revisions = revset.getset(repo, smartset.fullreposet(repo), x)
    log = Pushlog(repo)
    to_node = log.repo.changelog.node

    def nodes(connection: sqlite3.Connection) -> Iterator[str]:
        pushes: set[int | None] = {None}
        for revision in revisions:
            number = database.push_id_of(connection, hex(to_node(revision)).decode("ascii"))
            if number not in pushes:
                pushes.add(number)
                yield from database.nodes(connection, number)

    return _shown(log, subset, nodes)


def _shown(log: Pushlog, subset: Any, nodes: Callable[[sqlite3.Connection], Iterable[str]]) -> Any:
    """The revisions of ``nodes`` that are in ``subset``, in its order."""
    try:
        with log.view() as connection:
            revisions = {log.revision_of(node) for node in nodes(connection)} - {None}
    except sqlite3.Error as problem:
        raise error.Abort(b"cannot read the pushlog: %s" % str(problem).encode()) from problem
    return subset & smartset.baseset(revisions)


def _matching(
    log: Pushlog,
    subset: Any,
    matches: Callable[[Push, str], bool],
    nodes: Callable[[sqlite3.Connection], Iterable[str]],
) -> Any:
    """Those of ``subset`` whose push ``matches``: asked one by one if they are few, else all ``nodes`` that match are found."""
    few = [revision for _place, revision in zip(range(_SMALL + 1), subset, strict=False)]
    if len(few) > _SMALL:
        return _shown(log, subset, nodes)
    to_node = log.repo.changelog.node

    def chosen(connection: sqlite3.Connection) -> Iterator[str]:
        pushes: dict[int, Push | None] = {}
        for revision in few:
            node = hex(to_node(revision)).decode("ascii")
            number = database.push_id_of(connection, node)
            if number is not None and number not in pushes:
                pushes[number] = database.push(connection, number)
            push = None if number is None else pushes[number]
            if push is not None and matches(push, node):
                yield node

    return _shown(log, subset, chosen)


def _all_pushes(connection: sqlite3.Connection) -> Iterator[Push]:
    return database.pushes(connection, 0, database.last_id(connection))


def _bounds(matches: Callable[[float], bool]) -> tuple[int, int]:
    """An interval outside of which ``matches`` is false: it narrows the search, ``matches`` decides."""
    known = inspect.getclosurevars(matches).nonlocals
    if "start" in known and "stop" in known:
        return int(known["start"]), int(known["stop"])
    when = int(known.get("when", 0))
    if "when" in known and not matches(when - 1):
        return when, database.LARGEST
    if "when" in known and not matches(when + 1):
        return -database.LARGEST, when
    return -database.LARGEST, database.LARGEST
