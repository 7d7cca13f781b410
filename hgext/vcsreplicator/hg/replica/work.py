# SPDX-License-Identifier: GPL-2.0-or-later
"""A task on one repository of a mirror, carried out.

Events come in order, then the release. A failure comes back as its reason.
"""

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from mercurial.localrepo import localrepository

from ...log.blobs import open_blobs
from ...mirror.checkpoint import Checkpoint, before_first
from ...mirror.plan import Act, plan
from ...mirror.settings import MirrorSettings
from ...mirror.task import ReadEvent, Task, TaskOutcome, Trouble
from ...words.clock import Clock
from ...words.errors import Diverged, MalformedEvent, counted
from ...words.event import Type
from ...words.records import Reason
from ...words.wire import BundlePlace
from ..allowed import put
from ..master.formats import REFUSED_REQUIREMENTS
from ..observe import begins_with, tip
from . import healing, place, replicated, scan
from .acts import carry_out
from .apply import apply_events
from .local import Halted, LocalRepository
from .releasing import refuse_conflict, release
from .repository import OpenRepositories, locked
from .troubles import trouble_of

# How often in a row the repository may change before its lock is taken.
_ATTEMPTS = 5


class TaskRunner:
    """Carries out tasks one after the other, in one process."""

    def __init__(self, settings: MirrorSettings, repositories: OpenRepositories, clock: Clock) -> None:
        self.settings = settings
        self.repositories = repositories
        self._clock = clock

    def perform(self, task: Task) -> TaskOutcome:
        """Carry out the task and return its outcome; raises nothing."""
        local, trouble, is_spent = LocalRepository(folder=task.folder), None, False
        try:
            self._leave_or_heal(local, task)
            self._apply_items(local, task)
            self._release(local, task)
        except Exception as problem:
            trouble, is_spent = trouble_of(problem), isinstance(problem, MemoryError)
            if is_spent:
                # The same content may fit when it comes from the master, in pieces; a repair is retried.
                trouble = replace(trouble, passing=task.heal is not None)
            if local.was_moved():
                trouble = Trouble(reason=Reason.LOCKED, note="the repository was moved away meanwhile", passing=True)
            if local.folder is not None:
                self.repositories.close(local.folder)
        return TaskOutcome(
            repository=task.repository,
            done=local.done,
            checkpoint=local.checkpoint,
            folder=local.folder,
            serving=local.serving,
            served_at=local.served_at,
            trouble=trouble,
            gone=local.gone,
            is_spent=is_spent,
            floor=local.floor,
        )

    def _leave_or_heal(self, local: LocalRepository, task: Task) -> None:
        """Set the repository aside, or repair it, if the task says so."""
        if task.leave:
            self._leave(local, task)
        elif task.heal is not None:
            healing.heal(local, self.repositories, self.settings, task, self._clock)

    def _apply_items(self, local: LocalRepository, task: Task) -> None:
        """Apply all events of the task in order; without any, only find the repository."""
        if not task.items:
            local.find(self.settings, task.repository, self.settings.local(task.path))
        attempts = 0
        while local.done < len(task.items):
            applied = self._apply_next(local, task.items[local.done :])
            local.done += applied
            attempts = 0 if applied else attempts + 1
            if attempts > _ATTEMPTS:
                raise Halted(Reason.LOCKED, "another process changes the repository at the same time")

    def _release(self, local: LocalRepository, task: Task) -> None:
        """Show the release, unless it is of another history than the repository by now."""
        here = local.checkpoint
        if here and here.incarnation == task.incarnation and not here.contradicts(task.newest_known):
            now = self._clock.now()
            release(local, self.repositories, self.settings, released=task.released, keep=task.keep, now=now)

    def _apply_next(self, local: LocalRepository, items: Sequence[ReadEvent]) -> int:
        """Apply the first items in one transaction; return how many, 0 to try again."""
        event = items[0].event
        local.find(self.settings, event.repository, self.settings.local(event.path))
        step = plan(event, local.checkpoint)
        match step.act:
            case Act.SKIP:
                return 1
            case Act.TROUBLE:
                raise Halted(step.reason or Reason.CORRUPT, step.why)
        if event.type in (Type.CREATED, Type.RENAMED):
            place.check_inside(self.settings.root, self.settings.local(event.path))
            refuse_conflict(self.settings, event.repository, event.path, event.generation)
        if step.act is Act.CREATE:
            return self._create(local, items[0])
        assert local.folder is not None
        assert local.checkpoint is not None
        repo = self.repositories.open(local.folder)
        with locked(repo):
            if replicated.read(repo) != local.checkpoint:
                return 0
            _check_unchanged(repo, local.checkpoint)
            replicated.trim(repo, local.serving)
            applied, local.checkpoint = self._apply(repo, local.checkpoint, items)
            return applied

    def _apply(
        self, repo: localrepository, checkpoint: Checkpoint, items: Sequence[ReadEvent]
    ) -> tuple[int, Checkpoint]:
        """Apply to the locked repository; return how many items, and the checkpoint."""
        event = items[0].event
        if event.type is Type.SYNC and self._must_ask_master(repo, items[0]):
            raise Halted(Reason.BLOB_MISSING, f"event {event.seq} says that the master was changed outside")
        if event.type is not Type.CHANGED:
            return 1, carry_out(repo, checkpoint, items[0], self._clock.now())
        together = _take_successors(items)
        with contextlib.ExitStack() as files:
            bundles = [self._open_bundle(item, files) for item in together]
            return len(together), apply_events(repo, checkpoint, together, bundles, self._clock.now())

    def _must_ask_master(self, repo: localrepository, item: ReadEvent) -> bool:
        """Return whether an event reports changes without bringing them.

        False if the settings name no master. A request for new mirrors alone (`--bootstrap`) is for mirrors that lack changesets.
        """
        if self.settings.master is None:
            return False
        detail = item.event.detail or {}
        is_for_new = detail.get("reason") == "requested" and detail.get("bootstrap") == "true"
        return not is_for_new or tip(repo) != item.event.after

    def _create(self, local: LocalRepository, item: ReadEvent) -> int:
        """Make the repository beside, with its first event and no URL before its release."""
        event, settings = item.event, self.settings
        if foreign := sorted({name.decode() for name in REFUSED_REQUIREMENTS} & set(event.settings.requirements)):
            raise Halted(Reason.REFUSED, f"repositories with {', '.join(foreign)} are not replicated")
        made = place.empty(place.staging_of(settings.folder, event.repository))
        checkpoint = before_first(event.repository, event.incarnation, event.path, event.generation)
        repo = self.repositories.create(made)
        try:
            with locked(repo), contextlib.ExitStack() as files:
                bundle = self._open_bundle(item, files)
                checkpoint = apply_events(repo, checkpoint, [item], [bundle], self._clock.now())
                put(repo, event.hgrc or {})
        finally:
            self.repositories.close(made)
        waiting = place.waiting_of(settings.folder, event.repository)
        place.install(made, settings.folder, waiting)
        local.folder, local.checkpoint, local.serving = waiting, checkpoint, 0
        return 1

    def _leave(self, local: LocalRepository, task: Task) -> None:
        """Set the repository aside, whole or damaged, and remove its half-made copy."""
        waiting = place.waiting_of(self.settings.folder, task.repository)
        for folder in dict.fromkeys(filter(None, (task.folder, waiting, self.settings.local(task.path)))):
            found = scan.inspect(folder)
            is_lost = task.folder is None and found is not None and found.checkpoint is None
            is_ours = folder in (task.folder, waiting) or is_lost
            if found is not None and found.checkpoint is not None:
                is_ours = found.is_of(task.repository)
            if is_ours and os.path.lexists(os.path.join(folder, ".hg")):
                self.repositories.close(folder)
                with place.hold(folder) as held:
                    if scan.inspect(folder) != found:
                        raise place.Busy(f"{folder}: another repository moved there at the same moment")
                    place.set_aside(self.settings.folder, self.settings.root, held, f"{task.repository}-left")
        begun = place.staging_of(self.settings.folder, task.repository)
        self.repositories.close(begun)
        place.empty(begun)
        local.folder = None

    def _open_bundle(self, item: ReadEvent, files: contextlib.ExitStack) -> IO[bytes] | None:
        """Open the event's bundle, its hash checked; `files` closes it."""
        attachment, event = item.frame.header.attachment, item.event
        if attachment is None:
            return None
        if attachment.where is BundlePlace.INLINE:
            return io.BytesIO(item.frame.body)
        if attachment.where is BundlePlace.MASTER or self.settings.blobs is None:
            raise Halted(Reason.BLOB_MISSING, f"the bundle of event {event.seq} is not in the log")
        try:
            return files.enter_context(open_blobs(self.settings.blobs).open(attachment))
        except (FileNotFoundError, MalformedEvent) as problem:
            raise Halted(Reason.BLOB_MISSING, f"the blob of event {event.seq}: {problem}") from problem


def _check_unchanged(repo: localrepository, checkpoint: Checkpoint) -> None:
    """Raise Diverged if the changelog is not as the checkpoint left it."""
    now, then = tip(repo), checkpoint
    is_same = (now.length, now.node) == (then.length, then.tip)
    if not is_same and not (then.stripping and begins_with(repo, then.length, then.tip)):
        raise Diverged(
            f"changed outside of replication: expected {counted(then.length, 'changeset')} up to {then.tip} "
            f"after event {then.seq}, found {now.length} up to {now.node}"
        )


def _take_successors(items: Sequence[ReadEvent]) -> list[ReadEvent]:
    """Take the first item and those behind it that can share its transaction."""
    taken = [items[0]]
    for item in items[1:]:
        event, last = item.event, taken[-1].event
        is_next = event.seq == last.seq + 1 and event.previous == last.id
        is_same = event.incarnation == last.incarnation and event.path == last.path
        if not (is_next and is_same and event.type is Type.CHANGED and item.inline):
            break
        taken.append(item)
    return taken
