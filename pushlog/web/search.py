# SPDX-License-Identifier: GPL-2.0-or-later
"""The web searches that hgweb evaluates; all others are for words.

hgweb evaluates every revset that Mercurial calls safe, and looks for regular expressions in its strings. But ``##`` joins two
harmless strings into one, and a file's pattern can be a file set, an expression, or a list to read from any file of the server. So
here only what is listed is evaluated. hgweb searches for the words of everything else, as it does for what it cannot parse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import error, revsetlang
from mercurial.hgweb.common import HTTP_BAD_REQUEST, ErrorResponse

from .. import seams

if TYPE_CHECKING:
    from mercurial.hgweb.hgweb_mod_inner import requestcontext
    from mercurial.revsetlang import _Tree as ParsedRevset
    from mercurial.ui import ui as Ui

# Functions whose work grows at most with the number of changesets. Their strings are names, dates or a part of a text, never the
# pattern of a file.
_FUNCTIONS = frozenset(
    b"all ancestors author bookmark branch children date desc descendants draft first head heads id keyword last limit max merge "
    b"min none obsolete only p1 p2 parents present public rev reverse roots secret tag user "
    b"pushdate pushhead pushid pushrev pushuser automationrelevant".split()
)
# Nodes of a parsed revset that need no work of their own.
_PLAIN = frozenset((b"string", b"symbol", b"list", b"group", b"or"))
# Operators. Missing are `##`, `=`, and the `#` and `[]` of relations.
_OPERATORS = frozenset(
    b"and not minus negate only onlypost parent parentpost range rangepre rangepost rangeall dagrange dagrangepre dagrangepost "
    b"dagrangeall".split()
)
# Bytes of a search. The time to parse one grows with their square.
LONGEST = 8192
# Functions and operators in a search.
MOST = 24
# Digits of the number in `revision~number`.
FARTHEST_DIGITS = 4
# The prefix of a string that makes it a regular expression.
_EXPRESSION = b"re:"


def register() -> None:
    """Guard hgweb's search; called in processes that serve web pages."""
    seams.wrap("mercurial.hgweb.webcommands", "_search", search)
    seams.wrap("mercurial.revset", "match", match)


class _Searching(threading.local):
    """What hgweb evaluates for the search of this thread, if there is one."""

    spec: bytes | None = None


_searching = _Searching()


def search(orig: Callable[..., Iterable[bytes]], web: requestcontext) -> Iterable[bytes]:
    """Wrap hgweb's search, which evaluates a revset before it returns.

    Refuse, with 400, a search that is too long or too deep to parse.
    """
    query = web.req.qsparams[b"rev"]
    if len(query) > LONGEST:
        raise ErrorResponse(HTTP_BAD_REQUEST, b"a search has at most %d bytes" % LONGEST)
    _searching.spec = b"reverse(%s)" % query
    try:
        return orig(web)
    except RecursionError:
        raise ErrorResponse(HTTP_BAD_REQUEST, b"a search with fewer parts was expected") from None
    finally:
        _searching.spec = None


def match(
    orig: Callable[..., Any], ui: Ui | None, spec: bytes, lookup: Callable[[bytes], bool] | None = None
) -> Callable[..., Any]:
    """Wrap the evaluation of a revset; raise ParseError for an unlisted search.

    hgweb takes the error for words to search. Templates evaluate revsets of their own.
    """
    is_search = spec == _searching.spec
    if is_search and not is_bounded(revsetlang.parse(spec, lookup=lookup)):
        raise error.ParseError(b"not a search that this server offers")
    select: Callable[..., Any] = orig(ui, spec, lookup=lookup)
    return _refuse_huge_numbers(select) if is_search else select


def _refuse_huge_numbers(select: Callable[..., Any]) -> Callable[..., Any]:
    """Have a number that is too large raise ParseError, as other arguments do."""

    def select_or_refuse(*arguments: Any, **keywords: Any) -> Any:
        try:
            return select(*arguments, **keywords)
        except OverflowError:
            raise error.ParseError(b"a number is too large") from None

    return select_or_refuse


def is_bounded(tree: ParsedRevset) -> bool:
    """Return whether a parsed revset has only what is listed, and little of it."""
    work = 0
    for kind, *members in _list_nodes(tree):
        if kind in _PLAIN:
            if kind == b"string" and members[0].startswith(_EXPRESSION):
                return False
        elif _is_listed(kind, members):
            work += 1
        else:
            return False
    return work <= MOST


def _is_listed(kind: bytes, members: list[Any]) -> bool:
    """Return whether a function or an operator may be in a search."""
    if kind == b"func":
        called, name = members[0][:2]
        return called == b"symbol" and name in _FUNCTIONS
    return kind in _OPERATORS or (kind == b"ancestor" and _is_near(*members))


def _is_near(start: ParsedRevset, distance: ParsedRevset) -> bool:
    """Return whether `start~distance` is few steps from one revision.

    Mercurial goes each step of each revision, even beyond the first changeset.
    """
    number = distance[1] if distance[0] == b"symbol" else b""
    return start[0] in (b"symbol", b"string") and number.isdigit() and len(number) <= FARTHEST_DIGITS


def _list_nodes(tree: ParsedRevset) -> Iterator[ParsedRevset]:
    """Yield the nodes of a parsed revset."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [member for member in node[1:] if isinstance(member, tuple)]
