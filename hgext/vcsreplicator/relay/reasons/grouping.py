# SPDX-License-Identifier: GPL-2.0-or-later
"""Troubles of many repositories that have one reason: one trouble, one log line."""

import os
import re
import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ...log.reports import name_trouble
from ...status.findings import REFUSES
from ...status.wording import name_paths
from ...words.clock import Clock
from ...words.errors import counted
from ...words.records import ServiceTrouble
from .rights import give_repositories

# Seconds in which one log line is written about one reason.
PERIOD = 60.0
# Reasons that are remembered: an unusual text may name what differs each time.
REASONS = 1000

# The folder that the text of a trouble of one repository begins with.
_FOLDER = re.compile(r"(/.*?)(?=: )", re.DOTALL)

# What the text of a group's trouble has in place of the folder; no text has it.
_ANY = "\0"


def group_troubles(troubles: Iterable[ServiceTrouble], roots: Collection[str]) -> list[ServiceTrouble]:
    """Return the troubles, those of several repositories with one reason as one.

    It lasts since the first of them, names some, and has one command that gives all of them to this user. A repository that refuses
    pushes keeps its own: an operator decides about each.
    """
    groups: dict[object, list[tuple[str, ServiceTrouble]]] = {}
    for number, trouble in enumerate(troubles):
        match = _FOLDER.match(trouble.text)
        key: object = number
        if match and REFUSES not in trouble.text:
            reason = _leave_out(match[1], trouble.text)
            key = _find_root(match[1], roots), reason, trouble.is_urgent, trouble.is_permanent, trouble.is_meant
        groups.setdefault(key, []).append((match[1] if match else "", trouble))
    return [_join(group) for group in groups.values()]


def _join(group: Sequence[tuple[str, ServiceTrouble]]) -> ServiceTrouble:
    """Return one trouble in place of those of a group."""
    folder, first = group[0]
    if len(group) == 1:
        return first
    folders = sorted({each for each, _ in group})
    top = os.path.commonpath(folders)
    text = first.text.removeprefix(f"{folder}: ").replace(give_repositories([folder]), give_repositories(folders))
    names = name_paths([os.path.relpath(each, top) for each in folders])
    text = f"{top}: {counted(len(folders), 'repository')} ({names}), each: {text}"
    return replace(first, text=text, since=min(trouble.since for _, trouble in group))


def _leave_out(folder: str, text: str) -> str:
    return name_trouble(text.replace(shlex.quote(folder), _ANY).replace(folder, _ANY))


def _find_root(folder: str, roots: Collection[str]) -> str:
    """Return the innermost root of a folder, or the folder above it if it has none."""
    fitting = [root for root in roots if f"{folder}/".startswith(f"{root.rstrip('/')}/")]
    return max(fitting, key=len, default=os.path.dirname(folder))


class GroupedLines:
    """Writes one log line in PERIOD about each reason; any thread may use it.

    The line of a reason that had none for PERIOD says how many attempts failed since then for it, and in how many repositories.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        # By reason: when its last line was written, the attempts since then, and their repositories.
        self._known: dict[object, tuple[float, int, set[str]]] = {}

    def note(self, write: Callable[[int, int], object], folder: str, *reason: str) -> None:
        """Count a failure, and write a line if one is due.

        `write` gets the numbers of attempts and of repositories.
        """
        key, now = tuple(_leave_out(folder, part) for part in reason), self._clock.monotonic()
        with self._lock:
            at, attempts, folders = self._known.pop(key, (float("-inf"), 0, set()))
            attempts, is_due = attempts + 1, now >= at + PERIOD
            folders.add(folder)
            self._known[key] = (now, 0, set()) if is_due else (at, attempts, folders)
            if len(self._known) > REASONS:
                del self._known[next(iter(self._known))]
        if is_due:
            write(attempts, len(folders))
