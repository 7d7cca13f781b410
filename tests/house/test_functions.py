# SPDX-License-Identifier: GPL-2.0-or-later
"""How functions are written: the product's private ones are named by verbs, none is long, and no choice is nested in another."""

import ast
from collections.abc import Iterator

from tests.house.sources import FUNCTIONS, PRODUCT, Nodes, files, nodes

# Lines of a function, its docstring and its parameters included.
LONGEST = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What a private function of one word may be named: a plain verb whose object is clear where it stands.
WORDS = """
    abort accept acknowledge add advance announce answer append apply ask attach attempt
    censor check choose close collect commit compare compile confirm connect consume converse copy count create
    decide declare degrade delete deliver describe disconnect dispatch drain draw drop
    encode enqueue enter expect fence fetch fill finalize find finish flush follow forget forward greet guard
    identify insert join judge learn leave listen load lock make measure move note open order overtake
    park parse perform poll prepare probe prove publish pull quote
    receive record recover redeliver refresh refuse reject rejoin release remember remove render replace report request
    require resolve ring run save scan search select send serve settle show sign signal spawn start stop store strip submit
    survey unbundle update verify wait watch wrap write
"""
VERBS = frozenset(WORDS.split())

# Functions that Mercurial and py-amqp call by this name.
SEAMS = frozenset(
    {("hgext/vcsreplicator/hg/replica/checking.py", "_err"), ("notifier/clients/amqp/connection.py", "_read")}
)


def functions() -> Iterator[tuple[str, Function]]:
    """The file and the tree of each function of the product."""
    for name, text in files(*PRODUCT):
        for kind in FUNCTIONS:
            yield from ((name, node) for node in nodes(text)[kind] if isinstance(node, kind))


def is_riddle(function: Function) -> bool:
    """Whether a private function has one word for a name, and that is no plain verb; a property is named like a value."""
    name = function.name
    if not name.startswith("_") or "_" in name[1:]:
        return False
    is_property = any(ast.unparse(decorator).endswith("property") for decorator in function.decorator_list)
    return not is_property and name[1:] not in VERBS


def nested_choices(found: Nodes) -> Iterator[int]:
    """The lines of conditional expressions that have another in them."""
    return (node.lineno for node in found[ast.IfExp] if isinstance(node, ast.IfExp) and has_choice(node))


def has_choice(choice: ast.IfExp) -> bool:
    """Whether a conditional expression has another in it."""
    return any(isinstance(node, ast.IfExp) for part in ast.iter_child_nodes(choice) for node in ast.walk(part))


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_private_functions_of_one_word_are_plain_verbs() -> None:
    offending = [
        f"{name}:{node.lineno}: {node.name}"
        for name, node in functions()
        if is_riddle(node) and (name, node.name) not in SEAMS
    ]
    assert not offending, "\n".join(offending)


def test_no_function_is_long() -> None:
    offending = [f"{name}:{node.lineno}: {node.name}" for name, node in functions() if length(node) > LONGEST]
    assert not offending, "\n".join(offending)


def test_no_choice_is_nested_in_another() -> None:
    sources = files(*PRODUCT, "testing/*.py", "tests/*.py", ":!tests/golden")
    offending = [f"{name}:{line}" for name, text in sources for line in nested_choices(nodes(text))]
    assert not offending, "\n".join(offending)


def test_the_checks_of_functions_can_fail() -> None:
    source = "def _over(): pass\ndef _write(): pass\ndef _write_over(): pass\n@property\ndef _size(): pass"
    found = [node for node in ast.parse(source).body if isinstance(node, Function) and is_riddle(node)]
    assert [node.name for node in found] == ["_over"]
    assert length(found[0]) == 1
    for nested in ("a if b else c if d else e", "a if (b if c else d) else e", "f(a if b else c) if d else e"):
        assert list(nested_choices(nodes(nested))) == [1]
    assert not list(nested_choices(nodes("[a if b else c, d if e else f]")))
