# SPDX-License-Identifier: GPL-2.0-or-later
"""Rejects in the topic `errors`, where `vcsreplicator errors` reads them. Pure."""

import base64
from collections.abc import Collection

from hgext.vcsreplicator.log import ERRORS, NewRecord, check_message
from hgext.vcsreplicator.words.errors import Rejected, quote_value, visible
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import to_json

from ...messages.raw import ORIGIN, RawMessage, WrongUri, parse_uri
from .rejection import DecodeReject, without_private
from .settings import DecodeSettings
from .sources import RawArrival

SERVICE = "decode"


def error_record(reject: DecodeReject, arrival: RawArrival, now: float) -> NewRecord:
    """Return the record of a reject; raises Rejected if no record can hold it."""
    value = ErrorRecord(
        time=now,
        service=SERVICE,
        reason=f"{reject.kind}: {reject.errors['error_message']}",
        topic=arrival.place,
        partition=arrival.partition,
        offset=arrival.offset,
        key=None,
        value=base64.b64encode(reject.raw.payload).decode("ascii"),
        attributes={**reject.raw.attributes, **reject.errors},
    )
    found = NewRecord(topic=ERRORS, key=None, value=to_json(value))
    check_message(found)
    return found


def fit_record(reject: DecodeReject, arrival: RawArrival) -> DecodeReject:
    """Return the reject, without the payload if no record can hold it."""
    try:
        error_record(reject, arrival, 0.0)
    except Rejected:
        return reject.without_payload()
    return reject


def raw_of(record: ErrorRecord) -> RawMessage | None:
    """Return the message of a reject, to be decoded again.

    Returns None if the record has nothing that can be decoded again, or is none that a decoder writes.
    """
    attributes = record.attributes or {}
    if record.service != SERVICE or attributes.get("error_type") in (None, "form", "repeat") or not record.value:
        return None
    try:
        payload = base64.b64decode(record.value, validate=True)
    except ValueError:
        return None
    return without_private(RawMessage(payload, attributes))


def find_obstacle(record: ErrorRecord, settings: DecodeSettings, reserved: Collection[str]) -> str | None:
    """Return why the message of a reject may not be submitted again; None if it may.

    Each writer of `errors` can write a reject in the decoder's name. So a message may say no more than a client of the edge: not
    the notifier's origin, and no type of `reserved`; and it goes to the decoder's input alone.
    """
    if record.service != SERVICE:
        return f"it is the reject of {visible(record.destination or record.service)}, not of the decoder"
    if record.topic != settings.input.removeprefix("log:"):
        return f"it came from {quote_value(record.topic)}, and decode.input is {settings.input}"
    raw = raw_of(record)
    if raw is None:
        return "its message was not kept"
    if ORIGIN in raw.attributes:
        return "the notifier wrote it; send the push again with: vcsreplicator replay"
    try:
        uri, args = raw.attributes.get("uri", ""), raw.attributes.get("args", "")
        submission = parse_uri(uri, args, without_id=settings.without_id)
    except WrongUri as error:
        return str(error)
    if submission.is_of(reserved):
        return f"edge.reserved lets only the notifier write {submission.namespace}.{submission.type}"
    return None
