# SPDX-License-Identifier: GPL-2.0-or-later
"""A question to a log in memory that takes long."""

import threading
from collections.abc import Collection

from hgext.vcsreplicator.log import EVENTS
from testing.builders.log.memorylog import MemoryLog
from testing.waiting import eventually


class HangingEnds:
    """From now on the log says where `events` ends only once `go_on` is set; `asked` has the partitions of each question."""

    def __init__(self, log: MemoryLog) -> None:
        self.go_on, self.asked = threading.Event(), list[Collection[int] | None]()
        log.before["ends"] = self._hang

    def answer(self) -> None:
        """Let the log answer, and wait until who asked has the answer: a thread of this name asks."""
        self.go_on.set()
        eventually(lambda: "ends" not in {thread.name for thread in threading.enumerate()})

    def _hang(self, topic: str, partitions: Collection[int] | None) -> None:
        if topic == EVENTS:
            self.asked.append(partitions)
            assert self.go_on.wait(20)
