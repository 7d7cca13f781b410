# SPDX-License-Identifier: GPL-2.0-or-later
"""What a pusher chose is text on every page, and no page runs a script that is not its own.

Mercurial's own templates put some names of files, authors and others into a page as they are: a file name that was pushed once
runs its script in the browser of each reader. A template of HTML or XML is mended when it is read, whichever style it belongs
to: what prints such a value without a filter that escapes it gets one. Behind that stands a Content-Security-Policy.

Seams of Mercurial and what they must keep doing: `templater.loader.load` gives each template through `_parse` of its own
instance, as tuples of an operator and its operands (`tests/pushlog/test_hostile_pages.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mercurial import configitems

# Mercurial's pages have scripts in them, which a nonce lets run; elements have styles of their own, which can do little harm.
POLICY = (
    b"default-src 'none'; script-src 'self' 'nonce-%nonce%'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    b"img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
# Variables of Mercurial's templates that hold text of a pusher or of a request as it is.
_CHOSEN = frozenset(
    b"author basename bookmark branch desc emptydirs error extras file filename instability label leftline line name path "
    b"pushuser query reason rightline summary tag title topic user".split()
)
_CHOSEN_FUNCTIONS = frozenset((b"obsfateoperations", b"obsfateusers"))
_ESCAPING = frozenset((b"escape", b"json", b"obfuscate", b"revescape", b"urlescape", b"xmlescape"))
_Tree = tuple[Any, ...]


def set_policy() -> None:
    """Let `web.csp` have a default; an operator's own, an empty one too, counts."""
    configitems.coreitems[b"web"][b"csp"].default = POLICY


def guard(templates: Any) -> bool:
    """Whether these templates make HTML; those that make HTML or XML escape what a pusher chose from now on."""
    kind = templates.render(b"mimetype", {b"encoding": b""}) if b"mimetype" in templates else b"text/html"
    if b"html" not in kind and b"xml" not in kind:
        return False
    loader = templates._loader
    parse: Callable[[bytes], _Tree] = loader._parse
    loader._parse = lambda source: escaped(parse(source))
    return b"html" in kind


def escaped(tree: _Tree) -> _Tree:
    """This parsed template, each of its values escaped that prints what a pusher chose as it is."""
    mended = tuple(escaped(each) if isinstance(each, tuple) else each for each in tree)
    if mended[0] != b"template":
        return mended
    return (
        b"template",
        *((b"|", each, (b"symbol", b"escape")) if _prints_as_is(each) else each for each in mended[1:]),
    )


def _prints_as_is(value: _Tree) -> bool:
    while value[0] == b"|":
        if value[2][1] in _ESCAPING:
            return False
        value = value[1]
    if value[0] == b"symbol":
        return value[1] in _CHOSEN
    if value[0] == b"func" and value[1][1] == b"join":
        listed = value[2][1]
        return bool(listed[0] == b"func" and listed[1][1] in _CHOSEN_FUNCTIONS)
    return False
