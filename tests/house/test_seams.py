# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial's private functions are wrapped through the table of `pushlog/seams.py` alone, and the table fits this Mercurial."""

import ast
import importlib
import re
import sys
import types
from pathlib import Path

import pytest

from pushlog import seams, versions
from tests.house.sources import PRODUCT, files, nodes

SOURCES = dict(files(*PRODUCT))


def test_nothing_is_wrapped_past_the_table() -> None:
    past = [
        f"{name}:{node.lineno}"
        for name, text in SOURCES.items()
        if name != "pushlog/seams.py"
        if "extensions" in text  # others cannot offend
        for node in nodes(text)[ast.Attribute]
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("extensions.wrap", "extensions.bind"))
    ]
    assert not past


def names_of_mercurial(text: str) -> set[str]:
    """All modules and names that a source imports from Mercurial when it runs, not for its types alone."""
    found = nodes(text)
    blocks = (node for node in found[ast.If] if isinstance(node, ast.If))
    for_types = {node for block in blocks if is_for_types(block.test) for node in ast.walk(block)}
    return {
        f"{node.module}.{name.name}"
        for node in found[ast.ImportFrom]
        if isinstance(node, ast.ImportFrom) and not node.level and node not in for_types
        if node.module is not None and node.module.split(".")[0] == "mercurial"
        for name in node.names
    }


def is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def is_known(name: str) -> bool:
    """Whether this Mercurial has a module, or a name in a module."""
    module, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), last) or bool(importlib.import_module(name))
    except ImportError:
        return False


def test_every_version_has_what_is_imported() -> None:
    """In `make test-versions` this runs on each of them; `versions` alone loads what only some have."""
    imported = {name for text in SOURCES.values() for name in names_of_mercurial(text)}
    assert len(imported) > 50
    assert sorted(name for name in imported if not is_known(name)) == []


def test_no_other_file_compares_versions() -> None:
    knowing = ("versiontuple", "util.version()", "mercurial.__version__")
    found = {name for name, text in SOURCES.items() if any(word in text for word in knowing)}
    assert found <= {"pushlog/versions.py", "pushlog/seams.py"}  # `seams` names the version in a refusal


def test_what_an_older_mercurial_has_elsewhere_is_in_the_table() -> None:
    """A misspelt name would leave the guard of 7.2 without its stand-in."""
    names = {f"{module}.{name}" for module, functions in seams.SEAMS.items() for name in functions}
    assert {name for older in versions._OLDER.values() for name in older} <= names
    assert list(versions._OLDER) == sorted(versions._OLDER)
    assert set(versions._MOVED) >= set(versions._OFFERED.values())


def test_every_entry_of_the_table_is_used() -> None:
    text = "".join(text for name, text in SOURCES.items() if Path(name).name not in ("seams.py", "versions.py"))
    unused = [
        f"{module}.{name}"
        for module, names in seams.SEAMS.items()
        for name in names
        if not re.search(rf'"({re.escape(name)}|{re.escape(name.rpartition(".")[2])})"', text)
    ]
    assert not unused


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("pushlog.registration", 5),
        ("hgext.vcsreplicator.hg.registration", 5),
        ("hgext.vcsreplicator.hg.opening", 1),
        ("pushlog.store", 2),
    ],
)
def test_what_is_loaded_at_its_first_call_is_there(module: str, least: int) -> None:
    """A misspelt name would be noticed by the first strip only."""
    names = vars(importlib.import_module(module))
    found = re.findall(r"seams\.loading\(([^,]+), \"(\w+)\"\)", Path(names["__file__"]).read_text())
    assert len(found) >= least
    assert [
        place for place in found if not callable(getattr(importlib.import_module(eval(place[0], names)), place[1]))
    ] == []


@pytest.mark.parametrize("module", seams.SEAMS)
def test_the_table_fits_this_mercurial(module: str) -> None:
    versions.initialize()
    seams.check(module, *seams.SEAMS[module])


def test_private_attributes_of_a_transaction_are_in_the_table() -> None:
    used = {
        node.attr
        for text in SOURCES.values()
        if "tr._" in text
        for node in nodes(text)[ast.Attribute]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tr" and node.attr.startswith("_")
    }
    assert used == {*seams.ATTRIBUTES["mercurial.transaction.transaction"].split()}


def test_a_class_without_an_attribute_of_the_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(seams.ATTRIBUTES, "mercurial.transaction.transaction", "_offsetmap _lost _gone")
    with pytest.raises(seams.MissingSeam, match=r"mercurial.transaction.transaction has no _gone, _lost$"):
        seams.check("mercurial.transaction", "transaction.add")


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
def test_another_function_is_named_and_not_wrapped(
    function: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("mercurial.phases")
    if function is not None:
        module.listphases = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mercurial.phases", module)
    with pytest.raises(seams.MissingSeam, match=problem):
        seams.wrap("mercurial.phases", "listphases", print)
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
