# SPDX-License-Identifier: GPL-2.0-or-later
"""Heal requests: who asks is recorded, and shown with the result."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.requests import who
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.mirror.notes import Notes
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state

pytestmark = pytest.mark.processes

REPOSITORY = "a" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The services' file of a machine with the mirror alpha; the log knows the repository one."""
    (tmp_path / "x.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n[mirror.alpha]\nroot = "{tmp_path}/alpha"\n')
    state = some_state(repository=REPOSITORY, incarnation="i", path="one", generation=1, event="e", digest="d")
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
        log.append([NewRecord(topic=STATE, key=REPOSITORY, value=to_json(state))])
    Notes(notes_of(tmp_path)).close()
    return tmp_path / "x.toml"


def notes_of(folder: Path) -> Path:
    return folder / "alpha" / "~vcsreplicator" / "mirror.db"


def heal(file: Path, *words: str) -> str:
    done = CliRunner().invoke(program, ["heal", "alpha", *words, "-c", str(file)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_request_shows_who_asked_and_what_became_of_it(file: Path, tmp_path: Path) -> None:
    assert heal(file, "one", "--yes") == "one: alpha will copy it again within seconds\n"
    waiting = heal(file, "--requests").split()
    assert {who(), "one", "heal", "waiting"} <= {*waiting}
    with closing(Notes(notes_of(tmp_path))) as notes:
        [request] = notes.requests.list_open()
        notes.requests.answer(request.id, "healed", now=2.0)
    assert "healed" in heal(file, "--requests")
    [shown] = json.loads(heal(file, "--requests", "--json"))
    assert (shown["repository"], shown["who"], shown["kind"], shown["result"]) == (REPOSITORY, who(), "heal", "healed")


def test_showing_requests_asks_for_nothing(file: Path, tmp_path: Path) -> None:
    heal(file, "--requests")
    with closing(Notes(notes_of(tmp_path))) as notes:
        assert notes.requests.list_newest(5) == []


@pytest.mark.parametrize("words", [["one", "--requests"], ["--requests", "--yes"], ["one", "--json"]])
def test_words_that_do_nothing_together_are_refused(file: Path, tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(program, ["heal", "alpha", *words, "-c", str(file)])
    assert (done.exit_code, "--requests" in done.output) == (2, True)
    with closing(Notes(notes_of(tmp_path))) as notes:
        assert notes.requests.list_newest(5) == []
