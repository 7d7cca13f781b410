# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of the queue `hg`, and the answers of json-pushes behind them. Pure.

A message is made of such answers:

    {"type": "hg-push", "repository_id": 7, "pushes": [{"id": 1, "date": 1456826400, "user": "alice", "changesets": ["…"]}]}

`repository_id` is a number that the sender gives to a repository and never to another. What a receiver needs beside that travels
in two headers: `source` (whose numbers they are) and `repository` (the URL). Text comes from other hosts, so everything is
checked.
"""

import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from hgext.vcsreplicator.words.errors import MalformedEvent, Rejected
from hgext.vcsreplicator.words.shape import EARLIEST, LATEST, NumberRange, parse, read

from .message import clean

TYPE = "hg-push"

# Bytes of an answer of json-pushes, and of a message.
LARGEST = 16 * 1024 * 1024
# Bytes from which on one answer is read at a time: a hostile one takes forty times its size in memory.
LARGE = 1 << 20

# The largest number of a repository.
LARGEST_NUMBER = 2**53

# Characters of a user's name that are kept.
USER_KEPT = 1000

_NODE = re.compile(r"[0-9a-f]{40}\Z")
_PSEUDO = {"0" * 40, "f" * 40}
_SOURCE = re.compile(r"[a-z0-9][a-z0-9-]{0,59}\Z")
_ID = re.compile(r"[1-9][0-9]{0,17}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPush:
    """One push.

    `date` is in seconds since the epoch; `changesets` are 40 hexadecimal digits each, the head last. `obsolete` are changesets
    that an answer names apart; messages have none.
    """

    id: int
    date: Annotated[int, NumberRange(EARLIEST, LATEST)]
    user: str
    changesets: tuple[str, ...]
    obsolete: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.id < 1:
            raise ValueError(f"id: expected a positive number, got {self.id}")
        if not all(map(_NODE.match, (*self.changesets, *self.obsolete))):
            raise ValueError("changesets: expected 40 hexadecimal digits each")
        if _PSEUDO.intersection((*self.changesets, *self.obsolete)):
            raise ValueError("changesets: the null changeset and the working directory cannot be pushed")


@dataclass(frozen=True, slots=True, kw_only=True)
class HgPushMessage:
    """The body of a message."""

    type: str
    repository_id: int
    pushes: tuple[QueuedPush, ...]

    def __post_init__(self) -> None:
        if self.type != TYPE:
            raise ValueError(f"type: expected {TYPE}, got {self.type[:60]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushesAnswer:
    """An answer of json-pushes, version 2; `pushes` in the order of their ids."""

    last: int
    pushes: tuple[QueuedPush, ...]


def check_source(source: str) -> None:
    """Raise ValueError unless the text can be a `source`."""
    if not _SOURCE.match(source):
        raise ValueError(f"source: expected lower-case letters, digits and hyphens, 60 at most, got {source[:80]!r}")


def to_body(repository_id: int, pushes: Sequence[QueuedPush]) -> str:
    """Return the body of a message; Rejected if it is larger than receivers take."""
    plain = [
        {"id": push.id, "date": push.date, "user": push.user, "changesets": list(push.changesets)} for push in pushes
    ]
    whole = {"type": TYPE, "repository_id": repository_id, "pushes": plain}
    body = json.dumps(whole, sort_keys=True, allow_nan=False, separators=(",", ":"))
    if len(body) > LARGEST:
        raise Rejected(f"push {pushes[0].id}: a message of {len(body)} bytes, receivers accept at most {LARGEST}")
    return body


def from_body(text: bytes) -> HgPushMessage:
    """Read the body of a message; raises MalformedEvent."""
    return read(HgPushMessage, parse(text, TYPE, limit=LARGEST), TYPE)


def find_free_number(taken: Collection[int]) -> int:
    """Return a number for a new repository: above those of all others, but for the largest, which only a stranger gives."""
    used = {*taken}
    highest = max((each for each in used if each < LARGEST_NUMBER // 2), default=0)
    return next(each for each in itertools.count(max(highest, 0) + 1) if each not in used)


class NotPushes(MalformedEvent):
    """An answer that no pushlog gave, such as a load balancer's page."""


def read_answer(text: bytes, where: str) -> PushesAnswer:
    """Read an answer of `json-pushes?version=2`.

    Raises MalformedEvent, which names `where`; NotPushes if no pushlog gave the answer.
    """
    try:
        data = parse(text, where, limit=LARGEST)
    except MalformedEvent as error:
        raise NotPushes(str(error)) from error
    if not isinstance(data, dict) or not isinstance(data.get("pushes"), dict):
        raise NotPushes(f"{where}: expected an object with lastpushid and pushes (json-pushes, version 2)")
    last = data.get("lastpushid")
    if type(last) is not int or not 0 <= last < 2**62:
        raise NotPushes(f"{where}: lastpushid: expected a number, got {str(last)[:40]!r}")
    pushes = [_read_push(name, entry, where) for name, entry in data["pushes"].items()]
    return PushesAnswer(last=last, pushes=tuple(sorted(pushes, key=lambda push: push.id)))


def _read_push(name: str, entry: Any, where: str) -> QueuedPush:
    place = f"{where}: pushes.{name[:20]}"
    if not _ID.match(name) or not isinstance(entry, Mapping):
        raise MalformedEvent(f"{place}: expected a push and its id")
    plain = {key: entry.get(key) for key in ("date", "user", "changesets")}
    if isinstance(plain["user"], str):
        plain["user"] = clean(plain["user"])[:USER_KEPT]
    if "obsoletechangesets" in entry:
        plain["obsolete"] = entry["obsoletechangesets"]
    return read(QueuedPush, {"id": int(name), **plain}, place)
