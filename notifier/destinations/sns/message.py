# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages in the form of SNS and S3: objects, entries, requests. Pure."""

import datetime
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

from ...messages.message import Message, to_text

# Messages of one request.
MOST_ENTRIES = 10

# Most bytes of one request to a topic: https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html.
MOST_BYTES = 256 * 1024


def object_key(message: Message) -> str:
    """Return the key of the message's object.

    It is `events/YYYY-MM-DD/OFFSET-YYYYMMDDTHHMMSS.json`. A second message of a notice adds its type.
    """
    created = datetime.datetime.fromtimestamp(message.created, datetime.UTC)
    suffix = f"-{message.type.value}" if message.index else ""
    return f"events/{created:%Y-%m-%d}/{message.offset:010d}-{created:%Y%m%dT%H%M%S}{suffix}.json"


def object_body(message: Message) -> str:
    """Return the object's content."""
    return to_text({"created": message.created, "data": message.data, "id": message.offset, "type": message.type.value})


def topic_text(message: Message, data_url: str, limit: int) -> str:
    """Return the text of the message for the topic, which is ASCII.

    It has the data, unless that makes it longer than `limit`.
    """
    whole = to_text({"type": message.type.value, "data": message.data, "data_url": data_url})
    if len(whole) <= limit:
        return whole
    return to_text({"type": message.type.value, "external": True, "data_url": data_url, "repo_url": message.repo_url})


def attributes(message: Message) -> dict[str, Any]:
    """Return the message's attributes.

    They are for filter policies of subscriptions, and for receivers that drop repeats.
    """
    texts = {
        "type": message.type.value,
        "repo_url": message.repo_url,
        "id": message.id,
        "previous": message.previous,
        "repository": message.repository,
        "replay": message.replay,
    }
    found: dict[str, Any] = {
        name: {"DataType": "String", "StringValue": text} for name, text in texts.items() if text is not None
    }
    found["sequence"] = {"DataType": "Number", "StringValue": str(message.sequence)}
    return found


def fifo_keys(message: Message) -> dict[str, str]:
    """Return the further parameters of a FIFO topic.

    The group is the repository, in which SNS keeps the order. SNS drops a repeat of an id within five minutes, so a replay, which
    an operator asked for, has an id of its own. https://docs.aws.amazon.com/sns/latest/dg/fifo-message-dedup.html
    """
    repeat = message.id
    if message.replay is not None:
        repeat = hashlib.sha256(f"{message.id} {message.replay}".encode()).hexdigest()
    return {"MessageGroupId": message.repository, "MessageDeduplicationId": repeat}


def attributes_size(attributes: dict[str, Any]) -> int:
    """Return the number of bytes of names, types and values."""
    texts = [text for name, each in attributes.items() for text in (name, *each.values())]
    return sum(len(text.encode(errors="replace")) for text in texts)


def topic_parts(message: Message, data_url: str, limit: int) -> tuple[str, dict[str, Any]]:
    """Return text and attributes of the message.

    The text leaves room for the attributes.
    """
    beside = attributes(message)
    return topic_text(message, data_url, min(limit, MOST_BYTES - attributes_size(beside))), beside


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEntry:
    """The delivery `number` as a topic takes it.

    Its object is stored since `written`, on the monotonic clock. `keys` are those of a FIFO topic.
    """

    number: int
    text: str
    attributes: dict[str, Any]
    written: float
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> dict[str, Any]:
        """Its parameters in a request of one or several."""
        return {"Message": self.text, "MessageAttributes": self.attributes, **self.keys}

    @property
    def size(self) -> int:
        """Its size in bytes, as the service counts them."""
        return len(self.text) + attributes_size(self.attributes)


def together(entries: Sequence[BatchEntry]) -> list[BatchEntry]:
    """Return the first of these that one request may carry, one alone of any size."""
    size = 0
    for count, entry in enumerate(entries[:MOST_ENTRIES]):
        size += entry.size
        if count and size > MOST_BYTES:
            return list(entries[:count])
    return list(entries[:MOST_ENTRIES])


def write_batch(arn: str, entries: Sequence[BatchEntry]) -> bytes:
    """Return the form of a request that publishes entries, as boto3 writes it.

    https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html has its parameters.
    """
    values = {"Action": "PublishBatch", "Version": "2010-03-31", "TopicArn": arn}
    for place, entry in enumerate(entries):
        member = f"PublishBatchRequestEntries.member.{place + 1}."
        values[member + "Id"], values[member + "Message"] = str(place), entry.text
        for number, (name, value) in enumerate(entry.attributes.items(), 1):
            attribute = f"{member}MessageAttributes.entry.{number}."
            values[attribute + "Name"] = name
            values[attribute + "Value.DataType"] = value["DataType"]
            values[attribute + "Value.StringValue"] = value["StringValue"]
        for name, text in entry.keys.items():
            values[member + name] = text
    return write_form(values)


def write_form(values: Mapping[str, str]) -> bytes:
    """Return what `urlencode` does in three times the time; names are not quoted."""
    return "&".join([f"{name}={_quote(text)}" for name, text in values.items()]).encode()


def _quote(text: str) -> str:
    return _quote_short(text) if len(text) < 100 else "".join([_QUOTED[byte] for byte in text.encode()])


_QUOTED = [quote_plus(bytes([byte])) for byte in range(256)]
# Most short values repeat: types, names, repositories.
_quote_short = functools.lru_cache(1000)(quote_plus)
