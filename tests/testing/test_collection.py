# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check` imports no module of which it would run no test, and every other; `make test` runs a sample of many cases."""

import argparse
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import (
    LIMIT_OF_SLOW,
    draw_samples,
    give_second_looks,
    give_slow_tests_time,
    pytest_ignore_collect,
    seed_hypothesis,
)

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


class Case:
    """A test's case, with its marks by name."""

    def __init__(self, nodeid: str, **marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, marks

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (mark for each, mark in self.marks.items() if each == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


def drawn(test: str, sample: pytest.MarkDecorator) -> list[str]:
    """The cases, of ten, that are not slow then; one more was slow before."""
    cases = [Case(f"{test}[{number}]", sample=sample.mark) for number in range(10)]
    before = Case(f"{test}[before]", sample=sample.mark, slow=pytest.mark.slow.mark)
    other = Case(f"{test}_too[0]")
    draw_samples([*cases, before, other])
    assert "slow" not in other.marks
    return [case.nodeid for case in [*cases, before] if "slow" not in case.marks]


def test_a_sample_has_so_many_cases_and_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = []
    for seed in ("1", "1", "2", "3"):
        monkeypatch.setenv("VCSREPLICATOR_TEST_SEED", seed)
        samples.append(drawn("it", pytest.mark.sample(3)))
    assert [len(sample) for sample in samples] == [3] * 4
    assert samples[0] == samples[1]
    assert len({tuple(sample) for sample in samples}) > 1
    assert len(drawn("it", pytest.mark.sample(20))) == 10


def test_what_is_kept_is_in_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        sample = drawn(f"it{number}", pytest.mark.sample(3, keep=("[0]", "[7]")))
        assert len(sample) == 3
        assert {f"it{number}[0]", f"it{number}[7]"} <= set(sample)
    assert drawn("it", pytest.mark.sample(1, keep=("[0]", "[7]"))) == ["it[0]", "it[7]"]
    monkeypatch.setenv("VCSREPLICATOR_TEST_WHOLE", "1")
    assert len(drawn("it", pytest.mark.sample(3))) == 10


@pytest.mark.parametrize(
    ("of_run", "given", "drawn_by"),
    [(None, None, None), ("7", None, "7"), ("7", "8", "8")],
    ids=["none", "run", "given"],
)
def test_hypothesis_draws_by_the_seed_of_the_run(
    of_run: str | None, given: str | None, drawn_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VCSREPLICATOR_TEST_SEED", raising=False)
    if of_run is not None:
        monkeypatch.setenv("VCSREPLICATOR_TEST_SEED", of_run)
    option = argparse.Namespace(hypothesis_seed=given)
    seed_hypothesis(option)
    assert option.hypothesis_seed == drawn_by


def second_looks(asked: int | None, *marks: str, text: str = "") -> list[int]:
    """How often a test with these marks runs again, in a module with this text, if `--reruns` asks for so many."""
    given: list[pytest.MarkDecorator] = []
    path = type("Module", (), {"read_text": lambda self: text})()
    case = SimpleNamespace(get_closest_marker=lambda name: name in marks, add_marker=given.append, path=path)
    option = argparse.Namespace(reruns=asked)
    give_second_looks(option, [case])  # type: ignore[list-item]
    assert option.reruns is None
    return [mark.kwargs["reruns"] for mark in given]


def test_tests_of_processes_and_services_get_a_second_look() -> None:
    assert second_looks(1, "processes") == second_looks(1, "services") == [1]


@pytest.mark.parametrize("text", ["    eventually(lambda: True)", "threading.Thread(target=run).start()"])
def test_tests_that_wait_for_threads_get_a_second_look(text: str) -> None:
    assert second_looks(1, text=text) == [1]
    assert second_looks(1, "hunt", text=text) == second_looks(None, text=text) == []


@pytest.mark.parametrize(("asked", "marks"), [(1, ()), (1, ("processes", "hunt")), (None, ("processes",))])
def test_pure_tests_and_hunts_get_none_and_others_only_if_it_is_asked_for(
    asked: int | None, marks: tuple[str, ...]
) -> None:
    assert second_looks(asked, *marks) == []


@pytest.mark.parametrize(
    ("marks", "given"),
    [(("slow",), [LIMIT_OF_SLOW]), (("slow", "timeout"), []), ((), [])],
    ids=["slow", "slow-with-limit", "other"],
)
def test_slow_tests_without_a_limit_get_a_longer_one(marks: tuple[str, ...], given: list[int]) -> None:
    added: list[pytest.MarkDecorator] = []
    case = SimpleNamespace(get_closest_marker=lambda name: name in marks, add_marker=added.append)
    give_slow_tests_time([case])  # type: ignore[list-item]
    assert [mark.args[0] for mark in added] == given
