# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of threats in docs/security.md: each row names a test, and the test fails once its defence is taken away.

`defences.toml` beside this file has for each of these tests the lines that defend, and what stands there without the defence.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from tests.house.shown import PAGES
from tests.house.sources import files

TESTS = re.compile(r"`(tests/[^`\s]+::\w+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defence:
    """Lines of one file that defend, and what the file has in their place once they are taken away."""

    test: str
    file: str
    lines: str
    without: str

    def take_away(self, checkout: Path) -> None:
        """Change the file in a copy of the repository."""
        text = (checkout / self.file).read_text()
        (checkout / self.file).write_text(text.replace(self.lines, self.without))


DEFENCES = [
    Defence(**entry) for entry in tomllib.loads(Path(__file__).with_name("defences.toml").read_text())["defence"]
]


def rows() -> list[list[str]]:
    """The cells of each row of the tables of threats."""
    tables = re.findall(r"^\| threat \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGES["docs/security.md"], re.MULTILINE)
    assert len(tables) > 5
    return [
        [cell.strip() for cell in line.strip("|\n").split(" | ")] for table in tables for line in table.splitlines()
    ]


def without_case(test: str) -> str:
    """The test without the parameters in brackets."""
    return test.partition("[")[0]


def test_each_row_of_the_threats_names_tests_that_exist() -> None:
    assert [row for row in rows() if not TESTS.findall(row[-1])] == []
    texts = dict(files("tests/*.py"))
    for test in {test for row in rows() for test in TESTS.findall(row[-1])}:
        file, _, name = test.partition("::")
        assert re.search(rf"^\s*(async )?def {name}\(", texts.get(file, ""), re.MULTILINE), test


def test_each_test_of_the_threats_has_a_defence_to_take_away() -> None:
    named = {test for row in rows() for test in TESTS.findall(row[-1])}
    assert named == {without_case(defence.test) for defence in DEFENCES}


def test_the_lines_of_a_defence_stand_in_their_file_once() -> None:
    for defence in DEFENCES:
        assert (CHECKOUT / defence.file).read_text().count(defence.lines) == 1, defence.test
        assert defence.lines != defence.without, defence.test


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.test.partition("::")[2])
def test_a_test_fails_without_its_defence(defence: Defence, tmp_path: Path) -> None:
    """In a copy of the repository, whose modules are found before those of this one."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, text=True)
    for name in listed.splitlines():
        if (CHECKOUT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, tmp_path / name)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)  # some tests ask git for the files
    defence.take_away(tmp_path)
    found = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", defence.test],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^\d+ failed", done.stdout.splitlines()[-1]), done.stdout
