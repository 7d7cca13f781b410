# SPDX-License-Identifier: GPL-2.0-or-later
"""The acts of operators on the pages, and the record of them.

An act is in the log and on disk before it is done, and its outcome after. If the process is killed between the two, the act stays
`begun`. The requests of the notifier and the decisions of the aggregator then say whether it was done: they name the number of the
act. The database is a copy of what the log has, and is filled from there.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import structlog

from notifier.clients.database import Database, read_storable

from ..log import NOTIFIER, Log, NewRecord
from ..log.table import read_table
from ..words.errors import MalformedEvent, Refused, ReplicationError, Unavailable
from ..words.shape import NumberRange, Time, extensible, read, to_json

_SCHEMA = """
CREATE TABLE IF NOT EXISTS acts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    form TEXT NOT NULL UNIQUE,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    argument TEXT NOT NULL,
    outcome TEXT NOT NULL,
    result TEXT
);
"""
_BEGIN = """INSERT INTO acts (form, at, who, reason, kind, target, argument, outcome) VALUES (?, ?, ?, ?, ?, ?, ?, 'begun')
    ON CONFLICT (form) DO NOTHING"""
_NUMBER = "UPDATE OR IGNORE acts SET number = ? WHERE form = ?"
_OUTCOMES = "SELECT form, outcome FROM acts ORDER BY number"
# The members of `ActRecord`, in their order.
_RECORD = "SELECT number, at, who, reason, kind, target, argument, outcome, result FROM acts WHERE form = ?"
# Earlier releases numbered the acts of each database by themselves: of two with one number the second gets a new one here.
_RESTORE = """INSERT OR IGNORE INTO acts (form, number, at, who, reason, kind, target, argument, outcome, result)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_RESTORE_OUTCOME = "UPDATE acts SET outcome = ?, result = ? WHERE form = ? AND outcome = 'begun'"
_SELECT_RECORDED = "SELECT number, who, reason, kind, target, argument FROM acts WHERE form = ?"
_END = "UPDATE acts SET outcome = ?, result = ? WHERE number = ? RETURNING form"
_NEWEST = """SELECT number, at, who, reason, kind, target, argument, outcome, result FROM acts
    ORDER BY at DESC, number DESC LIMIT ?"""

# The beginning of an act's key in topic `notifier`, before its form.
_KEY = "act/"

# Characters of each text that an operator enters.
LONGEST = 300

logger = structlog.get_logger()


class ActKind(enum.StrEnum):
    """The kinds of acts: on a destination, on a delivery of webhooks, or on a mirror."""

    PAUSE = "pause"
    RESUME = "resume"
    SKIP = "skip"
    REPLAY = "replay"
    REDELIVER = "redeliver"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"


# Further fields of an act's form: required ones, and optional ones.
_REQUIRED = {ActKind.REPLAY: ("repository", "since"), ActKind.REDELIVER: ("delivery",)}
_OPTIONAL = {ActKind.SKIP: ("message",), ActKind.ACTIVATE: ("repository",), ActKind.DEACTIVATE: ("repository",)}

# Acts that lose a message, or let notices go out earlier: they need a confirmation, as `--yes` is for the verbs.
CONFIRMED = frozenset({ActKind.SKIP, ActKind.DEACTIVATE})


class ActOutcome(enum.StrEnum):
    """The outcome of an act.

    `asked`: the service has not answered yet. `unknown`: the act may have been done.
    """

    BEGUN = "begun"
    DONE = "done"
    REFUSED = "refused"
    ASKED = "asked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAct:
    """An act: who does what to which destination or mirror, when and why.

    `argument` has the members of its kind.
    """

    kind: ActKind
    target: str
    argument: Mapping[str, str]
    who: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAct:
    """An act as it stands in the journal."""

    number: int
    act: OperatorAct
    outcome: ActOutcome
    result: str | None


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord:
    """An act as the log has it. Topic `notifier`, key `act/FORM`.

    `argument` is JSON, and `outcome` the value of an ActOutcome. `number` is the offset of the act's first record plus 1; that
    record itself has none.
    """

    number: Annotated[int, NumberRange(1, 2**53)] | None = None
    at: Time
    who: str
    reason: str
    kind: str
    target: str
    argument: str
    outcome: str
    result: str | None = None


def read_act(fields: Mapping[str, str], *, who: str, at: float) -> OperatorAct:
    """Read the act of a form; raise ValueError that says what is wrong."""
    texts = {name: value.strip() for name, value in fields.items()}
    if texts.get("kind") not in set(ActKind):
        raise ValueError("there is no such act")
    kind = ActKind(texts["kind"])
    required = ("target", "reason", *_REQUIRED.get(kind, ()))
    if missing := [name for name in required if not texts.get(name)]:
        raise ValueError(f"the field {missing[0]} is empty")
    if kind in CONFIRMED and texts.get("confirm") != "yes":
        raise ValueError("it was not confirmed")
    wanted = {name: texts.get(name, "") for name in (*required, *_OPTIONAL.get(kind, ()))}
    if any(len(value) > LONGEST or not value.isprintable() for value in wanted.values()):
        raise ValueError(f"expected texts of at most {LONGEST} characters, in one line")
    target, reason = wanted.pop("target"), wanted.pop("reason")
    argument = {name: value for name, value in wanted.items() if value}
    return OperatorAct(kind=kind, target=target, argument=argument, who=who, reason=reason, at=at)


class ActJournal:
    """The acts in the log, and the database of them at `path`, created if it is missing.

    Any thread may use it. Raises BadConfig or Unavailable.
    """

    def __init__(self, path: str, log: Log) -> None:
        self._path, self._log, self._is_restored = path, log, False
        self._open().close()

    def begin(self, act: OperatorAct, form: str) -> tuple[int, bool]:
        """Record an act in the log, durable on return; return its number, and whether it is new.

        It is not new if this form was sent before. Raises Refused if the form was sent before with other contents, so that no
        operator takes the second act for done.
        """
        content = (act.who, act.reason, act.kind.value, act.target, json.dumps(act.argument))
        with closing(self._open()) as db:
            self._restore(db)
            with db.writing():
                is_new = bool(db.run(_BEGIN, (form, act.at, *content)).rowcount)
                if is_new:
                    self._append_first(db, form)
                [(number, *recorded)] = db.rows(_SELECT_RECORDED, (form,))
        if recorded != [*content]:
            raise Refused(f"this form was sent before, as act {number}; load its page again for another act")
        return number, is_new

    def end(self, number: int, outcome: ActOutcome, result: str) -> None:
        """Record the outcome on disk, then in the log; if the log does not answer, the next start does."""
        with closing(self._open()) as db:
            [(form,)] = db.rows(_END, (outcome.value, result, number))
            try:
                self._append(db, form)
            except ReplicationError as error:
                logger.warning("outcome of an act not in the log yet", act=number, reason=str(error))

    def list_newest(self, limit: int) -> list[RecordedAct]:
        """Return the newest acts, the newest first, without those of the log if it has not answered yet.

        Raises Unavailable and BadConfig.
        """
        with closing(self._open()) as db:
            with suppress(Unavailable):
                self._restore(db)
            rows = db.rows(_NEWEST, (limit,))
        return [_read_recorded(row) for row in rows]

    def _restore(self, db: Database) -> None:
        """Bring the database and the log in line, once: either gets what it lacks."""
        if self._is_restored:
            return
        known = dict[str, ActRecord]()
        for (_, key), record in read_table(
            self._log, NOTIFIER, keep=lambda record: (record.key or "").startswith(_KEY)
        ).records.items():
            try:
                key.encode()  # raises for text that SQLite does not take
                act = read_storable(ActRecord, record.value or b"")
                act = replace(act, number=act.number or record.offset + 1)
                _read_recorded(_list_columns(act))
                known[key.removeprefix(_KEY)] = act
            except (MalformedEvent, Unavailable, UnicodeEncodeError) as error:
                logger.error("act in the log not readable", key=key, reason=str(error))
        with db.writing():
            here = {form for form, _ in db.rows(_OUTCOMES)}
            for form, act in sorted(known.items(), key=lambda each: each[1].number or 0):
                number, *columns = _list_columns(act)
                if form not in here and not db.run(_RESTORE, (form, number, *columns)).rowcount:
                    db.run(_RESTORE, (form, None, *columns))
                db.run(_RESTORE_OUTCOME, (act.outcome, act.result, form))
        self._append(
            db, *(form for form, outcome in db.rows(_OUTCOMES) if form not in known or known[form].outcome != outcome)
        )
        self._is_restored = True

    def _append(self, db: Database, *forms: str) -> None:
        """Put these acts into the log as the database has them; raises Unavailable."""
        if forms:
            self._log.append([_make_record(form, _read_record(db, form)) for form in forms])

    def _append_first(self, db: Database, form: str) -> None:
        """Put a new act into the log, and number it by its offset, unlike any other; raises Unavailable."""
        record, is_numbered = _make_record(form, replace(_read_record(db, form), number=None)), False
        while not is_numbered:  # the number is taken by an act of an earlier release, or from before the topic was lost
            [(_, offset)] = self._log.append([record])
            is_numbered = bool(db.run(_NUMBER, (offset + 1, form)).rowcount)

    def _open(self) -> Database:
        return Database(self._path, "dashboard.acts", _SCHEMA)


def _make_record(form: str, act: ActRecord) -> NewRecord:
    return NewRecord(topic=NOTIFIER, key=f"{_KEY}{form}", value=to_json(act))


def _read_record(db: Database, form: str) -> ActRecord:
    [row] = db.rows(_RECORD, (form,))
    return ActRecord(**dict(zip([member.name for member in fields(ActRecord)], row, strict=True)))


def _list_columns(act: ActRecord) -> list[Any]:
    return [getattr(act, member.name) for member in fields(act)]


def _read_recorded(row: Sequence[Any]) -> RecordedAct:
    """Read a row of the journal, which a newer release may have written; raises Unavailable."""
    number, at, who, reason, kind, target, argument, outcome, result = row
    try:
        content = read(dict[str, str], json.loads(argument))
        act = OperatorAct(kind=ActKind(kind), target=target, argument=content, who=who, reason=reason, at=at)
        return RecordedAct(number=number, act=act, outcome=ActOutcome(outcome), result=result)
    except (ValueError, RecursionError, MalformedEvent) as error:
        raise Unavailable(f"dashboard.acts: act {number} is none that this release knows") from error
