# SPDX-License-Identifier: GPL-2.0-or-later
"""The sources of a page besides the view, and the function that carries out acts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from notifier.publishing.settings import NotifierSettings

from ..log import Log
from ..status.services import Expectations
from ..words.clock import Clock, SystemClock
from .acts import ActOutcome, OperatorAct


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The log at `url`, and the other sources and functions of a page.

    `expected` are the services that must be there. `is_public` returns whether guests may read a path. `describe_delivery` gets the
    name of a destination, an event, and `is_passed`: whether the destination's position is past the event's notice. `notifier` is
    None if the file has no section [notifier]. `carry_out` does an act, whose number in the journal it gets, and returns its
    outcome with a text. `clock` is this machine's.
    """

    log: Log
    url: str
    expected: Expectations
    is_public: Callable[[str], bool]
    describe_delivery: Callable[..., str]
    notifier: NotifierSettings | None
    carry_out: Callable[[OperatorAct, int], tuple[ActOutcome, str]]
    clock: Clock = field(default_factory=SystemClock)
