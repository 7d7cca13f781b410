# SPDX-License-Identifier: GPL-2.0-or-later
"""The section `[edge]`: every mistake is one line with file, key and what was expected."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import notifier.services.edge
from hgext.vcsreplicator import service
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import check_message
from hgext.vcsreplicator.words.errors import BadConfig
from notifier.messages.raw import RawMessage, to_record
from notifier.services.edge.settings import HEAD_BYTES, LARGEST_BODY, EdgeSettings

FILE = 'log = "sqlite:///nowhere/log.db"\n'


def read(folder: Path, section: str) -> EdgeSettings:
    (folder / "c.toml").write_text(f"{FILE}[edge]\n{section}\n")
    return load(folder / "c.toml").settings(EdgeSettings, "edge")


def test_all_keys_but_the_address_have_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, 'listen = "a:1"') == EdgeSettings(listen="a:1")
    assert EdgeSettings(listen="a:1").topic == "raw"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("", "edge: key 'listen' is missing"),
        ('listen = "a:1"\nport = 80', "edge: unknown key 'port'"),
        ('listen = "a:1"\nmax_body_bytes = 1', "edge: unknown key 'max_body_bytes', expected 'max-body-bytes'"),
        ('listen = "a:1"\nqueue = "relative"', "edge.queue: expected an absolute path, got 'relative'"),
        ('listen = "a:1"\noutput = "amqp://x"', "edge.output: expected log:NAME, got 'amqp://x'"),
        ('listen = "a:1"\noutput = "log:events"', "edge.output: expected a topic of its own"),
        ('listen = "a:1"\nmax-body-bytes = 0', "edge.max-body-bytes: expected a number of bytes from 1 to"),
        (
            f'listen = "a:1"\nmax-body-bytes = {LARGEST_BODY + 1}',
            "edge.max-body-bytes: expected a number of bytes from 1 to",
        ),
        ('listen = "a:1"\nbody-timeout = "30"', "edge.body-timeout: expected a number of seconds, got '30'"),
        ('listen = "a:1"\nwithout-id = ["x/y"]', "edge.without-id: expected <namespace>.<type>, got 'x/y'"),
        ('listen = "a:1"\nreserved = ["x"]', "edge.reserved: expected <namespace>.<type>, got 'x'"),
        ('listen = "a:1"\nwithout-id = "x.y"', "edge.without-id: expected a list, got 'x.y'"),
    ],
)
def test_a_mistake_names_file_key_and_what_was_expected(tmp_path: Path, section: str, expected: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read(tmp_path, section)
    assert str(caught.value).startswith(f"{tmp_path}/c.toml: {expected}")
    assert "\n" not in str(caught.value)


def test_the_log_takes_the_largest_body_with_the_largest_head() -> None:
    names = ("uri", "args", "user_agent", "x_forwarded_for", "x_debug_id")
    head = dict.fromkeys(names, "\u00ff" * (HEAD_BYTES // len(names)))
    check_message(to_record(RawMessage(b"\xff" * LARGEST_BODY, head), "raw"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('listen = "127.0.0.1:8000"\n[listen]\nedge = "127.0.0.1:9105"', "all sections are correct"),
        ('listen = "8000"', "edge.listen: expected host:port, got '8000'"),
        ('listen = "a:1"\nlog-timeout = 0', "edge.log-timeout: expected a number of seconds from 0.1 to 60, got 0.0"),
    ],
)
def test_config_check_reads_the_section(tmp_path: Path, section: str, said: str) -> None:
    (tmp_path / "c.toml").write_text(f"{FILE}[edge]\n{section}\n")
    result = CliRunner().invoke(program, ["config", "check", "--config", str(tmp_path / "c.toml")])
    assert f"{tmp_path}/c.toml: {said}" in f"{result.output}{result.exception}"


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for package, module in (notifier.services.edge, "server"), (service, "asgi"):
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{module}", raising=False)
        monkeypatch.delattr(package, module, raising=False)
    (tmp_path / "c.toml").write_text(f'{FILE}[edge]\nlisten = "127.0.0.1:1"\n')
    result = CliRunner().invoke(program, ["edge", "--config", str(tmp_path / "c.toml")])
    assert isinstance(result.exception, BadConfig)
    assert (
        str(result.exception)
        == f"uvicorn is not installed; in a checkout run: {sys.executable} -m pip install '.[edge]'"
    )
