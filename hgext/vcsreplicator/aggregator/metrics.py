# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator's metrics for Prometheus."""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

from ..words.records import Notice

# Seconds of a push: from a local network to an outage that people notice.
_PUSH_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)

EVENTS_TOTAL = Counter("vcsreplicator_aggregator_events", "Records read from the topic events, by outcome", ["outcome"])
RELEASES_TOTAL = Counter("vcsreplicator_aggregator_releases", "Events released to mirrors")
NOTICES_TOTAL = Counter("vcsreplicator_aggregator_notices", "Notices written")
ERRORS_TOTAL = Counter("vcsreplicator_aggregator_errors", "Records set aside in the topic errors")
ACTIVE = Gauge("vcsreplicator_aggregator_active", "Whether this process aggregates (1) or stands by (0)")
HELD = Gauge("vcsreplicator_aggregator_held_events", "Events that wait for their notice")
VERSION = Gauge("vcsreplicator_aggregator_roster_version", "Version of the roster")
COMMIT_SECONDS = Histogram(
    "vcsreplicator_aggregator_commit_seconds",
    "Duration of transactions",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
NOTICE_SECONDS = Histogram(
    "vcsreplicator_aggregator_notice_seconds",
    "From the commit on the master to the notice, by their machines' clocks",
    buckets=_PUSH_BUCKETS,
)
SERVED_SECONDS = Histogram(
    "vcsreplicator_aggregator_mirror_served_seconds",
    "From the commit on the master until this mirror served it, by their machines' clocks, of events whose notices waited for it",
    ["mirror"],
    buckets=_PUSH_BUCKETS,
)
SILENT_SECONDS = Gauge("vcsreplicator_aggregator_mirror_silent_seconds", "Since a mirror's last heartbeat", ["mirror"])
STALLED_SECONDS = Gauge(
    "vcsreplicator_aggregator_stalled_seconds",
    "Longest time that a repository's oldest unannounced event has been its oldest",
)
ALARMS = Gauge("vcsreplicator_aggregator_alarms", "Active alarms, by kind", ["alarm"])
LAG = Gauge("vcsreplicator_aggregator_mirror_lag_events", "Events that this mirror has not applied", ["mirror"])
WAITING = Gauge("vcsreplicator_aggregator_mirror_held_notices", "Notices that wait for this mirror", ["mirror"])


def observe_notices(written: Iterable[Notice]) -> None:
    """Count notices in the log, and observe how long each took: 0 s at least, if clocks differ."""
    for notice in written:
        NOTICES_TOTAL.inc()
        NOTICE_SECONDS.observe(max(0.0, notice.time - notice.event.time))
        for proof in notice.acks:
            SERVED_SECONDS.labels(proof.mirror).observe(max(0.0, proof.served_at - notice.event.time))


def clear_gauges() -> None:
    """Forget what only an aggregator at work knows: a standby has no alarms."""
    for one in (HELD, STALLED_SECONDS):
        one.set(0)
    for each in (SILENT_SECONDS, ALARMS, LAG, WAITING):
        each.clear()
