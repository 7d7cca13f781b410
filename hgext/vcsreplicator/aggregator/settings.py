# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[aggregator]` of the services' file."""

from dataclasses import dataclass

from ..words.shape import Seconds, absolute, within


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorSettings:
    """The aggregator's settings; times are in seconds.

    `group_time` is how long new events wait to be committed together with their release, which else would wait for that commit,
    `beat` the time between two heartbeats. A standby takes over after `takeover_after`, and at least twice `beat`, without one.
    After `silence` without a heartbeat the aggregator raises an alarm for a mirror. `batch` is the most notices of one transaction.
    `key` is the file of its own keys, made at the first start, for the seals of mirrors' levels. With `sign` it signs notices with
    the newest of them, and mirrors with a key sign what they serve.
    """

    group_time: Seconds = 0.1
    beat: Seconds = 5.0
    takeover_after: Seconds = 10.0
    silence: Seconds = 60.0
    batch: int = 1000
    key: str | None = None
    sign: bool = False

    def __post_init__(self) -> None:
        within(self, group_time=(0, 3600), beat=(0.01, 3600), takeover_after=(0.01, 3600), silence=(0.01, 3600))
        within(self, batch=(1, 10_000))
        absolute(self, "key")
        if self.sign and self.key is None:
            raise ValueError("sign: expected `key` too, the file of the key that signs")
