# SPDX-License-Identifier: GPL-2.0-or-later
"""How long others have been silent, by the observer's own monotonic clock: clocks of machines are never compared. Pure.

A sign of life counts when it differs from the last one that was seen. Without any, the silence began with the observer.
"""

from collections.abc import Hashable


class Silence:
    """The silence of everyone who is listened to; all times in seconds of one monotonic clock."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._last: dict[Hashable, tuple[Hashable, float]] = {}

    def heard(self, who: Hashable, sign: Hashable, now: float) -> None:
        """Takes the newest sign there is, which may be one that was taken before."""
        known = self._last.get(who)
        if known is None or known[0] != sign:
            self._last[who] = sign, now

    def seconds(self, who: Hashable, now: float) -> float:
        """Since the last new sign."""
        known = self._last.get(who)
        return now - (known[1] if known else self._began)
