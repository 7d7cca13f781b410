# SPDX-License-Identifier: GPL-2.0-or-later
"""``json-pushes?wait=ID``: a request that waits until push ID is served.

On timeout the server answers with the current state.

A waiting request holds a thread, so it is bounded: in seconds by ``[pushlog] maxwait``, which only files that the server trusts
set, and in number by `MOST`, or by less where a server with few threads says so. A timeout is no error, because load balancers
would take it for a broken server: the answer is the ordinary one, and says where it ends. The repository object of a request shows
the state at its opening, so a request that has waited opens the repository again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import query
from .lookup import Lookup

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext

# Requests of a process that may wait at once.
MOST = 4
# Seconds between two looks at the pushlog.
PAUSE = 0.05
# The member of a request's environment that is set once it has waited.
_WAITED = b"pushlog.waited"
# The member in which a server may say how many of its requests may wait at once.
_WAITERS = b"pushlog.waiters"


_lock = threading.Lock()
# The requests of this process that wait; the lock must be held to change it.
_waiting: set[Lookup] = set()


class PushArrived(Exception):
    """The push came after this request opened the repository."""


def answer_again(orig: Callable[..., Iterable[bytes]], app: Any, request: Any, response: Any) -> Iterator[bytes]:
    """Wrap hgweb's answer to a request: answer again if a push came while it waited.

    The second answer opens the repository again, so it shows that push.
    """
    try:
        yield from orig(app, request, response)
    except PushArrived:
        yield from orig(app, request, response)


def wait_for_push(web: requestcontext, lookup: Lookup) -> None:
    """Wait for the push that a request names; raise `PushArrived` when it has come.

    Returns if the push is shown already, or if waiting for it is over or not possible.
    """
    asked = lookup.parameters.get("wait", [""])[-1]
    if not asked or _WAITED in web.req.rawenv:
        return
    number = query.parse_number("wait", asked)
    end = time.monotonic() + web.configint(b"pushlog", b"maxwait", untrusted=False)
    allowed: Any = web.req.rawenv.get(_WAITERS, MOST)
    if lookup.last_shown() >= number:
        return
    with _lock:
        if len(_waiting) >= min(MOST, allowed):
            return
        _waiting.add(lookup)
    try:
        while lookup.last_served() < number:
            if time.monotonic() >= end:
                return
            time.sleep(PAUSE)
    finally:
        with _lock:
            _waiting.remove(lookup)
    web.req.rawenv[_WAITED] = b"1"
    raise PushArrived
