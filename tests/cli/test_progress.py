# SPDX-License-Identifier: GPL-2.0-or-later
"""Bars of long verbs: on a terminal alone, with rate and time left, and nothing of them stays."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from hgext.vcsreplicator.cli import progress
from hgext.vcsreplicator.cli.progress import Meter, metered_log
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import EVENTS, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from testing.clock import HandClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    # pytest puts its own file into `sys` after the fixtures.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))
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
    assert terminal.getvalue().endswith("\r\x1b[K\x1b[?25h")


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = HandClock()
    with Meter("alpha", clock=clock.monotonic) as meter:
        clock.advance(5.0)
        meter.show(1, 2)
    assert capsys.readouterr() == ("", "")


def test_reading_a_log_shows_how_far_it_is(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr("hgext.vcsreplicator.log.table.BATCH", 2)
    url = f"sqlite://{tmp_path}/log.db"
    with open_log(url) as log:
        log.create(topics(partitions=1))
        log.append([NewRecord(topic=EVENTS, key="x", value=b"") for _ in range(5)])
    (tmp_path / "x.toml").write_text(f'log = "{url}"\n')
    with metered_log(load(str(tmp_path / "x.toml"))) as log:
        records = list(read_records(log, find_beginnings(log, EVENTS)))
    assert len(records) == 5
    assert "2/5" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K\x1b[?25h")
