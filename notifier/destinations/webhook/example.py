# SPDX-License-Identifier: GPL-2.0-or-later
"""The example that tests a subscription, and what its endpoint answered."""

import uuid

from hgext.vcsreplicator.log.requests import FAILED
from hgext.vcsreplicator.words.errors import visible
from hgext.vcsreplicator.words.event import PushEntry
from hgext.vcsreplicator.words.streams import Stream, message_id

from ...messages.message import push_entry, to_text
from .deliveries import DeliveryAttempt
from .request import AttemptResult, DeliveryVerdict

# No repository can have this address: the name is reserved.
EXAMPLE_URL = "https://example.invalid/example"


def make_example(now: float) -> DeliveryAttempt:
    """Return a message of a push that never happened, with an id of its own."""
    push = PushEntry(id=1, user="example@example.invalid", date=int(now))
    data = {
        "repo_url": EXAMPLE_URL,
        "heads": ["0" * 40],
        "source": "serve",
        "pushlog_pushes": [push_entry(push, EXAMPLE_URL)],
    }
    return DeliveryAttempt(
        attempt=0,
        message_id=message_id(uuid.uuid4().hex, Stream.CHANGEGROUP),
        replay="",
        repository="0" * 32,
        previous=None,
        sequence=1,
        body=to_text({"type": Stream.CHANGEGROUP.value, "data": data}),
    )


def describe_test(result: AttemptResult) -> str:
    """Describe in a line what an endpoint answered, and how long that took."""
    is_wrong = result.verdict is not DeliveryVerdict.DELIVERED
    status = result.error if result.status is None else f"status {result.status}"
    answer = f": {result.answer}" if result.answer else ""
    return visible(f"{FAILED if is_wrong else ''}{status} after {result.duration:.3f} s{answer}")
