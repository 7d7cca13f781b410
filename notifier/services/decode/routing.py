# SPDX-License-Identifier: GPL-2.0-or-later
"""The outputs of decoded messages, by `<namespace>.<type>`: topic, queue or file."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hgext.vcsreplicator.log import NewRecord
from hgext.vcsreplicator.words.errors import Unavailable

from ...clients.amqp.outgoing import OutgoingMessage
from ...clients.lines import LineFile
from .decoding import Decoded
from .settings import DecodeSettings, PlaceKind

if TYPE_CHECKING:
    from .queues import OutputQueues


@dataclass(slots=True)
class Outputs:
    """The places that messages go to; `queues` is needed if one is a queue."""

    settings: DecodeSettings
    queues: "OutputQueues | None"
    _files: dict[str, LineFile] = field(default_factory=dict)

    def record_of(self, message: Decoded) -> NewRecord | None:
        """Return a message's record for the log; None if it goes to a queue or a file."""
        place = self.settings.place_of(message.route)
        if place.kind is not PlaceKind.LOG:
            return None
        return NewRecord(topic=place.name, key=message.id, value=message.body, headers=message.attributes, partition=0)

    def deliver(self, messages: Sequence[Decoded], keep_alive: Callable[[], None]) -> None:
        """Deliver to queues and files, durably.

        Calls `keep_alive` while it waits for the broker. Raises Unavailable; then some messages may be delivered, and all are to be
        delivered again.
        """
        lines = defaultdict[str, list[bytes]](list)
        queued: list[OutgoingMessage] = []
        for message in messages:
            place = self.settings.place_of(message.route)
            assert place.kind is not PlaceKind.LOG, f"{message.route} goes to the log"
            if place.kind is PlaceKind.QUEUE:
                queued.append(_make_message(place.name, message))
            else:
                lines[place.name].append(message.body + b"\n")
        if queued:
            assert self.queues is not None
            self.queues.publish(queued, keep_alive)
        for path, found in lines.items():
            self._append(path, b"".join(found))

    def keep_connected(self) -> None:
        """Keep the connection to the broker, if there is one; raises Unavailable."""
        if self.queues is not None:
            self.queues.keep_connected()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _append(self, path: str, lines: bytes) -> None:
        file = self._files.setdefault(path, LineFile(path))
        try:
            file.append(lines)
        except OSError as error:
            file.close()
            raise Unavailable(f"decode: {path}: {error.strerror}") from error


def _make_message(queue: str, message: Decoded) -> OutgoingMessage:
    return OutgoingMessage(routing_key=queue, body=message.body, id=message.id, headers=message.attributes)
