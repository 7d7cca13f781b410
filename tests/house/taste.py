# SPDX-License-Identifier: GPL-2.0-or-later
"""Matters of taste, which `make check` prints and which fail nothing: names of functions, their length, words in texts.

A stranger's patch is welcome with any of them; the person who merges it may put it right.
"""

import ast
import re
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
# The first line of each text of a module, class or function, which stands alone behind its indentation.
FIRST_LINE = re.compile(r'^ *[rb]?"""(.*?)(?:"""|\\)?$', re.MULTILINE)
LONGEST_LINE = 79
# A test whose name has 70 characters or more.
LONG_TEST = re.compile(r"^ *(?:async )?def (test_\w{65,})", re.MULTILINE)
# A constant with a comment behind it, and an assignment with a text below it.
BESIDE = re.compile(
    r"^_?[A-Z][A-Z_]* = .*[^ ]  # (?!noqa|type:)|^ *[\w.]+(?:: [^\n]+)? = [^\n]*[^'\n]\n *\"\"\"[^\n]+\"\"\"$",
    re.MULTILINE,
)
VAGUE = {"util", "utils", "common", "helper", "helpers", "manager", "misc"}
# Characters of a line of a page, which is read as a text too. A row of a table, or a key of SSH, is one line.
WIDTH = 120
UNBREAKABLE = ("|", "restrict,command=")
# Words that hide who acts; the contributing page names them. A machine's user has such a name, in quotation marks.
HIDDEN = (
    *(
        "somebody",
        "someone",
        "anybody",
        "anyone",
        "everybody",
        "nobody",
        "no one",
        "whoever",
        "whatever",
        "wherever",
        "whichever",
    ),
    *("is told", "are told", "what waiting heals"),
)
HIDDEN_ACTOR = re.compile(rf"\b(?<!\")({'|'.join(HIDDEN)})\b", re.IGNORECASE)


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


def hidden_actors(text: str) -> list[str]:
    """The words in a text that hide who acts: few texts hold one, and to look for them one by one is quicker."""
    lowered = text.lower()
    return HIDDEN_ACTOR.findall(text) if any(words in lowered for words in HIDDEN) else []


def list_long_lines(text: str) -> Iterator[str]:
    """Yield number and line where a line of a page that could be broken is longer than the width."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not line.strip().startswith(UNBREAKABLE):
            yield f"{number}: {line}"


def findings() -> Iterator[str]:
    """A line for each: the file, the line where it is known, and what it is."""
    for name, node in functions():
        if is_riddle(node) and (name, node.name) not in SEAMS:
            yield f"{name}:{node.lineno}: {node.name} is no plain verb"
        if length(node) > LONGEST:
            yield f"{name}:{node.lineno}: {node.name} has {length(node)} lines"
    for name, text in files(*PRODUCT, "testing/*.py", "tests/*.py", ":!tests/golden"):
        yield from (f"{name}:{line}: a choice within a choice" for line in nested_choices(nodes(text)))
    for name, text in files(*PRODUCT):
        yield from (
            f"{name}: a long first line: {line}" for line in FIRST_LINE.findall(text) if len(line) > LONGEST_LINE
        )
    for name, text in files("tests/*.py", ":!tests/golden"):
        yield from (f"{name}: a long name: {test}" for test in LONG_TEST.findall(text))
    for name, text in files("*.py", ":!tests/golden"):
        yield from (f"{name}: not above: {found[0]}" for found in BESIDE.finditer(text))
        if VAGUE & set(re.split(r"[/_.]", name)):
            yield f"{name}: a vague name"
    for name, text in files("*.md", ":!tests/golden"):
        yield from (f"{name}:{line}" for line in list_long_lines(text))
    tests = ("tests/*.py", "tests/*.t", "testing/*.py", ":!tests/house/*taste.py")
    for name, text in files("*.md", *PRODUCT, *tests, ":!CONTRIBUTING.md", ":!tests/golden"):
        yield from (f"{name}: {word} hides who acts" for word in hidden_actors(text))


if __name__ == "__main__":
    for finding in findings():
        print(f"taste: {finding}")
