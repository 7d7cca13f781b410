# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages in the form of SNS and S3: objects, texts and attributes. Pure."""

import datetime
import hashlib
from typing import Any

from ...messages.message import Message, to_text

# Most bytes of a message's text and attributes: https://docs.aws.amazon.com/sns/latest/api/API_Publish.html.
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
    """Return the message's attributes, for filter policies and to drop repeats."""
    texts = {
        "type": message.type.value,
        "repo_url": message.repo_url,
        "id": message.id,
        "previous": message.previous,
        "repository": message.repository,
        "replay": message.replay,
        "signed": message.signed,
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
    """Return the attributes of the message, and a text that leaves room for them."""
    beside = attributes(message)
    return topic_text(message, data_url, min(limit, MOST_BYTES - attributes_size(beside))), beside
