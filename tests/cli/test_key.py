# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator key`: makes a key once, another one when asked, and never shows the private one."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.keys.pairs import read_keys
from hgext.vcsreplicator.mirror.seals import KEY_FILE


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "services.toml"
    file.write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[mirror.alpha]\nroot = "{tmp_path}/root"\n'
        f'[aggregator]\nkey = "{tmp_path}/keys/aggregator"\n'
    )
    return file


def key(config: Path, *words: str) -> Result:
    return CliRunner().invoke(program, ["key", *words, "-c", str(config)])


@pytest.mark.parametrize(
    ("name", "file"), [("alpha", f"root/~vcsreplicator/{KEY_FILE}"), ("aggregator", "keys/aggregator")]
)
def test_a_key_is_made_once_and_another_one_when_asked(config: Path, tmp_path: Path, name: str, file: str) -> None:
    first, again, new = key(config, name), key(config, name), key(config, name, "--new")
    assert [each.exit_code for each in (first, again, new)] == [0] * 3
    assert first.output == again.output != new.output
    assert [f"{pair.public}\n" for pair in read_keys(tmp_path / file)] == [new.output, first.output]


def test_a_mirror_without_a_section_has_no_key(config: Path) -> None:
    done = key(config, "beta")
    assert done.exit_code != 0
    assert "mirror.beta" in str(done.exception)


def test_an_aggregator_without_a_file_for_its_key_gets_none(config: Path) -> None:
    config.write_text(config.read_text().partition("[aggregator]")[0])
    done = key(config, "aggregator")
    assert "aggregator.key: expected a file for the aggregator's keys, got none" in str(done.exception)


def test_a_relative_file_for_the_key_of_an_aggregator_is_refused(config: Path) -> None:
    config.write_text(config.read_text().partition("[aggregator]")[0] + '[aggregator]\nkey = "here"\n')
    assert "aggregator.key: expected an absolute path, got 'here'" in str(key(config, "aggregator").exception)
