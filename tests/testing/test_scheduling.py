# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers take one test after the other, and modules whose tests share what they make as a whole."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testing.scheduling import ModuleScheduling, is_run_whole

ALONE = "def test_one(): ...\ndef test_two(): ...\n"
SHARING = '@pytest.fixture(scope="module")\ndef broker(): ...\n' + ALONE


class Worker:
    """Runs what it was asked to, each test once it knows the next or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.asked: list[int] = []
        self.ran: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.asked += numbers

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_next(self) -> int | None:
        if len(self.asked) - len(self.ran) <= (not self.shutting_down):
            return None
        self.ran.append(self.asked[len(self.ran)])
        return self.ran[-1]


class Run:
    """A run whose workers take turns, one test each; a worker that dies is replaced, as pytest-xdist does."""

    def __init__(self, folder: Path, modules: dict[str, str], workers: int) -> None:
        for name, text in modules.items():
            (folder / name).write_text(f"import pytest\n{text}")
        self.tests = [f"{name}::test_{number}" for name in modules for number in ("one", "two")]
        options = SimpleNamespace(loadscopereorder=False)
        config = SimpleNamespace(getvalue=lambda _: [f"{workers}*popen"], option=options, rootpath=folder)
        self.scheduling = ModuleScheduling(config)  # type: ignore[arg-type]
        self.team: list[Worker] = []
        for _ in range(workers):
            self.add_worker()
        self.scheduling.schedule()

    def add_worker(self) -> None:
        self.team.append(Worker(str(len(self.team))))
        self.scheduling.add_node(self.team[-1])  # type: ignore[arg-type]
        self.scheduling.add_node_collection(self.team[-1], self.tests)  # type: ignore[arg-type]

    def go_on(self, deadly: str = "", *, is_repeated: bool = False) -> list[list[str]]:
        """What each worker ran in the end; the deadly test ends its first worker."""
        while self.scheduling.has_pending:
            ran = [self.take_turn(worker, deadly, is_repeated) for worker in list(self.scheduling.nodes)]
            if any(test == deadly for test in ran):
                deadly = ""
            if self.scheduling.tests_finished:
                for worker in self.team:
                    worker.shutdown()
            elif not any(ran):
                raise AssertionError("all workers wait")
        return [[self.tests[number] for number in worker.ran] for worker in self.team]

    def take_turn(self, worker: Any, deadly: str, is_repeated: bool) -> str | None:
        number = worker.run_next()
        if number is None:
            return None
        if self.tests[number] != deadly:
            self.scheduling.mark_test_complete(worker, number)
            return self.tests[number]
        assert self.scheduling.remove_node(worker) == deadly
        if is_repeated:
            self.scheduling.mark_test_pending(deadly)
        self.add_worker()
        self.scheduling.schedule()
        return deadly


def run_all(folder: Path, modules: dict[str, str], workers: int) -> list[list[str]]:
    """What each worker runs."""
    return Run(folder, modules, workers).go_on()


def test_a_module_whose_tests_share_a_fixture_is_run_by_one_worker(tmp_path: Path) -> None:
    ran = run_all(tmp_path, {"a.py": SHARING, "b.py": SHARING, "c.py": ALONE, "d.py": ALONE}, 3)
    assert [tests[:2] for tests in ran[1:]] == [[f"{name}::test_one", f"{name}::test_two"] for name in ("a.py", "b.py")]
    assert sorted(test for tests in ran for test in tests) == [
        f"{name}.py::test_{number}" for name in "abcd" for number in ("one", "two")
    ]


def test_other_tests_of_a_module_are_run_by_all_workers_in_their_order(tmp_path: Path) -> None:
    _, *ran = run_all(tmp_path, {"a.py": ALONE, "b.py": ALONE, "c.py": ALONE, "d.py": ALONE}, 3)
    assert all(any(test.startswith(name) for test in tests) for tests in ran for name in ("a.py", "b.py"))
    assert [sorted(tests) for tests in ran] == ran


def test_the_first_of_several_workers_begins_with_the_last_tests(tmp_path: Path) -> None:
    first, second = run_all(tmp_path, {"a.py": SHARING, "b.py": ALONE, "c.py": ALONE}, 2)
    assert first == ["c.py::test_two", "c.py::test_one", "b.py::test_two"]
    assert second == ["a.py::test_one", "a.py::test_two", "b.py::test_one"]


def test_a_worker_that_is_alone_runs_all_in_their_order(tmp_path: Path) -> None:
    (ran,) = run_all(tmp_path, {"a.py": ALONE, "b.py": ALONE}, 1)
    assert ran == sorted(ran)


@pytest.mark.parametrize("deadly", ["a.py::test_one", "b.py::test_two", "d.py::test_one", "f.py::test_two"])
@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_dies_costs_no_other_test(tmp_path: Path, deadly: str, is_repeated: bool, workers: int) -> None:
    run = Run(tmp_path, {"a.py": SHARING, "b.py": SHARING, **{f"{name}.py": ALONE for name in "cdef"}}, workers)
    ran = sorted(test for tests in run.go_on(deadly, is_repeated=is_repeated) for test in tests)
    assert ran == sorted([*run.tests, deadly] if is_repeated else run.tests)


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ('@pytest.fixture(scope="module")\n', True),
        ('@pytest.fixture(autouse=True, scope="module")\n', True),
        ('@pytest.fixture(scope="session")\n', False),
        ("@pytest.fixture\n", False),
        ('# @pytest.fixture(scope="module")\n', False),
    ],
)
def test_fixtures_of_a_module_decide(tmp_path: Path, text: str, is_whole: bool) -> None:
    (tmp_path / "it.py").write_text(text)
    assert is_run_whole(tmp_path / "it.py") == is_whole
