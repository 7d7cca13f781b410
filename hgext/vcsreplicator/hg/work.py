# SPDX-License-Identifier: GPL-2.0-or-later
"""A task on one repository of a mirror, carried out: events in order, then the release. What fails comes back as its reason."""

import contextlib
import errno
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from mercurial import error
from mercurial.utils import stringutil

from ..blobs import open_blobs
from ..clock import Clock
from ..errors import Diverged, MalformedEvent, ReplicationError, Unavailable, UnknownEvent
from ..event import Type
from ..levels import Reason
from ..mirror.level import Level, before_first
from ..mirror.plan import Act, Step, plan
from ..mirror.settings import MirrorSettings
from ..mirror.task import Item, Outcome, Task, Trouble
from ..wire import Where
from . import healing, place, replicated, scan, watermark
from .acts import act, write_hgrc
from .apply import TooLarge, apply_events
from .memory import OUT_OF_MEMORY
from .observe import tip
from .repository import Repositories, locked
from .text import text

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


class Halted(Exception):
    """The repository cannot go on in the stream: why."""

    def __init__(self, reason: Reason, note: str) -> None:
        super().__init__(note)
        self.reason = reason


@dataclass(slots=True)
class Here:
    """What the mirror has of the repository, as far as this task knows."""

    folder: str | None
    level: Level | None = None
    serving: int = 0
    served_at: float = 0.0
    gone: Level | None = None


class Hands:
    """Carries out tasks one after the other, in one process."""

    def __init__(self, settings: MirrorSettings, repositories: Repositories, clock: Clock) -> None:
        self.settings = settings
        self.repositories = repositories
        self._clock = clock

    def perform(self, task: Task) -> Outcome:
        """What became of the task; it raises nothing, and what is done stays done."""
        here = Here(folder=task.folder)
        done, looks, trouble, is_spent = 0, 0, None, False
        try:
            if task.leave:
                self._leave(here, task)
            elif task.heal is not None:
                self._heal(here, task)
            while done < len(task.items):
                passed = self._next(here, task.items[done:], keep=task.keep)
                done, looks = done + passed, 0 if passed else looks + 1
                if looks > _LOOKS:
                    raise Halted(Reason.LOCKED, "another process changes the repository at the same time")
            if not task.items:
                self._look(here, task.repository)
            self._finish_deletion(here, keep=task.keep)  # whose event is skipped, where a kill came in between
            self._release(here, task)
        except MemoryError as problem:  # what is read may fit from the master, in pieces; a repair is tried again
            trouble, is_spent = replace(self._trouble(here, problem), passing=task.heal is not None), True
        except Exception as problem:
            trouble = self._trouble(here, problem)
        return Outcome(
            repository=task.repository,
            done=done,
            level=here.level,
            folder=here.folder,
            serving=here.serving,
            served_at=here.served_at,
            trouble=trouble,
            gone=here.gone,
            is_spent=is_spent,
        )

    def _next(self, here: Here, items: Sequence[Item], *, keep: bool) -> int:
        """Works off the first of the items, and those that can share its transaction; 0 to look again."""
        event = items[0].event
        target = self.settings.local(event.path)
        self._look(here, event.repository, target)
        occupant = None if target == here.folder else _level_in(target)
        if occupant is not None and occupant.repository == event.repository:
            occupant = None
        step = plan(event, here.level, occupant)
        match step.act:
            case Act.SKIP:
                return 1
            case Act.TROUBLE:
                raise Halted(step.reason or Reason.CORRUPT, step.why)
            case Act.CREATE | Act.REPLACE:
                return self._create(here, items[0], target, step)
        assert here.folder is not None
        assert here.level is not None
        if event.type is Type.RENAMED and here.folder != target:
            self._rename(here, target, occupied=occupant is not None)
        repo = self.repositories.open(here.folder)
        with locked(repo):
            if replicated.read(repo) != here.level:
                return 0
            _check_unchanged(repo, here.level)
            passed = self._apply(here, repo, items)
        self._finish_deletion(here, keep=keep)
        return passed

    def _apply(self, here: Here, repo: Any, items: Sequence[Item]) -> int:
        assert here.level is not None
        event = items[0].event
        replicated.trim(repo, here.serving)
        if event.type is Type.SYNC and self._must_ask_master(repo, items[0]):
            if event.hgrc is not None:
                write_hgrc(repo, event)
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
        with contextlib.suppress(Halted):
            self._look(here, task.repository, settings.local(task.path))
        if task.heal in IN_PLACE and here.folder is not None and here.level is not None:
            repo = self.repositories.open(here.folder)
            here.level = healing.bring_up(repo, url, task.repository, settings, self._clock.now())
        else:
            made, level = healing.copy_beside(self.repositories, url, task.repository, settings, self._clock.now)
            target = here.folder or settings.local(level.path)
            self._make_room(level, target)
            healing.swap(self.repositories, made, target, here.level, settings, task.repository)
            self._look(here, task.repository, target)
        home = settings.local(here.level.path) if here.level else here.folder
        if here.level is not None and home is not None and home != here.folder:  # renamed since
            self._make_room(here.level, home)
            self._rename(here, home, occupied=False)

    def _make_room(self, level: Level, target: str) -> None:
        """Sets aside what lives in the target folder; raises Halted if that has the better right to it."""
        occupant = _level_in(target)
        if occupant is None or occupant.repository == level.repository:
            return
        if occupant.generation >= level.generation or occupant.path != level.path:
            raise Halted(Reason.REFUSED, f"path {level.path!r} is taken by repository {occupant.repository}")
        self.repositories.close(target)
        place.set_aside(self.settings.folder, self.settings.root, target, f"{occupant.repository}-before")

    def _must_ask_master(self, repo: Any, item: Item) -> bool:
        """Whether an event tells of changes without bringing them."""
        if self.settings.master is None:
            return False
        reason = (item.event.detail or {}).get("reason")
        return reason != "requested" or tip(repo) != item.event.after

    def _create(self, here: Here, item: Item, target: str, step: Step) -> int:
        """Makes the repository beside, with its first event applied, and moves it into place."""
        event, settings = item.event, self.settings
        if foreign := sorted(REFUSED_REQUIREMENTS & set(event.settings.requirements)):
            raise Halted(Reason.REFUSED, f"repositories with {', '.join(foreign)} are not replicated")
        place.check_inside(settings.root, target)
        made = place.empty(place.staging_of(settings.folder, event.repository))
        level = before_first(event.repository, event.incarnation, event.path, event.generation)
        repo = self.repositories.create(made)
        try:
            with locked(repo), contextlib.ExitStack() as files:
                level = apply_events(repo, level, [item], [self._bundle(item, files)], self._clock.now())
                if event.hgrc:
                    write_hgrc(repo, event)
        finally:
            self.repositories.close(made)
        if step.act is Act.REPLACE:
            self.repositories.close(target)
            place.set_aside(settings.folder, settings.root, target, f"{event.repository}-before")
        place.install(made, settings.root, target)
        here.folder, here.level, here.serving = target, level, 0
        return 1

    def _rename(self, here: Here, target: str, *, occupied: bool) -> None:
        """Moves the folder first; read again after a kill, the event finds it at its new place."""
        assert here.folder is not None
        settings = self.settings
        place.check_inside(settings.root, target)
        self.repositories.close(here.folder)
        self.repositories.close(target)
        if occupied:
            place.set_aside(settings.folder, settings.root, target, f"{os.path.basename(target)}-before")
        place.move(settings.root, here.folder, target)
        here.folder = target

    def _leave(self, here: Here, task: Task) -> None:
        """Sets the repository aside, whole or damaged, and gives up its copy; done before, there is nothing to do."""
        for folder in dict.fromkeys(filter(None, (task.folder, self.settings.local(task.path)))):
            found = scan.look(folder)
            is_ours = folder == task.folder or (found is not None and found.level is None)
            if found is not None and found.level is not None:
                is_ours = found.level.repository == task.repository
            if is_ours and os.path.lexists(os.path.join(folder, ".hg")):
                self.repositories.close(folder)
                place.set_aside(self.settings.folder, self.settings.root, folder, f"{task.repository}-left")
        begun = place.staging_of(self.settings.folder, task.repository)
        self.repositories.close(begun)
        place.empty(begun)
        here.folder = None

    def _finish_deletion(self, here: Here, *, keep: bool) -> None:
        """Takes a deleted repository away; also one whose deletion a kill interrupted."""
        if here.level is None or not here.level.deleted or keep or here.folder is None:
            return
        self.repositories.close(here.folder)
        settings, name = self.settings, f"{here.level.repository}-deleted"
        place.set_aside(settings.folder, settings.root, here.folder, name)
        here.gone, here.level, here.folder = here.level, None, None

    def _look(self, here: Here, repository: str, target: str | None = None) -> None:
        """Finds the repository: where it was last, or where its event says it is."""
        for folder in dict.fromkeys(filter(None, (here.folder, target))):
            found = scan.look(folder)
            if found is not None and found.problem is not None:
                raise Halted(Reason.CORRUPT, found.problem)
            if found is not None and found.level is not None and found.level.repository == repository:
                here.folder, here.level, here.serving = folder, found.level, found.serving
                return
        here.folder, here.level, here.serving = None, None, 0

    def _release(self, here: Here, task: Task) -> None:
        """Serves what is applied and released, if that is more than is served."""
        level = here.level
        if level is None or here.folder is None or level.incarnation != task.incarnation:
            return
        if min(task.released, level.seq) <= here.serving:
            return
        repo = self.repositories.open(here.folder)
        found = replicated.find(repo, task.released)
        if found is None or found[0].seq <= here.serving:
            return
        shown, moved = found
        repo.invalidate()
        if (shown.seq < level.seq or level.stripping) and not _fits(repo, shown):
            return  # what it would show was stripped since; the release of the strip is on its way
        watermark.write_watermark(
            repo, seq=shown.seq, length=shown.length, tip=shown.tip, push_id=shown.push, moved=moved
        )
        here.serving, here.served_at = shown.seq, self._clock.now()

    def _bundle(self, item: Item, files: contextlib.ExitStack) -> IO[bytes] | None:
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
        case error.LockHeld():
            return Trouble(reason=Reason.LOCKED, note=f"locked by {os.fsdecode(problem.locker or b'?')}", passing=True)
        case Unavailable():
            return Trouble(reason=Reason.BLOB_MISSING, note=note, passing=True)
        case MemoryError():
            return Trouble(reason=Reason.BLOB_MISSING, note=OUT_OF_MEMORY)
        case TooLarge():
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


def _fits(repo: Any, level: Level) -> bool:
    """Whether the changelog still begins as the level says."""
    changelog = repo.changelog
    return len(changelog) >= level.length and changelog.node(level.length - 1).hex() == level.tip


def _level_in(folder: str) -> Level | None:
    found = scan.look(folder)
    return None if found is None else found.level


def _check_unchanged(repo: Any, level: Level) -> None:
    """Raises Diverged if the changelog is not as the level left it: somebody else wrote, or the disk lost something."""
    now = tip(repo)
    if (now.length, now.node) != (level.length, level.tip) and not (level.stripping and _fits(repo, level)):
        told = (
            f"{level.length} changesets up to {level.tip} after event {level.seq}, found {now.length} up to {now.node}"
        )
        raise Diverged(f"changed outside of replication: expected {told}")


def _together(items: Sequence[Item]) -> list[Item]:
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
