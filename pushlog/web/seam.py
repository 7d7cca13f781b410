# SPDX-License-Identifier: GPL-2.0-or-later
"""The hook by which hgweb loads the pushlog.

A process that serves web pages loads the modules for them; a push or ``hg log`` does not pay for that (20 ms). `hg serve --stdio`
does not even load this one. Every web application keeps its repositories in a `hg.cachedlocalrepo`, made before the first request:
that is when `web` is loaded.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

import hgdemandimport
from mercurial import hg

from .. import limit, seams, versions
from ..store.journal import JOURNAL
from ..store.storage import DATABASE, FILE, NOTE

_loading = threading.Lock()
_is_loaded = False


def register() -> None:
    """Wrap the functions that every web application calls; once per process."""
    seams.wrap("mercurial.hg", "cachedlocalrepo._repostate", repository_state)
    seams.wrap("mercurial.util", "urlreq.parseqsl", parse_query)


def load_web() -> None:
    """Add our commands to hgweb, and load the other modules of a request.

    Only the first call does so. Any thread may call it.
    """
    global _is_loaded
    with _loading:
        if not _is_loaded:
            from .. import pushed, revsets, wire  # noqa: F401
            from . import commands

            commands.register()
            seams.finish_imports()
            # Not safe in two threads at once: what a function loads from here on is loaded whole.
            hgdemandimport.disable()
            _is_loaded = True


def parse_query(orig: Any, query: bytes, *arguments: Any, **options: Any) -> list[tuple[bytes, bytes]]:
    """Wrap the parser of query strings, which fails at an escaped byte above 127.

    It fails where Python decodes strictly. A client may ask for a list of repositories before any repository.
    """
    if versions.is_loaded("mercurial.hgweb.hgwebdir_mod_inner"):
        load_web()
    try:
        parsed: list[tuple[bytes, bytes]] = orig(query, *arguments, **options)
        return parsed
    except UnicodeError:
        from urllib.parse import unquote_to_bytes

        pairs = [pair.partition(b"=") for pair in query.replace(b"+", b" ").split(b"&") if pair]
        return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _equals, value in pairs]


def repository_state(orig: Any, cached: Any) -> tuple[tuple[Any, ...], int]:
    """Wrap the state by which hgweb notices a change, and its entity tags' source.

    Other processes write the pushlog, and Mercurial's whole seconds hide a second write. So the state has the pushlog's files and
    every detail that the file system knows. While there is a journal, pages do not show the newest records of these files.
    """
    load_web()
    state, _mtime = orig(cached)
    repo = cached._repo
    places = [os.path.join(getattr(repo, os.fsdecode(folder)), name) for folder, name in hg.foi]
    places += [
        os.path.join(repo.sharedpath, DATABASE),
        repo.sjoin(FILE),
        repo.sjoin(NOTE),
        repo.vfs.join(limit.REPLICATED_DATA),
    ]
    state += (*map(_read_details, places), repo.svfs.exists(JOURNAL))
    digest = hashlib.blake2s(repr(state).encode("ascii"), digest_size=8).digest()
    return state, int.from_bytes(digest, "big")


def _read_details(place: bytes) -> tuple[int, int, int] | None:
    try:
        status = os.stat(place)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
