# SPDX-License-Identifier: GPL-2.0-or-later
"""Bars of long verbs: on a terminal alone, with rate and time left, and nothing of them stays."""

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click.testing
import pytest

from hgext.vcsreplicator.cli import progress, status, verify
from hgext.vcsreplicator.cli.progress import Meter, metered_log
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import EVENTS, Log, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.mirror import MirrorSettings
from hgext.vcsreplicator.mirror.jobs.verify import Round
from notifier.destinations.state import StateDatabase
from testing.builders.notifier.notifying import FILE
from testing.clock import HandClock

ERASED = "\r\x1b[K\x1b[?25h"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def draw_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Have bars drawn there; pytest puts its own file into `sys` after the fixtures."""
    return lambda stream: monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))


@pytest.fixture
def terminal(draw_on: Callable[[object], None]) -> Terminal:
    terminal = Terminal()
    draw_on(terminal)
    return terminal


def test_a_bar_has_the_rate_and_the_time_left(terminal: Terminal) -> None:
    clock = HandClock()
    with Meter("alpha", clock=clock.monotonic) as meter:
        clock.advance(10.0)
        meter.show(20, 100)
    drawn = terminal.getvalue()
    assert "alpha" in drawn
    assert "20/100" in drawn
    assert "2.0/s" in drawn
    assert "00:00:40" in drawn


def test_a_bar_shows_neither_what_ends_soon_nor_each_step(terminal: Terminal) -> None:
    clock = HandClock()
    with Meter("alpha", clock=clock.monotonic) as meter:
        clock.advance(0.9)
        meter.show(1, 100)
        assert terminal.getvalue() == ""
        clock.advance(0.2)
        meter.show(2, 100)
        drawn = terminal.getvalue()
        meter.show(3, 100)
        assert terminal.getvalue() == drawn


def be_interrupted() -> None:
    clock = HandClock()
    with Meter("alpha", clock=clock.monotonic) as meter:
        clock.advance(5.0)
        meter.show(1, 2)
        raise KeyboardInterrupt


def test_nothing_of_a_bar_stays_whatever_ends_the_work(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert "1/2" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASED)


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = HandClock()
    with Meter("alpha", clock=clock.monotonic) as meter:
        clock.advance(5.0)
        meter.show(1, 2)
    assert capsys.readouterr() == ("", "")


def write_log(folder: Path, count: int) -> Path:
    """Write a log with this many events; return the file that names it."""
    url, file = f"sqlite://{folder}/log.db", folder / "x.toml"
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
        log.append([NewRecord(topic=EVENTS, key="x", value=b"") for _ in range(count)])
    file.write_text(f'log = "{url}"\n')
    return file


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar appears at once, and a log is read two records at a time."""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr("hgext.vcsreplicator.log.table.BATCH", 2)


@pytest.mark.usefixtures("in_steps")
def test_reading_a_log_shows_how_far_it_is(terminal: Terminal, tmp_path: Path) -> None:
    with metered_log(load(str(write_log(tmp_path, 5)))) as log:
        records = list(read_records(log, find_beginnings(log, EVENTS)))
    assert len(records) == 5
    assert "2/5" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASED)


@pytest.mark.usefixtures("in_steps")
def test_a_reader_closed_early_leaves_nothing_before_the_next_line(terminal: Terminal, tmp_path: Path) -> None:
    with metered_log(load(str(write_log(tmp_path, 5)))) as log:
        with closing(log.reader(find_beginnings(log, EVENTS))) as reader:
            assert len(reader.poll(0.0, limit=2)) == 2
            assert "2/5" in terminal.getvalue()
        assert terminal.getvalue().endswith(ERASED)


def read_events(log: Log) -> None:
    list(read_records(log, find_beginnings(log, EVENTS)))


@pytest.mark.usefixtures("in_steps")
def test_a_comparison_shows_how_far_it_has_read_the_log(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(_settings: MirrorSettings, log: Log, *_: object, **_more: object) -> Round:
        read_events(log)
        return Round(left_out=0, undone=0)

    assert "2/5" in draw(terminal, tmp_path, monkeypatch, verify.verify, "compare", compare, "verify")


@pytest.mark.usefixtures("in_steps")
def test_a_watched_status_shows_how_far_it_has_read_the_log(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(log: Log) -> io.StringIO:
        read_events(log)
        raise KeyboardInterrupt

    assert "2/5" in draw(terminal, tmp_path, monkeypatch, status, "Follower", follow, "status", "--watch")


def draw(
    terminal: Terminal, folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, read: Any, *words: str
) -> str:
    """Run a verb that reads five events with `read`, which takes a name's place; return what it drew."""
    monkeypatch.setattr(module, name, read)
    file = write_log(folder, 5)
    with file.open("a") as text:
        text.write(f'[mirror.alpha]\nroot = "{folder}"\nmaster = "http://127.0.0.1/"\n')
    click.testing.CliRunner().invoke(program, [*words, "-c", str(file)], catch_exceptions=False)
    return terminal.getvalue()


@pytest.mark.processes
def test_a_verb_reads_the_log_while_standard_error_is_closed(tmp_path: Path) -> None:
    file = write_log(tmp_path, 0)
    words = f"exec {sys.executable} -P -m hgext.vcsreplicator.cli errors list -c {file} 2>&-"
    done = subprocess.run(["/bin/sh", "-c", words], stdout=subprocess.PIPE, check=False, text=True)
    assert (done.returncode, done.stdout) == (0, "no errors\n")


class Screen:
    """A terminal on which standard error and what a verb prints appear together."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()


@pytest.mark.usefixtures("in_steps")
def test_a_replay_prints_its_result_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw_on: Callable[[object], None]
) -> None:
    draw_on(Screen())
    file = tmp_path / "services.toml"
    file.write_text(FILE.format(folder=tmp_path))
    StateDatabase(f"{tmp_path}/notifier.db").close()

    def end(state: StateDatabase, destination: str, number: int) -> tuple[int, int]:
        """Carry the request out at once, while the verb has seen a fourth of it."""
        state.requests.answer(number, "sent 4 messages again", now=0.0)
        return 1, 4

    monkeypatch.setattr(StateDatabase, "replay_of", end)
    words = ["replay", "--repository", "x", "--to", "lines", "--since", "1", "-c", str(file)]
    done = click.testing.CliRunner().invoke(program, words, catch_exceptions=False)
    assert "1/4" in done.stdout
    assert done.stdout.endswith(f"{ERASED}lines: sent 4 messages again\n")
