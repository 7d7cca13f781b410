# SPDX-License-Identifier: GPL-2.0-or-later
"""JSON lines: one message a line, in a file or on standard output.

In a file, a message is confirmed once its whole line is synced to disk. A message whose line was cut short is written again.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from hgext.vcsreplicator.log import Log
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.shape import absolute

from ..clients.lines import LineFile
from ..delivery.destination import DOCUMENTED, DeliveryOutcome, Destination
from ..delivery.window import PATIENCE, Delivery, Patience
from ..messages.message import Message, to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesSettings:
    """Settings of the destination `jsonlines`.

    `file` is an absolute path, created with mode 0640 less the umask; its folder must exist.
    """

    file: str
    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        absolute(self, "file")

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return JsonLines(LineFile(self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class StdoutSettings:
    """Settings of the destination `stdout`.

    It writes lines to standard output, for people and pipes; a message is confirmed when it is written.
    """

    types: tuple[str, ...] = DOCUMENTED
    start_at: str = "beginning"
    patience: Patience = PATIENCE

    def open(self, name: str, clock: Clock, log: Log) -> Destination:
        return JsonLines(StandardOutput())


def line(message: Message) -> bytes:
    """Return the line of a message, newline included."""
    content = {
        **message.envelope,
        "id": message.id,
        "previous": message.previous,
        "repository": message.repository,
        "sequence": message.sequence,
        "time": message.created,
    }
    if message.replay is not None:
        content["replay"] = message.replay
    if message.signed is not None:
        content["signed"] = message.signed
    return to_text(content).encode("ascii") + b"\n"


class StandardOutput:
    """Standard output, used as a `LineFile` is."""

    path = "standard output"

    def open(self) -> None:
        """Do nothing: standard output is always there."""

    def append(self, lines: bytes) -> None:
        """Write lines; raises OSError, and then some of them may be written."""
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Do nothing: the process owns standard output."""


@dataclass(slots=True)
class JsonLines:
    """The destinations `jsonlines` and `stdout`."""

    _output: LineFile | StandardOutput
    _batch: list[tuple[int, bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Open the output, or raise Unavailable."""
        try:
            self._output.open()
        except OSError as error:
            raise self._translate_error(error) from error

    def submit(self, delivery: Delivery) -> None:
        self._batch.append((delivery.number, line(delivery.message)))

    def outcomes(self, timeout: float) -> Sequence[DeliveryOutcome]:
        batch, self._batch = self._batch, []
        if not batch:
            return []
        trouble: Unavailable | None = None
        try:
            self._output.append(b"".join(text for _, text in batch))
        except (OSError, Unavailable) as error:
            self.close()
            trouble = self._translate_error(error) if isinstance(error, OSError) else error
        return [DeliveryOutcome(number=number, error=trouble) for number, _ in batch]

    def close(self) -> None:
        self._output.close()

    def _translate_error(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self._output.path}: {error.strerror}; make it writable; the notifier tries again")
