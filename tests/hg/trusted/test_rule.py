# SPDX-License-Identifier: GPL-2.0-or-later
"""An account that may write a repository runs no code as another user by the repository's hgrc.

As root, files are given to another user, whom `[trusted]` names; else all are this user's, whom Mercurial trusts.
"""

import grp
import os
import pwd
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mercurial import error
from mercurial.ui import ui as Ui

from hgext.vcsreplicator.cli.setup.texts import write_script
from hgext.vcsreplicator.hg.bundles import RepositoryOpener
from hgext.vcsreplicator.hg.master.capture import read_hgrc
from hgext.vcsreplicator.hg.trusted import rule
from pushlog.store import regular
from testing.warm_hg import shared_hg

IS_ROOT = os.geteuid() == 0
OTHER = 54321 if IS_ROOT else os.geteuid()
TRUSTED = f"[trusted]\nusers = {OTHER}, root\n[ui]\nreport_untrusted = yes\n"
TEXT = "[x]\ny = z\n"


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """The folder `.hg` of a repository that accounts may write, as another user made it."""
    control = tmp_path / "repo/.hg"
    (control / "store").mkdir(parents=True)
    (control / "requires").write_text("revlogv1\nstore\n")
    (control / "store/00changelog.i").touch()
    for path in (tmp_path / "repo", control, control / "store", control / "requires"):
        os.chown(path, OTHER, -1)
        path.chmod(path.stat().st_mode | (0o020 if IS_ROOT else 0o022))  # a user's own group is no other user
    return control


def write(path: Path, text: str = TEXT, owner: int = OTHER, mode: int = 0o644) -> None:
    path.write_text(text)
    os.chown(path, owner, -1)
    path.chmod(mode)


def is_counted(control: Path) -> bool:
    rule.install()
    ui = Ui.load()
    ui.setconfig(b"trusted", b"users", b"%d, root" % OTHER)
    ui.readconfig(os.fsencode(control / "hgrc"))
    return ui.config(b"x", b"y") == b"z"


def test_an_hgrc_of_another_user_in_a_shared_folder_does_not_count(control: Path) -> None:
    write(control / "hgrc")
    assert not is_counted(control)


def test_an_hgrc_that_its_group_may_write_does_not_count(control: Path) -> None:
    control.chmod(0o755)
    write(control / "hgrc", mode=0o664)
    assert not is_counted(control)


def test_an_hgrc_of_an_accounts_own_folder_does_not_count(control: Path) -> None:
    control.chmod(0o755)
    if IS_ROOT:
        os.chown(control, OTHER + 1, -1)
    write(control / "hgrc")
    assert is_counted(control) is not IS_ROOT


@pytest.mark.parametrize("members", [[], ["mallory"]])
def test_a_group_of_the_owner_alone_shares_nothing(
    members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone of an account whose umask lets its own group write; Debian has a group for each user."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(rule, "_is_service", False)
    monkeypatch.setattr(grp, "getgrgid", lambda group: grp.struct_group((user, "x", group, members)))
    (tmp_path / ".hg").mkdir()
    (tmp_path / ".hg").chmod(0o775)
    write(tmp_path / ".hg/hgrc", owner=os.geteuid(), mode=0o664)
    assert is_counted(tmp_path / ".hg") is (not members)


def test_roots_hgrc_in_a_shared_folder_counts(control: Path) -> None:
    write(control / "hgrc", owner=os.geteuid())
    assert is_counted(control) is IS_ROOT


def test_no_file_of_roots_counts_by_a_link(control: Path) -> None:
    """Accounts can give some content: the command line of a process that none may trace."""
    write(control.parent.parent / "of-root", owner=os.geteuid())
    (control / "hgrc").symlink_to(control.parent.parent / "of-root")
    assert not is_counted(control)


def test_the_hgrc_of_a_folder_of_its_owner_counts_also_by_a_link(control: Path) -> None:
    control.chmod(0o755)
    write(control / "own")
    (control / "hgrc").symlink_to("own")
    assert is_counted(control)


@pytest.mark.parametrize("name", ["own", "shared/other"])
def test_a_trusted_hgrc_includes_no_file_that_accounts_may_have_written(name: str, control: Path) -> None:
    control.chmod(0o755)
    (control / "shared").mkdir()
    (control / "shared").chmod(0o777)
    write(control / name)
    write(control / "hgrc", f"%include {name}\n")
    if name == "own":
        assert is_counted(control)
        return
    with pytest.raises(error.ConfigError, match="not trusted"):
        is_counted(control)


@pytest.mark.parametrize("text", ["", "%include ../../key\n", "%include requires/$A_KEY\n"])
def test_no_line_that_an_untrusted_hgrc_names_is_shown(
    text: str, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its warning goes to the client of a server over SSH."""
    monkeypatch.setenv("A_KEY", "secret")
    key = control.parent.parent / "key"
    write(key, "secret\n")
    if text:
        write(control / "hgrc", text)
    else:
        (control / "hgrc").symlink_to(key)
    assert (
        read_warnings(control)
        == f"ignored {control}/hgrc: it is not trusted, so expected settings alone, and no %include\n"
    )


def read_warnings(control: Path) -> str:
    rule.install()
    ui = Ui.load()
    ui.setconfig(b"ui", b"report_untrusted", False)
    ui.pushbuffer(error=True)
    ui.readconfig(os.fsencode(control / "hgrc"))
    return os.fsdecode(ui.popbuffer())


def test_the_refusal_to_replicate_an_hgrc_quotes_no_line_of_it(control: Path) -> None:
    write(control.parent.parent / "key", "secret\n")
    regular.install()
    repository = RepositoryOpener(skip_hgrc=False).open(str(control.parent))
    for text in ("secret\n", "%include ../../key\n"):
        write(control / "hgrc", text)
        with pytest.raises(error.ConfigError) as refusal:
            read_hgrc(repository)
        assert (refusal.value.location, b"secret" in refusal.value.message) == (os.fsencode(control / "hgrc"), False)


def test_no_process_of_ours_takes_settings_from_a_renamed_file(control: Path) -> None:
    write(control / "hgrc", mode=0o664)
    opener = RepositoryOpener(skip_hgrc=False)
    opener._ui.setconfig(b"trusted", b"users", b"%d" % OTHER)
    assert opener.open(str(control.parent)).ui.config(b"x", b"y") is None


@pytest.mark.processes
def test_the_extension_takes_no_settings_from_a_renamed_file(control: Path, tmp_path: Path) -> None:
    """Mercurial has loaded those extensions by then; hooks and settings of the repository are read again."""
    write(control / "hgrc", mode=0o664)
    (tmp_path / "site").write_text(
        f"{TRUSTED}[extensions]\n*:required = yes\nvcsreplicator =\n[vcsreplicator]\nrole = mirror\n"
    )
    command = [shared_hg(), "-R", str(control.parent), "config", "x.y"]
    done = subprocess.run(
        command, env=os.environ | {"HGRCPATH": str(tmp_path / "site")}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.processes
@pytest.mark.parametrize("way", ["the script", "a key"])
def test_a_push_runs_no_code_of_a_renamed_file(way: str, control: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n")
    (control / "requires").rename(control / "hgrc")
    write(control / "requires", "revlogv1\nstore\n")
    write(control / "hgrc", f"[extensions]\nevil = {tmp_path}/evil.py\n", mode=0o664)
    (tmp_path / "site").write_text(TRUSTED)
    words = ["hg", "-R", str(control.parent), "serve", "--stdio"]
    (tmp_path / "hg").write_text(write_script(os.path.dirname(sys.executable)))
    commands = {
        "the script": ["/bin/sh", str(tmp_path / "hg"), *words[1:]],
        "a key": [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "ssh", str(tmp_path)],
    }
    environment = os.environ | {"HGRCPATH": str(tmp_path / "site"), "SSH_ORIGINAL_COMMAND": shlex.join(words)}
    done = subprocess.run(commands[way], env=environment, input="hello\n", capture_output=True, text=True)
    assert "capabilities: " in done.stdout
    assert not (tmp_path / "loaded").exists()
    assert f"not trusting file {control}/hgrc: " in done.stderr
