# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator that stands by for another, and takes over from it.

Any number of processes may run with the same configuration. One works, and has fenced the others: `log.standby` decides when
another one tries to take over. An aggregator that is fenced stands by again.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import structlog

from ..log import SERVICES, Log, Record, Transactor
from ..log.outage import Outage
from ..log.standby import Presence, Rival, Sign, StandbyReader, is_gone, name_process, only_once
from ..log.table import ReadStopped, Table, read_table
from ..words.clock import Clock, SystemClock
from ..words.errors import BadConfig, Expired, Fenced, NotAuthorized, Unavailable
from ..words.records import AGGREGATOR, AGGREGATOR_KEY, AggregatorHeartbeat, ServiceReport
from ..words.shape import try_json
from . import loop
from .loading import IDENTITY, read_beat, read_state
from .metrics import ACTIVE, clear_gauges
from .settings import AggregatorSettings

# Multiples of its patience for which an aggregator that cannot begin, or then cannot load, keeps others from their turn.
BEGINNING = 3

logger = structlog.get_logger()


def run(
    settings: AggregatorSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    host: str,
    instance: str | None = None,
    clock: Clock | None = None,
) -> None:
    """Aggregate, or stand by for another aggregator, until `stop` is set.

    Calls `ready` once it works or stands by. It reports to the log as the aggregator on `host`; heartbeats
    name it by `instance`, or else by its process. Raises BadConfig, and Poisoned as
    `loop.run` does.
    """
    clock, instance, is_fenced = clock or SystemClock(), instance or name_process(), False
    announce = only_once(ready)
    ACTIVE.set(0)
    with Presence(log, f"{AGGREGATOR_KEY}{host}", instance, clock) as presence:

        def note_loaded() -> None:
            presence.report([AGGREGATOR])  # rarely: from now on the heartbeats of the session are the signs
            announce()

        while not stop.is_set():
            state = wait_for_turn(
                settings, log, instance, is_fenced=is_fenced, stop=stop, stands_by=announce, clock=clock
            )
            if state is None:
                break
            turn, taken = _Turn(settings, log, presence, clock), [state]
            del state  # all that the topic had: the session takes it, and lets go of it
            ACTIVE.set(1)
            try:
                loop.run(
                    settings,
                    log,
                    stop=stop,
                    ready=note_loaded,
                    clock=clock,
                    state=taken.pop(),
                    instance=instance,
                    begin=turn.begin,
                    cannot_load=turn.keep_others,
                )
            except Fenced as error:
                logger.warning("fenced", reason=str(error))
                is_fenced = True
            clear_gauges()
            ACTIVE.set(0)
            presence.report([])


class _Turn:
    """The turn of this process, from its begin until it has loaded: it keeps others from theirs, but not for ever.

    It may reach all brokers but one, which it needs.
    """

    def __init__(self, settings: AggregatorSettings, log: Log, presence: Presence, clock: Clock) -> None:
        self._log, self._presence, self._clock = log, presence, clock
        self._beat, self._bound = settings.beat, BEGINNING * _patience(settings)
        self._began = clock.monotonic()

    def begin(self) -> Transactor:
        """Fence the others; from then on the time for loading counts."""
        self.keep_others()
        transactor = self._log.transactor(IDENTITY)
        self._began = self._clock.monotonic()
        self.keep_others()
        return transactor

    def keep_others(self) -> None:
        """Report that this process works, while its time lasts."""
        is_within = self._clock.monotonic() - self._began < self._bound
        self._presence.report([AGGREGATOR] if is_within else [], interval=self._beat)


def wait_for_turn(
    settings: AggregatorSettings,
    log: Log,
    instance: str,
    *,
    is_fenced: bool,
    stop: threading.Event,
    stands_by: Callable[[], None],
    clock: Clock,
) -> Table | None:
    """Wait while another aggregator works; return `state`, or None at a stop.

    Calls `stands_by` if it waits. It does not wait for an aggregator that ended, for a process of this machine that is gone, or for
    an aggregator that has been silent for `takeover_after` since this call. With `is_fenced` another aggregator has just begun, and
    may not have sent a sign yet. While an aggregator begins or loads, which may take minutes, its report is its only sign.
    Waits for an unavailable log indefinitely. Raises BadConfig if a newer release wrote `state`.
    """
    outage, patience = Outage(), _patience(settings)
    while not stop.is_set():
        try:
            state = read_state(log, stop)
            beat = read_beat(state)
            services = _read_services(log, stop)
            signs = _SignReader(instance, None if beat is None else beat.instance)
            is_loading = any(
                abs(clock.now() - record.time) < patience and any(signs.read(record))
                for record in services.records.values()
            )
            if not is_fenced and not is_loading and (beat is None or not _may_work(beat)):
                return state
            if not outage.failures:
                logger.info("standing by", active=beat and beat.instance)
            stands_by()
            rivals = {AGGREGATOR: Rival(heard=clock.monotonic())}
            reader = StandbyReader(
                log,
                state.positions | services.positions,
                rivals,
                read_signs=signs.read,
                patience=patience,
                clock=clock,
            )
            del state  # all that the topic had: another aggregator may work for months
            with closing(reader):
                while not stop.is_set():
                    if reader.find_turns():
                        return read_state(log, stop)
                    outage.end()
        except ReadStopped:
            return None
        except (Unavailable, Expired) as error:
            outage.wait(error, stop)
    return None


def _patience(settings: AggregatorSettings) -> float:
    return max(settings.takeover_after, 2 * settings.beat)


def _read_services(log: Log, stop: threading.Event) -> Table:
    """Read the aggregators' reports; there are none in a log of an older release, or without the right to read them."""
    try:
        return read_table(log, SERVICES, stop=stop, keep=lambda record: (record.key or "").startswith(AGGREGATOR_KEY))
    except (BadConfig, NotAuthorized):
        return Table(records={}, positions={})


@dataclass(slots=True)
class _SignReader:
    """Reads signs of the aggregator at work, which is not the process `instance`.

    A report counts as a sign while its process begins or loads, and no longer after its first heartbeat: a separate thread writes
    reports, even while the aggregator hangs. `newest` is the process that sent the newest heartbeat.
    """

    instance: str
    newest: str | None

    def read(self, record: Record) -> Iterator[Sign]:
        """Yield what a record of `state`, or a report, says.

        States are signs, too: an aggregator sends no heartbeat while it writes very many.
        """
        if record.topic == SERVICES:
            yield from self._read_report(record)
            return
        beat = try_json(AggregatorHeartbeat, record.value) if record.key == AGGREGATOR else None
        self.newest = self.newest if beat is None else beat.instance
        yield Sign(AGGREGATOR, None if beat is None else beat.instance)
        if beat is not None and beat.ended:
            yield Sign(AGGREGATOR, beat.instance, works=False)

    def _read_report(self, record: Record) -> Iterator[Sign]:
        if record.key is None or not record.key.startswith(AGGREGATOR_KEY):
            return
        report = try_json(ServiceReport, record.value)
        if report is None or AGGREGATOR not in report.works or report.instance in (None, self.instance, self.newest):
            return
        if not is_gone(report.instance):
            yield Sign(AGGREGATOR, report.instance)


def _may_work(beat: AggregatorHeartbeat) -> bool:
    """Return whether the aggregator that sent this heartbeat may be at work.

    One of an earlier release, which does not say who it is, is fenced at once, as it always was.
    """
    return beat.instance is not None and not beat.ended and not is_gone(beat.instance)
