# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the dashboard gets what it shows, and who carries out acts: all that a page needs beside the view."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..log import Log
from ..words.event import Event
from .acts import ActOutcome, OperatorAct
from .deliveries import NotifierDatabases


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """`destinations` and `relay` are those that must be there, if the file names them.

    `is_public` says of a path whether guests may read it. `describe_delivery` says what became of an event at a destination; of
    its arguments the last says whether the destination's position is behind the notice. `notifier` reads the notifier's databases,
    None where the file has no section [notifier]. `carry_out` does the act with this number, and returns what became of it.
    """

    log: Log
    destinations: Collection[str] | None
    relay: str | None
    is_public: Callable[[str], bool]
    describe_delivery: Callable[[str, Event, bool], str]
    notifier: NotifierDatabases | None
    carry_out: Callable[[OperatorAct, int], tuple[ActOutcome, str]]
