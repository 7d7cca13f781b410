# SPDX-License-Identifier: GPL-2.0-or-later
"""A soak finds what grows, by a rule, and lets pass what only rises and falls."""

import math
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from testing.services.kafka import Kafka
from testing.soak.__main__ import soak
from testing.soak.verdict import Sample, draw, find_growing

HOURS = 2.0


def measured(seed: int, *, hourly: str = "", growth: float = 0.0, hours: float = HOURS) -> list[Sample]:
    """Samples of each 10 s with noise, and the figure `hourly` grows by so much in an hour."""
    chance, samples = Random(seed), []
    for at in range(0, int(3600 * hours), 10):
        wave = math.sin(at / 97)
        figures = {
            # A cache fills in the first ten minutes.
            "relay MB": 50 + min(at / 600, 1.0) * 20 + wave + chance.gauss(0, 0.5),
            "relay handles": 40 + chance.choice((0, 0, 0, 1, 4)),
            "push, half within, ms": 60 + 5 * wave + chance.expovariate(1 / 20),
            "behind by notices": chance.choice((0, 0, 1, 3, 9)),
            "disk for a push, bytes": 9000 + chance.gauss(0, 500),
        }
        if hourly:
            figures[hourly] += growth * at / 3600
        samples.append(Sample(at=float(at), figures=figures))
    return samples


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hours", [0.05, HOURS])
def test_what_rises_and_falls_is_flat(seed: int, hours: float) -> None:
    assert find_growing(measured(seed, hours=hours)) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("figure", "growth"),
    [
        ("relay MB", 10.0),
        ("relay handles", 10.0),
        ("push, half within, ms", 120.0),
        ("behind by notices", 100.0),
        ("disk for a push, bytes", 1500.0),
    ],
)
def test_what_leaks_by_a_few_percent_in_half_an_hour_is_named(seed: int, figure: str, growth: float) -> None:
    [found] = find_growing(measured(seed, hourly=figure, growth=growth))
    assert found.startswith(f"{figure}: ")


def test_a_figure_that_a_quarter_lacks_is_not_judged() -> None:
    samples = [Sample(at=float(at), figures={"relay MB": 1.0} if at < 30 else {}) for at in range(100)]
    assert find_growing(samples) == []


def test_each_figure_has_a_plot_of_all_its_samples() -> None:
    samples = measured(1, hours=0.05)
    drawn = ElementTree.fromstring(draw(samples))
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [len(samples)] * len(samples[0].figures)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_minutes_of_pushes_leave_memory_files_and_disk_flat(
    kafka: Kafka, unique_name: str, tmp_path: Path
) -> None:
    url = f"{kafka.url}?topic-prefix={unique_name}."
    samples, pushes, wrong = soak(url, tmp_path, seconds=180, rate=4, repositories=16, every=3)
    assert not wrong
    assert pushes > 20
    # How long a push takes depends on the tests beside this one.
    assert [each for each in find_growing(samples) if not each.startswith(("push", "behind"))] == []
