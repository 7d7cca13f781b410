# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's look at forks (`forks`): what the aggregator saw, and what the relay itself sent, is held against the outboxes."""

import threading
from contextlib import closing

import structlog

from ..log import STATE, Log, Record
from ..log.table import ReadStopped, find_beginnings, read_on
from ..outbox import Outbox
from ..outbox.forks import Newest, fork_between
from ..words.errors import MalformedEvent, ReplicationError, Unavailable
from ..words.event import Event
from ..words.levels import RepositoryState
from ..words.shape import from_json
from ..words.value import Value

logger = structlog.get_logger()

FIRST_LOOK = 3.0  # seconds to wait for the topic to be read once


class SentEvent(Value):
    """The newest event of a repository that this relay sent."""

    incarnation: str
    seq: int
    event: str


class StateWatch:
    """Follows `state` in a thread of its own, and is told what the relay sends, of which the aggregator's word may come late."""

    def __init__(self, log: Log, stop: threading.Event) -> None:
        self._log, self._stop = log, stop
        self._states: dict[str, RepositoryState] = {}
        self._sent: dict[str, Newest] = {}
        self._read_once = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="relay-state", daemon=True)

    def start(self) -> None:
        """Begins to read; waits a little for what is there already."""
        self._thread.start()
        self._read_once.wait(FIRST_LOOK)

    def close(self) -> None:
        """Waits for the thread, which ends with `stop`."""
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def fork(self, box: Outbox) -> str | None:
        """What is wrong with this outbox, in words for an operator; None if nothing is.

        Raises Unavailable until everything that stood in the topic at the start was read: who does not know the log's history must
        not continue it.
        """
        if not self._read_once.is_set():
            raise Unavailable("what the log knows of the repositories is not read yet")
        level = box.level()
        if level is None:
            return None
        for known in (self._states.get(level.repository), self._sent.get(level.repository)):
            if known is not None and (reason := fork_between(known, box)) is not None:
                return reason
        return None

    def state(self, repository: str) -> RepositoryState | None:
        """What the aggregator last said of a repository, as far as that was read."""
        return self._states.get(repository)

    def sent(self, event: Event) -> None:
        """The log has this event from us."""
        self._sent[event.repository] = SentEvent(incarnation=event.incarnation, seq=event.seq, event=event.id)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except ReadStopped:
                return
            except ReplicationError as error:
                logger.warning("state not readable", reason=str(error))
                self._stop.wait(1.0)

    def _read(self) -> None:
        states: dict[str, RepositoryState] = {}  # a log that came back may know less than it did
        with closing(self._log.reader(find_beginnings(self._log, STATE))) as reader:
            for record in read_on(self._log, reader, stop=self._stop):
                _take(record, states)
            self._states = states
            self._read_once.set()
            while not self._stop.is_set():
                for record in reader.poll(0.2):
                    _take(record, states)


def _take(record: Record, states: dict[str, RepositoryState]) -> None:
    if record.key is None or record.key == "aggregator" or record.value is None:
        return
    try:
        states[record.key] = from_json(RepositoryState, record.value)
    except MalformedEvent as error:
        logger.error(
            "state of a repository is unreadable: its forks are not seen", key=record.key[:80], reason=str(error)
        )
