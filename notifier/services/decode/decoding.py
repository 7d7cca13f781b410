# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoding of one message, whose result is a decoded message or a reject.

Pure, except for the lookup of a place. The steps have the order of docs/documents.md. After the step that reads a
private attribute, neither the decoded message, nor a reject, nor an exception contains it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from hgext.vcsreplicator.log import LARGEST
from hgext.vcsreplicator.words.errors import MalformedEvent
from hgext.vcsreplicator.words.passing import is_passing

from ...messages.raw import ORIGIN, NotBase64, RawMessage, Submission, WrongUri, from_line, parse_uri
from . import metadata
from .agent import read_agent
from .documents import DocumentSchemas
from .geo import GeoLookup
from .payload import read_object, unpack, write_object
from .rejection import DecodeReject, DecodingError, ErrorType, reject, without_private

# Bytes of all attributes in UTF-8: more than the edge takes, and less than a record of the log and a header frame of AMQP hold.
_LARGEST_ATTRIBUTES = 96 * 1024

# Bytes of a written body, so that a record of the log holds it with its attributes.
_LARGEST_WRITTEN = LARGEST - 2 * _LARGEST_ATTRIBUTES

# Characters of each attribute that the reject of too large ones keeps.
_ATTRIBUTE_KEPT = 1000

_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")

# Characters of a timestamp before its fraction.
_SECONDS = len("2026-11-23T14:00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The schemas, databases and limits that decoding needs.

    `geo` looks places up, and is None without a database. `without_id` are the types whose URI has no id. `largest` is the number
    of bytes of the largest body.
    """

    schemas: DocumentSchemas
    geo: GeoLookup | None = None
    without_id: frozenset[str] = frozenset()
    largest: int = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A message to be delivered.

    `body` is one line of JSON. `identity` is what it shares with its repeats alone, 16 bytes; None if the decoder made the id.
    """

    body: bytes
    attributes: Mapping[str, str]
    identity: bytes | None

    @property
    def route(self) -> str:
        """`<namespace>.<type>`."""
        return f"{self.attributes['document_namespace']}.{self.attributes['document_type']}"

    @property
    def id(self) -> str:
        return self.attributes["document_id"]

    @property
    def size(self) -> int:
        """Bytes that an output takes of it, about."""
        return len(self.body) + sum(map(len, self.attributes.values()))


def decode(line: bytes, tools: Tools) -> Decoded | DecodeReject:
    """Decode one raw message, given as JSON.

    Raises only errors that may pass, such as a shortage of memory; any other error makes the message a reject.
    """
    kept, is_cut = RawMessage(b"", {}), True
    try:
        raw, wrong = _read_line(line)
        kept, is_cut = without_private(raw), False
        size = sum(len(name) + len(text.encode("utf-8", "replace")) for name, text in raw.attributes.items())
        if size > _LARGEST_ATTRIBUTES:
            kept = RawMessage(raw.payload, {name: text[:_ATTRIBUTE_KEPT] for name, text in kept.attributes.items()})
            is_cut = True
            raise DecodingError(ErrorType.ATTRIBUTES, f"attributes: more than {_LARGEST_ATTRIBUTES} bytes")
        if wrong is not None:
            raise wrong
        return _decode_message(raw, kept, tools)
    except Exception as error:
        if isinstance(error, MemoryError) or is_passing(error):
            raise
        return reject(kept, error, is_cut=is_cut)


def list_identities(results: Iterable[Decoded | DecodeReject]) -> list[bytes]:
    """Return the identities of the decoded messages that may have repeats."""
    return [each.identity for each in results if isinstance(each, Decoded) and each.identity is not None]


def reject_repeat(decoded: Decoded) -> DecodeReject:
    """Return the reject of a message whose id was delivered before.

    The reject keeps the metadata of the message alone.
    """
    error = DecodingError(ErrorType.REPEAT, f"a message with the id {decoded.id} was delivered before")
    return reject(RawMessage(b"", decoded.attributes), error)


def reject_refused(line: bytes, decoded: Decoded) -> DecodeReject:
    """Return the reject of a decoded message whose output the log refuses."""
    text = f"output: its topic refuses {len(decoded.body)} bytes; look at the topic's max.message.bytes"
    return reject(without_private(from_line(line)), DecodingError(ErrorType.SIZE, text))


def _read_line(line: bytes) -> tuple[RawMessage, DecodingError | None]:
    """Return the raw message and the error of its payload, None if it has none.

    Raises DecodingError if the line is not a raw message.
    """
    try:
        return from_line(line), None
    except NotBase64 as error:
        return error.raw, DecodingError(ErrorType.BASE64, str(error))
    except MalformedEvent as error:
        # An unreadable message may have an address anywhere, so nothing of it is kept.
        raise DecodingError(ErrorType.FORM, f"{error}; not kept, {len(line)} bytes") from error


def _decode_message(raw: RawMessage, kept: RawMessage, tools: Tools) -> Decoded:
    _check_attributes(kept)
    places = tools.geo.find(raw.attributes) if tools.geo is not None else {}
    submission = _read_uri(kept, tools)
    body = read_object(unpack(kept.payload, tools.largest), tools.largest)
    version = metadata.document_version(submission, body)
    if version is None:
        raise DecodingError(ErrorType.SCHEMA, "payload: expected the document's version as member 'version'")
    tools.schemas.check((submission.namespace, submission.type, version), body)
    enriched = {**places, **dict(read_agent(raw.attributes.get("user_agent", "")))}
    document_id = submission.id or metadata.made_id(kept)
    found = {
        **metadata.attributes(submission, version, document_id, kept.attributes, enriched),
        **metadata.sample(body),
        **metadata.normalized(submission, body, places.get("geo_country")),
    }
    metadata.inject(body, found)
    written = write_object(body)
    if len(written) > _LARGEST_WRITTEN:
        raise DecodingError(ErrorType.SIZE, f"payload: more than {_LARGEST_WRITTEN} bytes as ASCII JSON")
    return Decoded(body=written, attributes=found, identity=_identify(submission, kept.attributes.get(ORIGIN, "")))


def _identify(submission: Submission, origin: str) -> bytes | None:
    """Return the digest of what tells repeats; None for an id that the decoder made.

    A client that chooses its ids can suppress no message of another type, and none of the notifier.
    """
    if submission.id is None:
        return None
    said = "\0".join((submission.namespace, submission.type, submission.id, origin))
    return hashlib.sha256(said.encode("utf-8")).digest()[:16]


def _check_attributes(kept: RawMessage) -> None:
    try:
        kept.check()
    except MalformedEvent as error:
        raise DecodingError(ErrorType.ATTRIBUTES, str(error)) from error
    if not _is_timestamp(kept.attributes["submission_timestamp"]):
        raise DecodingError(ErrorType.ATTRIBUTES, "attribute 'submission_timestamp': expected ISO 8601 with Z")


def _is_timestamp(text: str) -> bool:
    try:
        return _TIMESTAMP.fullmatch(text) is not None and datetime.fromisoformat(text[:_SECONDS]) is not None
    except ValueError:  # no such day or time
        return False


def _read_uri(kept: RawMessage, tools: Tools) -> Submission:
    try:
        return parse_uri(kept.attributes["uri"], kept.attributes.get("args", ""), without_id=tools.without_id)
    except WrongUri as error:
        raise DecodingError(ErrorType.URI, str(error)) from error
