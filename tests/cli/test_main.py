# SPDX-License-Identifier: GPL-2.0-or-later
"""What the console command does with an error that a verb did not expect."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator import cli
from hgext.vcsreplicator.cli import verbs
from hgext.vcsreplicator.words.errors import Refused
from testing.faults.system import System


def end_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code after a verb that raises this."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(verbs.program, "main", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(str(ended.value.code))


def test_a_file_that_the_user_may_not_see_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/notifier.db")
    assert end_with(error, monkeypatch) == 2
    assert capsys.readouterr().err == "vcsreplicator: /root/notifier.db: Permission denied\n"


def test_a_verb_that_needs_too_much_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_with(MemoryError(), monkeypatch) == 1
    assert capsys.readouterr().err == "vcsreplicator: more memory is needed than this process may use\n"


def test_a_file_of_another_user_names_the_owner_to_run_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() == 0:  # root owns what may belong to no service
        os.chown(tmp_path, 1, -1)
    owner, missing = tmp_path.owner(), tmp_path / "~vcsreplicator" / "worker.17"
    system.become(4711)
    for named in (str(missing), os.fsencode(missing)):
        assert end_with(PermissionError(errno.EACCES, "Permission denied", named), monkeypatch) == 2
        said = f"vcsreplicator: {missing}: Permission denied; run it as its owner: sudo -u {owner} ...\n"
        assert capsys.readouterr().err == said
    assert end_with(PermissionError("no file is named"), monkeypatch) == 2
    assert capsys.readouterr().err == "vcsreplicator: no file is named\n"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("chekc", "No such command 'chekc'. Did you mean 'check'?"),
        ("destinations", "No such command 'destinations'. Did you mean 'destination'?"),
        ("zzz", "No such command 'zzz'."),
    ],
)
def test_a_misspelt_verb_is_told_the_nearest(typed: str, told: str) -> None:
    ended = CliRunner().invoke(verbs.program, [typed])
    assert ended.exit_code == 2
    assert told in ended.stderr


def test_a_misspelt_verb_below_errors_is_told_the_nearest() -> None:
    ended = CliRunner().invoke(verbs.program, ["errors", "lis"])
    assert ended.exit_code == 2
    assert "No such command 'lis'. Did you mean 'list'?" in ended.stderr


def test_no_error_of_a_verb_writes_a_control_character_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_with(Refused("no event;\nrelay \x1b]0;x\a was last seen"), monkeypatch) == 2
    assert capsys.readouterr().err == "vcsreplicator: no event;\nrelay \\x1b]0;x\\x07 was last seen\n"


def test_a_mistake_of_ours_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError):
        end_with(IsADirectoryError(errno.EISDIR, "a bug"), monkeypatch)


def test_the_help_shows_each_verb_once_in_its_group_within_80_columns() -> None:
    shown = CliRunner().invoke(verbs.program, ["--help"], terminal_width=80).stdout.splitlines()
    groups = [line for line in shown if line.endswith(":") and not line.startswith((" ", "Usage", "Options"))]
    assert groups == ["Try it:", "Install:", "Services:", "Operators:", "Notices:", "Other services:"]
    listed = [line.split()[0] for line in shown[shown.index("Try it:") :] if line.startswith("  ")]
    assert listed == list(verbs.VERBS)
    assert max(map(len, shown)) <= 80


@pytest.mark.processes
def test_only_services_with_values_of_all_repositories_collect_rarely() -> None:
    program = (
        "import gc\nfrom hgext.vcsreplicator.cli import verbs\ntry: verbs.run()\nfinally: print(gc.get_threshold()[0])"
    )

    def threshold_of(verb: str) -> int:
        words = [sys.executable, "-c", program, verb, "--nonsense"]
        return int(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout)

    assert {threshold_of(verb) for verb in ("mirror", "aggregator", "dashboard")} == {20_000}
    # It opens repositories: a dropped one is a cycle that holds its whole index.
    assert threshold_of("relay") < 20_000
