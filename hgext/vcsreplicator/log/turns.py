# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns of processes with the same configuration: on what this one works, and for what it stands by.

Each process reports in a topic the names on which it works, such as destinations; for all others it stands by. Nothing here keeps
two processes from working on one name: they fence each other when they write.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import structlog

from ..words.clock import Clock
from ..words.errors import Expired, Fenced, Unavailable
from ..words.records import ServiceReport
from ..words.shape import try_json
from . import WATCHES, Log, Record
from .outage import Outage
from .standby import Presence, Rival, Sign, StandbyReader, name_process, only_once
from .table import ReadStopped, read_table

# Seconds between two heartbeats of a process that works.
BEAT = 5.0

# Seconds between two looks whether a part was lost, while this process works on all.
LOOK_EVERY = 5.0

logger = structlog.get_logger()


def work_in_turns(
    log: Log,
    kind: str,
    name: str,
    work: Callable[[Callable[[], None]], None],
    *,
    patience: float,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock,
    instance: str | None = None,
) -> None:
    """Work, or stand by for another process that works on `name`, until `stop` is set.

    Reports in the topic `watches`; the keys of these reports begin with `kind`. Calls `ready` once it stands by; `work` gets a
    function to call once it is ready. `work` returns at a stop, and raises Fenced if another process took over, or Unavailable if
    it cannot begin: then this process stands by. Raises BadConfig if the log has no topic `watches`, and what `work` raises.
    """
    instance, announce = instance or name_process(), only_once(ready)
    turns = Turns(log, {name}, instance, topic=WATCHES, kind=kind, patience=patience, stop=stop, clock=clock)
    key = f"{kind}{socket.gethostname()} {name}"
    with closing(turns):
        while not stop.is_set():
            found = turns.find_turns()
            if not found:
                announce()
                # Not by the key of a process that works: that may be on this machine too.
                with Presence(log, f"{key} spare", instance, clock, topic=WATCHES):
                    while not found and not stop.is_set():
                        found = turns.find_turns()
            if not found:
                break
            presence = Presence(log, key, instance, clock, topic=WATCHES)
            presence.report([name], interval=BEAT)
            with presence:
                try:
                    work(announce)
                except (Fenced, Unavailable) as error:
                    logger.warning("standing by", reason=str(error))
                    turns.lose(name)


class Turns:
    """The names, such as of destinations, for which this process stands by; for one thread.

    Reports are in `topic`; their keys begin with `kind`.
    """

    def __init__(
        self,
        log: Log,
        names: set[str],
        instance: str,
        *,
        topic: str,
        kind: str,
        patience: float,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._log, self._instance, self._stop, self._clock = log, instance, stop, clock
        self._topic, self._kind = topic, kind
        self._patience = max(patience, 2 * BEAT)
        self._waiting, self._fenced = set(names), set[str]()
        self._reader: StandbyReader | None = None
        self._instances: dict[str, str | None] = {}
        self._outage = Outage()

    def lose(self, name: str) -> None:
        """Stand by again for this name, on which another process has just begun to work."""
        self._waiting.add(name)
        self._fenced.add(name)
        if self._reader is not None:
            self._reader.rivals[name] = Rival(heard=self._clock.monotonic())

    def find_turns(self) -> list[str]:
        """Return the names to work on from now on; wait LOOK_EVERY seconds at most.

        Waits longer after an answer of the log failed. Raises BadConfig if the log lacks the topic.
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
            self._outage.wait(error, self._stop)
            return []
        self._outage.end()
        self._waiting -= set(found)
        self._fenced -= set(found)
        return found

    def close(self) -> None:
        """Free the reader; a later call reads the reports anew."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _begin(self) -> StandbyReader:
        """Read the reports; on a name that is in none no other process works."""
        reports = read_table(
            self._log, self._topic, stop=self._stop, keep=lambda each: (each.key or "").startswith(self._kind)
        )
        now = self._clock.monotonic()
        rivals = {name: Rival(heard=now, works=name in self._fenced) for name in self._waiting}
        for record in reports.records.values():
            for sign in self._read_signs(record):
                rivals[sign.name].hear(sign, now)
        return StandbyReader(
            self._log,
            reports.positions,
            rivals,
            read_signs=self._read_signs,
            patience=self._patience,
            clock=self._clock,
        )

    def _read_signs(self, record: Record) -> Iterator[Sign]:
        """Yield what another process's report says about the names that wait here.

        A report that was withdrawn says that the process ended: the log may no longer have the one before it, without names.
        """
        if record.key is None or not record.key.startswith(self._kind):
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
