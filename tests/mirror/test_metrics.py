# SPDX-License-Identifier: GPL-2.0-or-later
"""What Prometheus reads of a mirror."""

from prometheus_client import CollectorRegistry, generate_latest

from hgext.vcsreplicator.mirror.metrics import AGGREGATOR_BEAT, KnownGauge


def test_a_time_that_is_not_known_yet_is_absent_and_not_1970() -> None:
    registry = CollectorRegistry()
    gauge = KnownGauge("last_seconds", "Last", registry=registry)
    assert generate_latest(registry) == b""
    gauge.set(0.0)
    assert b"\nlast_seconds 0.0\n" in generate_latest(registry)
    gauge.set(5.0)
    assert b"\nlast_seconds 5.0\n" in generate_latest(registry)


def test_the_beat_of_the_aggregator_is_such_a_time() -> None:
    assert isinstance(AGGREGATOR_BEAT, KnownGauge)
