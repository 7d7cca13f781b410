# SPDX-License-Identifier: GPL-2.0-or-later
"""The revsets about pushes.

They select from the repository's view. Over a small set their cost grows with that set. Over a large one ``pushhead()`` is lazy,
because it has a member in every push: its cost grows with the members taken. The others find their few members by an index.
"""

from __future__ import annotations

import functools
import inspect
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import error, revset, revsetlang, smartset
from mercurial.i18n import _
from mercurial.localrepo import localrepository
from mercurial.node import hex
from mercurial.utils import dateutil

from . import versions
from .pushed import local
from .store import database
from .store.entry import Push
from .store.storage import Pushlog

if TYPE_CHECKING:
    from mercurial.revsetlang import _Tree as ParsedRevset
    from mercurial.smartset import abstractsmartset

# Up to this many revisions are checked one by one.
_SMALL = 2000
# Neighbouring revisions that a lazy set checks at once.
_BLOCK = 64


def pushhead(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Select the members of `pushhead()`."""
    revsetlang.getargs(x, 0, 0, _(b"pushhead takes no arguments"))

    def find_nodes(connection: sqlite3.Connection) -> Iterator[str]:
        pushes = database.pushes(connection, 0, database.last_id(connection))
        return (push.nodes[-1] for push in pushes if push.nodes)

    return _select_matching(repo, subset, lambda push, node: push.nodes[-1] == node, find_nodes, is_lazy=True)


def pushdate(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Select the members of `pushdate(interval)`."""
    (interval,) = revsetlang.getargs(x, 1, 1, _(b"pushdate requires one argument"))
    text = revsetlang.getstring(interval, _(b"pushdate requires a string argument"))
    try:
        matches = dateutil.matchdate(text)
    except OverflowError:
        raise error.ParseError(_(b"pushdate: a number of days is too large")) from None
    earliest, latest = (max(-database.LARGEST, min(end, database.LARGEST)) for end in _find_bounds(matches))
    return _select_matching(
        repo,
        subset,
        lambda push, _node: matches(push.date),
        lambda connection: database.nodes_pushed_between(connection, earliest, latest, matches),
    )


def pushuser(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Select the members of `pushuser(string)`."""
    (string,) = revsetlang.getargs(x, 1, 1, _(b"pushuser requires one argument"))
    pattern = revsetlang.getstring(string, _(b"pushuser requires a string argument"))
    matches = versions.substring_matcher(pattern)
    return _select_matching(
        repo,
        subset,
        lambda push, _node: matches(local(push.user)),
        lambda connection: database.nodes_pushed_by(
            connection, [user for user in database.users(connection) if matches(local(database.text(user)))]
        ),
    )


def pushid(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Select the members of `pushid(number)`."""
    (number,) = revsetlang.getargs(x, 1, 1, _(b"pushid requires one argument"))
    wanted = revsetlang.getinteger(number, _(b"pushid expects a number"))
    is_possible = abs(wanted) <= database.LARGEST  # for any other, the sqlite3 module raises OverflowError
    return _select_nodes(
        Pushlog(repo), subset, lambda connection: database.nodes(connection, wanted) if is_possible else ()
    )


def pushrev(repo: localrepository, subset: abstractsmartset, x: ParsedRevset) -> Any:
    """Select the members of `pushrev(set)`."""
    revisions = revset.getset(repo, smartset.fullreposet(repo), x)
    log = Pushlog(repo)
    to_node = log.repo.changelog.node

    def find_nodes(connection: sqlite3.Connection) -> Iterator[str]:
        pushes: set[int] = set()
        for revision in revisions:
            number = database.push_id_of(connection, hex(to_node(revision)).decode("ascii"))
            if number is not None and number not in pushes:
                pushes.add(number)
                yield from database.nodes(connection, number)

    return _select_nodes(log, subset, find_nodes)


def _select_nodes(
    log: Pushlog, subset: abstractsmartset, find_nodes: Callable[[sqlite3.Connection], Iterable[str]]
) -> Any:
    """Return the revisions of the nodes found that are in ``subset``, in its order."""
    return subset & smartset.baseset(versions.drop_hidden(subset, _find_revisions(log, find_nodes)))


def _find_revisions(log: Pushlog, find_nodes: Callable[[sqlite3.Connection], Iterable[str]]) -> set[int]:
    with log.reading() as connection:
        revisions = map(log.revision_of, find_nodes(connection))
        return {revision for revision in revisions if revision is not None}


def _select_matching(
    repo: localrepository,
    subset: abstractsmartset,
    matches: Callable[[Push, str], bool],
    find_nodes: Callable[[sqlite3.Connection], Iterable[str]],
    *,
    is_lazy: bool = False,
) -> Any:
    """Return the members of ``subset`` whose push ``matches``.

    Few revisions are checked one by one; for many, ``find_nodes`` finds all that match. With ``is_lazy`` they are found only
    once many are asked for.
    """
    log = Pushlog(repo)
    few = [revision for _place, revision in zip(range(_SMALL + 1), subset, strict=False)]
    if len(few) <= _SMALL:
        return _select_nodes(log, subset, lambda connection: _choose_nodes(log, connection, few, matches))
    if is_lazy:
        return subset.filter(_filter_lazily(log, matches, find_nodes), condrepr=b"pushlog", cache=False)
    return _select_nodes(log, subset, find_nodes)


def _filter_lazily(
    log: Pushlog, matches: Callable[[Push, str], bool], find_nodes: Callable[[sqlite3.Connection], Iterable[str]]
) -> Callable[[int], bool]:
    """Return a function that tells whether the push of a revision matches.

    It reads the pushes block by block; once many blocks were asked for, it finds all matching revisions at once.
    """

    @functools.cache
    def find_block(number: int) -> set[int]:
        block = range(number * _BLOCK, (number + 1) * _BLOCK)
        return _find_revisions(log, lambda connection: _choose_nodes(log, connection, block, matches))

    @functools.cache
    def find_all() -> set[int]:
        return _find_revisions(log, find_nodes)

    few: set[int] = set()

    def is_match(revision: int) -> bool:
        number = revision // _BLOCK
        if number not in few and len(few) < _SMALL // _BLOCK:
            few.add(number)
        return revision in (find_block(number) if number in few else find_all())

    return is_match


def _choose_nodes(
    log: Pushlog, connection: sqlite3.Connection, revisions: Iterable[int], matches: Callable[[Push, str], bool]
) -> Iterator[str]:
    """Yield the changesets among ``revisions`` whose push ``matches``."""
    to_node, length = log.repo.changelog.node, len(log.repo.changelog)
    read_push = functools.cache(functools.partial(database.push, connection))
    for revision in revisions:
        if not 0 <= revision < length:
            continue
        node = hex(to_node(revision)).decode("ascii")
        number = database.push_id_of(connection, node)
        push = None if number is None else read_push(number)
        if push is not None and matches(push, node):
            yield node


def _find_bounds(matches: Callable[[float], bool]) -> tuple[int, int]:
    """Return an interval outside of which ``matches`` is false, to narrow the search."""
    known = inspect.getclosurevars(matches).nonlocals
    if "start" in known and "stop" in known:
        return int(known["start"]), int(known["stop"])
    when = int(known.get("when", 0))
    if "when" in known and not matches(when - 1):
        return when, database.LARGEST
    if "when" in known and not matches(when + 1):
        return -database.LARGEST, when
    return -database.LARGEST, database.LARGEST
