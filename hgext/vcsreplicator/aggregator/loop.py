# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator: releases what every gating mirror has applied, and announces what every one serves.

It reads `events`, `acks` and `roster-requests`; one transaction moves its positions, `pending`, `state`, `roster` and `notices`.
Levels (`acks`) are read whole at start; a stored position there only says up to where unreadable ones are recorded. So after any
crash each event is released and announced once in effect, and a restart needs the compacted topics alone. After a transaction
whose outcome is unknown everything in memory is thrown away and read again; so it is after an unexpected exception, but
then without the record or the repository that caused it. A newer aggregator fences an older one, which leaves
`run` with Fenced; neither trouble with the log changes that.

A release, a notice or a decision about the roster is committed at once, because mirrors and receivers wait for it; what arrives
during a commit is the next group. Nothing waits for new events alone: within `group_time` most of them are released, and one
transaction holds both.
"""

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import structlog

from ..log import (
    ACKS,
    EVENTS,
    NOTICES,
    ROSTER_REQUESTS,
    STATE,
    Log,
    NewRecord,
    Reader,
    Record,
    Transactor,
    partition_of,
)
from ..log.table import ReadStopped, Table, find_beginnings, read_on
from ..words.clock import Clock, Silence, SystemClock
from ..words.errors import Expired, Unavailable
from ..words.levels import AGGREGATOR_FORMAT, AggregatorBeat
from ..words.retry import RECONNECT
from ..words.shape import to_json, within
from .aggregation import RecordOutcome
from .ahead import AheadLevels
from .alarms import BROKEN, LOST, MISSING, NEWER, OLDER, SUCCESSOR, Alarm, alarms, measure_silence, survey
from .loading import GROUP, IDENTITY, load, read_state
from .metrics import (
    COMMIT_SECONDS,
    ERRORS_TOTAL,
    EVENTS_TOTAL,
    HELD,
    NOTICES_TOTAL,
    RELEASES_TOTAL,
    SILENT_SECONDS,
    VERSION,
    WAITING,
)
from .outgoing import BATCH_STATES, OutputBatch
from .poison import Poison, Poisoned
from .rereading import Rereading

# Longest wait for a record in seconds: how late a request to stop is seen.
POLL = 0.2

# Records of one read, and reads before what they brought is decided and committed.
READ_LIMIT, READS = 500, 4

# Seconds between two commits of all positions: Kafka forgets a position that is not stored for a week.
RENEW_INTERVAL = 3600.0

TopicPartition = tuple[str, int]

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorSettings:
    """Times in seconds.

    `group_time` is how long new events wait to be committed together with their release, `beat` the time between two signs of life,
    `silence` after how long without one a mirror is alarmed. `batch` is the most notices of one transaction.
    """

    group_time: float = 0.1
    beat: float = 5.0
    silence: float = 60.0
    batch: int = 1000

    def __post_init__(self) -> None:
        within(self, group_time=(0, 3600), beat=(0.01, 3600), silence=(0.01, 3600), batch=(1, 10_000))


def run(
    settings: AggregatorSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock | None = None,
) -> None:
    """Aggregate until `stop` is set; call `ready` when everything is loaded. Raise Fenced and BadConfig only.

    A log that is unavailable is retried indefinitely.
    """
    clock = clock or SystemClock()
    transactor: Transactor | None = None
    poison, silence = Poison(), Silence(clock.monotonic())
    failures = 0
    announced = False
    while not stop.is_set():
        try:
            state = None
            if transactor is None:
                state = read_state(log, stop)
                transactor = log.transactor(IDENTITY)
            else:
                transactor.renew()
            with Session(settings, log, transactor, clock, poison, silence, stop, state) as session:
                if not announced:
                    ready()
                    announced = True
                while not stop.is_set():
                    session.step(POLL)
                    failures = 0
                session.commit()
        except ReadStopped:
            logger.info("stopped while reading the log")
        except (Unavailable, Expired) as error:
            failures += 1
            logger.warning("log unavailable", reason=str(error), failures=failures)
            stop.wait(RECONNECT.delay(failures, random.random()))
        except Poisoned as poisoned:
            logger.exception("unexpected exception", what=poisoned.what)
            if not poison.add(poisoned):
                raise
        finally:
            if transactor is not None:
                transactor.close()


class Session:
    """One life of the aggregator, from loading the whole log to the next time; used by one thread.

    Raises Unavailable, Fenced, BadConfig, and Poisoned for what the next session must leave out.

    It is loaded when made, after the transactor was: what an older one did is done.
    """

    def __init__(
        self,
        settings: AggregatorSettings,
        log: Log,
        transactor: Transactor,
        clock: Clock,
        poison: Poison | None = None,
        silence: Silence | None = None,
        stop: threading.Event | None = None,
        state: Table | None = None,
    ) -> None:
        self._settings, self._transactor, self._clock = settings, transactor, clock
        self._log, self._stop = log, stop or threading.Event()
        self._reader: Reader | None = None
        self._parked: dict[int, list[Record]] = {}
        self._first = self._renewed = clock.monotonic()
        self._beaten = self._first - settings.beat
        self._silence = silence or Silence(self._first)
        self._alarms: dict[Alarm, float] = {}
        self._found: tuple[Alarm, ...] = ()
        self._state_end = self._state_due = self._state_written = 0
        self._notices_end: int | None = None
        self._closing = ExitStack()
        try:
            began = clock.monotonic()
            self.core = load(log, limit=settings.batch, poison=poison, stop=self._stop, state=state)
            self._rereading = Rereading(log, self.core, self.commit)
            self._closing.callback(self._rereading.close)
            self._ahead = AheadLevels(self.core, log, self._rereading)
            acks = self._load_acks(log)
            self._take_kept()
            self._complete()
            self._reader = log.reader({**self.core.positions, **acks})
            self._closing.callback(self._reader.close)
            took = round(clock.monotonic() - began, 3)
            logger.info("loaded", repositories=len(self.core.repositories), held=self.core.held, seconds=took)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; what was not committed is forgotten, and read again by the next session."""
        self._closing.close()

    def _load_acks(self, log: Log) -> dict[TopicPartition, int]:
        """Take every level in the log; return where to go on reading."""
        newest: dict[str | None, Record] = {}
        with closing(log.reader(find_beginnings(log, ACKS))) as reader:
            for record in read_on(log, reader, stop=self._stop):
                newest.pop(record.key, None)
                newest[record.key] = record
            positions = reader.positions()
        for record in newest.values():
            self.core.ack(record, self._clock.now())
            self._hear(record)
            if self.core.is_full:
                self.commit()
        self.core.loaded(self._clock.now())
        return positions

    def step(self, timeout: float) -> None:
        """Read for at most `timeout` seconds, decide, and commit one batch if it is urgent, full, or old enough."""
        core, settings = self.core, self._settings
        was_waiting = core.has_output
        if was_waiting:
            timeout = min(timeout, max(0.0, self._first + settings.group_time - self._clock.monotonic()))
        if self._rereading:
            self._go_on_reading_again()
        self._read(0.0 if core.is_undecided or self._rereading else timeout)
        core.decide(self._clock.now())
        if core.is_urgent or core.is_full or core.is_undecided:
            self.commit()
        now = self._clock.monotonic()
        if not was_waiting:
            self._first = now
        if core.has_output and now - self._first >= settings.group_time:
            self.commit()
        if self._beat(now):
            self._ahead.check(self._clock.now())

    # Reading again what was passed

    def _complete(self) -> None:
        """Look for the events that `pending` lacks; what `events` lacks too is lost."""
        incomplete = self.core.incomplete()
        self._read_again({self._partition(name) for name in incomplete})
        for name in incomplete:
            self.core.lose(name, self._clock.now())

    def _take_kept(self) -> None:
        """Take what an older aggregator kept for one that understands it."""
        while (outcome := self.core.take_kept(self._clock.now())) in (
            RecordOutcome.UNFINISHED,
            RecordOutcome.READ_AGAIN,
        ):
            if outcome is RecordOutcome.READ_AGAIN and self.core.kept_in is not None:
                self._read_again({self.core.kept_in})
            self.commit()

    def _read_again(self, partitions: set[int]) -> None:
        """Read these to the end before anything else happens, which is for the start alone."""
        for partition in sorted(partitions - self.core.whole.keys()):
            self._rereading.begin(partition)
        while self._rereading:
            self._rereading.slice(self._clock.now())
            self._beat(self._clock.monotonic())
            if self._stop.is_set():
                raise ReadStopped

    def _partition(self, repository: str) -> int:
        return partition_of(repository, self._log.partitions(EVENTS))

    def _go_on_reading_again(self) -> None:
        """Read a slice; then take what came behind the position meanwhile."""
        for partition in self._rereading.slice(self._clock.now()):
            self._take(self._parked.pop(partition, ()))
            assert self._reader is not None
            self._reader.resume([(EVENTS, partition)])

    def commit(self, *more: NewRecord) -> None:
        """Write everything decided and taken so far, and `more`, in one transaction."""
        if not self.core.has_output and not more:
            return
        batch = self.core.batch()
        began = self._clock.monotonic()
        messages = [*batch.messages, *more]
        self._transactor.commit(messages, group=GROUP, positions=batch.positions)
        self._state_written += sum(message.topic == STATE for message in messages)
        if batch.notices:
            self._notices_end = None
        COMMIT_SECONDS.observe(self._clock.monotonic() - began)
        self._first = self._clock.monotonic()
        _count(batch)

    def _read(self, timeout: float) -> None:
        """Read what is there; under load some more, so that fewer transactions hold more decisions."""
        assert self._reader is not None
        for _ in range(READS):
            records = self._reader.poll(timeout, limit=READ_LIMIT)
            self._take(records)
            if len(records) < READ_LIMIT:
                break
            timeout = 0.0

    def _take(self, records: Sequence[Record]) -> None:
        core, now = self.core, self._clock.now()
        inputs = {EVENTS: core.event, ACKS: core.ack, ROSTER_REQUESTS: core.request}
        for record in records:
            if record.topic == EVENTS and record.partition in self._rereading:
                self._park(record)
                continue
            while (outcome := inputs[record.topic](record, now)) is RecordOutcome.UNFINISHED:
                self.commit()
                self._beat(self._clock.monotonic())
            if outcome is RecordOutcome.READ_AGAIN:
                self._rereading.begin(record.partition)
                self._park(record)
                continue
            if record.topic == ACKS:
                self._hear(record)
            elif record.topic == EVENTS:
                EVENTS_TOTAL.labels(outcome=outcome.value).inc()
                if outcome is RecordOutcome.UNKNOWN:
                    logger.error("event of a newer version, its repository waits", repository=record.key)
            elif record.topic == ROSTER_REQUESTS:
                logger.info("roster request", request=record.key, outcome=outcome.value, version=core.roster.version)
            if core.is_full:
                self.commit()

    def _park(self, record: Record) -> None:
        """Set aside what stands behind the position of a partition that is read again; read no more of it meanwhile."""
        self._parked.setdefault(record.partition, []).append(record)
        assert self._reader is not None
        self._reader.pause([(EVENTS, record.partition)])

    def _beat(self, now: float) -> bool:
        """Give a sign of life when it is due, which also finds out whether another took over, and update alarms and metrics.

        Return whether it was due.
        """
        if now - self._beaten < self._settings.beat:
            return False
        core, time = self.core, self._clock.now()
        self._beaten = now
        if now - self._renewed >= RENEW_INTERVAL:
            self._renewed = now
            core.renew()
        texts = tuple(
            alarm.text for alarm in self._found if alarm.kind in (NEWER, BROKEN, LOST, MISSING, SUCCESSOR, OLDER)
        )
        self._watch_state()
        if self._notices_end is None:
            [self._notices_end] = self._log.ends(NOTICES).values()
        beat = AggregatorBeat(
            time=time,
            roster=core.roster.version,
            held=core.held,
            alarms=texts,
            notices=self._notices_end,
            format=AGGREGATOR_FORMAT,
        )
        self.commit(NewRecord(topic=STATE, key=IDENTITY, value=to_json(beat)))
        HELD.set(core.held)
        VERSION.set(core.roster.version)
        waiting = survey(core)
        for mirror, numbers in waiting.mirrors.items():
            WAITING.labels(mirror=mirror).set(numbers.held)
        self._measure_silence(now)
        missing = self._ahead.count_missing()
        self._found = alarms(core, waiting, self._silence, now, self._settings.silence, missing)
        self._watch(self._found, now)
        return True

    def _measure_silence(self, now: float) -> None:
        """Set the gauge of each mirror that must give signs of life; the others have none."""
        seconds = measure_silence(self.core.roster, self._silence, now)
        for mirror in self.core.roster.mirrors:
            if mirror.name in seconds:
                SILENT_SECONDS.labels(mirror=mirror.name).set(seconds[mirror.name])
            else:
                SILENT_SECONDS.remove(mirror.name)

    def _watch_state(self) -> None:
        """Write all states again if `state` lost what was written there, which a restored broker can bring about.

        What was written up to the last check is expected now, because a log may show a transaction a moment after its commit.
        """
        [end] = self._log.ends(STATE).values()
        due = self._state_due
        self._state_due = self._state_end + self._state_written
        self._state_end, self._state_written = end, 0
        if end >= due:
            return
        self._state_due = 0
        logger.error("topic state lost records: all states are written again", count=due - end)
        names = list(self.core.repositories)
        for first in range(0, len(names), BATCH_STATES):
            self.core.write_again(names[first : first + BATCH_STATES])
            self.commit()

    def _hear(self, record: Record) -> None:
        """Count any record of a mirror as its sign of life."""
        self._silence.heard((record.key or "").partition("/")[0], record.offset, self._clock.monotonic())

    def _watch(self, found: Sequence[Alarm], now: float) -> None:
        """Log each alarm when it begins, again after ten times the limit while it lasts, and its end."""
        for alarm in found:
            logged = self._alarms.get(alarm)
            if logged is None or now - logged >= 10 * self._settings.silence:
                logger.error(alarm.kind, mirror=alarm.mirror, **alarm.numbers, **_named(alarm))
                self._alarms[alarm] = now
        for alarm in self._alarms.keys() - set(found):
            logger.info("alarm over", alarm=alarm.kind, mirror=alarm.mirror)
            del self._alarms[alarm]


def _named(alarm: Alarm) -> dict[str, object]:
    """Return the members of its log line that name repositories."""
    named = {"paths": alarm.paths, "repository": alarm.repository, "what": alarm.story}
    return {name: value for name, value in named.items() if value}


def _count(batch: OutputBatch) -> None:
    RELEASES_TOTAL.inc(batch.releases)
    NOTICES_TOTAL.inc(batch.notices)
    if batch.errors:
        ERRORS_TOTAL.inc(batch.errors)
        logger.error("records set aside", count=batch.errors, see="vcsreplicator errors")
