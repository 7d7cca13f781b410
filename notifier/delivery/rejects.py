# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages that a destination can never deliver, kept in the topic `errors`."""

import base64
import errno
import json
from dataclasses import dataclass

from prometheus_client import Counter

from hgext.vcsreplicator.log import ERRORS, NOTICES, Log, NewRecord, TooLarge
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import ReplicationError, Unavailable
from hgext.vcsreplicator.words.records import KEY_KEPT, ErrorRecord
from hgext.vcsreplicator.words.shape import to_json
from hgext.vcsreplicator.words.unexpected import UnexpectedError, fault

from ..messages.message import Message

# Bytes of a value that are kept.
ERROR_BYTES = 64 * 1024

REJECTED = Counter(
    "vcsreplicator_notifier_rejected_messages", "Not delivered, and kept in the topic errors", ["destination"]
)


def judged(error: Exception) -> ReplicationError:
    """Translate an exception to an error of replication.

    That is Unavailable if the machine or a connection fails, else the message's own fault. The error for a time outside the
    calendar is an OSError, but the message's fault.
    """
    if isinstance(error, ReplicationError):
        return error
    found = fault(error)
    if found is None or (isinstance(error, OSError) and error.errno != errno.EOVERFLOW):
        return Unavailable(f"{type(error).__name__}: {error}")
    return found


@dataclass(frozen=True, slots=True)
class Rejects:
    """The rejects of the destination `name`, durable on return; raises Unavailable.

    Each is counted, unless the destination lacks nothing by it or an operator wanted it (`is_counted`).
    """

    name: str
    log: Log
    clock: Clock

    def keep_message(self, message: Message, reason: str | ReplicationError, *, is_counted: bool = True) -> None:
        """Keep a message as it would have been sent."""
        value = json.dumps({**message.envelope, "id": message.id}, sort_keys=True).encode()
        self.keep(reason, value, message.offset, message.repository, where=f"{message.id}: ", is_counted=is_counted)

    def keep(
        self,
        reason: str | ReplicationError,
        value: bytes,
        offset: int,
        key: str | None,
        *,
        where: str = "",
        is_counted: bool = True,
    ) -> None:
        """Keep a record of `notices`, or the fact that it is gone."""
        key = None if key is None else key[:KEY_KEPT]
        record = ErrorRecord(
            time=self.clock.now(),
            service="notifier",
            reason=f"{where}{reason}",
            traceback=reason.traceback if isinstance(reason, UnexpectedError) else None,
            topic=NOTICES,
            partition=0,
            offset=offset,
            key=key,
            value=base64.b64encode(value[:ERROR_BYTES]).decode("ascii"),
            repository=key,
            destination=self.name,
        )
        try:
            self._append(record)
        except TooLarge:  # the topic's limit is smaller than it should be
            self._append(record.without_value())
        if is_counted:
            REJECTED.labels(self.name).inc()

    def _append(self, record: ErrorRecord) -> None:
        self.log.append([NewRecord(topic=ERRORS, key=record.key, value=to_json(record))])
