# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator setup` below a prefix, where any user may run it: what it makes, leaves and takes back."""

import json
import os
import pwd
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli import setup
from hgext.vcsreplicator.cli.setup import machine as written
from hgext.vcsreplicator.cli.setup.answers import choose_answers
from hgext.vcsreplicator.cli.setup.machine import RECORD, Machine
from hgext.vcsreplicator.cli.setup.plan import MakeFolder, WriteFile
from hgext.vcsreplicator.cli.setup.repositories import Examination, Problem, ProblemKind
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.words.errors import BadConfig, Refused
from testing.faults.system import System


def run(prefix: Path, *words: str, answers: str = "") -> Result:
    arguments = ["setup", "--prefix", str(prefix), "--url", "https://hg.example/", *words]
    return CliRunner().invoke(program, arguments, input=answers, catch_exceptions=True)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything in a folder."""
    return {
        str(path.relative_to(folder)): (os.stat(path).st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_a_dry_run_shows_every_file_and_changes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--dry-run")
    assert done.exit_code == 0
    assert "write /etc/vcsreplicator.toml\n    # Written by" in done.output
    assert "install -d -o hg -g hg -m 2775 /repos\n" in done.output
    assert "ExecStart=" in done.output
    assert snapshot(tmp_path) == {}


def test_a_developer_without_an_account_is_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Machine().find_unknown(("root", "no-such-account")) == ["no-such-account"]
    assert Machine(str(tmp_path)).find_unknown(("no-such-account",)) == []
    monkeypatch.setattr(Machine, "find_unknown", lambda self, accounts: list(accounts))  # as without the prefix
    refused = run(tmp_path, "--yes", "--developer", "dana")
    assert str(refused.exception) == "setup: --developer: there is no account dana: make it first"
    assert snapshot(tmp_path) == {}


def test_a_second_run_changes_nothing_and_says_so(tmp_path: Path) -> None:
    assert run(tmp_path, "--yes").exit_code == 0
    made = snapshot(tmp_path)
    assert stat.S_IMODE(made["repos"][0]) == 0o2775
    assert stat.S_IMODE(made["usr/local/bin/hg"][0]) == 0o755
    again = run(tmp_path, "--yes")
    assert "nothing to do" in again.output
    assert "add --replace" not in again.output
    assert snapshot(tmp_path) == made


def test_what_systemd_and_the_services_need_is_left_to_the_operator(tmp_path: Path) -> None:
    left = [line for line in run(tmp_path, "--yes").output.splitlines() if line.startswith("left to you: ")]
    assert any("useradd" in line for line in left)
    assert "bootstrap alpha" in left[-4]
    assert "systemctl enable --now vcsreplicator-mirror@alpha" in left[-3]


def test_a_file_edited_by_hand_stays_until_replace_and_is_shown(tmp_path: Path) -> None:
    run(tmp_path, "--yes")
    file = tmp_path / "etc/vcsreplicator.toml"
    edited = f"{file.read_text()}# mine\n"
    file.write_text(edited)
    again = run(tmp_path, "--yes")
    assert "-# mine" in again.output
    assert "to do this, add --replace: write /etc/vcsreplicator.toml" in again.output
    assert file.read_text() == edited
    assert run(tmp_path, "--yes", "--replace").exit_code == 0
    assert "# mine" not in file.read_text()


def test_other_answers_rewrite_the_files_that_setup_wrote_itself(tmp_path: Path) -> None:
    run(tmp_path, "--yes")
    assert run(tmp_path, "--yes", "--copies", "/data/alpha").exit_code == 0
    assert 'root = "/data/alpha"' in (tmp_path / "etc/vcsreplicator.toml").read_text()
    assert run(tmp_path, "--yes").exit_code == 0
    assert 'root = "/data/alpha"' in (tmp_path / "etc/vcsreplicator.toml").read_text()


def test_undo_takes_back_what_was_made_and_no_repository_or_data(tmp_path: Path) -> None:
    run(tmp_path, "--yes")
    (tmp_path / "repos/first").mkdir()
    (tmp_path / "var/lib/vcsreplicator/log.db").touch()
    hgrc = tmp_path / "etc/mercurial/mirror.hgrc"
    hgrc.write_text("[web]\n")
    undone = run(tmp_path, "--undo", "--yes")
    assert undone.exit_code == 0
    assert "left: file /etc/mercurial/mirror.hgrc: it was changed since" in undone.output
    assert "left: folder /repos: it is not empty" in undone.output
    assert not (tmp_path / "etc/systemd/system/vcsreplicator-relay.service.d").exists()
    kept = {path for path, (mode, _) in snapshot(tmp_path).items() if stat.S_ISREG(mode)}
    assert kept == {"etc/mercurial/mirror.hgrc", "etc/vcsreplicator/setup.json", "var/lib/vcsreplicator/log.db"}
    assert (tmp_path / "repos/first").is_dir()
    hgrc.unlink()
    (tmp_path / "repos/first").rmdir()
    (tmp_path / "var/lib/vcsreplicator/log.db").unlink()
    run(tmp_path, "--undo", "--yes")
    assert "nothing to undo" in run(tmp_path, "--undo", "--yes").output
    assert not (tmp_path / "repos").exists()
    assert not (tmp_path / "etc/vcsreplicator").exists()


def test_undo_leaves_what_was_there_before_setup(tmp_path: Path) -> None:
    there = tmp_path / "repos"
    there.mkdir(mode=0o755)
    run(tmp_path, "--yes", "--fix")
    assert stat.S_IMODE(there.stat().st_mode) == 0o2775
    run(tmp_path, "--undo", "--yes")
    assert there.is_dir()


def test_undo_leaves_a_user_who_owns_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "--yes")
    machine = Machine(str(tmp_path))
    owner = (tmp_path / "repos").owner()
    machine.made.clear()
    machine.made[f"user {owner}"] = ""
    monkeypatch.setattr(written, "_run", lambda words: pytest.fail(f"ran {words}"))
    said: list[str] = []
    machine.undo(said.append)
    assert said == [f"left: user {owner}: it owns folders that are left"]


@pytest.mark.parametrize("step", [0, 4, 9, 20])
def test_a_setup_killed_at_a_step_is_finished_by_the_next_and_undone(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    run(whole, "--yes")
    real, done = Machine.perform, list[Any]()

    def perform(machine: Machine, wanted: Any) -> None:
        done.append(wanted)
        if len(done) > step:
            raise KeyboardInterrupt
        real(machine, wanted)

    cut = tmp_path / "cut"
    with monkeypatch.context() as killed:
        killed.setattr(Machine, "perform", perform)
        assert run(cut, "--yes").exit_code != 0
    assert run(cut, "--yes").exit_code == 0
    assert snapshot(cut) == snapshot(whole)
    run(cut, "--undo", "--yes")
    assert not [path for path, (mode, _) in snapshot(cut).items() if stat.S_ISREG(mode)]


def test_what_setup_begins_to_write_is_on_record_before(tmp_path: Path, system: System) -> None:
    """A kill between the file and its record would leave a file that undo does not know."""
    seen: list[str] = []

    def read_record(_path: str) -> None:
        seen.extend(json.loads((tmp_path / RECORD[1:]).read_text())["made"])

    system.watch(read_record, "os.open", at=f"{tmp_path}/etc/*x*")
    Machine(str(tmp_path)).perform(WriteFile("/etc/x", "text"))
    assert seen == ["file /etc/x"]


def test_without_yes_setup_asks_and_does_nothing_on_a_no(tmp_path: Path) -> None:
    answers = "one-machine\n/data/hg\n/data/alpha\nbeta\nsqlite:///var/lib/vcsreplicator/log.db\nnone\nn\n"
    asked = run(tmp_path, answers=answers)
    assert asked.exit_code != 0
    assert "install -d -o hg -g hg -m 2775 /data/hg" in asked.output
    assert re.search(r"Continue with \d+ steps\?", asked.output)
    assert snapshot(tmp_path) == {}


def test_a_record_that_setup_did_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc/vcsreplicator").mkdir(parents=True)
    (tmp_path / RECORD[1:]).write_text("[]")
    refused = run(tmp_path, "--yes").exception
    assert isinstance(refused, BadConfig)
    assert str(refused).startswith(f"{tmp_path}{RECORD}: ")


def test_setup_of_a_machine_is_roots(monkeypatch: pytest.MonkeyPatch, system: System) -> None:
    system.become(1000)
    # Should nothing refuse, a test that root runs must not set up the machine.
    monkeypatch.setattr(Machine, "perform", lambda self, step: pytest.fail(f"performed {step}"))
    refused = CliRunner().invoke(program, ["setup", "--yes"]).exception
    assert isinstance(refused, Refused)
    assert "expected to run as root" in str(refused)


def test_programs_that_other_users_cannot_reach_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(setup.sys, "executable", str(closed / "bin/python"))
    refused = run(tmp_path / "host", "--yes").exception
    assert isinstance(refused, BadConfig)
    assert "install in /opt/vcsreplicator" in str(refused)


def settle(folder: Path, kind: ProblemKind, *, is_fixed: bool) -> bool:
    """Whether setup gives rights on a host with one repository that has this problem."""
    problem = Problem(kind=kind, reason="x", folders=("/repos/a",))
    examined = Examination(folders=("/repos/a",), size=0, problems=(problem,))
    answers = choose_answers({}, {}, "hg.example", None)
    return setup._settle_rights(Machine(str(folder)), answers, examined, is_fixed=is_fixed, may_ask=False)


def test_setup_gives_no_rights_unless_it_may(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="rights are missing"):
        settle(tmp_path, ProblemKind.RIGHTS, is_fixed=False)
    assert settle(tmp_path, ProblemKind.RIGHTS, is_fixed=True)
    assert not settle(tmp_path, ProblemKind.FORMAT, is_fixed=False)


def test_a_name_that_no_mirror_can_copy_stops_setup(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="rename them first"):
        settle(tmp_path, ProblemKind.UNSERVED, is_fixed=True)


def test_ssh_is_asked_about_the_port_of_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def succeeds(words: tuple[str, ...], user: str) -> bool:
        asked.append(words[2])
        return words[-1] == "/etc/ssh/ssh_known_hosts"

    monkeypatch.setattr(setup, "succeeds", succeeds)
    assert setup.knows_master("ssh://hg-mirror@master.example:2222//repos", "/data/hg")
    assert asked == ["[master.example]:2222"] * 2


@pytest.mark.parametrize(("full", "expected"), [("hg.example", "hg.example"), ("localhost.localdomain", "vm")])
def test_a_machine_is_not_named_as_its_loopback(full: str, expected: str, tmp_path: Path, system: System) -> None:
    system.name_machine("vm", full)
    run(tmp_path, "--yes")
    assert f'source = "hg://{expected}"' in (tmp_path / "etc/vcsreplicator.toml").read_text()


@pytest.mark.parametrize("there", ["link", "link to nothing", "file"])
def test_a_link_in_place_of_a_folder_is_named_and_not_followed(there: str, tmp_path: Path) -> None:
    """The user of the services may have put it below a folder of its own."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "root/var/lib/vcsreplicator"
    folder.parent.mkdir(parents=True)
    if there == "link":
        elsewhere.mkdir(0o700)
    if there == "file":
        folder.touch()
    else:
        folder.symlink_to(elsewhere)
    refused = run(tmp_path / "root", "--yes", "--fix")
    assert isinstance(refused.exception, Refused)
    assert str(refused.exception).startswith(f"setup: {folder}: ")
    assert str(refused.exception).endswith("expected a folder, not a link; move it away, then repeat setup")
    assert not elsewhere.exists() or stat.S_IMODE(elsewhere.stat().st_mode) == 0o700


def test_setup_follows_no_link_above_a_folder_that_others_may_have_made(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "prefix/own").mkdir(parents=True, mode=0o755)
    (tmp_path / "prefix/own").chmod(0o755)
    (tmp_path / "prefix/shared").mkdir()
    (tmp_path / "prefix/shared").chmod(0o777)
    for folder in ("own", "shared"):
        (tmp_path / "prefix" / folder / "link").symlink_to(tmp_path / "elsewhere")
    machine = Machine(str(tmp_path / "prefix"))
    machine.perform(MakeFolder("/own/link/followed", "hg", 0o755))
    with pytest.raises(Refused, match="expected a folder, not a link"):
        machine.perform(MakeFolder("/shared/link/made", "hg", 0o755))
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["followed"]


def test_a_link_in_place_of_a_folder_ends_no_undo(tmp_path: Path) -> None:
    run(tmp_path, "--yes")
    folder = tmp_path / "var/lib/vcsreplicator"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    undone = run(tmp_path, "--undo", "--yes")
    assert undone.exit_code == 0
    assert "left: folder /var/lib/vcsreplicator: Not a directory" in undone.output
    assert not (tmp_path / "etc/mercurial").exists()
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.parametrize("kind", ["pipe", "link", "other"])
def test_setup_reads_no_pipe_and_no_link_in_place_of_a_public_key(kind: str, tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519.pub"
    key.write_text("ssh-ed25519 AAAA hg@mirror\n")
    assert setup.read_public_key(str(key)) == "ssh-ed25519 AAAA hg@mirror"
    key.rename(tmp_path / "secret")
    if kind == "pipe":
        os.mkfifo(key)
    elif kind == "link":
        key.symlink_to(tmp_path / "secret")
    else:
        key.write_text("root:$y$secret:1:0:::::\n")
    with pytest.raises(Refused, match=r"expected a public key.*then repeat setup") as refused:
        setup.read_public_key(str(key))
    assert "secret:1" not in str(refused.value)


def test_a_command_of_another_user_has_no_terminal_of_roots() -> None:
    name = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid)
    rights = written._as_user(name)
    code = "import os; print(os.getsid(0) == os.getpid())"
    own = {"start_new_session": rights["start_new_session"]}  # the rights themselves only root could give
    assert subprocess.check_output([sys.executable, "-c", code], **own) == b"True\n"
