# SPDX-License-Identifier: GPL-2.0-or-later
"""The bytes of events: one frame per record, and the record's headers.

The headers say what a record is without opening its frame.

Frame, all numbers big-endian:

    0   4  magic b"VCR1"
    4   4  length of the header, bytes
    8   n  header: canonical JSON of a Header, ASCII
    8+n    body: a raw Mercurial bundle (bundle2, zstd), or nothing

Headers carry the attributes of CloudEvents 1.0 in the names of its Kafka binding (`ce_id`, `ce_source`, …). The body and its hash
are an attachment: outside the event's id and digest. A golden file in `tests/words` fixes the format.

Where a push came from, if the master records it, is a header `connection` of the record, canonical JSON of a PushConnection. So the
bytes of the event do not depend on it, programs that do not know it ignore it, and code that stores, shows or delivers a record's
value cannot leak it. The aggregator copies the header to `pending` and `notices`. Another golden file fixes it.
"""

import datetime
import enum
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .errors import MalformedEvent, Rejected, UnknownEvent
from .event import VERSION, Event, Heartbeat, PushConnection, Type, check_event
from .shape import Count, from_json, parse, read, to_json

MAGIC = b"VCR1"
# Bytes of a header.
HEADER_LIMIT = 4 * 1024 * 1024
# Bytes of a frame.
FRAME_LIMIT = 6 * 1024 * 1024
# Bytes of a record with a bundle inside, as the relay makes it.
INLINE_LIMIT = 512 * 1024
# The header that names the event.
ID = "ce_id"
# The header that names the master that sent it.
SOURCE = "ce_source"
# The header that says where a push came from, and its most characters: masters write far fewer.
CONNECTION = "connection"
CONNECTION_LIMIT = 32 * 1024
# The header of a notice that is signed (`keys.signed`), and its most characters, of some 200 mirrors.
SIGNED = "signed"
SIGNED_LIMIT = 64 * 1024
# Characters of a name from a record that a log line has.
NAME_KEPT = 200
# The headers to carry of a record without a connection.
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# Bytes to which a bundle inside a record may unpack; mirrors do not take a larger one from there.
UNPACKED_LIMIT = 256 * 1024 * 1024
# Bytes of a bundle.
BUNDLE_LIMIT = 64 * 1024 * 1024 * 1024

_PREFIX = struct.Struct(">4sI")


class BundlePlace(enum.StrEnum):
    """The place of an event's bundle.

    It is in the frame, in the blob store, or only on the master: then mirrors pull it.
    """

    INLINE = "inline"
    BLOB = "blob"
    MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The bundle of an event: its place, its size in bytes and its SHA-256.

    `name` is the name of the blob.
    """

    where: BundlePlace
    size: Count = 0
    sha256: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a frame: an event with its attachment, or a heartbeat.

    An event whose attachment is None needs no bundle.
    """

    event: Event | None = None
    attachment: Attachment | None = None
    heartbeat: Heartbeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A checked record of `events`; `body` is empty unless it is inline."""

    header: Header
    body: bytes

    @property
    def event(self) -> Event:
        """The event of a frame that is not a heartbeat."""
        assert self.header.event is not None
        return self.header.event


def encode(event: Event, attachment: Attachment | None = None, body: bytes = b"") -> bytes:
    """Return the record's value for this event.

    Raises Rejected for a header over HEADER_LIMIT, and for header and body over FRAME_LIMIT together.
    """
    return pack_frame(Header(event=event, attachment=attachment), body)


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """Return the record's value for a heartbeat."""
    return pack_frame(Header(heartbeat=beat), b"")


def inline(body: bytes) -> Attachment:
    """Return the attachment for a bundle that travels in the frame."""
    return Attachment(where=BundlePlace.INLINE, size=len(body), sha256=hashlib.sha256(body).hexdigest())


def pack_frame(header: Header, body: bytes) -> bytes:
    text = to_json(header)
    if len(text) > HEADER_LIMIT or len(text) + len(body) > FRAME_LIMIT:
        raise Rejected(f"a header of {len(text)} and a body of {len(body)} bytes do not fit into one record")
    return _PREFIX.pack(MAGIC, len(text)) + text + body


def decode(value: bytes) -> Frame:
    """Return the checked frame in a record.

    Raises MalformedEvent, and UnknownEvent for an event of a newer type or version.
    """
    if len(value) < _PREFIX.size or len(value) > FRAME_LIMIT + _PREFIX.size:
        raise MalformedEvent(f"record of {len(value)} bytes: expected a frame of at most {FRAME_LIMIT}")
    magic, length = _PREFIX.unpack_from(value)
    if magic != MAGIC or length > HEADER_LIMIT or _PREFIX.size + length > len(value):
        raise MalformedEvent("record: not a frame of events (magic or length)")
    text = value[_PREFIX.size : _PREFIX.size + length]
    if not text.isascii():  # re-encoded it would be up to three times as long, and fit nowhere
        raise MalformedEvent("header: expected ASCII")
    data = parse(text, "Header", limit=HEADER_LIMIT)
    check_known(data)
    header = read(Header, data)
    body = value[_PREFIX.size + length :]
    if (header.event is None) == (header.heartbeat is None):
        raise MalformedEvent("header: expected an event or a heartbeat")
    if header.event is not None:
        check_event(header.event)
    _check_body(header.attachment, body)
    return Frame(header=header, body=body)


def check_known(data: Any) -> None:
    """Raise UnknownEvent if parsed JSON, such as a Header, has a newer event.

    This program cannot judge the members of such an event.
    """
    event = data.get("event") if isinstance(data, dict) else None
    if not isinstance(event, dict):
        return
    kind, version = event.get("type"), event.get("version")
    if isinstance(version, int) and not 1 <= version <= VERSION:
        raise UnknownEvent(f"event: version {version}, this program knows {VERSION}")
    if isinstance(kind, str) and kind not in set(Type):
        raise UnknownEvent(f"event: type {kind[:40]!r}, this program knows {', '.join(Type)}")


def _check_body(attachment: Attachment | None, body: bytes) -> None:
    if attachment is None or attachment.where is not BundlePlace.INLINE:
        if body:
            raise MalformedEvent("frame: a body without an inline attachment")
        if attachment is not None and attachment.size > BUNDLE_LIMIT:
            raise MalformedEvent(f"attachment.size: {attachment.size} is out of range")
        return
    if len(body) != attachment.size:
        raise MalformedEvent(f"frame: body of {len(body)} bytes, expected {attachment.size}")
    sha256 = hashlib.sha256(body).hexdigest()
    if sha256 != attachment.sha256:
        raise MalformedEvent(f"bundle: SHA-256 {sha256}, the event says {attachment.sha256}")


def headers(event: Event, source: str) -> Mapping[str, str]:
    """Return the headers of an event's record.

    `source` is a URI reference such as `hg://master.example`.
    """
    time = datetime.datetime.fromtimestamp(event.time, datetime.UTC)
    return {
        "ce_specversion": "1.0",
        ID: event.id,
        SOURCE: source,
        "ce_type": f"vcsreplicator.{event.type.value}.{event.version}",
        "ce_subject": event.path.encode("utf-8", "replace").decode(),
        "ce_time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "ce_sequence": str(event.seq),
        "ce_partitionkey": event.repository,
    }


def names_of(key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a record's event, from its key and headers, for a log line.

    They are the repository, and `seq` and `event_id` where the headers have them: untrusted, cut, even if the record is unreadable.
    """
    found = {"repository": key, "seq": headers.get("ce_sequence"), "event_id": headers.get(ID)}
    return {name: value[:NAME_KEPT] for name, value in found.items() if value is not None}


def connection_headers(connection: PushConnection | None) -> Mapping[str, str]:
    """Return the headers that carry a connection: one, or none."""
    return NO_HEADERS if connection is None else {CONNECTION: to_json(connection).decode("ascii")}


def carried(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of a record that go along with its event.

    A connection of more than CONNECTION_LIMIT characters does not.
    """
    header = headers.get(CONNECTION)
    return NO_HEADERS if header is None or len(header) > CONNECTION_LIMIT else {CONNECTION: header}


def read_signed(headers: Mapping[str, str]) -> str | None:
    """Return the signed notice in a record's headers, not verified.

    None if there is none, or a text that no header of a message can carry.
    """
    found = headers.get(SIGNED, "")
    return found if 0 < len(found) <= SIGNED_LIMIT and found.isascii() and found.isprintable() else None


def read_connection(headers: Mapping[str, str]) -> PushConnection | None:
    """Read the connection in a record's headers; None if none can be read."""
    header = carried(headers).get(CONNECTION)
    try:
        return None if header is None else from_json(PushConnection, header.encode("utf-8", "replace"))
    except MalformedEvent:
        return None
