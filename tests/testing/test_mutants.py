# SPDX-License-Identifier: GPL-2.0-or-later
"""Mutants are the faults they claim to be, and each reaches the tests."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.mutants import __main__ as mutants
from testing.mutants.mutations import mutate
from testing.services.cache import CHECKOUT

SOURCE = '''
def decide(self, a: Literal[1], b):
    """Say 1."""
    if not a and b:
        raise ValueError(f"{a + 1}")
    self.seen.add(a)
    return max(a, b) if a < b else 0
'''


def test_each_kind_of_fault_is_made_where_the_code_decides() -> None:
    assert [tuple(mutant.name.removeprefix("m.py decide: ").split(" → ")) for mutant in mutate("m.py", SOURCE)] == [
        ("not a and b", "not a or b"),
        ("not a", "a"),
        ("raise ValueError(f'{a + 1}')", "pass"),
        ("self.seen.add(a)", "pass"),
        ("return max(a, b) if a < b else 0", "return None"),
        ("a < b", "a <= b"),
        ("a < b", "a >= b"),
        ("max(a, b)", "min(a, b)"),
        ("0", "1"),
        ("0", "-1"),
    ]


def test_mutant_changes_nothing_but_its_place() -> None:
    (mutant,) = [each for each in mutate("m.py", SOURCE) if each.name.endswith("not a → a")]
    assert mutant.change(SOURCE) == SOURCE.replace("not a", "(a)")


def test_every_mutant_of_what_decides_is_python() -> None:
    for mutant in mutants.draw(seed=1, sample=30, part=""):
        assert ast.parse(mutant.change(Path(mutant.path).read_text())), mutant.name


def test_every_equivalent_mutant_still_exists_and_has_a_reason() -> None:
    names = {mutant.name for path, _ in mutants.find_targets() for mutant in mutate(path, Path(path).read_text())}
    assert not mutants.read_equivalent().keys() - names
    assert all(mutants.read_equivalent().values())


def test_every_module_that_decides_has_tests() -> None:
    assert [path for path, tests in mutants.find_targets() if not all(map(os.path.exists, map(_file, tests)))] == []


def _file(test: str) -> str:
    return test.partition("::")[0]


@pytest.mark.processes
def test_a_mutant_that_no_test_notices_survives(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(
        "def count():\n    return 1 if seen() else 0\n\ndef seen():\n    return True\n"
    )
    (tmp_path / "conftest.py").write_text("from hypothesis import settings\nsettings.register_profile('quick')\n")
    test = tmp_path / "test_counted.py"
    test.write_text("import counted\n\ndef test_count():\n    assert counted.count() > 0\n")
    (tmp_path / "test_all.py").write_text(f"def test_slow():\n    print(file=open('{tmp_path}/reached', 'a'))\n")
    program = f"""
from pathlib import Path
from testing.mutants.mutations import mutate
from testing.mutants.running import find_survivors
root = Path({str(tmp_path)!r})
mutants = mutate("counted.py", (root / "counted.py").read_text())
for each in find_survivors(root, [{str(test)!r}, {str(tmp_path)!r}], mutants):
    print(each.name)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == ["counted.py count: 1 → 2", "counted.py count: 0 → 1", "counted.py count: 0 → -1"]
    assert len((tmp_path / "reached").read_text().splitlines()) == 1 + 3, "the nearest first, the rest if it passes"
