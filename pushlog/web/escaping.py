# SPDX-License-Identifier: GPL-2.0-or-later
"""Escapes all text of pushers on every page, in the templates of every style.

Mercurial's own templates put some names of files, authors and others unescaped into a page: a pushed file name could run a script
in the browser of each reader. So templates of HTML or XML are changed when they are read: every expression that they print is text
and gets escaped, unless

- it ends in a filter that escapes, or makes its own markup (`_ESCAPING`), or its operands are safe already;
- it is the output of a template: its own text, `%`, the name of another template, a list that hgweb shows by a template.

The first shows in the expression (`shown`), the second at its evaluation (`register`). The policy of `policy` is a second line of
defence.

Seams of Mercurial and what they must keep doing: `templater.loader.load` gives each template through `_parse` of its own
instance, as tuples of an operator and its operands (`tests/pushlog/web/test_hostile_pages.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mercurial import templatefilters, templatefuncs, templater, templateutil

if TYPE_CHECKING:
    from mercurial.templater import engine

# `colorize` is from the extension highlight: a line as Pygments shows it.
_ESCAPING = frozenset(
    (b"colorize", b"escape", b"json", b"obfuscate", b"revescape", b"rstdoc", b"urlescape", b"xmlescape")
)
# Filters whose own markup is wanted: their operand must be safe.
_DECORATING = frozenset((b"addbreaks", b"websub"))
# Functions that give one of their arguments, from this one on.
_CHOOSING = {b"if": 1, b"ifcontains": 2, b"ifeq": 2, b"separate": 0}
# Functions whose text is made of their arguments and nothing else.
_TEXTUAL = frozenset(
    b"fill formatnode indent label localdate pad splitlines startswith stringify strip sub word".split()
)
_NUMBERS = frozenset((b"integer", b"negate", b"+", b"-", b"*", b"/"))
# Characters that no XML may have, not even as `obfuscate` writes them; a reader refuses all of a feed with one of them.
_NOT_IN_XML = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]|&#(?:[0-8]|1[124-9]|2\d|3[01]|6553[45]);")
_MARKUP = re.compile(rb"[&<>\"'\\]")
# Mercurial's own between parameters of an address, which stands in scripts too.
_SEPARATOR = (b"symbol", b"separator")
_ITEM, _TEXT, _JOINED = b"pushlogitem", b"pushlogtext", b"pushlogjoined"
_Tree = tuple[Any, ...]


def guard(templates: Any, change_html: Callable[[bytes], bytes] = bytes) -> bool:
    """Let templates escape pushers' text; return whether they make HTML.

    ``change_html`` gets and returns the source of each template that makes HTML.
    """
    kind = templates.render(b"mimetype", {b"encoding": b""}) if b"mimetype" in templates else b"text/html"
    if b"html" not in kind and b"xml" not in kind:
        return False
    loader = templates._loader
    parse: Callable[[bytes], _Tree] = loader._parse
    is_html = b"html" in kind
    if not is_html:
        generate = templates.generate
        templates.generate = lambda *given: (_NOT_IN_XML.sub(b"?", piece) for piece in generate(*given))
    loader._parse = lambda source: escaped(parse(change_html(source) if is_html else source))
    return is_html


def register() -> None:
    """Add the functions of changed templates, which escape everything but markup."""

    def item(context: engine, mapping: Any, arguments: Any) -> Any:
        return _escape_value(context, mapping, templateutil.evalrawexp(context, mapping, arguments[0]), generated=True)

    def text(context: engine, mapping: Any, arguments: Any) -> Any:
        return _escape_value(context, mapping, templateutil.evalrawexp(context, mapping, arguments[0]), generated=False)

    def joined(context: engine, mapping: Any, arguments: Any) -> Any:
        listed, separator = templateutil.evalwrapped(context, mapping, arguments[0]), b" "
        if len(arguments) > 1:
            separator = templateutil.evalstring(context, mapping, arguments[1])
        if _is_made_by_templates(listed):
            return listed.join(context, mapping, separator)
        items = templateutil.stringify(context, mapping, listed.join(context, mapping, b"\0"))
        return separator.join(map(_escape_text, items.split(b"\0")))

    for name, function in ((_ITEM, item), (_TEXT, text), (_JOINED, joined)):
        function._argspec = None  # type: ignore[attr-defined]
        templatefuncs.funcs[name] = function


def _escape_value(context: engine, mapping: Any, value: Any, *, generated: bool) -> Any:
    """Return the printed form of a value.

    If `generated`, a value that yields pieces is a template or a keyword of the site's own markup.
    """
    if value is None or _is_made_by_templates(value) or (generated and isinstance(value, Iterator)):
        return value
    return _escape_text(templateutil.stringify(context, mapping, value))


def _escape_text(value: bytes) -> bytes:
    """Escape as Mercurial's `escape`, for attributes in single quotes too."""
    escaped: bytes = templatefilters.escape(value)
    return escaped.replace(b"'", b"&#39;")


def _is_made_by_templates(value: Any) -> bool:
    """Return whether hgweb shows a list by mended templates of the map."""
    listed = (
        templateutil.mappedgenerator,
        templateutil.mappingdict,
        templateutil.mappinggenerator,
        templateutil.mappinglist,
    )
    return isinstance(value, listed) and getattr(value, "_tmpl", None) is None


def escaped(tree: _Tree) -> _Tree:
    """Return a template that prints its own markup, and all else escaped."""
    mended = tuple(escaped(each) if isinstance(each, tuple) else each for each in tree)
    return (b"template", *map(shown, mended[1:])) if mended[0] == b"template" else mended


def shown(value: _Tree) -> _Tree:
    """Return the expression that prints this one escaped, unless it is safe."""
    operator = value[0]
    if operator in (b"string", b"template", b"%") or operator in _NUMBERS or value == _SEPARATOR:
        return value
    if operator in (b"group", b"keyvalue"):
        return (*value[:-1], shown(value[-1]))
    if operator == b"|":
        return _escape_filtered(value, value[1], value[2][1])
    if operator == b"func":
        return _escape_called(value, value[1][1], templater.getlist(value[2]))
    return _make_call(_ITEM, value)


def _escape_filtered(value: _Tree, operand: _Tree, name: bytes) -> _Tree:
    if name in _ESCAPING or shown(operand) == operand:
        return value
    return (b"|", shown(operand), value[2]) if name in _DECORATING else _make_call(_TEXT, value)


def _escape_called(value: _Tree, name: bytes, arguments: list[_Tree]) -> _Tree:
    if name in (_ITEM, _TEXT, _JOINED) or name in _ESCAPING:
        return value
    safe = [shown(argument) for argument in arguments]
    if name in _CHOOSING and arguments:
        first = _CHOOSING[name]
        return _make_call(name, *arguments[:first], *safe[first:])
    if name in _DECORATING and len(safe) == 1:
        return _make_call(name, *safe)
    if name in _TEXTUAL and safe == arguments:
        return value
    if name == b"join" and arguments:
        return value if safe == arguments else _make_call(_JOINED, arguments[0], *safe[1:])
    if name == b"sub" and len(arguments) == 3 and (arguments[1][0] != b"string" or _MARKUP.search(arguments[1][1])):
        return _make_call(name, arguments[0], *safe[1:])  # its replacement is the site's own markup
    return _make_call(_TEXT, value)


def _make_call(name: bytes, *arguments: _Tree) -> _Tree:
    return (b"func", (b"symbol", name), functools.reduce(lambda rest, last: (b"list", rest, last), arguments))
