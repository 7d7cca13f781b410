# SPDX-License-Identifier: GPL-2.0-or-later
"""A sample of `make test-versions`, and what it selects."""

import os
import subprocess
from pathlib import Path

import pytest

from testing.services.cache import CHECKOUT
from testing.services.keeper import ADDRESS
from testing.versions.__main__ import NEWEST, PARTS, TOGETHER, is_supported, run_tests, select_tests
from testing.versions.environment import OLDER, interpreter

# Every way into a mirror that could show something.
GUARDS = tuple(f"hg/serving/{name}.t" for name in ("everything", "guards", "released", "views"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "places"),
    [
        # The oldest has no wheel: compiling it takes 18 s of a processor.
        ("6.3", ("pushlog/record.t", "pushlog/strip.t", "pushlog/wire.t")),
        ("7.0", GUARDS),
    ],
)
def test_the_pushlog_on_the_oldest_mercurial_and_the_guards_on_an_older(
    version: str, places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares one warm `hg` with all runs, as `make test` does, shares none of this version."""
    monkeypatch.setenv(ADDRESS, "no such keeper")
    cell, output = run_tests(version, places)
    assert cell == f"{len(places)} passed", output


@pytest.mark.sample(1, keep=("7.0",))
@pytest.mark.processes
@pytest.mark.parametrize("version", [version for version in OLDER if is_supported(version, "guards")])
def test_every_mercurial_has_what_our_extensions_wrap(version: str) -> None:
    check = "from pushlog import seams, versions\nversions.initialize()\n"
    check += "for module, names in seams.SEAMS.items():\n    seams.check(module, *names)\n"
    checked = subprocess.run([interpreter(version), "-c", check], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_a_mercurial_that_is_not_tested_opens_no_repository(tmp_path: Path) -> None:
    (tmp_path / "hgrc").write_text(
        "[extensions]\n*:required = yes\npushlog =\nvcsreplicator =\n[vcsreplicator]\nrole = mirror\n"
    )
    program = [Path(interpreter("6.3")).with_name("hg"), "init", tmp_path / "repository"]
    refused = subprocess.run(
        program, env={**os.environ, "HGRCPATH": str(tmp_path / "hgrc")}, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 255
    assert "vcsreplicator" in refused.stderr
    assert "needs Mercurial 6.9 or newer, this is 6.3" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_place_of_the_matrix_has_tests() -> None:
    for places in (*PARTS.values(), TOGETHER):
        for selected in select_tests(places):
            file, _, transcript = selected.partition("::test_transcript_holds[")
            assert (CHECKOUT / file).exists()
            assert not transcript or (CHECKOUT / "tests" / f"{transcript.rstrip(']')}.t").exists()


def test_the_matrix_has_every_series_that_the_extensions_name() -> None:
    import pushlog
    from hgext import vcsreplicator
    from notifier.services.work import confinement

    series = [*OLDER, NEWEST]
    for extension in (pushlog, confinement):
        assert extension.testedwith.decode().split() == series
    replicated = [version for version in series if is_supported(version, "mirror")]
    assert vcsreplicator.testedwith.decode().split() == replicated != series
