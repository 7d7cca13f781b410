# SPDX-License-Identifier: GPL-2.0-or-later
"""What a mirror counts."""

from prometheus_client import Counter, Gauge

from .checkpoint import Checkpoint

APPLIED = Counter("vcsreplicator_mirror_applied_events", "Events applied")
REJECTED = Counter("vcsreplicator_mirror_rejected_records", "Records that can never work")
DIED = Counter("vcsreplicator_mirror_died_workers", "Worker processes that died in the middle of a task")
HUNG = Counter("vcsreplicator_mirror_hung_workers", "Worker processes that were killed because they hung")
APART = Gauge(
    "vcsreplicator_mirror_slow_workers", "Worker processes whose task takes long, or that hang and do not die"
)
DETACHED_TOTAL = Counter("vcsreplicator_mirror_detachments", "Repositories set apart from the stream", ["reason"])
DETACHED = Gauge("vcsreplicator_mirror_detached_repositories", "Repositories followed apart from the stream")
BUFFERED = Gauge("vcsreplicator_mirror_buffered_bytes", "Events in memory")
AGGREGATOR_BEAT = Gauge(
    "vcsreplicator_mirror_aggregator_beat_seconds", "Time by this machine when the aggregator was last heard"
)


def applied(before: Checkpoint | None, after: Checkpoint | None) -> None:
    """Counts what a task moved a repository on."""
    if after is not None:
        APPLIED.inc(max(0, after.seq - (before.seq if before is not None else 0)))
