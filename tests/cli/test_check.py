# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check` on a master: what waits in the outboxes, by the relay's report or, while it is silent, by itself."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import program
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.relay.lacking import write_report
from hgext.vcsreplicator.status.findings import Finding


@pytest.fixture
def master(tmp_path: Path) -> Path:
    """A master with one repository, whose outbox cannot be read."""
    store = tmp_path / "repos" / "one" / ".hg" / "store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    (store / "outbox.0001.log").write_bytes(b"damaged")
    (tmp_path / "relay.sock").touch()
    (tmp_path / "x.toml").write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[relay]\nsocket = "{tmp_path}/relay.sock"\nsource = "hg://master"\n'
        f'[relay.roots]\n"{tmp_path}/repos" = ""\n'
    )
    with open_log(f"sqlite://{tmp_path}/log.db") as log:
        log.create(topics())
    return tmp_path


def said(master: Path) -> tuple[int, str]:
    result = CliRunner().invoke(program, ["check", "--config", str(master / "x.toml")])
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_silent_relay_is_named_and_the_outboxes_are_read_in_its_place(master: Path) -> None:
    code, text = said(master)
    assert code == 2
    assert "the relay gives no sign of life" in text
    assert f"{master}/repos/one: its outbox cannot be read" in text


def test_what_a_running_relay_reports_is_said_and_no_outbox_is_read(master: Path) -> None:
    write_report(str(master / "relay.sock"), [Finding(level=2, text="red: events wait")], time.monotonic())
    text = said(master)[1]
    assert "red: events wait" in text
    assert "relay gives no sign" not in text
    assert "its outbox" not in text


def test_a_relay_that_has_nothing_to_report_adds_nothing(master: Path) -> None:
    write_report(str(master / "relay.sock"), [], time.monotonic())
    assert said(master)[1].count(";") == 0


@pytest.mark.parametrize("gone", ["repos", "repos/one/.hg/store/outbox.0001.log"], ids=["roots", "outboxes"])
def test_a_mirror_that_has_the_same_file_misses_no_relay(master: Path, gone: str) -> None:
    (master / gone).rename(master / "elsewhere")
    assert "relay" not in said(master)[1]
