# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's private functions are wrapped through the table of `pushlog/seams.py` alone, and the table fits this Mercurial."""

import ast
import importlib
import re
import types

import pytest
from mercurial import initialization

from pushlog import seams
from testing.services.cache import CHECKOUT

SOURCES = [file for folder in ("hgext/vcsreplicator", "pushlog", "hooks") for file in (CHECKOUT / folder).rglob("*.py")]


def test_nothing_is_wrapped_past_the_table() -> None:
    past = [
        f"{file.relative_to(CHECKOUT)}:{node.lineno}"
        for file in SOURCES
        if file != CHECKOUT / "pushlog" / "seams.py"
        if "extensions" in (text := file.read_text())  # others cannot offend, and need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("extensions.wrap", "extensions.bind"))
    ]
    assert not past


def test_every_entry_of_the_table_is_used() -> None:
    text = "".join(file.read_text() for file in SOURCES if file.name != "seams.py")
    unused = [
        f"{module}.{name}"
        for module, names in seams.SEAMS.items()
        for name in names
        if not re.search(rf'"({re.escape(name)}|{re.escape(name.rpartition(".")[2])})"', text)
    ]
    assert not unused


@pytest.mark.parametrize("module", seams.SEAMS)
def test_the_table_fits_this_mercurial(module: str) -> None:
    initialization.init()
    seams.check(importlib.import_module(module), *seams.SEAMS[module])


def test_parameters_are_those_below_the_wrappers_of_others() -> None:
    def original(repo: object, changeid: object) -> None: ...

    def wrapper(*arguments: object) -> None: ...

    wrapper._origfunc = original  # type: ignore[attr-defined]
    assert seams.parameters(wrapper) == ["repo", "changeid"]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda repo, more: None, r"mercurial.phases.listphases takes \(repo, more\), expected \(repo\)"),
        (lambda: None, r"takes \(\), expected \(repo\)"),
        (None, "mercurial.phases.listphases is missing"),
    ],
)
def test_another_function_is_named_and_not_wrapped(function: object, problem: str) -> None:
    module = types.ModuleType("mercurial.phases")
    if function is not None:
        module.listphases = function  # type: ignore[attr-defined]
    with pytest.raises(seams.MissingSeam, match=problem):
        seams.wrap(module, "listphases", print)
    assert getattr(module, "listphases", None) is function


def test_a_set_up_that_failed_refuses_local_repositories_and_no_others() -> None:
    class Repository:
        def __init__(self, *, is_local: bool) -> None:
            self.local = lambda: is_local

    def fail() -> None:
        raise seams.MissingSeam("mercurial.phases.listphases is missing")

    setup = seams.Setup("pushlog")
    setup.run(lambda: None)
    setup.check(Repository(is_local=True))
    setup.run(fail)
    setup.run(lambda: None)
    setup.check(Repository(is_local=False))
    with pytest.raises(Exception, match=r"pushlog cannot do its work .*: mercurial.phases.listphases is missing"):
        setup.check(Repository(is_local=True))
