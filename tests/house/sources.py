# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of the repository for all rules about them: each is listed and read once, and parsed once."""

import ast
import functools
import gc
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from testing.services.cache import CHECKOUT

PRODUCT = ("hgext/*.py", "pushlog/*.py", "hooks/*.py", "notifier/*.py")
Nodes = dict[type[ast.AST], list[ast.AST]]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXTS = (ast.Constant, ast.JoinedStr)
# What a rule asks for.
KINDS = frozenset(
    (
        *FUNCTIONS,
        *TEXTS,
        ast.Module,
        ast.ClassDef,
        ast.Import,
        ast.ImportFrom,
        ast.Attribute,
        ast.Expr,
        ast.If,
        ast.IfExp,
    )
)
# What holds no other node of these kinds.
LEAVES = (ast.Constant, ast.Name, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.alias)


@functools.cache
def _list_names() -> list[str]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = set(subprocess.check_output(listing, cwd=CHECKOUT, text=True).splitlines())
    return sorted(name for name in names if (CHECKOUT / name).is_file())


@functools.cache
def _read_text(name: str) -> str:
    return (CHECKOUT / name).read_text(errors="replace")


@functools.cache
def _select_names(patterns: tuple[str, ...]) -> list[str]:
    """The names that Git would list for these patterns."""
    refused = [pattern.removeprefix(":!") for pattern in patterns if pattern.startswith(":!")]
    wanted = [pattern for pattern in patterns if not pattern.startswith(":!")] or ["*"]
    return [name for name in _list_names() if _is_one(name, wanted) and not _is_one(name, refused)]


def _is_one(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}/") for pattern in patterns)


def files(*patterns: str) -> Iterator[tuple[str, str]]:
    """Name and text of each file that is or would be committed, below a folder or by a pattern; `:!` leaves out."""
    return ((name, _read_text(name)) for name in _select_names(patterns))


@functools.cache
def parse_product() -> dict[str, Nodes]:
    """The nodes of each source of the product: kept, so that they are no garbage, and none is looked for in them."""
    gc.collect()
    gc.disable()
    try:
        return {text: collect([ast.parse(text)]) for _, text in files(*PRODUCT)}
    finally:
        gc.freeze()
        gc.enable()


def nodes(source: str) -> Nodes:
    """All nodes of a source of the kinds that rules ask for; texts in the braces of another text are no texts."""
    return parse_product().get(source) or collect([ast.parse(source)])


def collect(trees: Iterable[ast.AST]) -> Nodes:
    """The nodes of these kinds in trees, outer ones before inner ones."""
    found: Nodes = defaultdict(list)
    left = list(trees)
    for node in left:
        kind = type(node)
        if kind in KINDS:
            found[kind].append(node)
        if kind is ast.JoinedStr:
            for inner, more in collect(_parts(node)).items():
                if inner not in TEXTS:
                    found[inner] += more
        elif not isinstance(node, LEAVES):
            left += _parts(node)
    return found


def _parts(node: ast.AST) -> list[ast.AST]:
    parts = []
    for value in vars(node).values():
        if type(value) is list:
            parts += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            parts.append(value)
    return parts


def text_of(node: ast.AST, filled: str) -> str | None:
    """The text of a constant, with `filled` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else filled for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
    return None


def texts_of(source: str, filled: str) -> Iterator[str]:
    """Every text of a module but those that stand alone, as docstrings do."""
    found = nodes(source)
    alone = {id(node.value) for node in found[ast.Expr] if isinstance(node, ast.Expr)}
    for kind in TEXTS:
        for node in found[kind]:
            if id(node) not in alone and (text := text_of(node, filled)) is not None:
                yield text
