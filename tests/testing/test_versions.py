# SPDX-License-Identifier: GPL-2.0-or-later
"""A sample of `make test-versions`, and what it selects."""

import pytest

from testing.services.cache import CHECKOUT
from testing.versions.__main__ import NEWEST, PARTS, run_tests, select_tests
from testing.versions.environment import OLDER


@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "places"),
    [
        ("6.9", ("pushlog/record.t", "pushlog/strip.t", "pushlog/wire.t")),
        ("7.0", ("hg/serving/everything.t", "hg/serving/guards.t", "hg/serving/released.t", "hg/serving/views.t")),
    ],
)
def test_the_pushlog_on_the_oldest_mercurial_and_the_guards_on_an_older(version: str, places: tuple[str, ...]) -> None:
    cell, output = run_tests(version, places)
    assert cell == f"{len(places)} passed", output


def test_every_place_of_the_matrix_has_tests() -> None:
    for places in PARTS.values():
        for selected in select_tests(places):
            file, _, transcript = selected.partition("::test_transcript_holds[")
            assert (CHECKOUT / file).exists()
            assert not transcript or (CHECKOUT / "tests" / f"{transcript.rstrip(']')}.t").exists()


def test_the_matrix_has_every_series_that_the_extensions_name() -> None:
    import pushlog
    from hgext import vcsreplicator

    assert pushlog.testedwith.decode().split() == [*OLDER, NEWEST]
    assert vcsreplicator.testedwith == pushlog.testedwith
