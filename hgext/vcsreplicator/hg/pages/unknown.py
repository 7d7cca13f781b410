# SPDX-License-Identifier: GPL-2.0-or-later
"""A hidden changeset is answered in the words for an unknown one.

Mercurial's own name the view, so they would answer whether there is such a changeset. Users of this machine, who have other views,
read Mercurial's.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any

from mercurial import error, wireprototypes
from mercurial.localrepo import localrepository
from mercurial.node import bin, hex

_NODE = re.compile(rb"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")


def is_of_clients(repo: localrepository) -> bool:
    """Return whether this is a view in which clients see a repository."""
    view = repo.filtername
    return view is not None and not view.startswith(b"visible")


def name_as_unknown(orig: Callable[..., Exception], repo: localrepository, changeid: bytes) -> Exception:
    """Answer for a hidden changeset as for an unknown one."""
    if is_of_clients(repo):
        return error.RepoLookupError(b"unknown revision '%s'" % changeid)
    return orig(repo, changeid)


def resolve_prefix(orig: Callable[..., bytes | None], repo: localrepository, prefix: bytes) -> bytes | None:
    """Find a changeset by its first digits among those that the view shows alone."""
    try:
        return orig(repo, prefix)
    except error.AmbiguousPrefixLookupError:
        if not is_of_clients(repo) or not repo.changelog.filteredrevs:
            raise
        digits = prefix.removeprefix(b"x")
        shown = map(repo.unfiltered().changelog.node, repo.changelog)
        found = list(itertools.islice((node for node in shown if hex(node).startswith(digits)), 2))
        if len(found) > 1:
            raise
    return found[0] if found else None


def refuse_unknown(
    orig: Callable[..., Any], repo: localrepository, proto: wireprototypes.baseprotocolhandler, *arguments: Any
) -> Any:
    """Answer a command of the wire, or name the first changeset not known.

    Mercurial would raise an exception, with other words for a hidden one, or answer for it. Of named arguments `heads` is
    checked; what else names nodes are those that the client has.
    """
    for argument in arguments:
        named = argument.get(b"heads", b"") if isinstance(argument, dict) else argument
        for node in _NODE.findall(named):
            if not repo.changelog.hasnode(bin(node)):
                return wireprototypes.ooberror(b"unknown revision '%s'\n" % node)
    return orig(repo, proto, *arguments)
