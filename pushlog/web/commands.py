# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog's commands in hgweb.

They are ``json-pushes``, ``pushlog`` (Atom), ``pushloghtml`` and its style sheet.
"""

from __future__ import annotations

import bisect
import heapq
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial.hgweb import webcommands

from .. import pushed, seams
from . import bounds, children, escaping, feed, page, policy, waiting
from .lookup import FoundPushes, Lookup
from .query import Query
from .reply import find_pushes, send

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext

# Commands whose answer is no page in any style.
_NO_PAGES = (b"archive", b"pushes", b"pushlog", b"pushlogstyle", b"rawfile", b"static")
# Pushes, or their changesets, whose short form is made at once.
_BATCH = 2000


def register() -> None:
    """Add the commands to hgweb; called once per process."""
    for command in (pushes, pushlog, pushloghtml, pushlogstyle):
        setattr(webcommands, command.__name__, command)
        webcommands.webcommand(command.__name__.encode("ascii"))(command)
    seams.check("mercurial.templater", "loader._parse")
    escaping.register()
    bounds.register()
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "cspvalues", policy.values)
    seams.wrap("mercurial.hgweb.hgwebdir_mod_inner", "cspvalues", policy.values)
    seams.wrap("mercurial.hgweb.request", "wsgiresponse.sendresponse", policy.send)
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "requestcontext.templater", templater)
    seams.wrap("mercurial.hgweb.hgweb_mod_inner", "hgweb.run_wsgi", waiting.answer_again)
    seams.wrap("mercurial.hgweb.hgwebdir_mod_inner", "hgwebdir.templater", index_templater)
    seams.wrap("mercurial.hgweb.webutil", "commonentry", pushed.entry)
    seams.wrap("mercurial.hgweb.webutil", "children", children.children)


_JSON_MEMBERS = b""",
  "pushid": {pushid|json},
  "pushdate": {pushdate|json},
  "pushuser": {pushuser|utf8|json}
  }"""


def index_templater(orig: Any, index: Any, *arguments: Any) -> Any:
    """Wrap the choice of templates for a list of repositories."""
    templates = orig(index, *arguments)
    escaping.guard(templates)
    return templates


def templater(orig: Any, web: requestcontext, req: Any) -> Any:
    """Wrap the choice of templates.

    The templates escape their values; HTML templates link to the pushlog, and JSON templates name the push. Templates of the site
    that name the push themselves stay as they are. A nonce is for pages that have scripts: with one, hgweb gives no entity tag.
    """
    templates = orig(web, req)
    is_html = escaping.guard(templates, page.add_link)
    if not is_html or req.qsparams.get(b"cmd") in _NO_PAGES:
        web.nonce = None
    if templates.defaults.get(b"style") == b"json":
        for name in (b"changeset", b"changelistentry"):
            source = templates.cache.get(name)
            if source is not None and b"pushid" not in source and source.rstrip().endswith(b"}"):
                templates.cache[name] = source.rstrip()[:-1].rstrip() + _JSON_MEMBERS
    return templates


def pushes(web: requestcontext) -> Iterable[bytes]:
    """
    /json-pushes[/{page}]
    ---------------------

    Pushes as JSON: the newest ten, or those between ``startID``, ``fromchange`` or ``startdate`` and ``endID``, ``tochange`` or
    ``enddate``, by ``user``, with ``changeset``, on ``branch``. ``full``, ``tipsonly=1`` and ``version=2`` choose the form.
    ``wait=ID`` answers once that push is served, or after a few seconds.
    """
    lookup = Lookup(web)
    waiting.wait_for_push(web, lookup)
    found = find_pushes(web, lookup, b"json-pushes")
    web.res.headers[b"Content-Type"] = b"application/json"
    return send(web, _stream_json(lookup, found))


def _stream_json(lookup: Lookup, found: FoundPushes) -> Iterator[bytes]:
    yield (f'{{\n"lastpushid": {found.last_push_id},\n"pushes": {{' if lookup.version == 2 else "{").encode("ascii")
    # Characters that the first member lacks.
    separators = 2
    ids = _sort_as_text(found.ids)
    for members in _list_members(lookup, ids, found.query):
        yield members[separators:].encode("ascii")
        separators = 0
    yield b"}\n}" if lookup.version == 2 else b"}"


def _list_members(lookup: Lookup, ids: Iterator[int], query: Query) -> Iterator[str]:
    """Yield the members of the object of pushes, a comma in front of each push.

    Small pushes in the short form are made many at once, which is fast; others in pieces, which need little memory.
    """
    answers = lookup.answers
    for pushes in ([push] for push in lookup.pushes(ids)) if query.is_full else lookup.batches(ids, _BATCH):
        if not query.is_full and all(len(push.nodes) <= _BATCH for push in pushes):
            if members := answers.json_members(pushes, query):
                yield members
            continue
        for push in pushes:
            for number, piece in enumerate(answers.json_pieces(push, query)):
                yield piece if number else f', "{push.id}": {piece}'


def _sort_as_text(ids: array[int]) -> Iterator[int]:
    """Yield these ascending ids in the order of their texts ("10" before "9").

    It makes no second copy of them all. Ids of equally many digits are in that order already.
    """
    first = bisect.bisect_left(ids, 0)
    runs: list[Iterable[int]] = [sorted(ids[:first], key=str)]
    while first < len(ids):
        end = bisect.bisect_left(ids, 10 ** len(str(ids[first])), first)
        runs.append(map(ids.__getitem__, range(first, end)))
        first = end
    return heapq.merge(*runs, key=str)


def pushlog(web: requestcontext) -> Iterable[bytes]:
    """
    /pushlog[/{page}]
    -----------------

    Pushes as an Atom feed, one entry per changeset; the parameters of ``json-pushes`` apply.
    """
    lookup = Lookup(web)
    found = find_pushes(web, lookup, b"pushlog")
    web.res.headers[b"Content-Type"] = b"application/atom+xml"
    return send(web, feed.atom(web, lookup, found))


def pushloghtml(web: requestcontext) -> Iterable[bytes]:
    """
    /pushloghtml[/{page}]
    ---------------------

    Pushes as a page to read and search; the parameters of ``json-pushes`` apply.
    """
    lookup = Lookup(web, is_form=True)
    found = find_pushes(web, lookup, b"pushloghtml")
    return page.send(web, lookup, found)


def pushlogstyle(web: requestcontext) -> Iterable[bytes]:
    """
    /pushlogstyle
    -------------

    The style sheet of ``pushloghtml``.
    """
    web.res.headers[b"Content-Type"] = b"text/css; charset=UTF-8"
    return send(web, iter([page.read_resource("pushlog.css")]))
