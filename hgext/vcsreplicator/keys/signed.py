# SPDX-License-Identifier: GPL-2.0-or-later
"""Signed notices: what the aggregator and the mirrors sign, and its check. Pure.

A signed notice is one line of ASCII, whose parts are separated by one blank:

    KEY SIGNATURE TEXT

KEY is a public key (`ed25519:BASE64`), SIGNATURE the base64 of its Ed25519 signature of the bytes of TEXT, and TEXT the JSON of a
SignedNotice. The line travels as it is: no program has to write TEXT anew to verify it. In `acks` each mirror that gated the notice
has a text,

    KEY SIGNATURE STATEMENT

or `- - STATEMENT` if the mirror did not sign and only the aggregator says so. STATEMENT is

    MIRROR APPLIED SERVING EVENT DIGEST APPLIED_AT SERVED_AT

with the sequences that the mirror applied and serves, the id and the digest of the event APPLIED, and the times at which it reached
them, in seconds since the epoch with six decimals. The mirror signs the bytes of

    vcsreplicator-serving 1 REPOSITORY INCARNATION STATEMENT
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ..words.errors import MalformedEvent, Refused
from ..words.event import is_identifier, read_disclosure
from ..words.records import Ack, Notice
from ..words.shape import LATEST, Count, Time, extensible, from_json, to_json
from ..words.streams import Stream
from .pairs import KeyPair, is_signed

FORMAT = "vcsreplicator-notice 1"
# In the place of a key and its signature, if the mirror did not sign.
UNSIGNED = "-"

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_STATEMENT = re.compile(
    r"([a-z0-9][a-z0-9._-]{0,62}) ([0-9]{1,19}) ([0-9]{1,19}) (-|[0-9a-f]{32}) (-|[0-9a-f]{64}) "
    r"([0-9]{1,12}\.[0-9]{6}) ([0-9]{1,12}\.[0-9]{6})\Z"
)


@extensible
@dataclass(frozen=True, slots=True, kw_only=True)
class SignedNotice:
    """What the aggregator signs of a notice.

    `path` is the path in the log of the repository, `seq` the event's sequence in its incarnation and `sequence` the public one.
    `previous` has the types of the notice's messages, and for each the id of the event whose message came before it (null: the
    first). For changesets, `heads` is the SHA-256 of the `heads` of the message, joined by newlines, and `push` the number of the
    push. `roster` is the version of the roster, `time` when the notice was written.
    """

    format: str = FORMAT
    repository: str
    incarnation: str
    path: str
    seq: Count
    sequence: Count
    event: str
    digest: str
    previous: Mapping[str, str | None]
    heads: str | None = None
    push: Count | None = None
    roster: Count
    time: Time
    acks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatement:
    """What a mirror says of one repository; `key` is None if it did not sign that."""

    mirror: str
    applied: int
    serving: int
    event: str
    digest: str
    applied_at: float
    served_at: float
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNotice:
    """A notice whose signatures are all right; `key` is the aggregator's."""

    key: str
    notice: SignedNotice
    mirrors: tuple[MirrorStatement, ...]


def sign_ack(key: KeyPair, ack: Ack) -> Ack:
    """Return the mirror's ack with its signature, `KEY SIGNATURE`."""
    return replace(ack, signature=key.sign(_begin_text(ack.repository, ack.incarnation) + _make_statement(ack)))


def sign_notice(key: KeyPair, notice: Notice, acks: tuple[Ack, ...]) -> str:
    """Return the signed notice; of an ack, a signature that is not right is left out."""
    event = notice.event
    has_heads = Stream.CHANGEGROUP in notice.previous
    signed = SignedNotice(
        repository=event.repository,
        incarnation=event.incarnation,
        path=event.path,
        seq=event.seq,
        sequence=(notice.base or 0) + event.seq,
        event=event.id,
        digest=event.digest,
        previous=notice.previous,
        heads=hash_heads(read_disclosure(event).heads) if has_heads else None,
        push=event.changes.push.id if has_heads and event.changes.push else None,
        roster=notice.roster,
        time=notice.time,
        acks=tuple(map(_quote_ack, acks)),
    )
    text = to_json(signed).decode("ascii")
    return f"{key.sign(text)} {text}"


def check_notice(
    line: str, keys: Collection[str], mirror_keys: Mapping[str, Collection[str]] | None = None
) -> CheckedNotice:
    """Verify a signed notice; `keys` are the aggregators' that are trusted.

    Each mirror in `mirror_keys` must have signed with one of its keys. Of another, the key that the aggregator names counts. Raises
    Refused with what is wrong, in one line.
    """
    key, signature, text = (*line.split(" ", 2), "", "")[:3]
    if key not in keys:
        raise Refused(f"not signed by a key that was given, but by {key[:60]!r}")
    if not is_signed(text, key, signature):
        raise Refused(f"the signature of {key} does not match: the text or the signature was changed")
    try:
        notice = from_json(SignedNotice, text.encode())
    except MalformedEvent as error:
        raise Refused(f"signed, but not a notice that this program knows: {error}") from error
    if notice.format != FORMAT:
        raise Refused(f"its format is {notice.format[:60]!r}, expected {FORMAT!r}: upgrade this program")
    mirrors = tuple(_check_ack(ack, notice, mirror_keys or {}) for ack in notice.acks)
    if missing := (mirror_keys or {}).keys() - {said.mirror for said in mirrors}:
        raise Refused(f"mirror {min(missing)} is not among those that the notice waited for, expected its signature")
    return CheckedNotice(key=key, notice=notice, mirrors=mirrors)


def hash_heads(heads: tuple[str, ...]) -> str:
    """Return what a signed notice has of the heads of its message."""
    return hashlib.sha256("\n".join(heads).encode()).hexdigest()


def _check_ack(ack: str, notice: SignedNotice, mirror_keys: Mapping[str, Collection[str]]) -> MirrorStatement:
    key, signature, statement = (*ack.split(" ", 2), "", "")[:3]
    found = _STATEMENT.match(statement)
    if found is None or max(float(found[6]), float(found[7])) > LATEST:
        raise Refused(f"not the statement of a mirror: {ack[:200]!r}")
    said = MirrorStatement(
        mirror=found[1],
        applied=int(found[2]),
        serving=int(found[3]),
        event=found[4],
        digest=found[5],
        applied_at=float(found[6]),
        served_at=float(found[7]),
        key=None if key == UNSIGNED else key,
    )
    if said.mirror in mirror_keys and key not in mirror_keys[said.mirror]:
        what = "did not sign" if said.key is None else f"signed with {key[:60]!r}"
        raise Refused(f"mirror {said.mirror} {what}, expected a key that was given for it")
    text = _begin_text(notice.repository, notice.incarnation) + statement
    if said.key is not None and not is_signed(text, key, signature):
        raise Refused(f"the signature of mirror {said.mirror} does not match what it says")
    is_event = said.applied != notice.seq or (said.event, said.digest) == (notice.event, notice.digest)
    if said.serving < notice.seq or said.applied < notice.seq or not is_event:
        raise Refused(f"mirror {said.mirror} says that it serves another event than that of the notice")
    return said


def _begin_text(repository: str, incarnation: str) -> str:
    return f"vcsreplicator-serving 1 {repository} {incarnation} "


def _make_statement(ack: Ack) -> str:
    event = ack.event if is_identifier(ack.event) else "-"
    digest = ack.digest if _DIGEST.match(ack.digest) else "-"
    levels = f"{ack.applied} {ack.serving} {event} {digest}"
    return f"{ack.mirror} {levels} {ack.applied_at:.6f} {ack.served_at:.6f}"


def _quote_ack(ack: Ack) -> str:
    """Return an ack as a signed notice has it."""
    statement = _make_statement(ack)
    key, _, signature = (ack.signature or "").partition(" ")
    if not is_signed(_begin_text(ack.repository, ack.incarnation) + statement, key, signature):
        key = signature = UNSIGNED
    return f"{key} {signature} {statement}"
