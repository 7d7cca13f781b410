# SPDX-License-Identifier: GPL-2.0-or-later
"""From a changeset to its push, for templates and pages."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mercurial import encoding, templateutil
from mercurial.localrepo import localrepository
from mercurial.node import hex

from .limit import NamedChangesets
from .store import database
from .store.entry import Push
from .store.storage import Pushlog

if TYPE_CHECKING:
    from mercurial.context import changectx
    from mercurial.templater import engine


def push_of(repo: localrepository, node: bytes | None) -> Push | None:
    """Return the push that brought a changeset, None without one or if unreadable."""
    if node is None:
        return None
    try:
        with Pushlog(repo).view() as connection:
            number = database.push_id_of(connection, hex(node).decode("ascii"))
            return None if number is None else database.push(connection, number)
    except sqlite3.Error as problem:
        repo.ui.warn(b"cannot read the pushlog: %s\n" % str(problem).encode())
        return None


def find_push(context: engine, mapping: dict[bytes, Any]) -> Push | None:
    """Return the push of the changeset being shown, looked up once for all keywords."""
    ctx = context.resource(mapping, b"ctx")
    cache = context.resource(mapping, b"cache")
    key = (b"pushlog", ctx.rev())
    if cache.get(b"pushlog", (None, None))[0] != key:
        cache[b"pushlog"] = (key, push_of(context.resource(mapping, b"repo"), ctx.node()))
    push: Push | None = cache[b"pushlog"][1]
    return push


def find_named(context: engine, mapping: dict[bytes, Any]) -> Push | None:
    """Return the push of the changeset being shown, with what its view names."""
    push = find_push(context, mapping)
    return None if push is None else name_shown(context.resource(mapping, b"repo"), push)


def name_shown(repo: localrepository, push: Push) -> Push:
    """Return a push of which the view shows changesets, with those that it names."""
    return push.with_nodes(filter(NamedChangesets(repo).names, push.nodes))


def local(text: str) -> bytes:
    """Encode text of the pushlog in the encoding that Mercurial shows text in."""
    return encoding.tolocal(text.encode("utf-8", "replace"))


def entry(orig: Any, repo: localrepository, ctx: changectx) -> dict[bytes, Any]:
    """Add the variables of a changeset's push to those of the changeset in hgweb.

    They are pushid, pushuser, pushdate, pushnodes and pushhead; each is looked up when it is shown.
    """

    @functools.cache
    def find() -> Push | None:
        return push_of(repo, ctx.changectx().node() if hasattr(ctx, "changectx") else ctx.node())

    def list_shown(push: Push) -> list[bytes]:
        return [node.encode("ascii") for node in name_shown(repo, push).nodes]

    def show(read_value: Callable[[Push], Any]) -> Any:
        return lambda _context, _mapping: b"" if (push := find()) is None else read_value(push)

    return {
        **orig(repo, ctx),
        b"pushid": show(lambda push: push.id),
        b"pushuser": show(lambda push: local(push.user)),
        b"pushdate": show(lambda push: templateutil.date((push.date, 0))),
        b"pushhead": show(lambda push: list_shown(push)[-1]),
        b"pushnodes": show(lambda push: templateutil.hybridlist(list_shown(push), name=b"node")),
    }
