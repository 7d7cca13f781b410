# SPDX-License-Identifier: GPL-2.0-or-later
"""What `config check` says of the rights of the user that runs it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.config_rights import report_rights
from hgext.vcsreplicator.config import load
from notifier.publishing.settings import DEFAULT_STATE
from testing.faults.system import System

FILE = """
log = "sqlite:///log.db"
blobs = "file://{folder}/blobs"
[mirror.alpha]
root = "{folder}/mirrored"
master-auth = "{folder}/master.hgrc"
blobs = "file://{folder}/shared%20blobs"
[notifier]
state = "{folder}/notifier.db"
[notifier.pulse]
type = "pulse"
password = {{ file = "{folder}/pulse.password" }}
[notifier.hooks.subscriptions.ci]
headers = {{ file = "x" }}
secrets = [{{ env = "X" }}, {{ file = "{folder}/ci.secret" }}]
[notifier.blobs]
type = "jsonlines"
file = "{folder}/lines"
"""


def said(tmp_path: Path, text: str = FILE) -> list[str]:
    """What is reported of this file."""
    file = tmp_path / "x.toml"
    file.write_text(text.format(folder=tmp_path))
    found: list[str] = []
    report_rights(load(file), found.append)
    return [line.replace(str(tmp_path), "FOLDER") for line in found]


@pytest.fixture(params=[1000])
def user(request: pytest.FixtureRequest, system: System) -> None:
    system.become(request.param)


AS_BOTH = pytest.mark.parametrize("user", [0, 1000], indirect=True)
AS_ROOT = pytest.mark.parametrize("user", [0], indirect=True)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, int], bool]], None]:
    """Has the user lack the rights for which `allows` is false; of root, who may run these tests, nothing is refused."""
    return lambda allows: monkeypatch.setattr(os, "access", allows)


Refuse = Callable[[Callable[[str, int], bool]], None]


def nothing(_path: str, _mode: int) -> bool:
    return False


def make_all(folder: Path) -> None:
    """Everything that the file names."""
    for name in ("blobs", "shared blobs", "mirrored"):
        (folder / name).mkdir()
    for name in ("pulse.password", "ci.secret", "master.hgrc"):
        (folder / name).touch(mode=0o600)


@pytest.mark.usefixtures("user")
def test_blobs_and_secrets_that_the_user_cannot_use_are_named(tmp_path: Path, refuse: Refuse) -> None:
    make_all(tmp_path)
    refuse(nothing)
    secret = "but the user of the service must"
    assert said(tmp_path) == [
        "FOLDER/x.toml: blobs: this user may not write to FOLDER/blobs, but the relay's user must",
        "FOLDER/x.toml: mirror.alpha.root: this user may not write to FOLDER/mirrored, but the mirror's user must",
        f"FOLDER/x.toml: mirror.alpha.master-auth: this user may not read FOLDER/master.hgrc, {secret}",
        "FOLDER/x.toml: mirror.alpha.blobs: this user may not read FOLDER/shared blobs, but the mirror's user must",
        "FOLDER/x.toml: notifier.state: this user may not write to FOLDER, but the notifier's user must",
        f"FOLDER/x.toml: notifier.pulse.password: this user may not read FOLDER/pulse.password, {secret}",
        f"FOLDER/x.toml: notifier.hooks.subscriptions.ci.secrets.1: this user may not read FOLDER/ci.secret, {secret}",
        "FOLDER/x.toml: notifier.blobs.file: this user may not write to FOLDER, but the notifier's user must",
    ]
    (tmp_path / "lines").touch()
    assert said(tmp_path)[-1].startswith(
        "FOLDER/x.toml: notifier.blobs.file: this user may not write to FOLDER/lines, "
    )


@pytest.mark.usefixtures("user")
def test_what_is_missing_is_named_but_what_the_relay_makes(tmp_path: Path) -> None:
    missing = "is missing, or this user may not see it"
    assert said(tmp_path) == [
        f"FOLDER/x.toml: mirror.alpha.master-auth: FOLDER/master.hgrc {missing}",
        f"FOLDER/x.toml: mirror.alpha.blobs: FOLDER/shared blobs {missing}",
        f"FOLDER/x.toml: notifier.pulse.password: FOLDER/pulse.password {missing}",
        f"FOLDER/x.toml: notifier.hooks.subscriptions.ci.secrets.1: FOLDER/ci.secret {missing}",
    ]


@pytest.mark.usefixtures("user")
def test_rights_that_the_user_has_are_not_named(tmp_path: Path) -> None:
    make_all(tmp_path)
    assert said(tmp_path) == []


@AS_BOTH
@pytest.mark.usefixtures("user")
def test_a_secret_that_the_service_would_refuse_is_named(tmp_path: Path) -> None:
    make_all(tmp_path)
    (tmp_path / "pulse.password").chmod(0o644)
    refusal = "FOLDER/pulse.password has mode 0644, expected 0600 or stricter: chmod go= FOLDER/pulse.password"
    assert said(tmp_path)[-1] == f"FOLDER/x.toml: notifier.pulse.password: {refusal}"


@AS_ROOT
@pytest.mark.usefixtures("user")
def test_root_reads_that_no_rights_are_checked_and_what_to_type(tmp_path: Path) -> None:
    make_all(tmp_path)
    [line] = said(tmp_path)
    assert line.startswith("rights on log, blobs, secrets and roots not checked, because root has them all; ")
    assert line.endswith(f"run: sudo -u USER {Path(sys.executable).parent}/vcsreplicator config check -c FOLDER/x.toml")
    assert said(tmp_path, 'log = "sqlite:///log.db"') == []


@AS_ROOT
@pytest.mark.usefixtures("user")
def test_root_too_reads_what_is_missing(tmp_path: Path) -> None:
    make_all(tmp_path)
    (tmp_path / "ci.secret").unlink()
    assert said(tmp_path)[1:] == [
        "FOLDER/x.toml: notifier.hooks.subscriptions.ci.secrets.1: FOLDER/ci.secret is missing"
    ]


@pytest.mark.usefixtures("user")
def test_a_root_of_the_relay_that_is_missing_or_read_only_is_named(tmp_path: Path, refuse: Refuse) -> None:
    file = 'log = "sqlite:///log.db"\n[relay.roots]\n"{folder}/file:" = "blobs"\n"{folder}/none" = ""\n'
    (tmp_path / "file:").mkdir()
    refuse(nothing)
    assert said(tmp_path, file) == [
        "FOLDER/x.toml: relay.roots: this user may not write to FOLDER/file:, but the relay's user must",
        "FOLDER/x.toml: relay.roots: FOLDER/none is missing, or this user may not see it",
    ]


@pytest.mark.usefixtures("user")
def test_a_root_of_a_mirror_that_it_may_not_write_or_make_is_named(tmp_path: Path, refuse: Refuse) -> None:
    file = (
        'log = "sqlite:///log.db"\n[mirror.alpha]\nroot = "{folder}/there"\n[mirror.beta]\nroot = "{folder}/a/b/new"\n'
    )
    (tmp_path / "there").mkdir()
    assert said(tmp_path, file) == [], "a mirror makes its root"
    refuse(nothing)
    assert said(tmp_path, file) == [
        "FOLDER/x.toml: mirror.alpha.root: this user may not write to FOLDER/there, but the mirror's user must",
        "FOLDER/x.toml: mirror.beta.root: FOLDER/a/b/new is missing, and this user may not make it, but the mirror's user must",
    ]


@pytest.mark.usefixtures("user")
def test_a_folder_of_blobs_that_cannot_be_made_is_called_missing(tmp_path: Path, refuse: Refuse) -> None:
    refuse(nothing)
    assert said(tmp_path, 'log = "sqlite:///log.db"\nblobs = "file://{folder}/blobs"\n') == [
        "FOLDER/x.toml: blobs: FOLDER/blobs is missing, and this user may not make it, but the relay's user must"
    ]


@AS_BOTH
@pytest.mark.usefixtures("user")
def test_users_of_the_socket_that_this_machine_lacks_are_named(tmp_path: Path) -> None:
    file = 'log = "sqlite:///log.db"\n[dashboard]\nsocket = "{folder}/s"\nsocket-users = ["root", "no-such-user"]\n'
    assert said(tmp_path, file) == ["FOLDER/x.toml: dashboard.socket-users: this machine has no user no-such-user"]


def test_a_missing_folder_of_a_destinations_file_is_named(tmp_path: Path) -> None:
    text = '[notifier]\nstate = "{folder}/s"\n'
    text += '[notifier.lines]\ntype = "jsonlines"\nfile = "{folder}/gone/lines"\n[notifier.own]\ntype = "x:y"\nfile = "/gone/x"\n'
    [line] = [line for line in said(tmp_path, f'log = "sqlite:///log.db"\n{text}') if "rights on" not in line]
    assert line.startswith("FOLDER/x.toml: notifier.lines.file: FOLDER/gone is missing")


@pytest.mark.usefixtures("user")
def test_an_embedded_log_that_the_user_may_read_and_not_write_is_named(tmp_path: Path, refuse: Refuse) -> None:
    file = 'log = "sqlite://{folder}/a%20log.db"'
    (tmp_path / "a log.db").touch()
    (tmp_path / "a log.db-wake").mkdir()
    assert said(tmp_path, file) == []
    refuse(lambda _, mode: not mode & os.W_OK)
    assert said(tmp_path, file) == [
        f"FOLDER/x.toml: log: this user may not write to FOLDER{path}, but the user of each service must"
        for path in ("/a log.db", "/a log.db-wake", "")
    ]


@pytest.mark.usefixtures("user")
def test_databases_that_the_user_may_not_write_or_make_are_named(tmp_path: Path, refuse: Refuse) -> None:
    file = (
        'log = "sqlite:///log.db"\n[notifier]\nstate = "{folder}/notifier.db"\n[notifier.hooks]\ntype = "webhook"\n'
        'database = "{folder}/hooks.db"\n[dashboard]\nacts = "{folder}/acts.db"\n'
    )
    assert said(tmp_path, file) == []
    (tmp_path / "notifier.db").touch()
    refuse(nothing)
    assert said(tmp_path, file) == [
        "FOLDER/x.toml: notifier.state: this user may not write to FOLDER/notifier.db, but the notifier's user must",
        "FOLDER/x.toml: notifier.hooks.database: this user may not write to FOLDER, but the notifier's user must",
        "FOLDER/x.toml: dashboard.acts: this user may not write to FOLDER, but the dashboard's user must",
    ]


@pytest.mark.usefixtures("user")
def test_a_state_in_its_default_place_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: path != DEFAULT_STATE)
    refuse(nothing)
    folder = os.path.dirname(DEFAULT_STATE)
    named = said(tmp_path, 'log = "sqlite:///log.db"\n[notifier.out]\ntype = "stdout"\n')[-1]
    assert named == f"FOLDER/x.toml: notifier.state: this user may not write to {folder}, but the notifier's user must"


@pytest.mark.usefixtures("user")
def test_a_destination_that_is_called_type_hides_no_right(tmp_path: Path, refuse: Refuse) -> None:
    make_all(tmp_path)
    refuse(lambda path, _: path != str(tmp_path))
    text = '[notifier]\nstate = "{folder}/notifier.db"\n[notifier.type]\ntype = "jsonlines"\nfile = "{folder}/lines"\n'
    keys = [line.split(": ")[1] for line in said(tmp_path, 'log = "sqlite:///log.db"\n' + text)]
    assert keys == ["notifier.state", "notifier.type.file"]
