# SPDX-License-Identifier: GPL-2.0-or-later
"""Operators' requests to one destination, in the log.

Verbs write requests into the notifier's file. The log has each answer before the file does, and a replay when it begins, so that a
pause, a skip and a replay under way outlive the machine.
"""

from collections.abc import Iterable, Sequence

import structlog

from hgext.vcsreplicator.log import NOTIFIER, Log, NewRecord
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.shape import to_json

from ..clients.database import read_storable
from ..destinations.state import RequestRecord, StateDatabase

logger = structlog.get_logger()


def restore_requests(name: str, log: Log, state: StateDatabase) -> None:
    """Bring the file and the log in line, at a start of the destination.

    The file gets what it lacks of the log, and the log what it lacks of the file. Raises Unavailable, or BadConfig if the topic is
    missing.
    """
    found = _read_requests(name, log)
    state.restore_requests(name, found.values())
    record_requests(name, log, [each for each in state.list_records(name) if found.get(_find_key(name, each)) != each])


def show_requests(names: Iterable[str], log: Log, state: StateDatabase) -> None:
    """Fill an empty file with the requests that the log has, to read in it; write nothing to the log."""
    for name in names:
        state.restore_requests(name, _read_requests(name, log).values())


def _read_requests(name: str, log: Log) -> dict[str, RequestRecord]:
    """Return the requests to a destination by key, oldest first."""
    found = {}
    for (_, key), record in read_table(log, NOTIFIER).records.items():
        if key.startswith(f"request/{name}/"):
            try:
                found[key] = read_storable(RequestRecord, record.value or b"")
            except MalformedEvent as error:
                logger.error("request in the log not readable", key=key, reason=str(error))
    return dict(sorted(found.items(), key=lambda each: each[1].asked_at))


def record_requests(name: str, log: Log, requests: Sequence[RequestRecord]) -> None:
    """Record requests to a destination as they are now; raises Unavailable."""
    if requests:
        log.append([NewRecord(topic=NOTIFIER, key=_find_key(name, each), value=to_json(each)) for each in requests])


def _find_key(name: str, request: RequestRecord) -> str:
    return f"request/{name}/{request.asked_at:.6f}-{request.kind}"
