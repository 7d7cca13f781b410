# SPDX-License-Identifier: GPL-2.0-or-later
"""A round over all repositories: the relay finds work that no push asked for."""

import os
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from ..log.ownership import name_own_user
from ..outbox.file import SEGMENT, Outbox, outbox_of
from ..outbox.folder import remove_folder
from ..status import SILENT
from ..words.records import ServiceTrouble
from ..words.unexpected import describe
from .jobs import Job
from .lacking import find_trouble
from .loss import LossWatch
from .port import MasterPort
from .reasons.grouping import group_troubles
from .reasons.rights import explain, explain_closed, give_repositories
from .scan import FolderTime, SeenFolder, find_repositories, has_time, is_folder, may_hold_repositories, read_time
from .work import Failure, Work

logger = structlog.get_logger()

# Seconds that `hg init` gets to announce its repository itself.
ANNOUNCE_AFTER = 10.0
# Separates a folder from the reason why it cannot be read.
UNREADABLE = ": cannot be read: "
# Why events may wait of which no attempt failed.
SENDS_NOW = "the relay sends them now, look again in a minute; if they still wait, see the relay's log lines"


# In one of so many rounds each repository is looked into although nothing shows that it changed: its disk may fail, and rights of
# single files leave no trace in its store.
TURNS = 40


@dataclass(slots=True)
class RelayRound:
    """Folders of repositories and unreadable ones, and their troubles.

    A trouble that the round sees but does not date has the time of the round. In the `quiet` ones nothing has changed since the
    last round. All events of the `unconfirmed` ones are sent, but it is not known whether the log still has the newest.
    """

    folders: list[str] = field(default_factory=list)
    quiet: set[str] = field(default_factory=set)
    unconfirmed: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    troubles: list[ServiceTrouble] = field(default_factory=list)


class _QuietStore(NamedTuple):
    """A store where nothing was to be done, and when it and its newest segment changed.

    `rights` are those of the folder above the repository.
    """

    changed: FolderTime
    event: str
    segment: str
    written: FolderTime
    rights: tuple[int, int] | None


class _NewestSegment(NamedTuple):
    """The newest segment of an outbox whose events are all sent.

    `event` is its newest event, `written` the time of the file before the outbox was read.
    """

    event: str
    segment: str
    written: FolderTime | None


class QuietRepositories:
    """Remembers where a round found nothing to do; used by one thread.

    A push, a sent event and a transaction of any Mercurial change the time of the store's folder; damage done to the newest segment
    in its place changes that of the segment.
    """

    def __init__(self) -> None:
        self._rounds = self._count = 0
        # The folders that the last round saw, and those of the present one.
        self._before: dict[str, SeenFolder] = {}
        self._folders: dict[str, SeenFolder] = {}
        self._quiet_before: dict[str, _QuietStore] = {}
        self._quiet: dict[str, _QuietStore] = {}
        # Mode and group of each folder that has repositories, in the present round.
        self._rights: dict[str, tuple[int, int] | None] = {}

    def begin(self) -> None:
        """Begin a round."""
        self._rounds, self._count = self._rounds + 1, 0
        self._before, self._folders = self._folders, {}
        self._quiet_before, self._quiet, self._rights = self._quiet, {}, {}

    def find_repositories(self, root: str, on_unreadable: Callable[[OSError], object]) -> Iterator[str]:
        """Yield the repositories below a root, as `scan` does."""
        return find_repositories(root, on_unreadable, seen=self._before, on_seen=self._note_folder)

    def look(
        self, folder: str, work: Work, losses: LossWatch, now: float, unconfirmed: list[str]
    ) -> list[ServiceTrouble] | None:
        """Do as `check_repository`; return None if nothing has changed since the last look.

        If all that is left is to look into the log, add the repository to `unconfirmed` instead of starting a job.
        """
        store, known = f"{folder}/.hg/store", self._quiet_before.get(folder)
        is_failing = work.failed.get(folder) is not None or work.unrecovered.get(folder) is not None
        is_turn, rights = folder not in self._folders, self._read_rights(folder[: folder.rindex("/")] or "/")
        if (
            known
            and not (is_turn or is_failing)
            and rights == known.rights
            and has_time(store, known.changed)
            and has_time(f"{store}/{known.segment}", known.written)
            and losses.is_confirmed(folder, known.event)
        ):
            self._quiet[folder] = known
            return None
        changed = read_time(store)
        troubles, newest = _look_into(folder, work, losses, now, unconfirmed)
        if changed is not None and newest is not None and newest.written is not None and not troubles:
            self._quiet[folder] = _QuietStore(changed, newest.event, newest.segment, newest.written, rights)
        return troubles

    def _read_rights(self, folder: str) -> tuple[int, int] | None:
        """Return mode and group of a folder, None if it cannot be seen; asks once in a round."""
        if folder not in self._rights:
            try:
                found = os.stat(folder)
                self._rights[folder] = found.st_mode, found.st_gid
            except OSError:
                self._rights[folder] = None
        return self._rights[folder]

    def _note_folder(self, folder: str, seen: SeenFolder) -> None:
        self._count += 1
        if (self._count + self._rounds) % TURNS:
            self._folders[folder] = seen


def find_work(
    roots: Collection[str], port: MasterPort, work: Work, losses: LossWatch, now: float, quiet: QuietRepositories
) -> RelayRound:
    """Start the jobs that are due in every repository below the roots.

    None is due where nothing has changed since the last round. In the `unconfirmed` repositories the caller starts the jobs.
    """
    found = RelayRound()
    quiet.begin()
    for root in roots:
        problems = port.finish(root)
        unreadable: list[OSError] = []
        for folder in quiet.find_repositories(root, unreadable.append):
            found.folders.append(folder)
            troubles = quiet.look(folder, work, losses, now, found.unconfirmed)
            if troubles is None:
                found.quiet.add(folder)
            else:
                found.troubles.extend(troubles)
        # Of a root that cannot be read, one trouble is enough.
        for problem in problems if all(error.filename != root for error in unreadable) else ():
            logger.error("interrupted act not finished", reason=problem)
            found.troubles.append(ServiceTrouble(text=problem, since=now, is_urgent=True))
        for error in unreadable:
            _note_unreadable(found, root, error, work, now)
        for folder in _list_deleted(os.path.join(root, ".vcsreplicator", "deleted")):
            found.troubles.extend(_check_deleted(root, folder, work, now))
    work.forget_failures({*found.folders, *found.unreadable})
    for trouble in group_troubles((each for each in found.troubles if UNREADABLE in each.text), roots):
        logger.warning("repository not readable", reason=trouble.text)
    return found


def _note_unreadable(found: RelayRound, root: str, error: OSError, work: Work, now: float) -> None:
    """Note a folder that cannot be read; it is no trouble inside a working copy."""
    folder = f"{error.filename}/".partition("/.hg/")[0].rstrip("/")
    found.unreadable.append(folder)
    is_ours = may_hold_repositories(error) and not any(folder.startswith(f"{each}/") for each in found.folders)
    if is_ours:
        trouble = _report_unreadable(folder, error, now, is_root=folder == root)
        found.troubles.append(_add_failure(trouble, work.failed.get(folder), now))


def check_repository(folder: str, work: Work, losses: LossWatch, now: float) -> list[ServiceTrouble]:
    """Start the jobs that are due in one repository; return its troubles.

    A job that fails is one at once. For ANNOUNCE_AFTER seconds a new repository is left to the process that makes it. One from the
    future is not new: the clock was set back, or it was copied from a machine with another clock.
    """
    return _look_into(folder, work, losses, now)[0]


def _look_into(
    folder: str, work: Work, losses: LossWatch, now: float, unconfirmed: list[str] | None = None
) -> tuple[list[ServiceTrouble], _NewestSegment | None]:
    """Do as `check_repository`; return also the newest segment if nothing is due."""
    failure, found, newest = work.failed.get(folder), list[ServiceTrouble | None](), None
    try:
        names = set(os.listdir(os.path.join(folder, ".hg", "store")))
        if "journal" in names:
            work.add(folder, Job.RECOVER)
            what = "its transaction is not rolled back"
            found.append(_describe_failure(folder, Job.RECOVER, what, work.unrecovered.get(folder), now))
        # With a sent mark it is no new one, and has lost its outbox.
        if any(name.startswith("outbox.") and name.endswith((".log", ".sent", ".fork")) for name in names):
            box = outbox_of(folder)
            sent = box.sent()
            # What is written from now on is seen in the next round.
            written = read_time(f"{folder}/.hg/store/{SEGMENT.format(sent.segment)}") if sent else None
            is_forked = "outbox.fork" in names  # perhaps no longer
            has_sent = bool(sent and box.ends_at(sent)) and not is_forked
            is_due = not (has_sent and sent and losses.is_confirmed(folder, sent.id))
            if is_due and has_sent and failure is None and unconfirmed is not None:
                unconfirmed.append(folder)
            elif is_due:
                work.add(folder, Job.SEND)
            if sent and not is_due and "journal" not in names:
                newest = _NewestSegment(sent.id, SEGMENT.format(sent.segment), written)
            # What is sent may be damaged, and then no event can follow.
            if is_due or failure is not None or box.is_torn():
                found.insert(0, _find_waiting(folder, box, failure, now))
        elif abs(now - os.stat(os.path.join(folder, ".hg", "requires")).st_mtime) > ANNOUNCE_AFTER:
            work.add(folder, Job.ANNOUNCE)
            found.append(_describe_failure(folder, Job.ANNOUNCE, "has no first event", failure, now))
        if closed := explain_closed(folder):
            found.append(ServiceTrouble(text=f"{folder}: {closed}", since=now, is_permanent=True))
    except FileNotFoundError:  # deleted or renamed meanwhile
        return [], None
    except OSError as error:
        found = [_add_failure(_report_unreadable(folder, error, now), failure, now)]
    except Exception as error:  # accounts may write there, and a relay that ended would end so after each start
        found = [_report_failed_look(folder, error, now)]
    return [trouble for trouble in found if trouble is not None], newest


def _find_waiting(folder: str, box: Outbox, failure: Failure | None, now: float) -> ServiceTrouble | None:
    """Find the trouble of an outbox, at once if the newest attempt to send failed."""
    if failure is None or failure.is_busy:
        return find_trouble(folder, box, now, SENDS_NOW if failure is None else failure.reason)
    trouble = find_trouble(folder, box, now, failure.reason, patience=0.0)
    return trouble and replace(trouble, is_permanent=failure.is_permanent)


def _add_failure(trouble: ServiceTrouble, failure: Failure | None, now: float) -> ServiceTrouble:
    """Date a trouble by the failure of the job that it explains, if there is one."""
    if failure is None or failure.is_busy:
        return trouble
    is_urgent = trouble.is_urgent or abs(now - failure.since) > SILENT
    since = min(failure.since, now)
    return replace(trouble, since=since, is_urgent=is_urgent, is_permanent=failure.is_permanent)


def _describe_failure(folder: str, job: Job, what: str, failure: Failure | None, now: float) -> ServiceTrouble | None:
    """Describe a job that fails, or has been busy for SILENT seconds; else None.

    A failure becomes urgent after the same time.
    """
    if failure is None or failure.job is not job:
        return None
    is_old = abs(now - failure.since) > SILENT
    if failure.is_busy and not is_old:
        return None
    text, is_urgent = f"{folder}: {what}: {failure.reason}", is_old and not failure.is_busy
    since = min(failure.since, now)
    return ServiceTrouble(text=text, since=since, is_urgent=is_urgent, is_permanent=failure.is_permanent)


def _report_unreadable(folder: str, error: OSError, now: float, *, is_root: bool = False) -> ServiceTrouble:
    """Describe a folder that cannot be read, and the command that gives the right.

    Only a folder with `.hg` is certainly a repository; below a root there may be folders of other users.
    """
    reason, quoted = f"{error.strerror}: {error.filename}", shlex.quote(folder)
    if "/.hg" in str(error.filename):
        reason = explain(folder, error)
    elif isinstance(error, PermissionError) and is_root:
        reason += f"; as root, run: chown {name_own_user()} {quoted} && chmod u+rwx {quoted}"
    elif isinstance(error, PermissionError):
        reason += f"; if it holds repositories, as root, run: {give_repositories([folder])}"
    return ServiceTrouble(text=f"{folder}{UNREADABLE}{reason}", since=now, is_urgent=is_root)


def _report_failed_look(folder: str, error: Exception, now: float) -> ServiceTrouble:
    logger.error("look at a repository failed", folder=folder, kind=type(error).__name__, reason=str(error))
    text = f"{folder}: cannot be examined: {describe(error)}; find out who wrote there"
    return ServiceTrouble(text=text, since=now, is_urgent=True)


def _list_deleted(folder: str) -> list[str]:
    """Return the repositories in a folder of deleted ones, complete or not."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("repository not readable", folder=folder, reason=str(error))
        return []


def _check_deleted(root: str, folder: str, work: Work, now: float) -> list[ServiceTrouble]:
    """Remove a deleted repository, or its rest, once the log has all of it.

    It stays while the disk does not show whether events are left. Returns its troubles.
    """
    try:
        if is_folder(os.path.join(folder, ".hg", "store")) and outbox_of(folder).has_unsent():
            work.add(folder, Job.SEND)
        else:
            remove_folder(root, folder)
    except FileNotFoundError:
        # Another process removes it.
        return []
    except OSError as error:
        return [_report_unreadable(folder, error, now)]
    except Exception as error:  # as above
        return [_report_failed_look(folder, error, now)]
    return []
