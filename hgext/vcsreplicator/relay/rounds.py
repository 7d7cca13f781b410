# SPDX-License-Identifier: GPL-2.0-or-later
"""A round over all repositories: the relay finds work that no push asked for."""

import os
import shutil
from collections.abc import Iterable

import structlog

from ..outbox.file import outbox_of
from ..status import SILENT
from ..words.levels import ServiceTrouble
from .lacking import find_trouble
from .loss import LossWatch
from .port import MasterPort
from .scan import find_repositories
from .work import Failure, Work, explain

logger = structlog.get_logger()

# Seconds that `hg init` gets to announce its repository itself.
ANNOUNCE_AFTER = 10.0


def find_work(
    roots: Iterable[str], port: MasterPort, work: Work, losses: LossWatch, now: float
) -> tuple[list[str], list[ServiceTrouble]]:
    """Start the jobs that are due in every repository below the roots.

    Return the folders of the repositories, with those that cannot be read, and what is wrong in them.
    """
    folders, found = [], []
    for root in roots:
        for problem in port.finish(root):
            logger.error("interrupted act not finished", reason=problem)
            found.append(ServiceTrouble(text=problem, since=now, is_urgent=True))
        unreadable: list[OSError] = []
        for folder in find_repositories(root, unreadable.append):
            folders.append(folder)
            trouble = _check_repository(folder, work, losses, now)
            if trouble is not None:
                found.append(trouble)
        for error in filter(_concerns_repositories, unreadable):
            folder = f"{error.filename}/".partition("/.hg/")[0].rstrip("/")
            folders.append(folder)
            found.append(_report_unreadable(folder, error, now))
        for folder in _list_deleted(os.path.join(root, ".vcsreplicator", "deleted")):
            _check_deleted(folder, work)
    return folders, found


def _check_repository(folder: str, work: Work, losses: LossWatch, now: float) -> ServiceTrouble | None:
    """Start the jobs that are due in one repository; return what is wrong in it.

    For ANNOUNCE_AFTER seconds a new repository is left to the process that makes it.
    """
    failure = work.failure(folder)
    is_failing = failure is not None and now - failure.since > SILENT
    try:
        names = set(os.listdir(os.path.join(folder, ".hg", "store")))
        if "journal" in names:
            work.recover(folder)
        if not any(name.startswith("outbox.") and name.endswith(".log") for name in names):
            if os.stat(os.path.join(folder, ".hg", "requires")).st_mtime < now - ANNOUNCE_AFTER:
                work.announce(folder)
                if failure is not None and is_failing:
                    return _describe_failure(folder, "has no first event", failure)
        elif (is_due := not losses.is_confirmed(folder) or outbox_of(folder).has_unsent()) or "outbox.fork" in names:
            if is_due:
                work.poke(folder)
            hint = failure.reason if failure else "see the relay's log lines"
            return find_trouble(folder, outbox_of(folder), now, hint)
        if failure is not None and is_failing and "journal" in names:
            return _describe_failure(folder, "its transaction is not rolled back", failure)
    except FileNotFoundError:  # deleted or renamed meanwhile
        return None
    except OSError as error:
        return _report_unreadable(folder, error, now)
    return None


def _describe_failure(folder: str, what: str, failure: Failure) -> ServiceTrouble:
    return ServiceTrouble(text=f"{folder}: {what}: {failure.reason}", since=failure.since, is_urgent=True)


def _concerns_repositories(error: OSError) -> bool:
    """Return whether a folder that cannot be read is not that of `fsck` on ext4."""
    return os.path.basename(str(error.filename)) != "lost+found"


def _report_unreadable(folder: str, error: OSError, now: float) -> ServiceTrouble:
    logger.warning("repository not readable", folder=folder, reason=str(error))
    return ServiceTrouble(text=f"{folder}: cannot be read: {explain(folder, error)}", since=now, is_urgent=True)


def _list_deleted(folder: str) -> list[str]:
    """Return the repositories in a folder of deleted ones, complete or not."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("repository not readable", folder=folder, reason=str(error))
        return []


def _check_deleted(folder: str, work: Work) -> None:
    """Remove a deleted repository once the log has all of it.

    Remove the rest of one whose removal was interrupted, too.
    """
    try:
        if os.path.isdir(os.path.join(folder, ".hg", "store")) and outbox_of(folder).has_unsent():
            work.poke(folder)
            return
    except FileNotFoundError:
        # Another process removes it.
        return
    except OSError as error:
        logger.warning("repository not readable", folder=folder, reason=str(error))
        return
    shutil.rmtree(folder, ignore_errors=True)
