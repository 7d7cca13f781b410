# SPDX-License-Identifier: GPL-2.0-or-later
"""Mercurial loads modules at their first use, and Python then loads a module twice that its own package imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT

PRODUCT = CHECKOUT / "hgext" / "vcsreplicator"
# The rooms that processes of Mercurial load.
LOADED = ["words", "log", "outbox", "relay", "hg", "hg/master", "hg/master/acts", "hg/serving", "hg/replica"]
PROGRAM = """
import hgdemandimport
hgdemandimport.enable()
from hgext.vcsreplicator.outbox.entry import MirrorNeeds
from hgext.vcsreplicator.outbox import entry, file
assert file.Entry.__annotations__
assert file.Entry is entry.Entry
assert MirrorNeeds is entry.MirrorNeeds
"""


@pytest.mark.processes
def test_an_outbox_has_each_class_once_where_modules_load_lazily() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=CHECKOUT)


@pytest.mark.parametrize("room", LOADED)
def test_a_package_that_mercurial_loads_imports_none_of_its_own_modules(room: str) -> None:
    own = {file.stem for file in Path(PRODUCT / room).glob("*.py")}
    tree = ast.parse((PRODUCT / room / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    assert not [node.module for node in imports if (node.module or node.names[0].name).split(".")[0] in own]
