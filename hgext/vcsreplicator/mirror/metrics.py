# SPDX-License-Identifier: GPL-2.0-or-later
"""The metrics of a mirror."""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Metric


class KnownGauge(Gauge):
    """A gauge that has no sample until it is set; 0 would be a time in 1970."""

    is_known = False

    def set(self, value: float) -> None:
        super().set(value)
        self.is_known = True

    def collect(self) -> Iterable[Metric]:
        return super().collect() if self.is_known else ()


APPLIED = Counter("vcsreplicator_mirror_applied_events", "Events applied")
REJECTED = Counter("vcsreplicator_mirror_rejected_records", "Records that can never be processed")
DIED = Counter("vcsreplicator_mirror_died_workers", "Worker processes that died in the middle of a task")
HUNG = Counter("vcsreplicator_mirror_hung_workers", "Worker processes that were killed because they hung")
SLOW_WORKERS = Gauge(
    "vcsreplicator_mirror_slow_workers", "Worker processes whose task takes long, or that hang and do not die"
)
DETACHED_TOTAL = Counter("vcsreplicator_mirror_detachments", "Repositories detached from the stream", ["reason"])
DETACHED = Gauge("vcsreplicator_mirror_detached_repositories", "Repositories that are detached from the stream")
BUFFERED = Gauge("vcsreplicator_mirror_buffered_bytes", "Events in memory")
AGGREGATOR_BEAT = KnownGauge(
    "vcsreplicator_mirror_aggregator_beat_timestamp_seconds",
    "Time by this machine when the aggregator was last heard; absent before",
)
