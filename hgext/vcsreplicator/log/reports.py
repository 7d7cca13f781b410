# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of relay, destinations and `verify`, by heartbeats, for `check` and `status`."""

import re
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

import structlog

from ..words.errors import BadConfig, ReplicationError
from ..words.records import RoundProgress, ServiceReport, ServiceTrouble
from ..words.shape import to_json, try_json
from ..words.version import VERSION
from . import SERVICES, Log, NewRecord, Record

# Seconds between two reports.
INTERVAL = 20.0
# Seconds of rest after a failed report: while the topic is missing each costs TIMEOUT.
REST = 20.0
# Seconds that the log may take; if it fails, a newer report follows.
TIMEOUT = 2.0
# Own reports that are told from those of another process: more than may come into the topic late.
OWN = 20
# Troubles that a report names, and characters of each.
NAMED, KEPT = 20, 1000

# A word that may differ each time that the same trouble is found.
_VARYING = re.compile(
    r"""(?<![\w./@:-])(?:
        [+-]?\d+(?:[.,:]\d+)*(?:m?s)?         # a count, a length of time, a time of day, an IPv4 address
        | \d{4}(?:-?\d\d){2}T[\d:.]+Z?        # a time
        | 0x[0-9a-f]+ | [0-9a-f]{12,} | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
        | (?:[\w.-]+|\[[0-9a-f:.]+\]):\d+     # a host with a port
    )(?![\w/@-]|[.:]\w)""",
    re.VERBOSE,
)

logger = structlog.get_logger()


class ServiceReporter:
    """Writes the reports of one service; used by one thread, but for `note_answer` and `note_record`.

    It writes at most one in INTERVAL seconds, unless the troubles change by more than a number. After a report that the log did not
    take, it writes none for REST seconds, or until `note_answer`. The reports say how many partitions `topic` has for the service,
    if that is known.

    `is_shared` says that another process reports as the same service, if the service looks for one.
    """

    def __init__(
        self, log: Log, service: str, *, topic: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._log, self._service, self._topic = log, service, topic
        self._monotonic = monotonic or time.monotonic
        self.is_shared = self._has_rival = False
        # Where the newest own report stands, and the times of the newest ones: what became of one may be unclear.
        self._written: int | None = None
        self._own = deque[float](maxlen=OWN)
        self._due = self._rests_until = float("-inf")
        # When the newest report that failed began, and when the log answered anew.
        self._failed_at = self._answered_at = float("-inf")
        self._reported: list[tuple[bool, bool, str]] = []

    @property
    def due(self) -> float:
        """When a report is written even if no trouble has changed, by `monotonic`."""
        return max(self._due, self._find_rest_end())

    def note_answer(self) -> None:
        """Note that the log, which did not answer, does again; any thread may call it.

        The next report is due then, if the last one failed: until it comes, `check` takes the service for a dead one.
        """
        self._answered_at = self._monotonic()

    def _find_rest_end(self) -> float:
        """Return when the rest after a failed report ends: it does not outlast an answer."""
        return self._rests_until if self._failed_at > self._answered_at else float("-inf")

    def report(
        self, troubles: Collection[ServiceTrouble], *, now: float, progress: RoundProgress | None = None
    ) -> None:
        """Write a report if one is due, and a warning to the logger if that fails.

        `now` is in seconds since the epoch.
        """
        found = sorted(
            troubles,
            key=lambda trouble: (trouble.is_meant, not trouble.is_urgent, not trouble.is_permanent, trouble.since),
        )
        named = sorted((trouble.is_urgent, trouble.is_permanent, name_trouble(trouble.text)) for trouble in found)
        started = self._monotonic()
        if started < self._find_rest_end() or (started < self._due and named == self._reported):
            return
        self._due, self._reported = started + INTERVAL, named
        kept = tuple(replace(each, text=each.text[:KEPT], since=max(0.0, each.since)) for each in found[:NAMED])
        try:
            count = self._count_partitions()
            report = ServiceReport(
                time=now, version=VERSION, count=len(found), troubles=kept, partitions=count, progress=progress
            )
            self._own.append(now)
            record = NewRecord(topic=SERVICES, key=self._service, value=to_json(report))
            [(_, self._written)] = self._log.append([record], timeout=TIMEOUT)
        except ReplicationError as error:
            self._due, self._failed_at, self._rests_until = float("-inf"), started, self._monotonic() + REST
            logger.warning("report not written", reason=str(error))

    def note_record(self, record: Record) -> None:
        """Note a record of `services`, for the thread that reads them.

        Behind the newest own report stand only those of a process that runs now.
        """
        if self._written is not None and record.offset > self._written and self._is_foreign(record):
            self._has_rival = True

    def look_for_rival(self) -> None:
        """Decide whether another process reports as this service, if a report is due.

        The records that `note_record` got since the last decision say it. Call this method before each report.
        """
        if self._written is not None and self._monotonic() >= self.due:
            self.is_shared, self._has_rival = self._has_rival, False

    def _is_foreign(self, record: Record) -> bool:
        """Return whether another process wrote this record as the same service."""
        report = try_json(ServiceReport, record.value) if record.key == self._service else None
        return report is not None and report.time not in self._own

    def _count_partitions(self) -> int | None:
        """Return how many partitions the topic has here; None if it is missing."""
        try:
            return None if self._topic is None else self._log.partitions(self._topic)
        except BadConfig:
            return None


def name_trouble(text: str) -> str:
    """Return a trouble's text without what differs each time that it is found.

    This is each number, time, id, and address with a port that is a whole word; names such as `try-1` stay. So does the folder that
    the text may begin with; it ends at ": ".
    """
    folder = re.match(r"/.*?(?=: )|/\S*|", text, re.DOTALL)[0]  # type: ignore[index]
    return folder + _VARYING.sub("#", text[len(folder) :])
