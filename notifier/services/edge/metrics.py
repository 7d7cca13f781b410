# SPDX-License-Identifier: GPL-2.0-or-later
"""The edge's metrics for Prometheus; none contains an address."""

from prometheus_client import Counter, Gauge, Histogram

ANSWERS = Counter("vcsreplicator_edge_answers", "Requests answered, by status", ["status"])
CLOSED = Counter("vcsreplicator_edge_closed_connections", "Connections closed without an answer", ["reason"])
CONNECTIONS = Gauge("vcsreplicator_edge_connections", "Open connections")
QUEUED = Gauge("vcsreplicator_edge_queued_bytes", "Bytes on disk that wait for the log")
SET_ASIDE = Counter("vcsreplicator_edge_set_aside_messages", "Queued messages that the log refuses, kept in a file")
DAMAGED = Counter("vcsreplicator_edge_damaged_lines", "Lines of the queue that a disk damaged, kept in a file")
BATCH_SECONDS = Histogram(
    "vcsreplicator_edge_batch_seconds",
    "Time to make a batch durable",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
