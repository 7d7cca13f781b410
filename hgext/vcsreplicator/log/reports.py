# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports of relay and destinations, by heartbeats, for `check` and `status`."""

import re
import time
from collections.abc import Collection
from dataclasses import replace

import structlog

from ..words.errors import BadConfig, ReplicationError
from ..words.records import ServiceReport, ServiceTrouble
from ..words.shape import to_json
from ..words.version import VERSION
from . import SERVICES, Log, NewRecord

# Seconds between two reports.
INTERVAL = 20.0
# Seconds of rest after a failed report: while the topic is missing each costs TIMEOUT.
REST = 20.0
# Seconds that the log may take; if it fails, a newer report follows.
TIMEOUT = 2.0
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
    """Writes the reports of one service; used by one thread.

    It writes at most one in INTERVAL seconds, unless the troubles change by more than a number. After a report that the log did not
    take, it writes none for REST seconds. The reports say how many partitions `topic` has for the service, if that is known.
    """

    def __init__(self, log: Log, service: str, *, topic: str | None = None) -> None:
        self._log, self._service, self._topic = log, service, topic
        self._due = self._rests_until = float("-inf")
        self._reported: list[tuple[bool, bool, str]] = []

    @property
    def due(self) -> float:
        """When a report is written even if no trouble has changed, by `time.monotonic`."""
        return max(self._due, self._rests_until)

    def report(self, troubles: Collection[ServiceTrouble], *, now: float) -> None:
        """Write a report if one is due, and a warning to the logger if that fails.

        `now` is in seconds since the epoch.
        """
        found = sorted(
            troubles,
            key=lambda trouble: (trouble.is_meant, not trouble.is_urgent, not trouble.is_permanent, trouble.since),
        )
        named = sorted((trouble.is_urgent, trouble.is_permanent, name_trouble(trouble.text)) for trouble in found)
        started = time.monotonic()
        if started < self._rests_until or (started < self._due and named == self._reported):
            return
        self._due, self._reported = started + INTERVAL, named
        kept = tuple(replace(each, text=each.text[:KEPT], since=max(0.0, each.since)) for each in found[:NAMED])
        try:
            count = self._count_partitions()
            report = ServiceReport(time=now, version=VERSION, count=len(found), troubles=kept, partitions=count)
            self._log.append([NewRecord(topic=SERVICES, key=self._service, value=to_json(report))], timeout=TIMEOUT)
        except ReplicationError as error:
            self._rests_until = time.monotonic() + REST
            logger.warning("report not written", reason=str(error))

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
