# SPDX-License-Identifier: GPL-2.0-or-later
"""The faults that crash suites inject: they strike where they say, and nowhere else."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from testing.faults import PythonSteps, SystemCalls, first_visits

pytestmark = pytest.mark.processes

KILLED = -9
WRITER = """
import sys
def main():
    with open(sys.argv[1], "w") as out:
        for letter in "abc":
            out.write(letter)
            out.flush()
main()
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    return [sys.executable, str(script), str(tmp_path / "out")]


def test_steps_are_counted_in_the_watched_file_alone(argv: list[str], tmp_path: Path) -> None:
    steps = PythonSteps(files=("writer.py",), record=tmp_path / "steps")
    places = steps.taken(lambda environment: subprocess.run(argv, env=environment, check=True))
    assert {place.rpartition(":")[0] for place in places} == {argv[1]}
    assert len([place for place in places if place.endswith(":6")]) == 3
    assert len(first_visits(places)) == len(set(places))


def test_a_kill_at_each_step_comes_before_the_line_runs(argv: list[str], tmp_path: Path) -> None:
    steps = PythonSteps(files=("writer.py",), record=tmp_path / "steps")
    places = steps.taken(lambda environment: subprocess.run(argv, env=environment, check=True))
    for number in range(1, len(places) + 1):

        def killed(environment: Mapping[str, str]) -> None:
            assert subprocess.run(argv, env=environment).returncode == KILLED

        (tmp_path / "out").unlink(missing_ok=True)
        assert steps.taken(killed, kill_at=number) == places[:number]
        flushed = len([place for place in places[: number - 1] if place.endswith(":7")])
        written = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
        assert written == "abc"[:flushed]


def test_a_process_without_the_argument_is_left_alone(argv: list[str], tmp_path: Path) -> None:
    steps = PythonSteps(files=("writer.py",), record=tmp_path / "steps", argument="serve")
    with pytest.raises(AssertionError, match="no step was counted"):
        steps.taken(lambda environment: subprocess.run(argv, env=environment, check=True), kill_at=1)
    assert steps.taken(lambda environment: subprocess.run([*argv, "serve"], env=environment), kill_at=1)


def run_well(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True)


def test_a_kill_at_each_system_call_leaves_that_call_undone(argv: list[str], tmp_path: Path) -> None:
    calls = SystemCalls(log=tmp_path / "strace.log")
    mine = [call for call in calls.made(argv, run_well) if str(tmp_path / "out") in call.text]
    assert [call.name for call in mine] == ["openat", "write", "write", "write"]
    found = []
    for call in mine:
        (tmp_path / "out").unlink(missing_ok=True)
        assert subprocess.run(calls.struck(argv, at=call)).returncode == KILLED
        found.append((tmp_path / "out").read_text() if (tmp_path / "out").exists() else None)
    assert found == [None, "", "a", "ab"]


def test_a_system_call_can_fail_instead(argv: list[str], tmp_path: Path) -> None:
    calls = SystemCalls(log=tmp_path / "strace.log")
    second = [call for call in calls.made(argv, run_well) if call.name == "write" and "/out>" in call.text][1]
    result = subprocess.run(calls.struck(argv, at=second, fault="error=ENOSPC"), capture_output=True, text=True)
    assert "No space left on device" in result.stderr
    assert (tmp_path / "out").read_text()[:1] == "a"
