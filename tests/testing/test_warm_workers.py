# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers of `pytest -n` share what one process imported and collected, and are else what they would be."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

CONFTEST = """
import pytest
from testing.reporting import report_what_is_shown
from testing.warm_workers import warm_workers

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    warm = warm_workers(config)
    warm.__enter__()
    config.add_cleanup(lambda: warm.__exit__(None, None, None))
    report_what_is_shown(config)
"""
# That of a folder below: its hook and its fixture are for the tests there.
CONFTEST_BELOW = """
import os
import pytest

def pytest_itemcollected(item):
    with open("collected", "a") as collected:
        print(os.getpid(), file=collected)

def pytest_runtest_setup(item):
    item.config.seen_by_hook = item.name

@pytest.fixture
def below(request):
    return request.config.seen_by_hook
"""
# Says by whom it is imported and run, and kills a worker if it is asked to.
MODULE = """
import os, sys
from pathlib import Path
import pytest

written = sys.stdout

with open("imported", "a") as imported:
    print(os.getpid(), file=imported)

@pytest.mark.parametrize("number", range(4))
def test_it(number, below, request):
    assert below == request.node.name
    assert request.config is request.session.config is request.node.config
    Path(f"ran-{number}").write_text(f"{os.getpid()} {os.getppid()} {os.getpgrp()} {os.environ['ASKED']} {os.getcwd()}")
    assert request.config.workerinput["workercount"] == 2
    written.flush()
    if number == 3 and os.environ["ASKED"] == "kill" and not Path("killed").exists():
        Path("killed").touch()
        os._exit(1)
"""


def run(folder: Path, module: str, asked: str = "nothing", *selected: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    below = folder / "below"
    below.mkdir()
    (below / "conftest.py").write_text(CONFTEST_BELOW)
    (below / "test_one.py").write_text(module)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "-n2",
        "--dist=load",
        "--durations=0",
        "-vv",
        "-x" if asked == "nothing" else "--max-worker-restart=2",
        *selected,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        words,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, "ASKED": asked, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they import for most of a second
    )


def collectors(folder: Path) -> set[str]:
    return set((folder / "collected").read_text().split())


def test_tests_are_collected_once_and_run_by_several_children_of_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE)
    assert "4 passed" in done.stdout, done.stdout
    ran = [(tmp_path / f"ran-{number}").read_text().split() for number in range(4)]
    [importer] = (tmp_path / "imported").read_text().split()
    assert collectors(tmp_path) == {importer}
    workers = {worker for worker, *_ in ran}
    assert len(workers) == 2
    assert importer not in workers
    reported = re.findall(r"([\d.]+)s (setup|call|teardown) ", done.stdout)
    assert [phase for _, phase in reported].count("call") == 4
    assert all(phase == "call" or duration != "0.00" for duration, phase in reported), "short phases are left out"
    assert {tuple(others) for _, *others in ran} == {(ran[0][1], str(os.getpgrp()), "nothing", str(tmp_path))}


def test_workers_collect_by_themselves_if_the_run_selects_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE, "nothing", "-k", "not 0")
    assert "3 passed" in done.stdout, done.stdout
    assert len((tmp_path / "imported").read_text().split()) == 1
    assert len(collectors(tmp_path)) == 3


def test_a_setting_of_the_command_line_holds_for_what_is_collected(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE + "def check_it(): pass", "nothing", "-o", "python_functions=check_*")
    assert "1 passed" in done.stdout, done.stdout
    assert len(collectors(tmp_path)) == 1


def test_a_worker_that_died_is_replaced(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE, "kill")
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "crashed while running 'below/test_one.py::test_it[3]'" in done.stdout
    assert len((tmp_path / "imported").read_text().split()) == 1


def test_tests_that_cannot_be_imported_are_named(tmp_path: Path) -> None:
    done = run(tmp_path, "import nothing_of_this_name")
    assert "ERROR collecting below/test_one.py" in done.stdout
    assert "No module named 'nothing_of_this_name'" in done.stdout
    assert done.returncode != 0
