# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror: applies the master's events exactly once in effect, in order per repository, and serves what is released.

`run` is one supervisor process (`supervisor`, `intake`, `apart`, `books`) with workers (`pool`). What one event means is decided in
`plan`, purely; the border (`hg.work`) performs it. A repository that cannot go on is followed apart from the stream until it is
caught up again (`following`, `notes`).
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
    """Follows the log until `stop` is set. Heals by itself what can be healed; raises BadConfig if it cannot begin at all."""
    from .service import follow

    follow(settings, log, stop=stop, ready=ready, clock=clock)
