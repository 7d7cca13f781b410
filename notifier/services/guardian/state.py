# SPDX-License-Identifier: GPL-2.0-or-later
"""The guardian's memory, in the topic `watches` of the log.

It has how full queues are as their owners know, deletions that began, reports that wait to be mailed, and when the last complete
round ended. The keys begin with `guardian/`, the broker and its virtual host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

import structlog

from hgext.vcsreplicator.log import WATCHES, Log
from hgext.vcsreplicator.log.owned import OwnedRecords
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.shape import Count, Time, extensible, from_json, to_json

from ...clients.database import Database, is_there
from .filling import Filling
from .settings import ADDRESS, GuardianSettings

T = TypeVar("T")

_FORMER_FILLINGS = "SELECT queue, level FROM levels"
_FORMER_DELETIONS = "SELECT queue, owner, messages FROM deletions"
_FORMER_REPORTS = "SELECT id, owner, queue, what, messages, time FROM reports"

logger = structlog.get_logger()


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFilling:
    """How full a queue is, as its owner knows; no record: not full. Key `…/filling/QUEUE`."""

    queue: str
    filling: Filling


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """A report that waits for its email; `time` in seconds since the epoch. Key `…/report/ID`."""

    id: Count
    owner: str
    queue: str
    what: str
    messages: Count
    time: Time


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeletion:
    """A deletion that the broker may not have carried out yet. Key `…/deletion/QUEUE`."""

    queue: str
    owner: str
    messages: Count


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class LastRound:
    """When the last complete round ended, in seconds since the epoch. Key `…/round`."""

    time: Time


_KINDS: Mapping[str, type[QueueFilling | QueueReport | QueueDeletion | LastRound]] = {
    "filling": QueueFilling,
    "report": QueueReport,
    "deletion": QueueDeletion,
    "round": LastRound,
}


def find_last_round(settings: GuardianSettings, log: Log) -> float | None:
    """Return when the last complete round ended on any machine, or None.

    Raises Unavailable, BadConfig if the topic is missing, or MalformedEvent.
    """
    key = f"{_find_prefix(settings)}round"
    value = read_table(log, WATCHES, keep=lambda each: each.key == key).value(WATCHES, key)
    return None if value is None else from_json(LastRound, value).time


def open_state(settings: GuardianSettings, log: Log, clock: Clock) -> "GuardianState":
    """Fence every other guardian of this virtual host, and return what they knew.

    If the log knows nothing yet, it gets what the file of an earlier release has. Raises Unavailable or BadConfig.
    """
    records = OwnedRecords(log, WATCHES, _find_prefix(settings), f"guardian-{settings.name}", clock)
    try:
        state = GuardianState(records)
        if not records.values and is_there(settings.state):
            state.take_former(settings.state)
        return state
    except BaseException:
        records.close()
        raise


def _find_prefix(settings: GuardianSettings) -> str:
    return f"guardian/{settings.name}/"


class GuardianState:
    """What the guardian knows; without `records` only this process knows it.

    The log has each change when the method returns. Methods raise Fenced once another guardian works, and Unavailable; then the
    change may be written late, but before anything that comes after it.
    """

    def __init__(self, records: OwnedRecords | None = None) -> None:
        self._records = records
        self._known: dict[str, object] = {}
        for key, value in records.values.items() if records else ():
            try:
                self._known[key] = read_record(key, value)
            except MalformedEvent as error:
                logger.error("record in the log not readable", key=key, reason=str(error))

    def take_former(self, path: str) -> None:
        """Write to the log what the file of an earlier release has, all or nothing."""
        file = Database(path, "guardian.state", "")
        try:
            found: list[tuple[str, object]] = [
                (f"filling/{queue}", QueueFilling(queue=queue, filling=Filling(number)))
                for queue, number in file.rows(_FORMER_FILLINGS)
            ]
            for queue, owner, messages in file.rows(_FORMER_DELETIONS):
                found.append((f"deletion/{queue}", QueueDeletion(queue=queue, owner=owner, messages=messages)))
            for number, owner, queue, what, messages, time in file.rows(_FORMER_REPORTS):
                report = QueueReport(id=number, owner=owner, queue=queue, what=what, messages=messages, time=time)
                found.append((f"report/{number}", report))
        finally:
            file.close()
        self._change(dict(found))
        logger.info("the guardian's state is kept in the log from now on", count=len(found), former=path)

    def fillings(self) -> dict[str, Filling]:
        """Return how full queues are as their owners know; other queues are fine."""
        return {each.queue: each.filling for each in self._list_known(QueueFilling)}

    def record(self, queue: str, filling: Filling, report: tuple[str, str, int] | None, now: float) -> None:
        """Store how full a queue is, and with it the report (owner, what, messages)."""
        known = QueueFilling(queue=queue, filling=filling) if filling else None
        self._change({f"filling/{queue}": known} | (self._make_report(queue, *report, now) if report else {}))

    def forget(self, queues: Sequence[str]) -> None:
        """Forget how full queues were that are gone."""
        if queues:
            self._change({f"filling/{queue}": None for queue in queues})

    def begin_deletion(self, deletion: QueueDeletion) -> None:
        """Record a deletion, before the guardian asks the broker for it."""
        self._change({f"deletion/{deletion.queue}": deletion})

    def deletions(self) -> list[QueueDeletion]:
        """Return the deletions that began and did not end."""
        return sorted(self._list_known(QueueDeletion), key=lambda each: each.queue)

    def end_deletion(self, deletion: QueueDeletion, what: str | None, now: float) -> None:
        """Forget the deletion.

        With `what`, the same transaction stores the report of it and forgets how full the queue was.
        """
        queue, ended = deletion.queue, dict[str, object]()
        if what is not None:
            report = self._make_report(queue, deletion.owner, what, deletion.messages, now)
            ended = {f"filling/{queue}": None, **report}
        self._change({f"deletion/{queue}": None, **ended})

    def reports(self) -> Mapping[str, list[QueueReport]]:
        """Return the reports that were not mailed, oldest first, by owner."""
        found: dict[str, list[QueueReport]] = {}
        for report in sorted(self._list_known(QueueReport), key=lambda each: (each.time, each.id)):
            found.setdefault(report.owner, []).append(report)
        return found

    def forget_reports(self, reports: Sequence[QueueReport]) -> None:
        """Forget reports that the mail server took, or refused for good."""
        self._change({f"report/{report.id}": None for report in reports})

    def readdress(self, reports: Sequence[QueueReport], owner: str) -> None:
        """Give reports to another address."""
        self._change({f"report/{report.id}": replace(report, owner=owner) for report in reports})

    def end_round(self, now: float) -> None:
        self._change({"round": LastRound(time=now)})

    def check(self) -> None:
        """Return once the log has all earlier changes; raise Fenced if another guardian took over, or Unavailable."""
        if self._records is not None:
            self._records.check()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def _list_known(self, kind: type[T]) -> Iterator[T]:
        return (each for each in self._known.values() if isinstance(each, kind))

    def _make_report(self, queue: str, owner: str, what: str, messages: int, now: float) -> dict[str, object]:
        """Return a new report under its key, with a number that no waiting one has."""
        taken = {each.id for each in self._list_known(QueueReport)}  # any number: others may write in the topic
        number = next(each for each in count(len(taken) + 1) if each not in taken)
        report = QueueReport(id=number, owner=owner, queue=queue, what=what, messages=messages, time=now)
        return {f"report/{number}": report}

    def _change(self, changes: Mapping[str, object]) -> None:
        """Store records, and forget those that are None."""
        for key, record in changes.items():
            self._known.pop(key, None)
            if record is not None:
                self._known[key] = record
        if self._records is not None:
            written = {key: None if record is None else to_json(record) for key, record in changes.items()}
            self._records.write(written)


def read_record(key: str, value: bytes) -> object:
    """Read a record; raises MalformedEvent, also under another key than its own, or if its owner is no mail address.

    A report or a deletion is forgotten by its own key, and would come again in each round under another one.
    """
    kind = _KINDS.get(key.partition("/")[0])
    if kind is None:
        raise MalformedEvent(f"{key}: expected one of {', '.join(_KINDS)}")
    record = from_json(kind, value)
    if isinstance(record, QueueReport | QueueDeletion) and not ADDRESS.match(record.owner):
        raise MalformedEvent(f"owner: expected a mail address, got {record.owner[:60]!r}")
    if key != (expected := _find_key(record)):
        raise MalformedEvent(f"{key[:100]!r}: expected the key {expected[:100]!r}")
    return record


def _find_key(record: QueueFilling | QueueReport | QueueDeletion | LastRound) -> str:
    match record:
        case QueueReport():
            return f"report/{record.id}"
        case QueueDeletion():
            return f"deletion/{record.queue}"
        case QueueFilling():
            return f"filling/{record.queue}"
    return "round"
