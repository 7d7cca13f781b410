# SPDX-License-Identifier: GPL-2.0-or-later
"""What a metric of this process says."""

from prometheus_client import Counter, Gauge


def value_of(metric: Counter | Gauge) -> float:
    """The value of a metric, with its labels if it has any."""
    [family] = metric.collect()
    return next(sample.value for sample in family.samples if not sample.name.endswith("_created"))
