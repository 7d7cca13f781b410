# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log lacks of a master's outboxes: as a report of the relay's last round, or found while the relay is silent."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..log import Log
from ..outbox.file import Outbox, TornRecord
from ..outbox.folder import Store
from ..outbox.losses import EventPlace, find_standing
from ..status import SILENT
from ..status.findings import Finding
from ..words.errors import MalformedEvent, ReplicationError
from ..words.shape import Count, Time, extensible, from_json, to_json
from .scan import find_repositories

# What follows the socket's path in the report's.
REPORT = ".report"
# Seconds between two reports.
BEAT = 10.0
# Seconds without one after which the relay counts as silent: a round may take a while.
PATIENCE = 2 * SILENT
# Findings that a report names; further ones are counted.
NAMED = 20


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReport:
    """What a running relay found in a round that ended `at` (the machine's monotonic clock): `count` findings, the worst first.

    At most NAMED of them are here.
    """

    at: Time
    count: Count
    findings: tuple[Finding, ...]

    def listed(self) -> list[Finding]:
        """Return the findings, one of them for all that are not here."""
        more = self.count - len(self.findings)
        level = max((finding.level for finding in self.findings), default=1)
        return [*self.findings, *[Finding(level=level, text=f"{more} more repositories wait")] * (more > 0)]


def write_report(socket: str, found: Sequence[Finding], at: float) -> None:
    """Replace the report beside the relay's socket; who may read it is who may use the socket. Raises OSError."""
    worst = tuple(sorted(found, key=lambda finding: -finding.level)[:NAMED])
    path = socket + REPORT
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(to_json(RelayReport(at=at, count=len(found), findings=worst)))
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, os.stat(socket).st_gid)
        os.fchmod(descriptor, 0o640)
    os.replace(f"{path}.new", path)


def remove_report(socket: str) -> None:
    """Remove the report of a relay that ends."""
    with contextlib.suppress(OSError):
        os.unlink(socket + REPORT)


def read_report(socket: str, now: float) -> RelayReport | None:
    """Read the relay's report; None if the relay was silent for PATIENCE before `now` (monotonic)."""
    try:
        with open(socket + REPORT, "rb") as file:
            report = from_json(RelayReport, file.read())
    except (OSError, MalformedEvent):
        return None
    return report if 0 <= now - report.at <= PATIENCE else None


def has_outbox(roots: Iterable[str]) -> bool:
    """Whether a repository below the roots has an outbox: only a master's have, and a mirror may use the same roots."""
    for root in roots:
        for folder in find_repositories(root):
            with contextlib.suppress(OSError):
                if Outbox(_store_of(folder)).segments():
                    return True
    return False


def find_waiting(folder: str, box: Outbox, now: float, next_step: str) -> Finding | None:
    """Find events that wait in this outbox for SILENT seconds, or that it cannot be read."""
    try:
        first = next(box.unsent(), None)
        if first is None or now - first.entry.event.time <= SILENT:
            return None
        fork = box.fork()
        cause = fork.reason if fork else next_step
    except (OSError, ReplicationError, TornRecord) as error:
        return Finding(level=1, text=f"{folder}: its outbox cannot be read: {error}")
    waits = f"{folder}: events wait in its outbox for {now - first.entry.event.time:.0f} s: {cause}"
    return Finding(level=2, text=waits)


def find_lacking(roots: Iterable[str], log: Log, now: float) -> list[Finding]:
    """Find events that wait in an outbox for SILENT seconds, and those that were sent and that the log has lost.

    Of each partition only the newest event is looked for, because a log loses its newest records first. `now` is this machine's
    time, which stamped the events.
    """
    found: list[Finding] = []
    newest: dict[int, tuple[EventPlace, str]] = {}
    for root in roots:
        for folder in find_repositories(root):
            box = Outbox(_store_of(folder))
            waiting = find_waiting(folder, box, now, "does the relay run?")
            if waiting is not None:
                found.append(waiting)
            sent = None
            with contextlib.suppress(OSError):
                sent = box.sent()
            if sent is not None and sent.partition is not None and sent.offset is not None:
                place = EventPlace(id=sent.id, offset=sent.offset)
                if sent.partition not in newest or newest[sent.partition][0].offset < place.offset:
                    newest[sent.partition] = place, folder
    standing = find_standing(log, {partition: place for partition, (place, _) in newest.items()})
    for partition in newest.keys() - standing:
        folder = newest[partition][1]
        text = (
            f"{folder}: the log has lost its newest event, and perhaps others; the relay sends them again: does it run?"
        )
        found.append(Finding(level=2, text=text))
    return found


def _store_of(folder: str) -> Store:
    return Store(os.path.join(folder, ".hg", "store"))
