# SPDX-License-Identifier: GPL-2.0-or-later
"""S3 and SNS as far as the destination sees them: what they answer, and the message in a request to SNS."""

import json
import urllib.parse
from typing import Any

from testing.builders.notifier.endpoint import Reply, Request

PUBLISHED = b"<PublishResponse><PublishResult><MessageId>stub</MessageId></PublishResult></PublishResponse>"


def answer(request: Request) -> Reply:
    """What they answer while all is well; an endpoint of webhooks may say so too."""
    return Reply(
        headers=(("ETag", '"0"'), ("Content-Type", "text/xml")), body=b"" if request.method == "PUT" else PUBLISHED
    )


def refuse(status: int, code: str) -> Reply:
    """An error of AWS, such as throttling, in the form that both services have in common."""
    error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return Reply(
        status=status,
        headers=(("Content-Type", "text/xml"),),
        body=f"<ErrorResponse>{error}</ErrorResponse>".encode(),
    )


def message_of(request: Request) -> dict[str, Any]:
    """The message that a request publishes, with its attributes beside `type` and `data`."""
    form = dict(urllib.parse.parse_qsl(request.text))
    numbers = {name.split(".")[2] for name in form if name.startswith("MessageAttributes.entry.")}
    entries = [f"MessageAttributes.entry.{number}." for number in numbers]
    attributes = {form[f"{entry}Name"]: form[f"{entry}Value.StringValue"] for entry in entries}
    return {**attributes, **json.loads(form["Message"])}
