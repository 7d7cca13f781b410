# SPDX-License-Identifier: GPL-2.0-or-later
"""Samples of publishers' messages, held against the specification.

A temporary queue takes the sample.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hgext.vcsreplicator.words.errors import counted, visible

from ...clients.amqp.connection import drain, limiting_waits
from .broker import connected
from .requirements import CheckResult, Requirement, result, unknown
from .settings import GuardianSettings

# Bytes of a body that the specification calls small.
SMALL = 8 * 1024

# Messages of a sample, of which the queue holds at most as many.
MOST_MESSAGES = 1000

# Requirements that a message alone shows.
OF_MESSAGES = [each for each in Requirement if each.subject == "Messages" and each is not Requirement.PUBLIC]


@dataclass(slots=True)
class Sample:
    """The results of a sample of messages.

    `offenders` names the first message that broke each requirement.
    """

    count: int = 0
    copied: int = 0
    offenders: dict[Requirement, str] = field(default_factory=dict)

    def add(self, body: bytes, properties: dict[str, Any], exchange: str, key: str) -> None:
        self.count += 1
        headers = properties.get("application_headers")
        self.copied += isinstance(headers, dict) and "CC" in headers
        broken = {
            Requirement.JSON: not _is_json(body),
            Requirement.CONTENT_TYPE: properties.get("content_type") != "application/json",
            Requirement.MESSAGE_DURABLE: properties.get("delivery_mode") != 2,
            Requirement.SMALL: len(body) >= SMALL,
            Requirement.ROUTING_KEY: not key,
        }
        for requirement, is_broken in broken.items():
            if is_broken:
                self.offenders.setdefault(requirement, visible(f"{exchange} {key}".strip())[:200])

    def results(self) -> Iterator[CheckResult]:
        """Yield what the sample shows about each requirement; unknown without messages."""
        for requirement in OF_MESSAGES:
            if not self.count:
                yield unknown(requirement, "no message came while the sample was taken")
            elif requirement in self.offenders:
                yield result(requirement, is_met=False, reason=f"broken by a message of {self.offenders[requirement]}")
            elif requirement is Requirement.COPIES and not self.copied:
                yield unknown(requirement, f"{counted(self.count, 'message')}, none with a copy")
            elif requirement is Requirement.ROUTING_KEY:
                yield unknown(
                    requirement, f"{counted(self.count, 'message')} with keys; only documentation can tell their fields"
                )
            else:
                yield result(requirement, is_met=True, reason=counted(self.copied or self.count, "message"))


def take_sample(
    settings: GuardianSettings, client: str, token: str, exchanges: Sequence[str], seconds: float, stop: threading.Event
) -> Sample:
    """Consume the messages of these exchanges, with the rights of a client.

    Ends after `seconds`, after `MOST_MESSAGES` messages, or when `stop` is set.
    """
    sample = Sample()
    if not exchanges or seconds <= 0:
        return sample

    def take_message(message: Any) -> None:
        if sample.count < MOST_MESSAGES:
            where = message.delivery_info
            sample.add(bytes(message.body), dict(message.properties), where["exchange"], where["routing_key"])

    with connected(settings, client, token) as connection:
        queue = f"queue/{client}/sample"
        with limiting_waits(connection, seconds):
            channel = connection.channel()
            channel.auto_decode = False
            limits = {"x-max-length": MOST_MESSAGES}
            channel.queue_declare(queue, exclusive=True, auto_delete=True, arguments=limits)
            for exchange in exchanges:
                channel.queue_bind(queue, exchange, "#")
            channel.basic_consume(queue, callback=take_message, no_ack=True)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and sample.count < MOST_MESSAGES and not stop.is_set():
            drain(connection, min(left, 0.2))
    return sample


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True
