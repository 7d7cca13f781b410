# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the dashboard gets what it shows: the log, and what the services' file says of destinations and of names."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..log import Log
from ..words.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """`destinations` and `relay` are those that must be there, if the file names them.

    `is_public` says of a path whether guests may read it. `describe_delivery` says what became of an event at a destination; of
    its arguments the last says whether the destination's position is behind the notice.
    """

    log: Log
    destinations: Collection[str] | None
    relay: str | None
    is_public: Callable[[str], bool]
    describe_delivery: Callable[[str, Event, bool], str]
