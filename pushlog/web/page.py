# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of pushes: the values that its templates show, and our templates.

Our templates are for sites whose style has none. A style that defines a template ``pushlog`` gets the same values, and
``entries``: one per changeset, as themes know them. Our own page runs no script and has no inline style, so that it works under
any Content-Security-Policy that allows ``'self'``.
"""

from __future__ import annotations

import copy
import importlib.resources
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import encoding, templateutil
from mercurial.hgweb import common, webutil

from ..limit import Pushed
from ..pushed import local
from ..store.entry import Push
from . import query
from .lookup import FoundPushes, Lookup
from .reply import next_url

if TYPE_CHECKING:
    from mercurial.context import changectx
    from mercurial.hgweb.hgweb_mod_inner import requestcontext
    from mercurial.templater import engine

# Characters of a summary.
SUMMARY_LENGTH = 200
# A push with more changesets shows the rest on demand.
ROLLED_UP_FROM = 20
_FRAGMENTS = (
    b"pushlogbody",
    b"pushlogform",
    b"pushlogpage",
    b"pushlogpagelink",
    b"pushlogpush",
    b"pushlogrow",
    b"pushlogrolled",
    b"rolledrow",
    b"pushlogsummary",
    b"pushlogtag",
    b"alltags",
)
# Styles whose navigation is their own; all others get the page of paper.
_STYLES = (b"gitweb", b"monoblue", b"spartan")
# The link to the graph in a style's navigation: the text before the command, after it, and after the label.
_GRAPH_LINK = re.compile(
    rb'^( *(?:<li>)?<a href="{url\|urlescape})graph(?:/{symrev})?({sessionvars%urlparameter}">)graph(</a>.*\n)', re.M
)
# The same on the page of the graph, which has no link to itself.
_GRAPH_SHOWN = re.compile(rb'^( *)(?:(<li) class="\w+"(>))?graph((?:</li>| \|).*\n)', re.M)


def send(web: requestcontext, lookup: Lookup, found: FoundPushes) -> Iterable[bytes]:
    """Answer with the page, in the style that the request and the site chose.

    Raises ErrorResponse for a style that makes no page, such as `json`.
    """
    if b"pushlog" not in web.tmpl and b"urlparameter" not in web.tmpl:
        reason = b"this style has no page of the pushlog; json-pushes and atom-pushlog have its data"
        raise common.ErrorResponse(common.HTTP_BAD_REQUEST, reason)
    add_templates(web.tmpl)
    return web.sendtemplate(b"pushlog", **values(web, lookup, found))


def read_resource(name: str) -> bytes:
    return (importlib.resources.files(__package__) / "templates" / name).read_bytes()


def add_templates(templates: Any) -> None:
    """Add our templates where the style has none of its own."""
    if b"pushlog" in templates:
        return
    style = templates.defaults.get(b"style")
    style = style if style in _STYLES else b"paper"
    templates.cache[b"pushlog"] = read_resource(f"{style.decode()}.tmpl")
    for name in _FRAGMENTS:
        if name not in templates:
            templates.cache[name] = read_resource(f"{name.decode()}.tmpl").rstrip(b"\n")


def add_link(source: bytes) -> bytes:
    """Let Mercurial's navigation link to our page beside the graph.

    A template that names the pushlog itself, as ours do, is not changed.
    """
    if b"pushlog" in source:
        return source
    link = rb'\1\2\3<a href="{url|urlescape}pushloghtml{sessionvars%urlparameter}">pushlog</a>\4\g<0>'
    return _GRAPH_SHOWN.sub(link, _GRAPH_LINK.sub(rb"\1pushloghtml\2pushlog\3\g<0>", source))


def values(web: requestcontext, lookup: Lookup, found: FoundPushes) -> dict[str, Any]:
    asked = found.query
    pages = _link_pages(web, lookup, found) if asked.is_paged else []
    return {
        "pages": templateutil.mappinglist(pages),
        "changenav": templateutil.mappinglist(pages),
        "pushes": templateutil.mappinggenerator(_show_pushes, args=(web, lookup, found)),
        "entries": templateutil.mappinggenerator(_show_entries, args=(web, lookup, found)),
        "latestentry": templateutil.mappinggenerator(
            lambda *given: itertools.islice(_show_entries(*given), 1), args=(web, lookup, found)
        ),
        "empty": not found.ids,
        "startdate": _read_parameter(lookup, "startdate"),
        "enddate": _read_parameter(lookup, "enddate"),
        "user": _read_parameter(lookup, "user"),
        "changeset": _read_parameter(lookup, "changeset"),
        "branch": _read_parameter(lookup, "branch"),
        "querydescription": local(description(asked)),
        "nexturl": next_url(web, found, b"pushloghtml"),
        "archives": web.archivelist(b"tip"),
        "rev": len(web.repo) - 1,
    }


def _read_parameter(lookup: Lookup, name: str) -> bytes:
    texts = lookup.parameters.get(name)
    return local(texts[-1]) if texts else b""


def description(asked: query.Query) -> str:
    """Describe the question in words, such as `Changes pushed after push ID 3`."""
    pieces = []
    if asked.start is not None:
        kind = {"date": "", "change": "changeset ", "id": "push ID "}[asked.start.kind]
        pieces.append(f"after {kind}{asked.start.text}")
    if asked.end is not None:
        before = {"date": "before ", "change": "up to and including changeset ", "id": "up to and including push ID "}
        pieces.append(f"{before[asked.end.kind]}{asked.end.text}")
    if asked.users:
        pieces.append(f"by user {' or '.join(asked.users)}")
    if asked.changesets:
        pieces.append(f"with changeset {' and '.join(asked.changesets)}")
    if asked.branch:
        pieces.append(f"on branch {asked.branch}")
    return "Changes pushed " + ", ".join(pieces) if pieces else ""


def _link_pages(web: requestcontext, lookup: Lookup, found: FoundPushes) -> list[dict[bytes, Any]]:
    """Return links to other pages, which keep what this one asks for.

    To count the pushes of a branch would take too long, so its links are those to the first, previous and next pages.
    """
    page = found.query.page
    if found.query.branch:
        links = _label_pages(page, page + lookup.has_older(found), [page])
        links = [(label, number) for label, number in links if label != b"Last"]
    else:
        last = max(1, -(-lookup.count(found) // query.PAGE_SIZE))
        links = _label_pages(page, last, range(max(1, page - 4), min(last, page + 4) + 1))
    kept = copy.copy(web.tmpl.defaults[b"sessionvars"])
    for name in ("branch", "tipsonly"):
        if name in lookup.parameters:
            kept[name.encode()] = lookup.parameters[name][-1].encode()
    return [
        {b"label": label, b"page": number, b"here": number == page, b"sessionvars": kept} for label, number in links
    ]


def _label_pages(page: int, last: int, around: Iterable[int]) -> list[tuple[bytes, int]]:
    """Return labels and numbers of the first, previous, nearby, next and last pages."""
    if last == 1:
        return []
    links = [(b"First", 1), (b"Prev", page - 1)] if page > 1 else []
    links += [(b"%d" % number, number) for number in around]
    return links + ([(b"Next", page + 1), (b"Last", last)] if page < last else [])


def _show_pushes(
    context: engine, web: requestcontext, lookup: Lookup, found: FoundPushes
) -> Iterator[dict[bytes, Any]]:
    pushes = (each for each in _list_pushes(lookup, found) if each[1])
    for place, (push, shown, is_merge) in enumerate(pushes, 1):
        common = _make_push_values(push, place)
        rows = shown[:1] if is_merge else shown[:ROLLED_UP_FROM]
        rolled = shown[len(rows) :]
        common[b"span"] = len(rows) + bool(rolled)
        yield {
            **common,
            b"rows": templateutil.mappinggenerator(_show_rows, args=(web, rows, common)),
            b"rolled": templateutil.mappinggenerator(_show_rows, args=(web, rolled, common)) if rolled else b"",
            b"count": len(rolled),
            b"ismerge": is_merge,
        }


def _list_pushes(lookup: Lookup, found: FoundPushes) -> Iterator[tuple[Push, list[Pushed], bool]]:
    """Yield each push, its visible changesets, and whether it is a merge.

    The newest push and the newest changeset come first.
    """
    for push in lookup.pushes(reversed(found.ids)):
        shown = lookup.answers.visible(push, found.query)
        yield push, shown, len(shown) > 1 and lookup.answers.context(shown[0]).p2().rev() >= 0


def _make_push_values(push: Push, place: int) -> dict[bytes, Any]:
    return {
        b"id": push.id,
        b"before": push.id - 1,
        b"parity": place % 2,
        b"push": templateutil.mappingdict(
            {b"user": local(push.user[:SUMMARY_LENGTH]), b"date": templateutil.date((push.date, 0))}
        ),
    }


def _show_rows(
    context: engine, web: requestcontext, changesets: list[Pushed], common: dict[bytes, Any]
) -> Iterator[dict[bytes, Any]]:
    for number, changeset in enumerate(changesets):
        ctx = web.repo[changeset.revision]
        yield {**webutil.commonentry(web.repo, ctx), **common, b"isfirst": number == 0, b"summary": summary(ctx)}


def summary(ctx: changectx) -> bytes:
    """Return the first line of a description, shortened for a page."""
    lines = ctx.description().strip().splitlines()
    line = encoding.fromlocal(lines[0]).decode("utf-8", "replace") if lines else "(no description)"
    return local(line if len(line) <= SUMMARY_LENGTH else line[: SUMMARY_LENGTH - 1] + "…")


def _show_entries(
    context: engine, web: requestcontext, lookup: Lookup, found: FoundPushes
) -> Iterator[dict[bytes, Any]]:
    """Yield an entry per changeset, for themes.

    ``push`` is only in the first entry of a push. Of a merge, the first entry has ``mergerollup`` and the others have ``hidden``.
    """
    for place, (push, shown, is_merge) in enumerate(_list_pushes(lookup, found)):
        for number, changeset in enumerate(shown):
            values = {
                **webutil.changelistentry(web, web.repo[changeset.revision]),
                **_make_push_values(push, place),
                b"hidden": b"hidden" if is_merge and number else b"",
                b"mergerollup": templateutil.mappinglist(
                    [{b"count": len(shown) - 1}] if is_merge and not number else []
                ),
            }
            if number:
                values[b"push"] = templateutil.mappinglist([])
            yield values
