# SPDX-License-Identifier: GPL-2.0-or-later
"""Which worker of `pytest -n` runs which test: what a module's tests share is made by one worker, once."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

# A fixture that all tests of a module share.
SHARED_FIXTURE = re.compile(r"^@pytest\.fixture\([^)]*scope=\"module\"", re.MULTILINE)


@functools.cache
def is_run_whole(path: Path) -> bool:
    """Tell whether one worker runs all tests of a module, one after the other."""
    return SHARED_FIXTURE.search(path.read_text()) is not None


@functools.cache
def has_many_examples(path: Path) -> bool:
    """Tell whether a module has tests that run for seconds though they start nothing."""
    return "from hypothesis import" in path.read_text()


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker the next test when it is done, or the next module if its tests share what they made.

    When a worker dies, the test that it ran has failed, and others run what it had not begun. LoadScopeScheduling would also give
    them what was done already, of which no worker says that it is done again: they would wait for ever.
    """

    def remove_node(self, node: Any) -> str | None:
        """Take back what a worker did not finish; return the test that ended it, which is not run again."""
        work = self.assigned_work.pop(node)
        unfinished = [test for tests in work.values() for test, is_done in tests.items() if not is_done]
        self._put_back(unfinished[1:])
        return unfinished[0] if unfinished else None

    def mark_test_pending(self, item: str) -> None:
        """Let a test that ended its worker run again: a second look."""
        self._put_back([item])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a test or module that is done: each question for what is left goes through all that a worker was given."""
        test = self.registered_collections[node][item_index]
        scope = self._split_scope(test)
        work = self.assigned_work[node]
        work[scope][test] = True
        if all(work[scope].values()):
            del work[scope]
        self._reschedule(node)

    def _put_back(self, tests: Sequence[str]) -> None:
        for test in reversed(tests):
            scope = self._split_scope(test)
            self.workqueue[scope] = {test: False, **self.workqueue.get(scope, {})}
            self.workqueue.move_to_end(scope, last=False)
        for node in self.nodes:
            self._reschedule(node)

    def _reschedule(self, node: Any) -> None:
        """Let a worker have two tests: it begins one when it knows the next."""
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the next test or module, also the rest of a module that it has begun; the first worker, the last.

        The last tests start nothing: one worker runs these while the processes of the others' tests wait.
        """
        if node is self.nodes[0] and len(self.nodes) > 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        scope = next(iter(self.workqueue))
        begun = self.assigned_work[node].get(scope, {})
        super()._assign_work_unit(node)
        self.assigned_work[node][scope] = {**begun, **self.assigned_work[node][scope]}

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if is_run_whole(self.config.rootpath / path) else nodeid
