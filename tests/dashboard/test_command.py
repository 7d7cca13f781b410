# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb as an operator starts it, the page about its keys, and what it refuses."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import dashboard
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import Config
from hgext.vcsreplicator.dashboard import server
from hgext.vcsreplicator.dashboard.readers import Readers, read_users
from hgext.vcsreplicator.dashboard.settings import DashboardRole, DashboardSettings
from hgext.vcsreplicator.dashboard.sources import Sources
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.records import MirrorHeartbeat
from testing.services.cache import CHECKOUT
from testing.waiting import eventually
from tests.dashboard.conftest import TOKEN, Installation, client, settings, users_file, watching


def test_every_key_is_on_the_page() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (?:required|none) \|", (CHECKOUT / "docs/dashboard.md").read_text(), re.MULTILINE
    )
    assert rows == [field.name.replace("_", "-") for field in fields(DashboardSettings)]


def test_the_recipe_of_the_page_makes_a_token(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/dashboard.md").read_text()
    [recipe] = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made = recipe.replace("/etc/", f"{tmp_path}/")
    token = subprocess.run(["sh", "-e", "-c", made], capture_output=True, text=True, check=True).stdout.strip()
    [file] = tmp_path.iterdir()
    readers = Readers(DashboardSettings(listen="127.0.0.1:8090", users=str(file)), read_users(str(file)))
    user = readers.find_user([(b"authorization", f"Bearer {token}".encode())], "127.0.0.1")
    assert user is not None
    assert (user.name, user.role.value, len(token)) == ("dana", "reader", 64)


def config(folder: Path, section: str) -> str:
    file = folder / "services.toml"
    file.write_text(f'log = "sqlite://{folder}/log.db"\n{section}')
    file.chmod(0o640)
    return str(file)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("", "section [dashboard] is missing"),
        ('[dashboard]\nlisten = "127.0.0.1:1"', "users: expected the path of a file"),
        ('[dashboard]\nlisten = "0.0.0.0:1"\nanonymous = "guest"', "dashboard.listen: tokens in plain text"),
        ('[dashboard]\nlisten = "127.0.0.1:1"\nanonymous = "all"', "anonymous"),
    ],
)
def test_a_wrong_section_is_refused_with_file_and_key(tmp_path: Path, section: str, words: str) -> None:
    result = CliRunner().invoke(program, ["dashboard", "--config", config(tmp_path, section)])
    assert isinstance(result.exception, BadConfig)
    assert str(tmp_path) in str(result.exception)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('listen = "127.0.0.1:1"', "users: expected the path of a file"),
        ('listen = "0.0.0.0:1"\nanonymous = "guest"', "dashboard.listen: tokens in plain text"),
        ('listen = "127.0.0.1:1"\nusers = "{folder}"', "services.toml: dashboard.users: "),
        ('listen = "127.0.0.1:1"\nusers = "{users}"', "dashboard.acts: expected the path of a database, as olga is"),
        ('listen = "127.0.0.1:1"\nanonymous = "operator"', "anonymous: an act is recorded with who did it"),
    ],
)
def test_what_the_dashboard_would_refuse_config_check_refuses(tmp_path: Path, section: str, words: str) -> None:
    section = section.replace("{users}", users_file(tmp_path)).replace("{folder}", str(tmp_path))
    result = CliRunner().invoke(program, ["config", "check", "--config", config(tmp_path, f"[dashboard]\n{section}")])
    assert isinstance(result.exception, BadConfig)
    assert words in str(result.exception)


def test_config_check_continues_on_a_machine_without_the_file_of_users(tmp_path: Path) -> None:
    file = config(tmp_path, '[dashboard]\nlisten = "127.0.0.1:1"\nusers = "/nonexistent"')
    with closing(open_log(f"sqlite://{tmp_path}/log.db", creates=True)) as log:
        log.create(topics())
    result = CliRunner().invoke(program, ["config", "check", "--config", file])
    assert result.exit_code == 0, result.output
    assert "the log answers" in result.output
    assert f"{file}: dashboard.users: /nonexistent is missing" in result.output


@pytest.mark.parametrize(
    "line",
    [
        "dana",
        "dana:reader",
        f"dana:reader:{TOKEN}",
        "dana:admin:-",
        "a b:reader:-",
        "d:reader:-\nd:guest:-",
        f"d:reader:{'0' * 64}\ne:operator:{'0' * 64}",
        "d:guest:-:-",
    ],
)
def test_a_wrong_line_of_users_is_named_without_what_it_says(tmp_path: Path, line: str) -> None:
    file = tmp_path / "users"
    file.write_text(f"# names\n\n{line}\n")
    with pytest.raises(BadConfig, match=re.escape(str(file))) as caught:
        read_users(str(file))
    assert TOKEN not in str(caught.value)


def test_a_missing_file_of_users_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"dashboard\.users: .*/nothing cannot be read"):
        read_users(str(tmp_path / "nothing"))


def test_a_mirror_that_the_file_alone_names_is_no_finding_of_the_overview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` and `check` report it."""
    installation, served = Installation(("alpha",)), list[Sources]()
    beat = MirrorHeartbeat(mirror="x", time=installation.clock.now(), positions={}, version="1")
    installation.write(ACKS, "x", beat)

    def run_daemon(config: Config, role: str, run: Callable[..., None], settings: object) -> None:
        run(settings, installation.log, stop=threading.Event(), ready=lambda: None)

    monkeypatch.setattr(dashboard, "run_daemon", run_daemon)
    monkeypatch.setattr(server, "run", lambda settings, sources, **_: served.append(sources))
    file = config(tmp_path, '[mirror.x]\n[dashboard]\nlisten = "127.0.0.1:1"\nanonymous = "reader"\n')
    done = CliRunner().invoke(program, ["dashboard", "--config", file])
    assert done.exit_code == 0, done.exception
    [sources] = served
    with watching(replace(sources, clock=installation.clock)) as watcher:
        eventually(lambda: watcher.view)
        page = client(installation, watcher, settings(tmp_path, anonymous=DashboardRole.READER)).get("/").text
    assert "subscription ci is failing" in page
    assert "mirror x" not in page


@pytest.mark.processes
def test_the_verb_serves_until_it_is_stopped(tmp_path: Path) -> None:
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics(partitions=2))
    port = free_port()
    file = config(
        tmp_path,
        f'[dashboard]\nlisten = "127.0.0.1:{port}"\nusers = "{users_file(tmp_path)}"\nacts = "{tmp_path}/acts.db"\n',
    )
    command = [sys.executable, "-m", "hgext.vcsreplicator.cli", "dashboard", "--config", file]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, cwd=CHECKOUT, env={**os.environ, "NOTIFY_SOCKET": ""}
    ) as process:
        try:

            def ask() -> str:
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {TOKEN}"}
                )
                try:
                    with urllib.request.urlopen(asked, timeout=10) as answer:
                        return str(answer.read().decode())
                except OSError:
                    assert process.poll() is None
                    return ""

            assert "There is no mirror yet" in eventually(ask)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
