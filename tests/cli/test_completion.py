# SPDX-License-Identifier: GPL-2.0-or-later
"""What the shell completes after a verb: names of the services' file, and nothing where it cannot be read."""

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from hgext.vcsreplicator.cli.verbs import program

TEXT = """
log = "kafka://127.0.0.1:1"

[mirror.alpha]
root = "/a"

[mirror.beta]
root = "/b"

[notifier]
state = "/n"

[notifier.lines]
type = "jsonlines"

[notifier.hooks]
type = "webhook"

[notifier.hooks.subscriptions.release]
url = "https://one.example/"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "x.toml").write_text(TEXT)
    monkeypatch.setenv("VCSREPLICATOR_CONFIG", str(tmp_path / "x.toml"))
    return tmp_path / "x.toml"


def completed(line: str) -> list[str]:
    """What the shell offers for the last word of a line."""
    *words, last = line.split(" ")
    complete = BashComplete(program, {}, "vcsreplicator", "_VCSREPLICATOR_COMPLETE")
    return [item.value for item in complete.get_completions(words, last)]


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("mirror ", ["alpha", "beta"]),
        ("mirror b", ["beta"]),
        ("roster deactivate a", ["alpha"]),
        ("roster remove ", ["alpha", "beta"]),
        ("bootstrap al", ["alpha"]),
        ("verify alpha ", ["beta"]),
        ("heal ", ["alpha", "beta"]),
        ("destination pause ", ["hooks", "lines"]),
        ("replay --to l", ["lines"]),
        ("subscription pause --destination ", ["hooks"]),
        ("subscription pause ", ["release"]),
        ("deliveries list --subscription r", ["release"]),
        ("mirror z", []),
    ],
)
def test_a_name_is_completed_from_the_file(line: str, names: list[str]) -> None:
    assert completed(line) == names


def test_the_file_that_the_line_names_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VCSREPLICATOR_CONFIG")
    assert completed(f"heal -c {file} al") == ["alpha"]


@pytest.mark.parametrize("text", ["", "log = ", 'log = "x"\nmirror = 3\n', "moon = 1\n", "[notifier]\nx = 1\n", None])
def test_a_file_that_is_of_no_use_completes_nothing(
    file: Path, text: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    file.unlink()
    if text is not None:
        file.write_text(text)
    for line in ("mirror ", "destination pause ", "subscription remove ", "deliveries list --destination "):
        assert completed(line) == []
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A master's folder with a prefix, and a mirror's, with repositories at several depths."""
    for path in ("master/one/.hg", "master/team/deep/only/.hg", "mirror/team/red/.hg", "mirror/team/room/blue/.hg"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "mirror" / ".set-aside" / "gone" / ".hg").mkdir(parents=True)
    (tmp_path / "x.toml").write_text(
        f'log = "kafka://127.0.0.1:1"\n[relay]\nsource = "hg://m"\nsocket = "/s"\nroots = {{ "{tmp_path}/master" = "group/" }}\n'
        f'[mirror.alpha]\nroot = "{tmp_path}/mirror"\n'
    )
    monkeypatch.setenv("VCSREPLICATOR_CONFIG", str(tmp_path / "x.toml"))
    return tmp_path


@pytest.mark.usefixtures("roots")
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("trace ", ["group/", "team/"]),
        ("trace g", ["group/one", "group/team/"]),
        ("trace group/t", ["group/team/deep/only"]),
        ("trace team/r", ["team/red", "team/room/"]),
        ("heal alpha team/red team/r", ["team/room/"]),
        ("forget team/room/", ["team/room/blue"]),
        ("roster deactivate alpha --repository team/red", ["team/red"]),
        ("verify -r group/one", ["group/one"]),
        ("trace ../", []),
        ("trace nowhere/x", []),
    ],
)
def test_a_repository_is_completed_from_the_folders_of_this_machine(line: str, names: list[str]) -> None:
    assert completed(line) == names
