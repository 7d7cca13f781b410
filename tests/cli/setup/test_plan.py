# SPDX-License-Identifier: GPL-2.0-or-later
"""What a host is made of, for each role, as data."""

import configparser
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hgext.vcsreplicator.cli.config import _check_sections
from hgext.vcsreplicator.cli.setup import texts
from hgext.vcsreplicator.cli.setup.answers import HostAnswers, Role, choose_answers
from hgext.vcsreplicator.cli.setup.plan import (
    FoundHost,
    GiveSecret,
    MakeFolder,
    MakeUser,
    RunCommand,
    SetupStep,
    WriteFile,
    describe,
    make_plan,
)
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.words.errors import BadConfig
from testing.services.cache import CHECKOUT
from tests.house.shown import PAGES

UNITS = {file.name: file.read_text() for file in (CHECKOUT / "docs/systemd").glob("*.service")}
KAFKA = "kafka://kafka1.example:9093?security_protocol=SSL"
GIVEN: dict[Role, dict[str, Any]] = {
    Role.ONE_MACHINE: {},
    Role.MASTER: {"log": KAFKA, "blobs": "s3://hg-blobs/events", "mirror_keys": ["ssh-ed25519 AAAA"]},
    Role.MIRROR: {"log": KAFKA, "master": "ssh://hg-mirror@master.example//repos"},
    Role.SERVICES: {"log": KAFKA, "destinations": ["jsonlines", "webhook", "amqps://hg@broker.example/"]},
}


def answer(role: Role = Role.ONE_MACHINE, **given: Any) -> HostAnswers:
    """The answers of a host that says as little as it can."""
    return choose_answers({"role": str(role), **GIVEN[role], **given}, {}, "hg.example", None)


def plan(role: Role = Role.ONE_MACHINE, *, with_systemd: bool = True, **given: Any) -> list[SetupStep]:
    found = FoundHost(programs="/usr/vcs/bin", units=UNITS, repositories=3)
    return make_plan(answer(role, **given), found, with_systemd=with_systemd)


def files(steps: Sequence[SetupStep]) -> dict[str, str]:
    return {step.path: step.text for step in steps if isinstance(step, WriteFile)}


def read_units(steps: Sequence[SetupStep]) -> dict[str, dict[str, list[str]]]:
    """The values of each key of the units and their additions; an empty value forgets the earlier ones."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, text in sorted(files(steps).items()):
        if not path.startswith("/etc/systemd"):
            continue
        unit = found.setdefault(re.findall(r"vcsreplicator-([\w-]+@?)\.service", path)[0], {})
        for line in text.splitlines():
            key, is_set, value = line.partition("=")
            if is_set and not line.startswith("#"):
                unit[key] = [*unit.get(key, ()), value] if value else []
    return found


def written(unit: dict[str, list[str]]) -> set[str]:
    return {path.removeprefix("-") for line in unit.get("ReadWritePaths", ()) for path in line.split()}


def test_setup_copies_no_unit_that_a_package_gave_to_systemd() -> None:
    """The copy would hide the unit of the package's next release."""
    found = FoundHost(programs="/opt/vcsreplicator/bin", units=UNITS, known_units=UNITS)
    paths = [path for path in files(make_plan(answer(), found, with_systemd=True)) if path.startswith("/etc/systemd")]
    copies = {path.rpartition("/")[2] for path in paths if path.endswith(".service")}
    assert copies == {"vcsreplicator-web-alpha.service"}  # the package has no unit of this name
    assert "/etc/systemd/system/vcsreplicator-relay.service.d/10-setup.conf" in paths


def test_what_systemctl_edit_writes_overrides_what_setup_adds() -> None:
    """systemd reads additions in the order of their names, and `systemctl edit` writes override.conf."""
    names = {path.rpartition("/")[2] for path in files(plan()) if path.endswith(".conf")}
    assert names
    assert max(names) < "override.conf"


def test_setup_copies_a_unit_that_runs_programs_of_another_folder() -> None:
    found = FoundHost(programs="/usr/vcs/bin", units=UNITS, known_units=UNITS)
    assert "/etc/systemd/system/vcsreplicator-relay.service" in files(make_plan(answer(), found, with_systemd=True))


@pytest.mark.parametrize("role", Role)
def test_every_role_gets_a_services_file_that_is_correct(role: Role, tmp_path: Any) -> None:
    file = tmp_path / "vcsreplicator.toml"
    file.write_text(files(plan(role))["/etc/vcsreplicator.toml"])
    _check_sections(load(file))
    assert (
        set(tomllib.loads(file.read_text())["listen"])
        >= {
            Role.ONE_MACHINE: {"relay", "mirror-alpha", "aggregator", "notifier", "verify"},
            Role.MASTER: {"relay"},
            Role.MIRROR: {"mirror-alpha", "verify"},
            Role.SERVICES: {"aggregator", "notifier"},
        }[role]
    )


@pytest.mark.parametrize("role", Role)
def test_every_unit_runs_as_a_user_that_the_plan_makes(role: Role) -> None:
    steps = plan(role)
    users = {step.name for step in steps if isinstance(step, MakeUser)}
    owned = {step.path: step.owner for step in steps if isinstance(step, MakeFolder)}
    units = read_units(steps)
    assert units
    for name, unit in units.items():
        assert unit["User"][-1] in users, name
        assert unit["ExecStart"][-1].startswith("/usr/vcs/bin/vcsreplicator "), name
        missing = [path for path in written(unit) if path not in owned and path != "/var/lib/vcsreplicator"]
        assert missing in ([], ["/var/log/vcsreplicator"]), name
        assert {owned[path] for path in written(unit) if path in owned} <= {unit["User"][-1]}, name


@pytest.mark.parametrize("role", Role)
def test_additions_of_a_unit_repeat_no_line(role: Role) -> None:
    for path, text in files(plan(role)).items():
        if path.endswith("/10-setup.conf"):
            lines = text.splitlines()
            assert sorted(lines) == sorted(set(lines)), path


def test_steps_come_after_what_they_need() -> None:
    steps = plan()
    kinds = [type(step) for step in steps]
    assert kinds.index(MakeFolder) > max(at for at, kind in enumerate(kinds) if kind is MakeUser)
    assert kinds.index(RunCommand) > max(at for at, kind in enumerate(kinds) if kind is not RunCommand)
    said = [describe(step) for step in steps]
    order = ["topics create", "enable --now vcsreplicator-relay", "bootstrap alpha", "vcsreplicator-mirror@alpha"]
    places = [next(at for at, text in enumerate(said) if word in text) for word in order]
    assert places == sorted(places)
    [bootstrap] = [step for step in steps if isinstance(step, RunCommand) and "bootstrap" in step.words]
    assert bootstrap.waits_for == 3


def test_the_mirror_of_one_machine_may_not_write_the_masters_folder() -> None:
    units = read_units(plan(repos="/data/hg", copies="/data/copies", log="sqlite:///data/log/log.db"))
    assert "/data/hg" in written(units["relay"]) & written(units["web"])
    assert "/data/copies" in written(units["mirror@"]) & written(units["verify@"])
    assert all("/repos" not in written(unit) for unit in units.values())
    assert not written(units["web-alpha"])
    assert units["web-alpha"]["ReadOnlyPaths"] == ["/data/copies"]
    logs = {name for name, unit in units.items() if "/data/log" in written(unit)}
    assert logs == {"aggregator", "relay", "notifier", "mirror@", "verify@"}
    assert units["web"]["Environment"][-1] == "HGRCPATH=/etc/mercurial/master.hgrc"


def test_a_key_of_a_mirror_may_read_the_master_and_nothing_else() -> None:
    [keys] = [text for path, text in files(plan(Role.MASTER)).items() if path.endswith("authorized_keys")]
    assert keys == (
        'restrict,command="HGRCPATH=/etc/mercurial/master.hgrc:/etc/mercurial/read-only.hgrc '
        '/usr/vcs/bin/vcsreplicator ssh /repos" ssh-ed25519 AAAA\n'
    )
    parsed = configparser.RawConfigParser()
    parsed.read_string(files(plan(Role.MASTER))["/etc/mercurial/master.hgrc"])
    assert parsed["vcsreplicator"]["snapshot-allow"] == "hg-mirror"
    folders = {step.path: step.owner for step in plan(Role.MASTER) if isinstance(step, MakeFolder)}
    assert {owner for path, owner in folders.items() if path.endswith("mirrors/.ssh")} == {"root"}


def test_a_mirror_whose_key_is_new_starts_nothing_yet() -> None:
    found = FoundHost(programs="/usr/vcs/bin", units=UNITS, has_key=False)
    said = [describe(step) for step in make_plan(answer(Role.MIRROR), found, with_systemd=True)]
    assert any("ssh-keygen" in text for text in said)
    assert not any("systemctl" in text or "bootstrap" in text for text in said)


def test_the_home_of_a_user_who_was_there_keeps_its_rights() -> None:
    found = FoundHost(programs="/usr/vcs/bin", units=UNITS, home="/data/hg")
    folders = {
        step.path for step in make_plan(answer(Role.MIRROR), found, with_systemd=True) if isinstance(step, MakeFolder)
    }
    assert "/data/hg" not in folders
    assert "/data/hg/.ssh" in folders


def test_only_the_notifiers_user_may_read_the_password_of_a_broker() -> None:
    [given] = [step for step in plan(Role.SERVICES) if isinstance(step, GiveSecret)]
    assert describe(given) == "chown vcsreplicator:vcsreplicator /etc/vcsreplicator/pulse.password"


@pytest.mark.parametrize("role", Role)
def test_every_role_checks_its_files_before_it_starts_a_service(role: Role) -> None:
    said = [describe(step) for step in plan(role)]
    checks = [at for at, text in enumerate(said) if "config check" in text]
    assert checks
    assert max(checks) < min(at for at, text in enumerate(said) if "systemctl" in text)


def test_without_systemd_nothing_is_started() -> None:
    assert not [step for step in plan(with_systemd=False) if "systemctl" in describe(step)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"role": "master"}, "--log: expected an answer"),
        ({"role": "mirror", "log": KAFKA}, "--master: expected an answer"),
        ({"role": "master", "log": "sqlite:///x.db"}, "expected kafka://HOST:PORT, which all machines reach"),
        (
            {"role": "master", "log": "kafka://kafka.example:9092"},
            "setup.log: PLAINTEXT to kafka.example, expected security_protocol=SSL or SASL_SSL; "
            "if it is meant, add --insecure plain-text",
        ),
        ({"repos": "repos"}, "repos: expected an absolute path"),
        ({"repos": "/"}, "repos: expected an absolute path of a folder"),
        ({"copies": "/repos/../etc"}, "copies: expected an absolute path of a folder"),
        ({"repos": "/a b"}, "expected no space"),
        ({"repos": "/a\nb"}, "expected no space"),
        ({"repos": "/srv"}, "copies: expected a folder apart from /srv"),
        ({"url": "hg.example"}, "url: expected https://HOST/"),
        ({"name": "Alpha!"}, "name: expected lower-case letters"),
        ({"destinations": ["amqps://u:secret@broker.example/"]}, "a password in a URL"),
        ({"destinations": ["ftp"]}, "destinations: expected none, jsonlines, webhook"),
        ({"developers": ["-x"]}, "developers: expected an account"),
        ({"mirror_keys": ["a\nb"]}, "expected an account or a public key in one line"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused_by_its_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(words)):
        choose_answers(given, {}, "hg.example", None)


def test_the_answers_of_the_last_run_are_the_defaults_of_the_next() -> None:
    former = {"role": "one-machine", "host": "a.example", "repos": "/data", "log": "sqlite:///x/log.db"}
    assert choose_answers({"url": "https://b.example/"}, former, "c.example", None).repos == "/data"


def test_a_key_of_a_second_mirror_leaves_that_of_the_first() -> None:
    former = {"role": "master", "log": KAFKA, "mirror_keys": ["ssh-ed25519 AAAA"], "developers": ["dana"]}
    added = choose_answers({"mirror_keys": ["ssh-ed25519 BBBB", "ssh-ed25519 AAAA"]}, former, "hg.example", None)
    assert added.mirror_keys == ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB")
    assert added.developers == ()


def test_what_the_command_line_says_is_not_asked() -> None:
    asked: list[str] = []

    def ask(question: str, default: Any) -> Any:
        asked.append(question)
        return default

    assert choose_answers({"role": "one-machine", "repos": "/d"}, {}, "c.example", ask).repos == "/d"
    assert not any("take pushes" in question for question in asked)
    assert any("Public URL" in question for question in asked)


def test_setup_closes_the_key_of_a_mirror_as_the_page_does() -> None:
    assert texts.READ_ONLY in PAGES["docs/by-hand.md"]


@pytest.mark.parametrize("role", Role)
def test_systemd_rates_no_unit_with_its_additions_as_exposed(role: Role, tmp_path: Path) -> None:
    """0 is closed, 10 is open; nothing to ask where there is no systemd."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    units: list[str] = []
    for path, text in files(plan(role)).items():
        if path.startswith(texts.UNITS):
            file = Path(f"{tmp_path}{path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            units += [file.name.replace("@", "@alpha")] if file.suffix == ".service" else []
    asked = [analyze, "security", "--offline=true", f"--root={tmp_path}", "--threshold=20", "--no-pager", *units]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    rated = re.findall(r"Overall exposure level for (\S+): (\d+\.\d)", done.stdout)
    assert len(rated) == len(units), done.stderr
    assert [(unit, exposure) for unit, exposure in rated if float(exposure) > 2.0] == []


def test_another_name_does_not_take_a_mirror_out_of_the_file() -> None:
    """Its service would go on, and end at its next start."""
    former = {"role": "one-machine", "name": "alpha", "copies": "/srv/alpha"}
    with pytest.raises(BadConfig, match=r"--name: expected alpha, .* got 'beta'; .*docs/by-hand\.md"):
        choose_answers({"name": "beta", "copies": "/srv/beta"}, former, "hg.example", None)
    assert choose_answers({"name": "alpha"}, former, "hg.example", None).name == "alpha"
