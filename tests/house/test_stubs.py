# SPDX-License-Identifier: GPL-2.0-or-later
"""The hand-written types of Mercurial (`stubs/`) name what the installed Mercurial has, with parameters that it takes."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mercurial import initialization

from testing.services.cache import CHECKOUT

STUBS = CHECKOUT / "stubs"
FILES = sorted(path for path in STUBS.rglob("*.pyi") if path.name not in ("__init__.pyi", "demandimport.pyi"))
# Attributes that `__init__` gives each object, some of them functions.
IN_INSTANCES = {"localrepository.sjoin", "IPeer._callstream"}
# Methods of changesets that Mercurial's base class leaves to each kind.
ABSTRACT = {
    f"basectx.{name}"
    for name in ("bookmarks", "children", "date", "description", "extra", "manifestnode", "tags", "user")
}


def test_stubs_name_functions_and_parameters_of_the_installed_mercurial() -> None:
    initialization.init()
    assert len(FILES) > 50
    for path in FILES:
        module = importlib.import_module(".".join(path.relative_to(STUBS).with_suffix("").parts))
        assert list(_problems(ast.parse(path.read_text()), module)) == [], path


def _problems(tree: ast.Module, module: ModuleType) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield from _differences(statement, module, statement.name)
        elif isinstance(statement, ast.ClassDef) and (owner := getattr(module, statement.name, None)) is not None:
            for method in statement.body:
                if isinstance(method, ast.FunctionDef):
                    yield from _differences(method, owner, f"{statement.name}.{method.name}")
        elif isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield f"{statement.name}: no such class"


def _differences(stub: ast.FunctionDef, owner: Any, name: str) -> Iterator[str]:
    """The function is missing, or takes no parameter of such a name."""
    if name in IN_INSTANCES | ABSTRACT:
        return
    try:
        found = inspect.getattr_static(owner, stub.name)
    except AttributeError:
        yield f"{name}: missing"
        return
    found = getattr(found, "__func__", getattr(found, "fget", getattr(found, "__wrapped__", found)))
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    if stub.name.startswith("__") and stub.name not in ("__init__", "__call__"):  # called without names
        return
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters):
        return
    known = {each.name for each in parameters}
    yield from (f"{name}: no parameter {each.arg}" for each in stub.args.args if each.arg not in known)
