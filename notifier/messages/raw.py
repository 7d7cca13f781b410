# SPDX-License-Identifier: GPL-2.0-or-later
"""Raw messages: submissions as the edge writes them and the decoder reads them.

Pure. A line of a file and the value of a record hold the same JSON:

    {"attributeMap": {"submission_timestamp": "2026-11-23T14:00:00.000000Z", "uri": "/submit/…", …}, "payload": "<base64>"}

In the configuration, `log:NAME` is a topic of the log; `[edge] output` and `[decode] input` take it.
"""

import base64
import binascii
import json
import re
import uuid
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs

from hgext.vcsreplicator.log import TOPIC_NAMES, NewRecord, Topic
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import MalformedEvent, quote_value

# The default place where the edge writes and the decoder reads.
DEFAULT_PLACE = "log:raw"

# The attribute that says who wrote a message. It must be no name of a header: the edge writes none, so no client can.
ORIGIN = "origin"

# The origin of the notifier's messages, and the types that it writes, as NAMESPACE.TYPE.
NOTIFIER = "notifier"
NOTIFIER_TYPES = ("eng-workflow.hgpush",)

# The headers of a client that become attributes.
HEADERS = (
    "content_length",
    "date",
    "dnt",
    "host",
    "user_agent",
    "x_forwarded_for",
    "x_pingsender_version",
    "x_debug_id",
)

# Attributes that every raw message has, and attributes that it may have; there are no others.
REQUIRED = ("submission_timestamp", "uri", "protocol", "method")
OPTIONAL = (ORIGIN, "args", "remote_addr", *HEADERS)

# Attributes that identify a person: no output of the decoder has them.
PRIVATE = ("x_forwarded_for", "remote_addr", "user_agent")

# Seconds that the log keeps raw and decoded messages.
RETENTION = 30 * DAY

_TOPIC = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
_TYPE_NAME = re.compile(rf"{_NAME}\.{_NAME}")
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_PLAIN = re.compile(rf"/submit/(?P<namespace>{_NAME})/(?P<type>{_NAME})/(?P<version>[0-9]{{1,9}})(?:/(?P<id>{_UUID}))?")
_TELEMETRY = re.compile(
    rf"/submit/telemetry/(?P<id>{_UUID})/(?P<type>{_NAME})"
    r"/(?P<app>[!-.0->@-~]{1,100})/(?P<version>[!-.0->@-~]{1,100})/(?P<channel>[!-.0->@-~]{1,100})/(?P<build>[!-.0->@-~]{1,100})"
)

# The first UUID of the URI in a line; quotes within a value are escaped there, so no client can write this beginning.
_ID_IN_LINE = re.compile(rf'"uri": "[^"]*?({_UUID})'.encode())


class NotBase64(MalformedEvent):
    """The payload of a raw message is not base64.

    `raw` has the attributes of the message, and as its payload the text that was found.
    """

    def __init__(self, raw: "RawMessage") -> None:
        super().__init__("payload: not base64")
        self.raw = raw


class WrongUri(MalformedEvent):
    """No message can be submitted to this path."""


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A submitted body, untouched, and its attributes.

    `check` raises MalformedEvent if a required attribute is missing.
    """

    payload: bytes
    attributes: Mapping[str, str]

    def check(self) -> None:
        """Raise MalformedEvent naming the first required attribute that is missing."""
        for name in REQUIRED:
            if not self.attributes.get(name):
                raise MalformedEvent(f"attribute {name!r} is missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The content of a URI: the document, and for telemetry the application.

    `version` is None for telemetry, whose body says it; `id` is in lower case, None for a type that has none.
    """

    namespace: str
    type: str
    version: str | None
    id: str | None
    app_name: str | None = None
    app_version: str | None = None
    app_update_channel: str | None = None
    app_build_id: str | None = None

    def is_of(self, types: Collection[str]) -> bool:
        """Return whether it is of one of these `NAMESPACE.TYPE`, in capital letters or not."""
        return f"{self.namespace}.{self.type}".lower() in map(str.lower, types)


def parse_uri(uri: str, args: str = "", *, without_id: Collection[str] = ()) -> Submission:
    """Read the URI of a submission.

    The URI is `/submit/NAMESPACE/TYPE/VERSION/ID`, or telemetry's `/submit/telemetry/ID/TYPE/APP/VERSION/CHANNEL/BUILD`. `args`
    is the query without its `?`: telemetry may have `v=4`, and no other `v`. `without_id` names each `NAMESPACE.TYPE` whose URI
    ends with the version. One slash at the end is no part of it. Raises WrongUri, which quotes nothing of the URI.
    """
    uri = uri.removesuffix("/")
    if uri.startswith("/submit/telemetry/"):
        return _parse_telemetry(uri, args)
    found = _PLAIN.fullmatch(uri)
    if found is None:
        raise WrongUri("uri: expected /submit/NAMESPACE/TYPE/VERSION/ID with a UUID as ID")
    namespace, document_type, document_id = found["namespace"], found["type"], found["id"]
    has_no_id = f"{namespace}.{document_type}" in without_id
    if (document_id is None) != has_no_id:
        raise WrongUri(f"uri: expected /submit/NAMESPACE/TYPE/VERSION{'' if has_no_id else '/ID'} for this type")
    return Submission(
        namespace=namespace,
        type=document_type,
        version=found["version"],
        id=None if document_id is None else str(uuid.UUID(document_id)),
    )


def _parse_telemetry(uri: str, args: str) -> Submission:
    found = _TELEMETRY.fullmatch(uri)
    if found is None:
        raise WrongUri("uri: expected /submit/telemetry/ID/TYPE/APP/VERSION/CHANNEL/BUILD with a UUID as ID")
    if parse_qs(args, keep_blank_values=True).get("v", ["4"]) != ["4"]:
        raise WrongUri("uri: expected ?v=4 or no v for telemetry")
    return Submission(
        namespace="telemetry",
        type=found["type"],
        version=None,
        id=str(uuid.UUID(found["id"])),
        app_name=found["app"],
        app_version=found["version"],
        app_update_channel=found["channel"],
        app_build_id=found["build"],
    )


def check_types(**keys: Collection[str]) -> None:
    """Raise ValueError with the key unless each name is `<namespace>.<type>`."""
    for key, names in keys.items():
        for name in names:
            if not _TYPE_NAME.fullmatch(name):
                raise ValueError(f"{key}: expected <namespace>.<type>, got {quote_value(name)}")


def write_timestamp(at: float) -> str:
    """Return a time as the attribute `submission_timestamp` has it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def to_line(raw: RawMessage) -> bytes:
    """Return the JSON of a raw message, without a newline."""
    payload = base64.b64encode(raw.payload).decode("ascii")
    return json.dumps({"attributeMap": dict(raw.attributes), "payload": payload}, sort_keys=True).encode("ascii")


def from_line(line: bytes) -> RawMessage:
    """Read the JSON of a raw message.

    An attribute that is null is absent, a number or a truth value is its text; members beside these two are ignored. Does not
    check the attributes: see `RawMessage.check`. Raises MalformedEvent, which quotes nothing of the line; NotBase64 if only the
    payload is wrong.
    """
    try:
        content = json.loads(
            line, parse_int=_WrittenNumber, parse_float=_WrittenNumber, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        raise MalformedEvent("raw message: not JSON") from None
    if not isinstance(content, dict) or not content.keys() >= {"payload", "attributeMap"}:
        raise MalformedEvent("raw message: expected an object of payload and attributeMap")
    payload, attributes = content["payload"], _read_attributes(content["attributeMap"])
    if type(payload) is not str:
        raise MalformedEvent("payload: expected text")
    try:
        return RawMessage(binascii.a2b_base64(payload, strict_mode=True), attributes)
    except ValueError:
        raise NotBase64(RawMessage(payload.encode("utf-8", "surrogatepass"), attributes)) from None


class _WrittenNumber(str):
    """A number of JSON, as it is written."""

    __slots__ = ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


_TRUTH = {True: "true", False: "false"}


def _read_attributes(found: object) -> dict[str, str]:
    """Return the attributes of a line; raises MalformedEvent."""
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str | bool | None) for value in found.values()):
        raise MalformedEvent("attributeMap: expected an object of texts")
    given = ((name, _TRUTH.get(value, value)) for name, value in found.items() if value is not None)
    return {name: str(value) for name, value in given}


def to_record(raw: RawMessage, topic: str, partitions: int = 1) -> NewRecord:
    """Return the record of a raw message for a topic of so many partitions; it has no key.

    The notifier's messages have their order in partition 0, others go where `choose_partition` says.
    """
    line = to_line(raw)
    partition = 0 if raw.attributes.get(ORIGIN) == NOTIFIER else choose_partition(line, partitions)
    return NewRecord(topic=topic, key=None, value=line, partition=partition)


def choose_partition(line: bytes, partitions: int) -> int:
    """Return the partition of a raw message that `to_line` made.

    All messages of one id have the same, so one decoder meets the repeats. A message without an id may go anywhere.
    """
    if partitions == 1:
        return 0
    found = _ID_IN_LINE.search(line)
    return zlib.crc32(line if found is None else found[1].lower()) % partitions


def topic_of(place: str) -> str | None:
    """Return the topic that `log:NAME` names, None for another place.

    Raises ValueError for a name that no topic may have, or that a topic of replication has.
    """
    scheme, _, name = place.partition(":")
    if scheme != "log":
        return None
    if not _TOPIC.fullmatch(name):
        raise ValueError(f"expected log:NAME of lower-case letters, digits and hyphens, got {quote_value(place)}")
    if name in TOPIC_NAMES:
        raise ValueError(f"expected a topic of its own, {name!r} is one of replication")
    return name


def raw_topic(name: str) -> Topic:
    """Return the topic of this name: records stay for `RETENTION` s, and a new one has one partition."""
    return Topic(name=name, retention=RETENTION, is_divisible=True)
