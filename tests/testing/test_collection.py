# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check` imports no module of which it would run no test, and every other."""

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_ignore_collect

PURE = "not slow and not services and not processes"
STARTS_PROCESSES = "pytestmark = pytest.mark.processes\n"


def is_left_out(folder: Path, text: str, expression: str, name: str = "test_it.py") -> bool:
    (folder / name).write_text(f"import pytest\n\n{text}\n\ndef test_it(): ...\n")
    return bool(pytest_ignore_collect(folder / name, SimpleNamespace(option=SimpleNamespace(markexpr=expression))))


@pytest.mark.parametrize(
    "marks",
    [
        STARTS_PROCESSES,
        "pytestmark = [pytest.mark.processes, pytest.mark.hunt]\n",
        "pytestmark = [\n    pytest.mark.timeout(600),\n    pytest.mark.services,\n]\n",
    ],
)
def test_a_module_without_a_pure_test_is_not_imported(tmp_path: Path, marks: str) -> None:
    assert is_left_out(tmp_path, marks, PURE)


@pytest.mark.parametrize(
    "marks",
    [
        "",
        "pytestmark = pytest.mark.hunt\n",
        "pytestmark = [pytest.mark.hunt]\nOTHER = pytest.mark.processes\n",
        "@pytest.mark.processes",
        "# pytestmark = pytest.mark.processes\n",
    ],
)
def test_a_module_that_may_have_a_pure_test_is_imported(tmp_path: Path, marks: str) -> None:
    assert not is_left_out(tmp_path, marks, PURE)


@pytest.mark.parametrize("expression", ["", "not slow", "processes", "not processes", f"hunt or {PURE}"])
def test_other_selections_import_all(tmp_path: Path, expression: str) -> None:
    assert not is_left_out(tmp_path, STARTS_PROCESSES, expression)


def test_only_test_modules_are_left_out(tmp_path: Path) -> None:
    assert not is_left_out(tmp_path, STARTS_PROCESSES, PURE, "conftest.py")


def test_garbage_is_collected_while_tests_run() -> None:
    assert gc.isenabled()
