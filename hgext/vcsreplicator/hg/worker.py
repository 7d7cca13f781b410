# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker process of a mirror: tasks come in through a pipe, outcomes go back; it ends when the pipe does.

    python -m hgext.vcsreplicator.hg.worker DESCRIPTOR

The first message are the mirror's settings. A supervisor that is killed closes the pipe: the worker finishes the task it has, so
no transaction is left in the middle, and ends.
"""

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

from ..clock import SystemClock
from ..mirror.task import Check, Look, Scan, Sweep, Task, Warm
from . import place, visibility
from .checking import check
from .looking import look
from .repository import Repositories, prepare
from .scan import scan
from .work import Hands


def warm(repositories: Repositories, wanted: Warm) -> Warm:
    """Does what is asked as far as it works: a cache that is missing is made by its first reader."""
    with contextlib.suppress(Exception):
        repo = repositories.open(wanted.folder)
        repo.invalidate()
        visibility.warm(repo)
    return wanted


def main() -> None:
    """Serves the pipe whose descriptor is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pipe: Connection = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    settings = pipe.recv()
    hands = Hands(settings, Repositories(prepare(), settings.open_repositories), SystemClock())
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        match task:
            case Task():
                answer: object = hands.perform(task)
            case Scan():
                answer = tuple(scan(settings.root, settings.folder))
            case Look():
                answer = look(task, settings)
            case Check():
                answer = check(hands.repositories, task)
            case Sweep():
                place.remove_old(settings.folder, task.before)
                answer = task
            case Warm():
                answer = warm(hands.repositories, task)
            case _:
                return
        try:
            pipe.send(answer)
        except OSError:
            return


if __name__ == "__main__":
    main()
