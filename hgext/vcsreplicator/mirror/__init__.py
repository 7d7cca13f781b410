# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror: applies the master's events exactly once in effect, in order per repository, and serves what is released.

`run` is one supervisor process (`supervision/`) with worker processes (`pool`). `plan` decides what one event means, purely; the
border (`hg.replica`) performs it. A repository that cannot go on is detached until it is caught up again.
"""

import threading
from collections.abc import Callable

from ..log import Log
from ..words.clock import Clock, SystemClock
from .settings import MirrorSettings

__all__ = ["MirrorSettings", "run"]


def run(
    settings: MirrorSettings,
    log: Log,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock = SystemClock(),  # noqa: B008
) -> None:
    """Follow the log until `stop` is set; raises BadConfig if the mirror cannot begin at all."""
    from .service import follow

    follow(settings, log, stop=stop, ready=ready, clock=clock)
