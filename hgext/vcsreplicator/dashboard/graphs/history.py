# SPDX-License-Identifier: GPL-2.0-or-later
"""The samples of the last week, one a minute, in memory and in a small database.

Each replaces one of a week ago, so the database stops growing. A sample that cannot be written is shown until the dashboard stops.
"""

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import structlog

from notifier.clients.database import Database

from ...words.errors import BadConfig, Unavailable
from ...words.shape import Count, Time, extensible, to_json, try_json

# Seconds between two samples, and samples that are kept.
MINUTE, KEPT = 60, 7 * 24 * 60

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS samples (place INTEGER PRIMARY KEY, minute INTEGER NOT NULL, content TEXT NOT NULL)"
)
_PUT = "INSERT OR REPLACE INTO samples (place, minute, content) VALUES (?, ?, ?)"
_READ = "SELECT content FROM samples ORDER BY minute"

logger = structlog.get_logger()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSample:
    """The installation at a time by the log's clock, and its last minute.

    `median` and `slow` are the seconds from the commit to the notice that half and 95 % of the newest notices of the minute took,
    None if there was none; `lags` the seconds for which each mirror has lacked its oldest missing event.
    """

    at: Time
    pushes: Count
    waiting: Count
    lags: Mapping[str, float]
    median: float | None = None
    slow: float | None = None


class History:
    """The samples, in the order of their minutes; one thread adds, others read.

    Without `path` they are in memory alone. Raises BadConfig or Unavailable if the database cannot be read.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._writer: threading.Thread | None = None
        self.samples: tuple[MinuteSample, ...] = ()
        if path is not None:
            with closing(Database(path, "dashboard.history", _SCHEMA)) as database:
                found = (try_json(MinuteSample, str(content).encode()) for (content,) in database.rows(_READ))
                self.samples = tuple(sample for sample in found if sample is not None)[-KEPT:]

    def add(self, sample: MinuteSample) -> None:
        """Add a sample, which replaces one of its minute; the disk is not waited for."""
        minute = _name_minute(sample)
        # Those of later minutes are from before the log's clock was set back.
        others = [each for each in self.samples if _name_minute(each) < minute]
        self.samples = (*others[-KEPT + 1 :], sample)
        if self._path is not None and not (self._writer and self._writer.is_alive()):
            self._writer = threading.Thread(target=self._write, args=(self._path, sample), name="history", daemon=True)
            self._writer.start()

    def close(self) -> None:
        """Wait briefly for a sample that is being written."""
        if self._writer is not None:
            self._writer.join(1.0)

    def _write(self, path: str, sample: MinuteSample) -> None:
        minute = _name_minute(sample)
        try:
            with closing(Database(path, "dashboard.history", _SCHEMA)) as database:
                database.run(_PUT, (minute % KEPT, minute, to_json(sample).decode()))
        except (BadConfig, Unavailable) as error:
            logger.warning("sample not kept", reason=str(error))


def _name_minute(sample: MinuteSample) -> int:
    return int(sample.at) // MINUTE
