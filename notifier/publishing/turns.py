# SPDX-License-Identifier: GPL-2.0-or-later
"""Which destinations it is this notifier's turn to deliver to.

Notifiers report in the topic `services` to which destinations each delivers; for each of the others a notifier stands by. Nothing
here keeps two from delivering: that is the fencing of the position.
"""

import random
import threading
from collections.abc import Iterator

import structlog

from hgext.vcsreplicator.log import SERVICES, Log, Record
from hgext.vcsreplicator.log.standby import Rival, Sign, StandbyReader
from hgext.vcsreplicator.log.table import ReadStopped, read_table
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Expired, Unavailable
from hgext.vcsreplicator.words.records import NOTIFIER_KEY, ServiceReport
from hgext.vcsreplicator.words.retry import FAILOVER
from hgext.vcsreplicator.words.shape import try_json

# Seconds between two heartbeats of a notifier.
BEAT = 5.0

# Seconds between two looks whether a destination was lost, while this notifier delivers to all.
LOOK_EVERY = 1.0

logger = structlog.get_logger()


class Turns:
    """The destinations for which this notifier stands by; for one thread."""

    def __init__(
        self, log: Log, names: set[str], instance: str, *, patience: float, stop: threading.Event, clock: Clock
    ) -> None:
        self._log, self._instance, self._stop, self._clock = log, instance, stop, clock
        self._patience = max(patience, 2 * BEAT)
        self._waiting, self._fenced = set(names), set[str]()
        self._reader: StandbyReader | None = None
        self._instances: dict[str, str | None] = {}
        self._failures = 0

    def lose(self, name: str) -> None:
        """Stand by for this destination again, which another notifier has just taken."""
        self._waiting.add(name)
        self._fenced.add(name)
        if self._reader is not None:
            self._reader.rivals[name] = Rival(heard=self._clock.monotonic())

    def find_turns(self) -> list[str]:
        """Return the destinations to deliver to from now on; wait a second at most.

        Waits longer after an answer of the log failed. Raises BadConfig if the log has no topic `services`.
        """
        if not self._waiting:
            self.close()
            self._stop.wait(LOOK_EVERY)
            return []
        try:
            self._reader = self._reader or self._begin()
            found = self._reader.find_turns()
        except ReadStopped:
            return []
        except (Unavailable, Expired) as error:
            self.close()
            self._failures += 1
            logger.warning("log unavailable", reason=str(error), failures=self._failures)
            self._stop.wait(FAILOVER.delay(self._failures, random.random()))
            return []
        self._failures = 0
        self._waiting -= set(found)
        self._fenced -= set(found)
        return found

    def close(self) -> None:
        """Free the reader; a later call reads the reports anew."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _begin(self) -> StandbyReader:
        """Read the reports; a destination that none names has no other notifier."""
        services = read_table(self._log, SERVICES, stop=self._stop)
        now = self._clock.monotonic()
        rivals = {name: Rival(heard=now, works=name in self._fenced) for name in self._waiting}
        for record in services.records.values():
            for sign in self._read_signs(record):
                rivals[sign.name].hear(sign, now)
        return StandbyReader(
            self._log,
            services.positions,
            rivals,
            read_signs=self._read_signs,
            patience=self._patience,
            clock=self._clock,
        )

    def _read_signs(self, record: Record) -> Iterator[Sign]:
        """Yield what another notifier's report says about the destinations that wait here.

        A report that was withdrawn says that the notifier ended: the log may no longer have the one before it, of no destination.
        """
        if record.key is None or not record.key.startswith(NOTIFIER_KEY):
            return
        if record.value is None:
            instance, works = self._instances.pop(record.key, None), tuple[str, ...]()
        elif (report := try_json(ServiceReport, record.value)) is not None:
            instance = self._instances[record.key] = report.instance
            works = report.works
        else:
            return
        if instance not in (None, self._instance):
            yield from (Sign(name, instance, works=name in works) for name in self._waiting)
