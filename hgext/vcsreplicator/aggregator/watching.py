# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's heartbeats, its alarms and figures, and a watch for losses."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import structlog
from prometheus_client import Gauge, Histogram

from ..log import EVENTS, NOTICES, RENEW_EVERY, ROSTER, STATE, Log, NewRecord, Record
from ..words.clock import Clock
from ..words.errors import Unavailable
from ..words.records import AGGREGATOR, AGGREGATOR_FORMAT, UNSEALED_FORMAT, AggregatorHeartbeat
from ..words.shape import to_json
from .ahead import AheadLevels
from .alarms import FORKED, SILENT, Alarm, alarm_crowded, alarm_seals, alarms, survey
from .completeness import Completeness
from .decisions.aggregation import Aggregation
from .decisions.outgoing import BATCH_STATES
from .gate import AckGate
from .lasting import Lasting
from .metrics import ALARMS, HELD, LAG, SERVED_SECONDS, SILENT_SECONDS, STALLED_SECONDS, VERSION, WAITING
from .settings import AggregatorSettings

# Seconds after which a heartbeat that was put off is retried.
AGAIN = 1.0
# Seconds between two questions where `roster` ends, which is rarely written.
ROSTER_INTERVAL = 30.0

# Alarms that readers of the log see by themselves; the heartbeat carries the others.
SEEN_BY_READERS = (SILENT, FORKED)

logger = structlog.get_logger()


class OwnTopic:
    """A topic that the aggregator alone writes; `is_lost` once it lacks records."""

    def __init__(self, due: int) -> None:
        """It ended at `due` when it was read."""
        self._newest, self._due, self.is_lost = -1, due, False

    def note_written(self, offsets: Sequence[int]) -> None:
        """Take the offsets of new records.

        A topic that assigns an offset twice has lost the earlier record.
        """
        if offsets:
            self.is_lost |= offsets[0] <= self._newest
            self._newest = offsets[-1]

    def note_end(self, end: int, *, is_counted: bool = False) -> None:
        """Compare the end with the due one.

        With `is_counted` the last end counts, as for a topic that is rarely written.

        Records that were written since do not count, because a log may show a transaction a moment after its commit.
        """
        if end < self._due:
            self.is_lost, self._newest = True, end - 1
        self._due = max(self._newest + 1, end if is_counted else 0)


class Watch:
    """Sends heartbeats, and raises alarms; used by one thread.

    `commit` writes the aggregation's next batch and the records given.
    """

    def __init__(
        self,
        settings: AggregatorSettings,
        aggregation: Aggregation,
        log: Log,
        clock: Clock,
        lasting: Lasting,
        ahead: AheadLevels,
        completeness: Completeness,
        gate: AckGate,
        commit: Callable[..., None],
    ) -> None:
        self._aggregation, self._log, self._clock, self._lasting = aggregation, log, clock, lasting
        self._ahead, self._completeness, self._gate, self._commit = ahead, completeness, gate, commit
        self._interval, self._patience = settings.beat, settings.silence
        self._renewed = clock.monotonic()
        # The time of the next heartbeat.
        self.beat_due = self._renewed
        self._logged: dict[Alarm, float] = {}
        # When each alarm began, by this machine's clock.
        self._since: dict[Alarm, float] = {}
        self._found: tuple[Alarm, ...] = ()
        self._state, self._roster = (OwnTopic(aggregation.loaded.get(topic, 0)) for topic in (STATE, ROSTER))
        self._roster_at = float("-inf")
        self._notices_end: int | None = None
        # The newest end of notices that the log said.
        self._known_end: int | None = None
        # The newest serial of each mirror that seals.
        self._serials: dict[str, int] = {}
        # Whether the log answered the last question where a topic ends.
        self.answers = True

    def hear(self, record: Record, serial: int | None) -> None:
        """Count any record of a mirror as its heartbeat.

        Of a mirror that seals only a new `serial` counts: others can write its sealed records again.
        """
        name, sign = (record.key or "").partition("/")[0], record.offset
        if serial is not None:
            sign = self._serials[name] = max(serial, self._serials.get(name, 0))
        self._lasting.silence.heard(name, sign, self._clock.monotonic())

    def note_written(self, messages: Sequence[NewRecord], places: Sequence[tuple[int, int]]) -> None:
        """Take the records that a transaction wrote, and their offsets."""
        for topic, own in ((STATE, self._state), (ROSTER, self._roster)):
            own.note_written([at for message, (_, at) in zip(messages, places, strict=True) if message.topic == topic])
        if any(message.topic == NOTICES for message in messages):
            self._notices_end = None

    def beat(self) -> bool:
        """Send a heartbeat if it is due; return whether it was.

        Writing it also shows whether another aggregator took over. It is put off while the log does not say where `state` and
        `roster` end: it would stand for notices whose state may be lost.
        """
        now, aggregation = self._clock.monotonic(), self._aggregation
        if now < self.beat_due:
            if aggregation.is_behind:
                aggregation.find_outstanding()
            return False
        self.beat_due = now + self._interval
        if now - self._renewed >= RENEW_EVERY:
            self._renewed = now
            aggregation.renew()
        notices = self._find_notices_end()
        if notices is None or not self._check_ends():
            # From here on: the log may have taken longer than AGAIN, and the loop must do other work in between.
            self.beat_due = self._clock.monotonic() + min(self._interval, AGAIN)
            return False
        self._restore_topics()
        # Before the heartbeat: also the first one of a session carries the alarms.
        self._survey(now)
        self._commit(self._make_beat(notices))
        self._restore_topics()
        return True

    def restore_roster(self) -> None:
        """Write the roster again if the log lost it since it was last asked.

        A log that did not answer the last question is not asked.
        """
        if self.answers and (end := self._find_end(ROSTER)) is not None:
            self._roster.note_end(end, is_counted=True)
            self._restore_topics()

    def make_beat(self, *, ended: bool = False) -> NewRecord:
        """Make the record of a heartbeat; raise Unavailable."""
        notices = self._find_notices_end()
        if notices is None:
            raise Unavailable(f"topic {NOTICES}: its end is not known")
        return self._make_beat(notices, ended=ended)

    def _make_beat(self, notices: int, *, ended: bool = False) -> NewRecord:
        """Make the record of a heartbeat.

        It says that `state` knows the notices before this offset: a start reads the others.
        """
        aggregation = self._aggregation
        beat = AggregatorHeartbeat(
            time=self._clock.now(),
            roster=aggregation.roster.version,
            held=aggregation.held,
            alarms=tuple(
                alarm.describe(self._since[alarm]) for alarm in self._found if alarm.kind not in SEEN_BY_READERS
            ),
            notices=notices,
            format=AGGREGATOR_FORMAT if aggregation.roster.needs_seals else UNSEALED_FORMAT,
            cut={str(partition): end for partition, end in aggregation.events.cut.items()} or None,
            partitions=self._log.partitions(EVENTS),
            instance=self._lasting.instance,
            ended=ended,
            overwritten=self._gate.list_overwritten(),
            namesakes=aggregation.levels.list_namesakes() or None,
            waits=self._completeness.describe_waits(),
        )
        return NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(beat))

    def _survey(self, now: float) -> None:
        """Update figures and alarms."""
        self._lasting.silence.listen(now, 2 * self._interval)
        aggregation, waiting = self._aggregation, survey(self._aggregation, self._lasting.silence, now)
        HELD.set(aggregation.held)
        VERSION.set(aggregation.roster.version)
        STALLED_SECONDS.set(max(waiting.held.values(), default=0.0))
        _set_all(LAG, waiting.lags)
        _end_others(SERVED_SECONDS, waiting.lags)
        _set_all(WAITING, waiting.unserved)
        _set_all(SILENT_SECONDS, waiting.silent)
        missing, unread = self._ahead.count_missing(), self._completeness.find_failure(self._patience)
        self._found = (
            *alarms(aggregation, waiting, self._patience, missing, unread=unread),
            *alarm_seals(self._gate.list_foreign(now), self._gate.find_unsealed(aggregation.roster)),
            *alarm_crowded(self._gate.crowded),
        )
        begins = self._clock.now()
        self._since = {alarm: self._since.get(alarm, begins) for alarm in self._found}
        _set_all(ALARMS, Counter(alarm.kind for alarm in self._found))
        self._log_alarms(now)

    def _find_notices_end(self) -> int | None:
        """Return the end of `notices`, or an earlier one if the log does not answer now.

        A start then reads more notices than it needs. None if no end is known. Raises Unavailable if the topic lost notices.
        """
        if self._notices_end is None or self._lasting.recent.has_any():
            self._notices_end = self._find_end(NOTICES)
        if self._notices_end is not None:
            self._lasting.recent.note_end(self._notices_end)
            self._known_end = self._notices_end
        return self._known_end

    def _find_end(self, topic: str) -> int | None:
        """Return the end of a topic; None if the log does not answer now."""
        self.answers = False
        try:
            [end] = self._log.ends(topic).values()
        except Unavailable as error:
            logger.warning("end not known, the next heartbeat looks again", topic=topic, reason=str(error))
            return None
        self.answers = True
        return end

    def _check_ends(self) -> bool:
        """Find out whether `state` or `roster` ends earlier than at the last check.

        Returns whether the log answers.
        """
        end, now = self._find_end(STATE), self._clock.monotonic()
        if end is None:
            return False
        self._state.note_end(end)
        if now - self._roster_at >= ROSTER_INTERVAL:
            if (end := self._find_end(ROSTER)) is None:
                return False
            self._roster.note_end(end, is_counted=True)
            self._roster_at = now
        return True

    def _restore_topics(self) -> None:
        """Write the roster and all states again if the log lost some of them."""
        if self._roster.is_lost:
            logger.error(
                "topic roster lost records: the roster is written again", version=self._aggregation.roster.version
            )
            self._aggregation.membership.write_again()
            self._commit()
            self._roster.is_lost = False
        if not self._state.is_lost:
            return
        logger.error("topic state lost records: all states are written again")
        names = list(self._aggregation.repositories)
        for first in range(0, len(names), BATCH_STATES):
            self._aggregation.write_again(names[first : first + BATCH_STATES])
            self._commit()
        self._state.is_lost = False

    def _log_alarms(self, now: float) -> None:
        """Log each alarm when it begins, and when it ends.

        While it lasts, it is logged again after ten times `patience`.
        """
        for alarm in self._found:
            logged = self._logged.get(alarm)
            if logged is None or now - logged >= 10 * self._patience:
                logger.error(alarm.kind, mirror=alarm.mirror, **alarm.numbers, **alarm.named)
                self._logged[alarm] = now
        for alarm in self._logged.keys() - set(self._found):
            logger.info("alarm over", alarm=alarm.kind, mirror=alarm.mirror)
            del self._logged[alarm]


def _set_all(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Set the gauge for these values of its label, and remove it for all others."""
    for value, number in values.items():
        gauge.labels(value).set(number)
    _end_others(gauge, values)


def _end_others(metric: Gauge | Histogram, values: Container[str]) -> None:
    """Remove the metric for all values of its label but these."""
    samples = [sample for family in metric.collect() for sample in family.samples]
    for value in {next(iter(sample.labels.values())) for sample in samples}:
        if value not in values:
            metric.remove(value)
