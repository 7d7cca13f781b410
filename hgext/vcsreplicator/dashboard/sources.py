# SPDX-License-Identifier: GPL-2.0-or-later
"""The sources of a page besides the view, and the function that carries out acts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..log import Log
from ..status.findings import Expectations
from ..words.clock import Clock, SystemClock
from ..words.event import Event
from .acts import ActOutcome, OperatorAct
from .deliveries import NotifierDatabases


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The log at `url`, and the other sources and functions of a page.

    `expected` are the services that must be there. `is_public` says of a path whether guests may read it. `describe_delivery`
    describes the delivery of an event to a destination; its last argument says whether the destination's position is past the
    notice. `notifier` reads the notifier's databases; it is None if the file has no section [notifier]. `carry_out` does the act
    with this number, and returns its outcome with a text. `clock` is this machine's.
    """

    log: Log
    url: str
    expected: Expectations
    is_public: Callable[[str], bool]
    describe_delivery: Callable[[str, Event, bool], str]
    notifier: NotifierDatabases | None
    carry_out: Callable[[OperatorAct, int], tuple[ActOutcome, str]]
    clock: Clock = field(default_factory=SystemClock)
