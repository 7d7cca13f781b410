# SPDX-License-Identifier: GPL-2.0-or-later
"""What was seen from outside, one line of JSON for each observation, with the clock at its begin and at its end."""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One observation; `begin` and `end` are seconds since the campaign began.

    | kind | who | what |
    |---|---|---|
    | `began` | the seed | the campaign; `destinations`, which should get every message |
    | `ended` | | all was healed, had settled and was compared |
    | `pushed` | the repository | `head`, and what the pusher read: a pusher was told at `end` that the push is in |
    | `delivered` | the destination | a message: `id`, `previous`, `repository`, `sequence`, `type`, `path`, `heads` |
    | `looked` | the mirror | `missing`, what a receiver of the message `id` did not find there |
    | `checked` | | `findings` of `vcsreplicator check`, none if it says OK |
    | `struck` | the fault | `within` (its bound in seconds), `spares` (mirrors that it takes away); healed at `end` |
    | `acted` | the type of message | an operator's command that worked, and the `path` that its message must name |
    | `trouble` | the observer | `text`: anything that must not be, such as a mirror that differs at the end |
    """

    kind: str
    begin: float
    end: float
    who: str = ""
    what: Mapping[str, Any] = field(default_factory=dict)


class History:
    """Written by any thread; what was seen is in memory too."""

    def __init__(self, file: Path) -> None:
        self.seen: list[Seen] = []
        self.start = time.monotonic()
        self._file, self._writing = file.open("w"), threading.Lock()

    def clock(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self.start

    def add(
        self, kind: str, who: str = "", *, begin: float | None = None, end: float | None = None, **what: Any
    ) -> None:
        """Write down an observation that ends now, and began now unless the caller says otherwise."""
        now = self.clock() if end is None else end
        seen = Seen(kind=kind, begin=round(now if begin is None else begin, 3), end=round(now, 3), who=who, what=what)
        with self._writing:
            self.seen.append(seen)
            self._file.write(json.dumps(asdict(seen)) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(file: Path) -> list[Seen]:
    """The observations of a file; a line that was cut short at its end does not count."""
    whole = file.read_text().rpartition("\n")[0]
    return [Seen(**json.loads(line)) for line in whole.splitlines()]


def of_kind(seen: Iterable[Seen], kind: str) -> list[Seen]:
    return [each for each in seen if each.kind == kind]
