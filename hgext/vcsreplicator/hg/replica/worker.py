# SPDX-License-Identifier: GPL-2.0-or-later
"""A worker process of a mirror: tasks come through a pipe, outcomes go back.

    python -m hgext.vcsreplicator.hg.replica.worker DESCRIPTOR

The first message holds the mirror's settings, and the worker answers it when it is ready. If the supervisor is killed, the pipe
closes: the worker finishes its task, so no transaction is left in the middle, and ends. A worker forked by a nursery begins at
`serve`.
"""

import contextlib
import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

from mercurial import error
from mercurial.localrepo import localrepository
from mercurial.ui import ui as Ui

from ...mirror.task import READY, Check, Look, Scan, Sweep, Task, Warm
from ...words import memory
from ...words.clock import SystemClock
from .. import requirement
from ..serving import views
from . import place, replicated
from .checking import check, look
from .repository import OpenRepositories, prepare
from .scan import is_locked, scan
from .snapshot import MASTER_AUTH
from .work import TaskRunner


def warm(repositories: OpenRepositories, wanted: Warm) -> Warm:
    """Warm the caches, and lock the repository, as far as possible."""
    with contextlib.suppress(Exception):
        repo = repositories.open(wanted.folder)
        repo.invalidate()
        if wanted.relock:
            _update_lock(repo, wanted.repository)
        views.warm(repo)
    return wanted


def _update_lock(repo: localrepository, repository: str) -> None:
    """Lock or unlock the repository on disk as the setting says, unless it is in use."""
    with contextlib.suppress(error.LockError), repo.wlock(wait=False), repo.lock(wait=False):
        checkpoint = replicated.read(repo)
        if checkpoint is not None and checkpoint.repository == repository:
            requirement.keep(repo)


def main() -> None:
    """Serve the pipe whose descriptor is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the supervisor blocked it
    pipe: Connection = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    serve(pipe, None)


def serve(pipe: Connection, ui: Ui | None) -> None:
    """Serve the pipe until it ends, with `ui`, or a new one."""
    try:
        settings = pipe.recv()
    except (EOFError, OSError):
        return
    # Mercurial holds a whole chunk of a bundle and a whole file at a time, several times over.
    memory.bound(settings.worker_memory_bytes)
    ui = ui or prepare()
    if settings.master_auth is not None:
        ui.setconfig(*MASTER_AUTH, os.fsencode(settings.master_auth), b"mirror")
    ui.setconfig(*requirement.MIRROR_LOCK, b"yes" if settings.lock else b"no", b"mirror")
    runner = TaskRunner(settings, OpenRepositories(ui, settings.open_repositories), SystemClock())
    answer: object = READY
    while True:
        try:
            pipe.send(answer)
            task = pipe.recv()
        except (EOFError, OSError):
            return
        match task:
            case Task():
                answer = runner.perform(task)
            case Scan():
                answer = tuple(replace(f, is_locked=is_locked(f.folder)) for f in scan(settings.root, settings.folder))
            case Look():
                answer = look(task, settings)
            case Check():
                answer = check(runner.repositories, settings, task)
            case Sweep():
                answer = replace(task, kept=place.remove_old(settings.folder, task.now, task.age))
            case Warm():
                answer = warm(runner.repositories, task)


if __name__ == "__main__":
    main()
