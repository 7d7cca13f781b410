# SPDX-License-Identifier: GPL-2.0-or-later
"""The common parts of all answers: streaming, entity tags, link to the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mercurial import util

from .lookup import FoundPushes, Lookup

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext

_STARTS = ("startdate", "fromchange", "startID", "afterID")


def send(web: requestcontext, body: Iterator[bytes]) -> Iterable[bytes]:
    """Stream ``body`` in pieces of about 32 KiB."""
    if web.req.method != b"HEAD":
        web.res.setbodygen(util.increasingchunks(body, min=32 * 1024, max=32 * 1024))
    return web.res.sendresponse()


def find_pushes(web: requestcontext, lookup: Lookup, command: bytes) -> FoundPushes:
    """Find the pushes of a request, and correct the headers of its answer.

    If the answer is cut short, a header has the URL of the rest. An answer by dates has no entity tag, because it also depends on
    the time of the request.
    """
    found = lookup.find()
    if {"startdate", "enddate"} & lookup.parameters.keys():
        del web.res.headers[b"ETag"]
    if url := next_url(web, found, command):
        web.res.headers[b"Link"] = b'<%s>; rel="next"' % url
    return found


def address(web: requestcontext) -> bytes:
    """Return the repository's URL, quoted and ending in a slash.

    Behind a proxy this server knows its own name and port alone, unless `web.baseurl` names the proxy.
    """
    host = util.urlreq.quote(web.req.advertisedbaseurl, safe=b":/[]")
    return host + _read_path(web)


def _read_path(web: requestcontext) -> bytes:
    """Return the path of the URL; it begins with one slash, as two mean a host."""
    path: bytes = util.urlreq.quote(web.req.apppath).strip(b"/")
    return b"/%s/" % path if path else b"/"


def next_url(web: requestcontext, found: FoundPushes, command: bytes) -> bytes:
    """Return this request's URL for the pushes after `next_id`, empty without one.

    It has no host, so it leads to the host that the client asked.
    A window that starts at a date keeps that date, because dates need not grow with the ids.
    """
    if found.next_id is None:
        return b""
    parameters = [
        (name, value)
        for name, values in web.req.qsparams.asdictoflists().items()
        for value in values
        if name.decode("latin-1") not in (*_STARTS, "wait", "node", "cmd", "style")
    ]
    start = found.query.start
    if start is not None and start.kind == "date":
        parameters += [(b"startdate", b"%d" % start.value), (b"afterID", b"%d" % found.next_id)]
    else:
        parameters.append((b"startID", b"%d" % found.next_id))
    words = b"&".join(b"%s=%s" % (util.urlreq.quote(n), util.urlreq.quote(v)) for n, v in parameters)
    return b"%s%s?%s" % (_read_path(web), command, words)
