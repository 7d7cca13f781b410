# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror is compared with its master: what differs is found and named, what merely moves raises no alarm."""

import errno
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import verify as verb
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.mirror.comparison import ComparisonOutcome, Verdict
from hgext.vcsreplicator.mirror.jobs.verify import VerifySettings, compare
from testing.builders.mirror.author import Author
from testing.builders.mirror.mirroring import NAME, Bench
from testing.waiting import PATIENCE
from testing.warm import warm_starts

pytestmark = pytest.mark.processes

QUICK = VerifySettings(share=1.0, patience=0.3, again=0.05)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench, warm_starts():
        bench.serve_master()
        yield bench


def filled(bench: Bench, *paths: str) -> list[Author]:
    """Repositories with two pushes each, released; call it while the mirror runs, or before."""
    authors = [bench.author(path) for path in paths]
    for author in authors:
        author.push()
        author.push()
        bench.send(author)
        bench.release(author)
    return authors


def verdicts(bench: Bench, options: VerifySettings = QUICK) -> dict[str, Verdict]:
    """One round, by path."""
    reported: dict[str, Verdict] = {}
    compare(
        bench.settings(), bench.log, options, report=lambda v: reported.__setitem__(v.path, v), stop=threading.Event()
    )
    return reported


def test_equal_repositories_are_found_equal(bench: Bench) -> None:
    authors = filled(bench, "one", "folder/two")
    authors[0].bookmark("stable", authors[0].tip)
    bench.send(authors[0])
    with bench.mirror():
        bench.wait_applied(*authors)
    assert {path: verdict.outcome for path, verdict in verdicts(bench).items()} == {
        "one": ComparisonOutcome.EQUAL,
        "folder/two": ComparisonOutcome.EQUAL,
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("bookmark", "-r", "0", "by-hand"), "bookmarks"),
        (("phase", "--force", "--draft", "tip"), "phases"),
        (("debugobsolete", "0" * 39 + "1", "0" * 39 + "2"), "markers"),
    ],
)
def test_what_was_changed_by_hand_is_found_and_named(bench: Bench, arguments: tuple[str, ...], part: str) -> None:
    one, two = filled(bench, "one", "two")
    with bench.mirror():
        bench.wait_applied(one, two)
    bench.hg(one, *arguments)
    found = verdicts(bench)
    assert (found["one"].outcome, found["two"].outcome) == (ComparisonOutcome.DIFFERS, ComparisonOutcome.EQUAL)
    assert found["one"].note == f"at event {one.seq}: {part}"


def test_what_differs_is_healed_by_a_heal_request(bench: Bench) -> None:
    one, two = filled(bench, "one", "two")
    with bench.mirror():
        bench.wait_served(one, two)
        bench.hg(one, "phase", "--force", "--draft", "tip")
        assert verdicts(bench)["one"].outcome is ComparisonOutcome.DIFFERS
        bench.request_heal(one)
        bench.wait_detached(one, "diverged")
        bench.wait_applied(one)  # it said so again, in the stream: it is repaired
        bench.wait_served(one, two)
        assert {verdict.outcome for verdict in verdicts(bench).values()} == {ComparisonOutcome.EQUAL}


def test_a_lost_pushlog_row_is_found(bench: Bench) -> None:
    (one,) = filled(bench, "one")
    with bench.mirror():
        bench.wait_applied(one)
    (bench.where(one) / ".hg/store/pushlog.log").unlink()
    (bench.where(one) / ".hg/pushlog2.db").unlink()
    assert verdicts(bench)["one"].note == f"at event {one.seq}: pushlog"


def test_a_mirror_that_lags_is_behind_and_does_not_differ(bench: Bench) -> None:
    (one,) = filled(bench, "one")
    with bench.mirror():
        bench.wait_applied(one)
    one.push()
    assert verdicts(bench)["one"].outcome is ComparisonOutcome.BEHIND


def test_a_repository_that_the_mirror_lacks_is_missing(bench: Bench) -> None:
    (one,) = filled(bench, "one")
    found = verdicts(bench)["one"]
    assert (found.outcome, one.path) == (ComparisonOutcome.MISSING, "one")


def test_without_the_master_nothing_is_said_to_differ(bench: Bench) -> None:
    (one,) = filled(bench, "one")
    with bench.mirror():
        bench.wait_applied(one)
    assert bench.web is not None
    bench.web.kill()
    assert verdicts(bench)["one"].outcome is ComparisonOutcome.UNREACHABLE


@pytest.mark.parametrize("rounds", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_pushes_meanwhile_raise_no_alarm(bench: Bench, rounds: int) -> None:
    authors = filled(bench, "one", "two")
    reported: list[Verdict] = []
    over = threading.Event()

    def push() -> None:
        while not over.wait(0.1):
            for author in authors:
                author.push()
                bench.send(author)

    with bench.mirror():
        bench.wait_applied(*authors)
        pushing = threading.Thread(target=push)
        pushing.start()
        try:
            for _ in range(rounds):
                options = VerifySettings(share=1.0, patience=20.0, again=0.0)
                compare(bench.settings(), bench.log, options, report=reported.append, stop=threading.Event())
        finally:
            over.set()
            pushing.join()
    assert {verdict.outcome for verdict in reported} <= {ComparisonOutcome.EQUAL, ComparisonOutcome.BEHIND}
    assert len(reported) == 2 * rounds
    assert ComparisonOutcome.EQUAL in {verdict.outcome for verdict in reported}


def test_a_path_without_a_repository_is_not_reported_as_equal(bench: Bench) -> None:
    authors = filled(bench, "one")
    with bench.mirror():
        bench.wait_served(*authors)
    config = bench.folder / "verify.toml"
    config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n')
    for path, code in (("one/", 0), ("other", 1)):
        reported = CliRunner().invoke(program, ["verify", NAME, "-r", path, "-c", str(config)])
        assert reported.exit_code == code, reported.output
        assert ("other: no mirror" in reported.output) == (code == 1)


def test_contents_are_read_when_asked_for(bench: Bench) -> None:
    (one,) = filled(bench, "one")
    with bench.mirror():
        bench.wait_served(one)
    config = bench.folder / "verify.toml"
    config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n')
    data = next(path for path in (bench.where(one) / ".hg/store/data").rglob("*.i"))
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    words = ["verify", NAME, "-c", str(config)]
    shallow = CliRunner().invoke(program, words)
    assert shallow.exit_code == 0, shallow.output
    assert "not compared: the contents of files on disk (add --deep), hgrc" in shallow.output
    deep = CliRunner().invoke(program, [*words, "--deep"])
    assert deep.exit_code == 2, deep.output
    assert "one: differs contents: " in deep.output
    assert f"; to copy it again: vcsreplicator heal {NAME} one --yes" in deep.output.replace("\n", " ")
    assert "not compared: hgrc" in deep.output


@pytest.mark.sample(1)
@pytest.mark.parametrize("file", ["00changelog.d", "00manifest.i"])
def test_a_file_that_was_cut_is_found_without_reading_all_contents(bench: Bench, file: str) -> None:
    authors = filled(bench, "one", "two")
    with bench.mirror():
        bench.wait_served(*authors)
    cut = bench.where(authors[0]) / ".hg/store" / file
    os.truncate(cut, cut.stat().st_size - 10)
    found = verdicts(bench)
    assert found["one"].outcome is ComparisonOutcome.DIFFERS
    assert found["one"].note.startswith("cannot be read: ")
    assert found["two"].outcome is ComparisonOutcome.EQUAL


def test_contents_that_are_sound_are_equal(bench: Bench) -> None:
    authors = filled(bench, "one")
    with bench.mirror():
        bench.wait_served(*authors)
    assert verdicts(bench, replace(QUICK, deep=True))["one"].outcome is ComparisonOutcome.EQUAL


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("is_mirrored", "stopped_after", "code"),
    [(True, 1, 130), (True, 2, 0), (False, 1, 2), (False, 2, 2)],
)
def test_an_interrupted_verify_says_what_it_found_and_what_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_mirrored: bool, stopped_after: int, code: int
) -> None:
    authors = filled(bench, "one", "two")
    if is_mirrored:
        with bench.mirror():
            bench.wait_served(*authors)
    verdicts = []

    def compare_and_stop(*words: Any, report: Any, stop: threading.Event, **more: Any) -> Any:
        def report_and_stop(verdict: Verdict) -> None:
            report(verdict)
            verdicts.append(verdict.outcome)
            if len(verdicts) == stopped_after:
                stop.set()

        return compare(*words, report=report_and_stop, stop=stop, **more)

    monkeypatch.setattr(verb.verify, "compare", compare_and_stop)
    config = bench.folder / "verify.toml"
    config.write_text(
        f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n'
        "[verify]\nagain = 0.05\n"
    )
    done = CliRunner().invoke(program, ["verify", NAME, "--patience", "0", "-c", str(config)])
    expected = ComparisonOutcome.EQUAL if is_mirrored else ComparisonOutcome.MISSING
    assert verdicts == [expected] * stopped_after, done.output
    assert (done.exit_code, "interrupted" in done.stderr) == (code, stopped_after == 1), done.output


def test_an_interrupted_verify_shows_a_bar_and_ends_with_130(bench: Bench) -> None:
    authors = filled(bench, "one")
    with bench.mirror():
        bench.wait_served(*authors)
    filled(bench, "two")
    config = bench.folder / "verify.toml"
    config.write_text(f'log = "{bench.url}"\n[mirror.{NAME}]\nroot = "{bench.root}"\nmaster = "{bench.master_url}"\n')
    words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "verify", NAME, "--json", "-c", str(config)]
    screen, terminal = pty.openpty()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal) as verifying:
        os.close(terminal)
        assert verifying.stdout is not None
        try:
            drawn = read_until(screen, b"1/2")
            verifying.send_signal(signal.SIGINT)
            lines = verifying.stdout.read().splitlines()
            assert verifying.wait(PATIENCE) == 130
        finally:
            verifying.kill()  # does nothing unless the test fails
    drawn += read_rest(screen)
    os.close(screen)
    assert b"/s" in drawn
    assert drawn.endswith(b"interrupted: not everything was compared\r\n")
    assert [json.loads(line)["path"] for line in lines] == ["one"]


def read_until(screen: int, text: bytes) -> bytes:
    """Read what a program writes on a terminal until this text is there."""
    found, end = b"", time.monotonic() + PATIENCE
    while text not in found:
        readable, _, _ = select.select([screen], [], [], max(0.0, end - time.monotonic()))
        assert readable, f"{text!r} is not there after {PATIENCE:.0f} s: {found!r}"
        found += os.read(screen, 1000)
    return found


def read_rest(screen: int) -> bytes:
    """Read what is left on a terminal that no program has open any more."""
    found = b""
    while True:
        try:
            part = os.read(screen, 1000)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return found
        if not part:
            return found
        found += part
