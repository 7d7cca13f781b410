# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs tests on mutants, each in a fork of a process that has collected the tests.

The fork gets the code of the mutant's functions in place of theirs: no file changes, and a run costs as long as its tests take to
notice. What a test starts as another program, as `hg`, has no mutant in it.
"""

import contextlib
import gc
import io
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.main import pytest_runtestloop as run_tests

from .mutations import Mutant

# A test that takes half a minute never ends, on any machine.
ARGUMENTS = ["-x", "--timeout=30", "--hypothesis-profile=quick", "-m", "not slow and not services"]
WITHOUT = ("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:rerunfailures")

# How a fork exits; else a mutant killed it.
PASSED, FAILED, PREPARING = range(3)


class Mutating:
    """A plugin of pytest that runs the collected tests once for each mutant, and once without."""

    def __init__(self, root: Path, tests: Sequence[str], mutants: Sequence[Mutant]) -> None:
        self.survivors: list[Mutant] = []
        self.passes_unchanged = False
        self._root, self._tests, self._mutants = root, tests, mutants

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all in forks; note which mutants no test noticed."""
        gc.unfreeze()  # what was imported is looked for, too
        session.items.sort(key=self._find_place)
        self.passes_unchanged = _passes(session, lambda: None)
        if self.passes_unchanged:
            self.survivors = [each for each in self._mutants if _passes(session, partial(self._install, each))]
        return True

    def _find_place(self, test: pytest.Item) -> int:
        """Return the first of the given places with this test: pytest has a file of a given folder in the folder's order."""
        return next(index for index, place in enumerate(self._tests) if test.path.is_relative_to(self._root / place))

    def _install(self, mutant: Mutant) -> None:
        file = self._root / mutant.path
        replace_code(file, mutant.change(file.read_text()))


def _passes(session: pytest.Session, prepare: Callable[[], None]) -> bool:
    """Tell whether the tests pass in a fork of this process, after `prepare` there."""
    fork = os.fork()
    if not fork:
        outcome = PREPARING
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            prepare()
            outcome = FAILED
            run_tests(session)
            outcome = FAILED if session.testsfailed else PASSED
        finally:
            os._exit(outcome)
    _, status = os.waitpid(fork, 0)
    if os.waitstatus_to_exitcode(status) == PREPARING:
        raise RuntimeError("a mutant was not put in place")
    return status == PASSED


def replace_code(file: Path, source: str) -> None:
    """Give the functions of a module's file the code that they have in another text of it, which differs in one of them.

    Raises LookupError if no function has this code.
    """
    before, after = (_codes(compile(text, file, "exec")) for text in (file.read_text(), source))
    changed = {place for place, code in after.items() if code != before.get(place)}
    functions = [
        each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == str(file)
    ]
    replaced = [each for each in functions if _place(each.__code__) in changed]
    if not replaced:
        raise LookupError(f"{file}: no function has the code that changed")
    for function in replaced:
        function.__code__ = after[_place(function.__code__)]


def _place(code: CodeType) -> tuple[str, int]:
    """Return the name and line of a function: a property and its setter have one name."""
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of all functions in a code, by their places in the file."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {place: each for part in inner for place, each in [(_place(part), part), *_codes(part).items()]}


def find_survivors(root: Path, tests: Sequence[str], mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants that these tests, in this order, do not notice.

    Raises RuntimeError if the tests fail without a mutant, or pytest itself does.
    """
    mutating = Mutating(root, tests, mutants)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main([*ARGUMENTS, *WITHOUT, f"--rootdir={root}", *tests], plugins=[mutating])
    if code or not mutating.passes_unchanged:
        raise RuntimeError(f"these tests fail without a mutant: {' '.join(tests)}\n{output.getvalue()}")
    return mutating.survivors
