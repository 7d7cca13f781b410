# SPDX-License-Identifier: GPL-2.0-or-later
"""A task on one repository of a mirror, carried out: events in order, then the release. What fails comes back as its reason."""

import contextlib
import errno
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, Any

from mercurial import error
from mercurial.utils import stringutil

from ...log.blobs import open_blobs
from ...mirror.checkpoint import Checkpoint, before_first
from ...mirror.plan import Act, plan
from ...mirror.settings import MirrorSettings
from ...mirror.task import ReadEvent, Task, TaskOutcome, Trouble
from ...words.clock import Clock
from ...words.errors import Diverged, MalformedEvent, ReplicationError, Unavailable, UnknownEvent
from ...words.event import Type
from ...words.levels import Reason
from ...words.wire import Where
from ..allowed import put
from ..observe import tip
from ..text import text
from . import healing, place, replicated, scan
from .acts import act
from .apply import BundleTooLarge, apply_events
from .here import Halted, Here
from .memory import OUT_OF_MEMORY
from .releasing import fits, refuse_conflict, release
from .repository import OpenRepositories, locked

_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
}
_LOOKS = 5


IN_PLACE = frozenset({Reason.GAP, Reason.BLOB_MISSING, Reason.EXPIRED, Reason.BOOTSTRAP})
"""What is repaired where it stands, if it is there and sound."""


REFUSED_REQUIREMENTS = frozenset({"lfs", "largefiles", "narrowhg-experimental", "treemanifest"})


class Hands:
    """Carries out tasks one after the other, in one process."""

    def __init__(self, settings: MirrorSettings, repositories: OpenRepositories, clock: Clock) -> None:
        self.settings = settings
        self.repositories = repositories
        self._clock = clock

    def perform(self, task: Task) -> TaskOutcome:
        """What became of the task; it raises nothing, and what is done stays done."""
        here = Here(folder=task.folder)
        done, looks, trouble, is_spent = 0, 0, None, False
        try:
            if task.leave:
                self._leave(here, task)
            elif task.heal is not None:
                self._heal(here, task)
            while done < len(task.items):
                passed = self._next(here, task.items[done:])
                done, looks = done + passed, 0 if passed else looks + 1
                if looks > _LOOKS:
                    raise Halted(Reason.LOCKED, "another process changes the repository at the same time")
            if not task.items:
                here.look(self.settings, task.repository, self.settings.local(task.path))
            if here.level is not None and _is_told_of(here.level, task):
                now = self._clock.now()
                release(here, self.repositories, self.settings, released=task.released, keep=task.keep, now=now)
        except MemoryError as problem:  # what is read may fit from the master, in pieces; a repair is tried again
            trouble, is_spent = replace(self._trouble(here, problem), passing=task.heal is not None), True
        except Exception as problem:
            trouble = self._trouble(here, problem)
        return TaskOutcome(
            repository=task.repository,
            done=done,
            checkpoint=here.level,
            folder=here.folder,
            serving=here.serving,
            served_at=here.served_at,
            trouble=trouble,
            gone=here.gone,
            is_spent=is_spent,
            floor=here.floor,
        )

    def _next(self, here: Here, items: Sequence[ReadEvent]) -> int:
        """Works off the first of the items, and those that can share its transaction; 0 to look again."""
        event = items[0].event
        here.look(self.settings, event.repository, self.settings.local(event.path))
        step = plan(event, here.level)
        match step.act:
            case Act.SKIP:
                return 1
            case Act.TROUBLE:
                raise Halted(step.reason or Reason.CORRUPT, step.why)
        if event.type in (Type.CREATED, Type.RENAMED):
            place.check_inside(self.settings.root, self.settings.local(event.path))
            refuse_conflict(self.settings, event.repository, event.path, event.generation)
        if step.act is Act.CREATE:
            return self._create(here, items[0])
        assert here.folder is not None
        assert here.level is not None
        repo = self.repositories.open(here.folder)
        with locked(repo):
            if replicated.read(repo) != here.level:
                return 0
            _check_unchanged(repo, here.level)
            return self._apply(here, repo, items)

    def _apply(self, here: Here, repo: Any, items: Sequence[ReadEvent]) -> int:
        assert here.level is not None
        event = items[0].event
        replicated.trim(repo, here.serving)
        if event.type is Type.SYNC and self._must_ask_master(repo, items[0]):
            raise Halted(Reason.BLOB_MISSING, f"event {event.seq} says that the master was changed outside")
        if event.type is not Type.CHANGED:
            here.level = act(repo, here.level, items[0], self._clock.now())
            return 1
        together = _together(items)
        with contextlib.ExitStack() as files:
            bundles = [self._bundle(item, files) for item in together]
            here.level = apply_events(repo, here.level, together, bundles, self._clock.now())
        return len(together)

    def _heal(self, here: Here, task: Task) -> None:
        """Repairs the repository from the master, where it stands or beside."""
        settings, url = self.settings, healing.url_of(self.settings, task.path)
        home = settings.local(task.path)
        with contextlib.suppress(Halted):
            here.look(settings, task.repository, home)
        if task.heal in IN_PLACE and here.folder is not None and here.level is not None:
            repo = self.repositories.open(here.folder)
            here.level = healing.bring_up(repo, url, task.repository, settings, self._clock.now())
        else:
            made, level = healing.copy_beside(self.repositories, url, task.repository, settings, self._clock.now)
            refuse_conflict(settings, task.repository, level.path, level.generation)
            here.folder = self._seat(here, task)
            healing.swap(self.repositories, made, here.folder, settings, task.repository)
            here.look(settings, task.repository)

    def _seat(self, here: Here, task: Task) -> str:
        """Where a copy belongs now: the repository may have been moved while it was made. Damage at its place is it."""
        waiting = place.waiting_of(self.settings.folder, task.repository)
        places = [*filter(None, (here.folder, task.folder)), waiting, self.settings.local(task.path)]
        ours = (each for each in places if _is_of(task.repository, each))
        return next(ours, None) or next(filter(_is_damaged, places), waiting)

    def _must_ask_master(self, repo: Any, item: ReadEvent) -> bool:
        """Whether an event tells of changes without bringing them."""
        if self.settings.master is None:
            return False
        reason = (item.event.detail or {}).get("reason")
        return reason != "requested" or tip(repo) != item.event.after

    def _create(self, here: Here, item: ReadEvent) -> int:
        """Makes the repository beside, with its first event applied; it has no URL before its release."""
        event, settings = item.event, self.settings
        if foreign := sorted(REFUSED_REQUIREMENTS & set(event.settings.requirements)):
            raise Halted(Reason.REFUSED, f"repositories with {', '.join(foreign)} are not replicated")
        made = place.empty(place.staging_of(settings.folder, event.repository))
        level = before_first(event.repository, event.incarnation, event.path, event.generation)
        repo = self.repositories.create(made)
        try:
            with locked(repo), contextlib.ExitStack() as files:
                level = apply_events(repo, level, [item], [self._bundle(item, files)], self._clock.now())
                put(repo, event.hgrc or {})
        finally:
            self.repositories.close(made)
        waiting = place.waiting_of(settings.folder, event.repository)
        place.install(made, settings.folder, waiting)
        here.folder, here.level, here.serving = waiting, level, 0
        return 1

    def _leave(self, here: Here, task: Task) -> None:
        """Sets the repository aside, whole or damaged, and gives up its copy; done before, there is nothing to do."""
        waiting = place.waiting_of(self.settings.folder, task.repository)
        for folder in dict.fromkeys(filter(None, (task.folder, waiting, self.settings.local(task.path)))):
            found = scan.look(folder)
            is_lost = task.folder is None and found is not None and found.checkpoint is None
            is_ours = folder in (task.folder, waiting) or is_lost
            if found is not None and found.checkpoint is not None:
                is_ours = found.checkpoint.repository == task.repository
            if is_ours and os.path.lexists(os.path.join(folder, ".hg")):
                self.repositories.close(folder)
                with place.hold(folder) as held:
                    if scan.look(folder) != found:
                        raise place.Busy(f"{folder}: another repository moved there at the same moment")
                    place.set_aside(self.settings.folder, self.settings.root, held, f"{task.repository}-left")
        begun = place.staging_of(self.settings.folder, task.repository)
        self.repositories.close(begun)
        place.empty(begun)
        here.folder = None

    def _bundle(self, item: ReadEvent, files: contextlib.ExitStack) -> IO[bytes] | None:
        """The event's bundle, its hash checked; what has to be closed goes to `files`."""
        attachment, event = item.frame.header.attachment, item.event
        if attachment is None:
            return None
        if attachment.where is Where.INLINE:
            return io.BytesIO(item.frame.body)
        if attachment.where is Where.MASTER or self.settings.blobs is None:
            raise Halted(Reason.BLOB_MISSING, f"the bundle of event {event.seq} is not in the log")
        try:
            return files.enter_context(open_blobs(self.settings.blobs).open(attachment))
        except (FileNotFoundError, MalformedEvent) as problem:
            raise Halted(Reason.BLOB_MISSING, f"the blob of event {event.seq}: {problem}") from problem

    def _trouble(self, here: Here, problem: Exception) -> Trouble:
        if here.folder is not None:
            self.repositories.close(here.folder)
        return trouble(problem)


def trouble(problem: Exception) -> Trouble:
    """The reason behind an exception, and whether trying again soon may be enough."""
    note = " ".join(text(stringutil.forcebytestr(problem)).split())[:500] or type(problem).__name__
    match problem:
        case Halted():
            return Trouble(reason=problem.reason, note=note, passing=problem.reason is Reason.LOCKED)
        case place.Busy():
            return Trouble(reason=Reason.LOCKED, note=note, passing=True)
        case error.LockHeld():
            return Trouble(reason=Reason.LOCKED, note=f"locked by {os.fsdecode(problem.locker or b'?')}", passing=True)
        case Unavailable():
            return Trouble(reason=Reason.BLOB_MISSING, note=note, passing=True)
        case MemoryError():
            return Trouble(reason=Reason.BLOB_MISSING, note=OUT_OF_MEMORY)
        case BundleTooLarge():
            return Trouble(reason=Reason.BLOB_MISSING, note=note)
        case UnknownEvent():
            return Trouble(reason=Reason.UNKNOWN_VERSION, note=note)
        case Diverged():
            return Trouble(reason=Reason.DIVERGED, note=note)
        case OSError() if problem.errno in _DISK:
            return Trouble(reason=Reason.DISK, note=note, passing=True)
        case MalformedEvent() | ReplicationError():
            return Trouble(reason=Reason.CORRUPT, note=note)
    return Trouble(reason=Reason.CORRUPT, note=f"{type(problem).__name__}: {note}")


def _is_told_of(level: Checkpoint, task: Task) -> bool:
    """Whether what is released is of the history that is here: applied events may be others than those the task began with."""
    return level.incarnation == task.incarnation and not level.contradicts(task.told)


def _is_of(repository: str, folder: str) -> bool:
    """Whether the repository is there, sound as far as its level says."""
    found = scan.look(folder)
    return found is not None and found.checkpoint is not None and found.checkpoint.repository == repository


def _is_damaged(folder: str) -> bool:
    """Whether a repository is there that does not say which one it is."""
    found = scan.look(folder)
    return os.path.lexists(os.path.join(folder, ".hg")) and (found is None or found.checkpoint is None)


def _check_unchanged(repo: Any, level: Checkpoint) -> None:
    """Raises Diverged if the changelog is not as the level left it: somebody else wrote, or the disk lost something."""
    now = tip(repo)
    if (now.length, now.node) != (level.length, level.tip) and not (level.stripping and fits(repo, level)):
        told = (
            f"{level.length} changesets up to {level.tip} after event {level.seq}, found {now.length} up to {now.node}"
        )
        raise Diverged(f"changed outside of replication: expected {told}")


def _together(items: Sequence[ReadEvent]) -> list[ReadEvent]:
    """The first items that are direct successors of each other, changes of changesets all of them."""
    taken = [items[0]]
    for item in items[1:]:
        last = taken[-1].event
        same = item.event.incarnation == last.incarnation and item.event.path == last.path
        if item.event.type is not Type.CHANGED or not same or item.event.previous != last.id or not item.inline:
            break
        if item.event.seq != last.seq + 1:
            break
        taken.append(item)
    return taken
