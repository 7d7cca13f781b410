# SPDX-License-Identifier: GPL-2.0-or-later
"""Rejects in the topic `errors`, where `vcsreplicator errors` reads them. Pure."""

import base64

from hgext.vcsreplicator.log import ERRORS, NewRecord, check_message
from hgext.vcsreplicator.words.errors import Rejected
from hgext.vcsreplicator.words.records import ErrorRecord
from hgext.vcsreplicator.words.shape import to_json

from ...messages.raw import RawMessage, topic_of
from .rejection import ERROR_ATTRIBUTES, DecodeReject
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
    kept = {name: text for name, text in attributes.items() if name not in ERROR_ATTRIBUTES}
    try:
        payload = base64.b64decode(record.value, validate=True)
    except ValueError:
        return None
    return RawMessage(payload, kept) if names_input(record) else None


def names_input(record: ErrorRecord) -> bool:
    """Return whether a record's topic is a place that a decoder may read.

    That is a queue, or a topic that replication does not use.
    """
    try:
        return record.topic.startswith("queue:") or topic_of(f"log:{record.topic}") is not None
    except ValueError:
        return False
