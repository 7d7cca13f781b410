# SPDX-License-Identifier: GPL-2.0-or-later
"""What one destination can never deliver, kept in the topic `errors`."""

import base64
import json
from dataclasses import dataclass

from hgext.vcsreplicator.clock import Clock
from hgext.vcsreplicator.levels import KEY_KEPT, ErrorRecord
from hgext.vcsreplicator.log import ERRORS, NOTICES, Log
from hgext.vcsreplicator.log import Message as LogMessage
from hgext.vcsreplicator.shape import to_json

from .message import Message

ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Rejects:
    """Of the destination `name`; what is kept is durable on return, else Unavailable is raised."""

    name: str
    log: Log
    clock: Clock

    def keep_message(self, message: Message, reason: str) -> None:
        """A message as it would have been sent."""
        value = json.dumps({**message.envelope, "id": message.id}, sort_keys=True).encode()
        self.keep(f"{message.id}: {reason}", value, message.offset, message.repository)

    def keep(self, reason: str, value: bytes, offset: int, key: str | None) -> None:
        """A record of `notices`, or that there is none any more."""
        key = None if key is None else key[:KEY_KEPT]
        record = ErrorRecord(
            time=self.clock.now(),
            service="notifier",
            reason=reason,
            topic=NOTICES,
            partition=0,
            offset=offset,
            key=key,
            value=base64.b64encode(value[:ERROR_BYTES]).decode("ascii"),
            repository=key,
            destination=self.name,
        )
        self.log.append([LogMessage(topic=ERRORS, key=key, value=to_json(record))])
