# SPDX-License-Identifier: GPL-2.0-or-later
"""Tasks of a mirror in a process of its own, to be killed in the middle: `python -m testing.builders.mirror.mirror_task FILE`.

The file is a pickle of the mirror's settings and the events of one repository, with the newest sequence that may be served. All
events are applied to the repository where it is by now, as after a restart whose position is the beginning.
"""

import pickle
import sys

from hgext.vcsreplicator.hg.replica.repository import OpenRepositories, prepare
from hgext.vcsreplicator.hg.replica.scan import scan
from hgext.vcsreplicator.hg.replica.work import TaskRunner
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.mirror.task import ReadEvent, Task
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.wire import decode

BATCH = 3


def main(file: str) -> None:
    """Apply what the file holds; exit with the trouble, if there is any."""
    with open(file, "rb") as stream:
        settings, frames, released = pickle.load(stream)
    runner = TaskRunner(settings, OpenRepositories(prepare(), 8), SystemClock())
    items = [ReadEvent(frame=decode(frame), partition=0, offset=n, size=len(frame)) for n, frame in enumerate(frames)]
    gone = 0
    for start in range(0, len(items), BATCH):
        left = items[start : start + BATCH]
        while left:
            gone = max(
                gone,
                *(
                    f.checkpoint.seq
                    for f in _find_repository(settings, left[0].event.repository)
                    if f.is_aside and f.checkpoint
                ),
                0,
            )
            left = [item for item in left if item.event.seq > gone]
            if left:
                left = left[_perform(runner, settings, left, released) :]


def _perform(runner: TaskRunner, settings: MirrorSettings, items: list[ReadEvent], released: int) -> int:
    event = items[0].event
    folder = next((f.folder for f in _find_repository(settings, event.repository) if not f.is_aside), None)
    task = Task(
        repository=event.repository,
        path=event.path,
        folder=folder,
        items=tuple(items),
        incarnation=event.incarnation,
        released=released,
    )
    outcome = runner.perform(task)
    if outcome.trouble is not None:
        sys.exit(f"{event.path}: {outcome.trouble}")
    return outcome.done


def _find_repository(settings: MirrorSettings, repository: str) -> list:  # type: ignore[type-arg]
    return [
        f
        for f in scan(settings.root, settings.folder)
        if f.checkpoint is not None and f.checkpoint.repository == repository
    ]


if __name__ == "__main__":
    main(sys.argv[1])
