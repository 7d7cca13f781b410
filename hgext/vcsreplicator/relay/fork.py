# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's watch for forks (`outbox.forks`).

It compares the outboxes with the aggregator's states, and with the events that the relay itself sent.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

import structlog

from ..log import SERVICES, STATE, Log, Reader, Record
from ..log.table import ReadStopped, find_beginnings, read_on
from ..outbox.file import Fork, Outbox
from ..outbox.forks import SentEvent, fork_between
from ..words.errors import BadConfig, MalformedEvent, NotAuthorized, ReplicationError, Unavailable
from ..words.event import Event, Type
from ..words.records import AGGREGATOR, MASTER_KEY, MasterRecord, RepositoryState
from ..words.shape import from_json, try_json
from .mastership import fork_of_former, has_ended
from .partitions import LoggedOutage

logger = structlog.get_logger()

# Seconds to wait at the start until the topic was read once.
FIRST_READ = 3.0

# Seconds for which a relay is the master without a look: a promotion waits longer for its heartbeat (`status.SILENT`).
TERM = 30.0

# Seconds that one poll waits for records; `close` ends it.
POLL = 10.0


def read_uptime() -> float:
    """Return the seconds since the boot; they go on while the machine is suspended, unlike the monotonic clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StateWatch:
    """Follows the topic `state` in a thread of its own.

    It remembers the relay's own events, since the aggregator may see them late. It calls `on_state`, which must not raise, with
    each state once `state` returns it: with all of them after the first reading, and after each rereading that a failure
    requires. Before such a rereading is handed on, it calls `on_answer`: the log answers again. `on_report` gets each record of
    `services` that is no promotion.
    """

    def __init__(
        self,
        log: Log,
        stop: threading.Event,
        *,
        poll: float | None = None,
        monotonic: Callable[[], float] = read_uptime,
    ) -> None:
        self.on_state: Callable[[RepositoryState], None] = lambda state: None
        self.on_answer: Callable[[], None] = lambda: None
        self.on_report: Callable[[Record], None] = lambda record: None
        self._log, self._stop, self._monotonic = log, stop, monotonic
        self._poll = POLL if poll is None else poll
        self._states: dict[str, RepositoryState] = {}
        # The ids of the repositories that are or were at each path.
        self._places: dict[str, tuple[str, ...]] = {}
        self._promotion: MasterRecord | None = None
        self._reads_promotions = True
        # When all promotions were read that the log had, by `monotonic`; None where they cannot be read.
        self._promotions_read_at: float | None = None
        self._sent: dict[str, SentEvent] = {}
        # The newest event of each repository that left its path.
        self._departed: dict[str, SentEvent] = {}
        self._read_once, self._has_failed = threading.Event(), False
        self._reader: Reader | None = None
        self._thread = threading.Thread(target=self._follow, name="relay-state", daemon=True)

    def start(self) -> None:
        """Start to read; wait a little for the existing states."""
        self._thread.start()
        self._read_once.wait(FIRST_READ)

    def wait(self) -> None:
        """Wait until all states from before the start are read, or `stop` is set."""
        while not self._read_once.wait(POLL / 10) and not self._stop.is_set():
            continue

    def close(self) -> None:
        """Wait for the thread, which ends with `stop`."""
        if self._reader is not None:
            self._reader.wake()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def fork(self, box: Outbox) -> Fork | None:
        """Return, for an operator, why this outbox is forked; None if it is not.

        Raises LoggedOutage until all states that existed at the start are read: a relay that does not know the log's history must
        not continue it. Nor may a relay that was stopped or cut off, until it has read whether a mirror was promoted meanwhile.
        """
        if not self._read_once.is_set():
            raise LoggedOutage("what the log knows of the repositories is not read yet")
        self._check_term()
        newest = box.newest()
        if newest is None:
            return None
        seen = self._states.get(newest.repository), self._sent.get(newest.repository)
        # Mostly one event: to compare it with the outbox takes reading.
        distinct = {(each.incarnation, each.seq, each.event): each for each in seen if each is not None}
        forks = (fork_between(known, newest, box) for known in distinct.values())
        return next((fork for fork in forks if fork is not None), None)

    def check_master(self, source: str) -> None:
        """Raise Unavailable if another master may have replaced this one by now."""
        self._check_term()
        if (fork := self.successor(source)) is not None:
            raise Unavailable(f"{fork.reason}: what was sent meanwhile counts as unsent")

    def _check_term(self) -> None:
        if self._promotions_read_at is not None and self._monotonic() - self._promotions_read_at > TERM:
            raise LoggedOutage("whether a mirror was promoted meanwhile is not read yet")

    def successor(self, source: str) -> Fork | None:
        """Return the fork of every repository of a master that a promotion replaced.

        None while it is the master, as far as read.
        """
        return fork_of_former(self._promotion, source)

    def has_ended(self, fork: Fork, source: str) -> bool:
        """Return whether a promotion caused this fork and was taken back since, as far as read."""
        return has_ended(fork, self._promotion, source)

    def state(self, repository: str) -> RepositoryState | None:
        """Return the aggregator's last state of a repository, as far as read."""
        return self._states.get(repository)

    def states(self) -> dict[str, RepositoryState]:
        """Return the aggregator's last state of all repositories, as far as read."""
        return dict(self._states)

    def states_at(self, path: str) -> list[RepositoryState]:
        """Return the aggregator's last states of the repositories that are or were at a path, as far as read.

        Costs the same with any number of other repositories: each new one is looked for here.
        """
        states = (self._states.get(repository) for repository in self._places.get(path, ()))
        return [state for state in states if state is not None]

    def sent(self, event: Event) -> None:
        sent = SentEvent(incarnation=event.incarnation, seq=event.seq, event=event.id)
        self._sent[event.repository] = sent
        if event.type in (Type.DELETED, Type.RENAMED):
            self._departed[event.repository] = sent

    def has_departed(self, state: RepositoryState) -> bool:
        """Return whether the relay sent a deletion or a rename that this state lacks."""
        sent = self._departed.get(state.repository)
        return sent is not None and sent.incarnation == state.incarnation and sent.seq > state.seq

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._read_states()
            except ReadStopped:
                return
            except NotAuthorized as error:
                # Without promotions the states are read all the same.
                logger.warning("state not readable", reason=str(error))
                self._reads_promotions = not self._reads_promotions
                self._stop.wait(1.0)
            except (ReplicationError, MemoryError) as error:  # a job of another thread may hold all memory
                self._has_failed = True
                logger.warning("state not readable", reason=str(error))
                self._stop.wait(1.0)

    def _read_states(self) -> None:
        # A log that was restored may have less than it had.
        states, places = dict[str, RepositoryState](), dict[str, tuple[str, ...]]()
        began = self._monotonic()
        beginnings = find_beginnings(self._log, STATE)
        with suppress(BadConfig):  # a log of an older release has no `services`, and no promotion
            beginnings |= find_beginnings(self._log, *([SERVICES] if self._reads_promotions else []))
        with closing(self._log.reader(beginnings)) as reader:
            for record in read_on(self._log, reader, stop=self._stop):
                if (read := self._read_record(record, states)) is not None:
                    _note_place(places, read)
            self._states, self._places, self._reader = states, places, reader
            self._promotions_read_at = began if (SERVICES, 0) in beginnings else None
            self._read_once.set()
            if self._has_failed:
                self.on_answer()
            for state in states.values():
                self.on_state(state)
            while not self._stop.is_set():
                for record in reader.poll(self._poll):
                    if (read := self._read_record(record, states)) is not None:
                        _note_place(places, read)
                        self.on_state(read)
                self._note_promotions_read(reader)

    def _note_promotions_read(self, reader: Reader) -> None:
        """Note that all promotions are read, if so; ask the log at most every `poll` seconds."""
        now = self._monotonic()
        if self._promotions_read_at is None or now - self._promotions_read_at < self._poll:
            return
        with suppress(Unavailable):
            if reader.positions()[SERVICES, 0] >= self._log.ends(SERVICES)[0]:
                self._promotions_read_at = now

    def _read_record(self, record: Record, states: dict[str, RepositoryState]) -> RepositoryState | None:
        """Take a record; return a repository's state that it has."""
        if record.topic != SERVICES:
            return _read_state(record, states)
        if record.key == MASTER_KEY:
            # What cannot be read makes no former master send again.
            self._promotion = try_json(MasterRecord, record.value) or self._promotion
        else:
            self.on_report(record)
        return None


def _note_place(places: dict[str, tuple[str, ...]], state: RepositoryState) -> None:
    known = places.get(state.path, ())
    if state.repository not in known:
        places[state.path] = (*known, state.repository)


def _read_state(record: Record, states: dict[str, RepositoryState]) -> RepositoryState | None:
    """Put a repository's state into `states` and return it; None for other records."""
    if record.key is None or record.key == AGGREGATOR or record.value is None:
        return None
    try:
        states[record.key] = state = from_json(RepositoryState, record.value)
    except MalformedEvent as error:
        logger.error(
            "state of a repository is unreadable: its forks are not seen", key=record.key[:80], reason=str(error)
        )
        return None
    return state
