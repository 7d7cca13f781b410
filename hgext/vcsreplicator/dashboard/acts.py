# SPDX-License-Identifier: GPL-2.0-or-later
"""The acts of operators on the pages, and the record of them.

An act is on disk before it is done, and its outcome after. If the process is killed between the two, the act stays `begun`. The
requests of the notifier and the decisions of the aggregator then say whether it was done: they name the number of the act.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from notifier.clients.database import Database

from ..words.errors import Refused, Unavailable

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
_SELECT_RECORDED = "SELECT number, who, reason, kind, target, argument FROM acts WHERE form = ?"
_END = "UPDATE acts SET outcome = ?, result = ? WHERE number = ?"
_NEWEST = """SELECT number, at, who, reason, kind, target, argument, outcome, result FROM acts
    ORDER BY number DESC LIMIT ?"""

# Characters of each text that an operator enters.
LONGEST = 300


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
    """The database of acts at `path`, created if it is missing.

    Any thread may use it. Raises BadConfig or Unavailable.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._open().close()

    def begin(self, act: OperatorAct, form: str) -> tuple[int, bool]:
        """Record an act, durable on return; return its number, and whether it is new.

        It is not new if this form was sent before. Raises Refused if the form was sent before with other contents, so that no
        operator takes the second act for done.
        """
        content = (act.who, act.reason, act.kind.value, act.target, json.dumps(act.argument))
        with closing(self._open()) as db:
            is_new = bool(db.run(_BEGIN, (form, act.at, *content)).rowcount)
            [(number, *recorded)] = db.rows(_SELECT_RECORDED, (form,))
        if recorded != [*content]:
            raise Refused(f"this form was sent before, as act {number}; load its page again for another act")
        return number, is_new

    def end(self, number: int, outcome: ActOutcome, result: str) -> None:
        with closing(self._open()) as db:
            db.run(_END, (outcome.value, result, number))

    def list_newest(self, limit: int) -> list[RecordedAct]:
        """Return the newest acts, the newest first; raises Unavailable and BadConfig."""
        with closing(self._open()) as db:
            rows = db.rows(_NEWEST, (limit,))
        return [_read_recorded(row) for row in rows]

    def _open(self) -> Database:
        return Database(self._path, "dashboard.acts", _SCHEMA)


def _read_recorded(row: Sequence[Any]) -> RecordedAct:
    """Read a row of the journal, which a newer release may have written."""
    number, at, who, reason, kind, target, argument, outcome, result = row
    try:
        content = json.loads(argument)
        act = OperatorAct(kind=ActKind(kind), target=target, argument=content, who=who, reason=reason, at=at)
        return RecordedAct(number=number, act=act, outcome=ActOutcome(outcome), result=result)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"dashboard.acts: act {number} is none that this release knows") from error
