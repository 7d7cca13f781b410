# SPDX-License-Identifier: GPL-2.0-or-later
"""A session of the aggregator: reads the log, and writes releases and notices.

It releases what every gating mirror has applied, and announces what every one serves. It reads `events`, `acks` and
`roster-requests`; one transaction writes `pending`, `state`, `roster` and `notices`. Positions in `events` follow with the next
heartbeat, for what stands behind them is known as a repeat. The transaction itself stores the positions of requests, and of
records that were set aside or kept for a newer aggregator. Levels (`acks`) are read whole at start; a stored position there only
says up to where unreadable ones are recorded. So after any crash each event is released and announced once in effect, and a
restart needs the compacted topics and the newest events alone.

A start reads the partitions of `events` that answer. Once another one answers, everything is read anew.

A release, a notice or a decision about the roster is committed at once, because mirrors and receivers wait for it; what arrives
during a commit is the next group. Nothing waits for new events alone: within `group_time` most of them are released, and one
transaction holds both.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import structlog

from ..log import (
    ACKS,
    EVENTS,
    EXPECTED_WITHIN,
    NOTICES,
    PENDING,
    STATE,
    Log,
    NewRecord,
    PartitionKey,
    Reader,
    Record,
    Transactor,
    partition_of,
)
from ..log.table import ReadStopped, Table, find_beginnings, read_on
from ..words.clock import Clock
from ..words.wire import NO_HEADERS, names_of
from .ahead import AheadLevels
from .completeness import Completeness
from .decisions.aggregation import Aggregation
from .decisions.memory import RecordOutcome
from .gate import AckGate, GateVerdict, open_keys
from .lasting import Lasting
from .loading import GROUP, load
from .metrics import COMMIT_SECONDS, ERRORS_TOTAL, EVENTS_TOTAL, RELEASES_TOTAL, observe_notices
from .refusals import RefusalWatch
from .rereading import Rereading
from .settings import AggregatorSettings
from .watching import Watch

# Records of one read.
READ_LIMIT = 500
# Reads between two commits.
READS = 4
# Bytes of a foreign record of `acks` that a start keeps for `errors`: it may find one for each level.
FOREIGN_KEPT = 1024
# Seconds after which a session ends that passed records over for want of room, if the log knows other repositories or mirrors now.
CROWDED = 600.0

logger = structlog.get_logger()


class Session:
    """One life of the aggregator, from loading the log to loading it the next time.

    One thread uses it. Its methods raise Unavailable, Fenced, BadConfig, and Poisoned or TooLarge for what the next session must
    leave out.
    """

    def __init__(
        self,
        settings: AggregatorSettings,
        log: Log,
        transactor: Transactor,
        clock: Clock,
        lasting: Lasting | None = None,
        stop: threading.Event | None = None,
        state: Table | None = None,
    ) -> None:
        """Read the whole log, and begin a session.

        The transactor must be made before: then what an older aggregator did is done.
        """
        self._began = began = clock.monotonic()
        self._settings, self._transactor, self._clock = settings, transactor, clock
        self._log, self._stop = log, stop or threading.Event()
        self._lasting = lasting = lasting or Lasting(clock)
        self.aggregation = aggregation = load(
            log, limit=settings.batch, poison=lasting.poison, stop=self._stop, state=state, written=lasting.written
        )
        lasting.written = aggregation.roster
        own = open_keys(settings.key, aggregation.roster)
        signing = own if settings.sign else ()
        aggregation.membership.announce_keys(
            tuple(pair.public for pair in own), tuple(pair.signing for pair in signing)
        )
        if signing:
            aggregation.sign_with(signing[0])
        self._gate = gate = AckGate(aggregation.roster, own, _list_serials(aggregation), aggregation.expects)
        self._reader: Reader | None = None
        self._parked: dict[int, list[Record]] = {}
        self._first = clock.monotonic()
        self._rereading = Rereading(log, aggregation, self.commit)
        self._ahead = AheadLevels(aggregation, log, self._rereading)
        self._completeness = Completeness(aggregation, log, clock, settings.beat)
        self._watch = Watch(
            settings, aggregation, log, clock, lasting, self._ahead, self._completeness, gate, self.commit
        )
        self._refusals = RefusalWatch(aggregation.poison, log, clock, settings.beat)
        # Whether what topics refused for its size is to be retried, with the next session.
        self._is_try_due = False
        # Whether there is room now for levels that had none, and what was known at the start.
        self._has_room_now, self._known = False, self._describe_known()
        self._closing = ExitStack()
        self._closing.callback(self._rereading.close)
        try:
            self._catch_up()
        except BaseException:
            self.close()
            raise
        took = round(clock.monotonic() - began, 3)
        logger.info("loaded", repositories=len(aggregation.repositories), held=aggregation.held, seconds=took)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_outdated(self) -> bool:
        """Whether everything must be read anew.

        Silent partitions answer now, topics may take what they refused, levels that had no room may have it, or the roster has
        other keys.
        """
        has_other_keys = self._gate.is_outdated(self.aggregation.roster)
        return self._completeness.found_unread or self._is_try_due or self._has_room_now or has_other_keys

    def wake(self) -> None:
        """End a running or the next wait for records; any thread may call this."""
        if self._reader is not None:
            self._reader.wake()

    def close(self) -> None:
        """Free everything; the next session rereads uncommitted records."""
        self._closing.close()

    def _catch_up(self) -> None:
        """Take what was loaded up to where reading goes on."""
        if (since := self.aggregation.loaded.get(NOTICES)) is not None:
            self._lasting.recent.take_undone(self._log, since, self._stop, self.aggregation.has_announced)
        self._restore_notices(self._stop)
        if self.aggregation.events.cut:
            # Before a position is stored: it may lie beyond the log's end, or among records that the log lost and gets again.
            self.commit(self._watch.make_beat())
        acks = self._load_acks()
        self._take_kept()
        self._complete_positions()
        self._reader = self._log.reader({**self.aggregation.positions, **acks})
        self._closing.callback(self._reader.close)

    def _restore_notices(self, stop: threading.Event | None = None) -> None:
        """Write the notices again that the log lost, before any newer one; raise ReadStopped at a `stop`."""
        lost = self._lasting.recent.find_lost(self._log, stop, self.aggregation.has_announced)
        if not lost:
            return
        logger.error("topic notices lost records: the newest are written again", notices=len(lost))
        for notice, message in lost:
            self.aggregation.recover(notice)
            self.aggregation.output.add(message)
            if self.aggregation.output.is_full:
                self.commit()
        self.commit()

    def _load_acks(self) -> dict[PartitionKey, int]:
        """Take every level in the log; return where to go on reading.

        Of a mirror with a key, the newest that it sealed counts, also behind a foreign one.
        """
        foreign: dict[str | None, tuple[Record, GateVerdict]] = {}
        with closing(self._log.reader(find_beginnings(self._log, ACKS))) as reader:
            for record in read_on(self._log, reader, stop=self._stop):
                verdict = self._gate.judge(record, self._clock.monotonic())
                if verdict is GateVerdict.COUNTS:
                    # At once: a million records would be three times as large as their levels.
                    serial = self._gate.find_serial(record)
                    self.aggregation.levels.take(record, self._clock.now(), serial)
                    self._watch.hear(record, serial)
                    if foreign.get(record.key, (None, None))[1] is GateVerdict.REPLAYED:
                        del foreign[record.key]  # the log still had an older record of the mirror
                elif verdict.is_refused:
                    kept = None if record.value is None else record.value[:FOREIGN_KEPT]
                    foreign[record.key] = replace(record, value=kept, headers=NO_HEADERS), verdict
                if self.aggregation.output.is_full:
                    self.commit()
            positions = reader.positions()
        self._gate.end_loading()
        for record, verdict in foreign.values():
            self.aggregation.levels.refuse(record, verdict.reason, self._clock.now())
            if self.aggregation.output.is_full:
                self.commit()
        self.aggregation.end_loading(self._clock.now())
        self._note_sealed()
        return positions

    def step(self, timeout: float) -> None:
        """Read for at most `timeout` seconds, decide, and commit one batch if it is due.

        A batch is due if it is urgent, full, or old enough.
        """
        aggregation, settings = self.aggregation, self._settings
        was_waiting = aggregation.output.has_output
        timeout = min(timeout, max(0.0, self._watch.beat_due - self._clock.monotonic()))
        if was_waiting:
            timeout = min(timeout, max(0.0, self._first + settings.group_time - self._clock.monotonic()))
        if self._rereading:
            self._go_on_reading_again()
        has_more = aggregation.is_undecided or aggregation.is_behind or self._rereading
        self._read_records(0.0 if has_more else timeout)
        aggregation.decide(self._take_time())
        if self._completeness.check():
            aggregation.decide(self._take_time())
        if aggregation.output.is_urgent or aggregation.output.is_full or aggregation.is_undecided:
            self.commit()
        elif aggregation.output.fresh and not was_waiting:
            self._expect(PENDING, STATE)
        now = self._clock.monotonic()
        if not was_waiting:
            self._first = now
        if aggregation.output.has_output and now - self._first >= settings.group_time:
            self.commit()
        if self._watch.beat():
            self._ahead.check(self._clock.now())
            self._gate.make_room()
            is_due = self._clock.monotonic() - self._began >= CROWDED and bool(self._gate.crowded)
            self._has_room_now = is_due and self._describe_known() != self._known
        self._is_try_due = self._refusals.is_due()

    def _describe_known(self) -> tuple[int, int]:
        """Return the roster's version, and how many repositories the log has."""
        repositories = self.aggregation.repositories.values()
        return self.aggregation.roster.version, sum(each.state is not None for each in repositories)

    def _take_time(self) -> float:
        """Return the time of day, and set the monotonic time for successors."""
        self.aggregation.succession.now = self._clock.monotonic()
        return self._clock.now()

    def _complete_positions(self) -> None:
        """Look for events that `pending` lacks; an event that `events` lacks too is lost."""
        incomplete = self.aggregation.incomplete()
        count = self._log.partitions(EVENTS)
        self._read_again({partition_of(name, count) for name in incomplete})
        for name in incomplete:
            self.aggregation.events.lose(name, self._clock.now())

    def _take_kept(self) -> None:
        """Take the records that an older aggregator kept for a newer one."""
        events = self.aggregation.events
        while (outcome := events.take_kept(self._take_time(), self._rereading.whole)).is_asked_again:
            if outcome is RecordOutcome.READ_AGAIN and events.newer.next is not None:
                self._read_again({events.newer.next.partition})
            self.commit()

    def _read_again(self, partitions: set[int]) -> None:
        """Read these partitions to the end before anything else, at the start only."""
        for partition in sorted(partitions - self._rereading.whole.keys()):
            self._rereading.begin(partition)
        while self._rereading:
            self._rereading.slice(self._take_time())
            self._watch.beat()
            if self._stop.is_set():
                raise ReadStopped

    def _go_on_reading_again(self) -> None:
        """Reread a slice; then take the records that came behind the position meanwhile."""
        for partition in self._rereading.slice(self._take_time()):
            self._take_records(self._parked.pop(partition, ()))
            assert self._reader is not None
            self._reader.resume([(EVENTS, partition)])

    def commit(self, *more: NewRecord) -> None:
        """Write everything decided and taken so far, and `more`, in one transaction."""
        if not self.aggregation.output.has_output and not more:
            return
        batch, roster = self.aggregation.batch(may_defer=not more), self.aggregation.roster
        began = self._clock.monotonic()
        messages = [*batch.messages, *more]
        self._lasting.recent.begin(messages)
        newest = {(NOTICES, 0): self._lasting.recent.newest}
        places = self._transactor.commit(messages, group=GROUP, positions=batch.positions, newest=newest)
        self._lasting.recent.end(messages, places)
        self._lasting.written = roster
        self._watch.note_written(messages, places)
        COMMIT_SECONDS.observe(self._clock.monotonic() - began)
        self._first = self._clock.monotonic()
        RELEASES_TOTAL.inc(batch.releases)
        observe_notices(batch.announced)
        if batch.errors:
            ERRORS_TOTAL.inc(batch.errors)
            logger.error("records set aside", count=batch.errors, see="vcsreplicator errors")
        if batch.releases:
            self._expect(NOTICES, PENDING, STATE)

    def finish(self, *, ends: bool = False) -> None:
        """Write what is left, so that the next aggregator reads nothing twice.

        It reads the roster that is in the log, and the notices. If the aggregator `ends`, its last heartbeat says so: another takes
        over at once.
        """
        self._watch.restore_roster()
        if self._watch.answers:
            self._restore_notices()
        if ends or self.aggregation.output.has_output or self.aggregation.output.positions:
            self.commit(self._watch.make_beat(ended=ends))
        if self._is_try_due:
            self.aggregation.poison.try_again()

    def _expect(self, *topics: str) -> None:
        """Have the next transaction prepared while mirrors work.

        A heartbeat commits that transaction in time if nothing else does.
        """
        if max(self._settings.group_time, self._settings.beat) <= EXPECTED_WITHIN:
            self._transactor.expect(topics)

    def _read_records(self, timeout: float) -> None:
        """Read the available records; under load several times, for fewer transactions."""
        assert self._reader is not None
        for _ in range(READS):
            records = self._reader.poll(timeout, limit=READ_LIMIT)
            self._take_records(records)
            if len(records) < READ_LIMIT:
                break
            timeout = 0.0

    def _take_records(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.topic == ACKS and not self._pass_gate(record):
                if self.aggregation.output.is_full:
                    self.commit()
                continue
            if record.topic == EVENTS and record.partition in self._rereading:
                self._set_aside(record)
                continue
            while (outcome := self._take_record(record)) is RecordOutcome.UNFINISHED:
                self.commit()
                self._watch.beat()
            if outcome is RecordOutcome.READ_AGAIN:
                self._rereading.begin(record.partition)
                self._set_aside(record)
                continue
            self._note_taken(record, outcome)
            if self.aggregation.output.is_full:
                self.commit()

    def _pass_gate(self, record: Record) -> bool:
        """Return whether a record of `acks` counts.

        A record that does not is no sign of its mirror either, and is recorded.
        """
        verdict = self._gate.judge(record, self._clock.monotonic())
        if verdict.is_refused:
            self.aggregation.levels.refuse(record, verdict.reason, self._take_time())
        self._note_sealed()
        return verdict is GateVerdict.COUNTS

    def _note_sealed(self) -> None:
        """Let the roster say from which record on a mirror seals its acks."""
        while self._gate.first_sealed:
            self.aggregation.membership.note_sealed(*self._gate.first_sealed.popitem())

    def _take_record(self, record: Record) -> RecordOutcome:
        now = self._take_time()
        if record.topic == EVENTS:
            return self.aggregation.events.take(record, now, is_whole=self._rereading.is_whole(record))
        if record.topic == ACKS:
            return self.aggregation.levels.take(record, now, self._gate.find_serial(record))
        return self.aggregation.membership.take(record, now)

    def _note_taken(self, record: Record, outcome: RecordOutcome) -> None:
        if record.topic == ACKS:
            self._watch.hear(record, self._gate.find_serial(record))
        elif record.topic == EVENTS:
            EVENTS_TOTAL.labels(outcome=outcome.value).inc()
            if outcome is RecordOutcome.UNKNOWN:
                names = names_of(record.key, record.headers)
                logger.error("event of a newer version, its repository waits", **names)
        else:
            version = self.aggregation.roster.version
            logger.info("roster request", request=record.key, outcome=outcome.value, version=version)

    def _set_aside(self, record: Record) -> None:
        """Set aside a record behind the position of a partition that is read again.

        Read no more of this partition meanwhile.
        """
        self._parked.setdefault(record.partition, []).append(record)
        assert self._reader is not None
        self._reader.pause([(EVENTS, record.partition)])


def _list_serials(aggregation: Aggregation) -> Iterator[tuple[str, str, int]]:
    """Yield the serials that stored states know, each with its mirror and repository."""
    for name, repository in aggregation.repositories.items():
        yield from ((mirror, name, serial) for mirror, serial in repository.serials.items())
