# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to one destination, in the log.

Verbs put requests into the log, and into the notifier's file where it is on their machine, so that the notifier sees them at once.
The log has each answer before the file does. So a pause, a skip and a replay under way outlive the machine.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from hgext.vcsreplicator.log import NOTIFIER, Log, NewRecord, Record
from hgext.vcsreplicator.log.table import Table, read_records, read_table
from hgext.vcsreplicator.words.errors import Expired, MalformedEvent, ReplicationError
from hgext.vcsreplicator.words.shape import to_json

from ..clients.database import read_storable
from ..delivery.destination import Write
from ..destinations.state import RequestRecord, StateDatabase

logger = structlog.get_logger()


@dataclass(slots=True)
class SharedRequests:
    """All requests in the log, read once for the destinations that begin together; any thread may use it."""

    log: Log
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _covered: int = 0
    _found: Table | ReplicationError | None = None

    def read(self) -> Table:
        """Return the requests that the log has, by a reading that began after this call.

        A caller has fenced the notifier before it, and so sees all its answers. Callers that wait meanwhile share the next reading,
        or its failure: Unavailable, or BadConfig if the topic is missing.
        """
        number = next(self._numbers)
        with self._turn:
            if self._found is None or number >= self._covered:
                self._covered = next(self._numbers)
                try:
                    self._found = _read_table(self.log)
                except ReplicationError as error:
                    self._found = error
            if isinstance(self._found, ReplicationError):
                raise self._found
            return self._found


def restore_requests(name: str, requests: SharedRequests, state: StateDatabase, write: Write) -> int:
    """Bring the file and the log in line, at a start of the destination.

    The file gets what it lacks of the log, and the log what it lacks of the file. Returns the position up to which the log was
    read. Raises Unavailable, or BadConfig if the topic is missing.
    """
    table = requests.read()
    found = _select_requests(name, table.records.values())
    state.restore_requests(name, found.values())
    record_requests(
        name, write, [each for each in state.list_records(name) if found.get(_find_key(name, each)) != each]
    )
    return table.positions[NOTIFIER, 0]


def show_requests(names: Iterable[str], log: Log, state: StateDatabase) -> None:
    """Fill an empty file with the requests that the log has, to read in it; write nothing to the log."""
    table = _read_table(log)
    for name in names:
        state.restore_requests(name, _select_requests(name, table.records.values()).values())


class RequestFollower:
    """Takes what others put into the log about requests to a destination into a file.

    It begins at `position` of the topic, or with all that the topic has. Methods raise Unavailable.
    """

    def __init__(self, name: str, log: Log, state: StateDatabase, position: int | None = None) -> None:
        self._name, self._log, self._state, self._position = name, log, state, position

    def follow(self, *, with_answers: bool = True) -> None:
        """Take over what is new, and some of it again.

        The notifier at work takes no answers: it gave them itself, and may not have carried out the rest.
        """
        begin, end = self._position, self._log.ends(NOTIFIER)[0]
        if begin == end:
            return
        self._position = None  # if the log lost records, all is read again
        with contextlib.suppress(Expired):
            if begin is None:
                records: Iterable[Record] = _read_table(self._log).records.values()
            else:
                records = read_records(self._log, {(NOTIFIER, 0): begin})
            found = _select_requests(self._name, records)
            taken = [each for each in found.values() if with_answers or each.done_at is None]
            self._state.restore_requests(self._name, taken)
            self._position = end


def _read_table(log: Log) -> Table:
    """Read the requests to all destinations."""
    return read_table(log, NOTIFIER, keep=lambda record: (record.key or "").startswith("request/"))


def _select_requests(name: str, records: Iterable[Record]) -> dict[str, RequestRecord]:
    """Return the requests to a destination by key, in the order in which they were asked for or, if they were, answered."""
    found = dict[str, RequestRecord]()
    for record in records:
        if record.key is not None and record.key.startswith(f"request/{name}/"):
            found.pop(record.key, None)
            try:
                found[record.key] = read_storable(RequestRecord, record.value or b"")
            except MalformedEvent as error:
                logger.error("request in the log not readable", key=record.key, reason=str(error))
    return found


def record_requests(name: str, write: Write, requests: Sequence[RequestRecord]) -> None:
    """Record requests to a destination as they are now; raises what `write` raises."""
    if requests:
        write([NewRecord(topic=NOTIFIER, key=_find_key(name, each), value=to_json(each)) for each in requests])


def _find_key(name: str, request: RequestRecord) -> str:
    return f"request/{name}/{request.asked_at:.6f}-{request.kind}"
