# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator demo`: what a newcomer sees first, and what programs rely on."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, STATE, NewRecord
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.mirror.mounts import MountedRoot
from hgext.vcsreplicator.mirror.settings import MirrorSettings
from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.states import state_of
from testing.checks.agreement import left_behind, processes_below
from testing.waiting import eventually
from testing.warm import is_stem, warm_starts
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

DEMO = (sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "demo")
ROLES = {"relay", "mirror-alpha", "mirror-beta", "aggregator", "notifier", "web-master", "web-alpha", "web-beta"}


@contextmanager
def staying(folder: Path, *, is_warm: bool = False) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A demo that stays, and the file that describes it; Ctrl-C ends it without an error, and its services with it."""
    ready = folder / "ready.json"
    with warm_starts() if is_warm else nullcontext():
        process = subprocess.Popen(
            [*DEMO, "--dir", str(folder), "--stay", "--ready", str(ready)], stdout=subprocess.PIPE, text=True
        )
    try:
        eventually(ready.exists, what="the demo is ready")
        yield process, ready
    finally:
        is_killed = process.poll() is not None
        if not is_killed:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    if not is_killed:
        assert process.returncode == 0
        assert left_behind(folder) == []


def about(ready: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(ready.read_text())
    return content


def running_in(folder: Path) -> list[int]:
    """Processes whose environment or command line names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def working_in(folder: Path) -> list[int]:
    """Processes that work in the folder or below: a warm service has no command line of its own."""
    return [process for process in processes_below(folder) if not is_stem(process)]


def test_the_demo_pushes_and_shows_timeline_and_notice(tmp_path: Path) -> None:
    with warm_starts():
        done = subprocess.run([*DEMO, "--dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in (
        "committed on the master",
        "in the log",
        "applied on alpha",
        "applied on beta",
        "released",
        "notice written",
    ):
        assert len(re.findall(rf"[0-9.]+ ms\s+{words}", done.stdout)) == 2
    notice = json.loads(done.stdout[done.stdout.index("The notice:") + 11 :])
    assert notice["type"] == "changegroup.1"
    assert notice["data"]["repo_url"] == "https://hg.example/hello"
    assert left_behind(tmp_path) == []


def test_what_it_tells_programs_has_every_member(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    assert prepared(tmp_path, "--ready", str(ready)).exit_code == 0
    content = about(ready)
    assert set(content) == {"master", "mirrors", "services", "log", "pulse", "sns", "status_url"}
    assert set(content["master"]) == {"root", "env", "url"}
    assert [set(mirror) for mirror in content["mirrors"]] == [{"name", "root", "url"}] * 2
    assert set(content["services"]) == ROLES
    assert all(set(service) == {"argv", "env", "pid"} for service in content["services"].values())
    assert {service["pid"] for service in content["services"].values()} == {None}
    assert (content["pulse"], content["sns"]) == (None, None)
    assert running_in(tmp_path / "repos") == []


def test_a_service_takes_no_module_from_the_current_folder(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    assert prepared(tmp_path, "--ready", str(ready)).exit_code == 0
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the current folder')\n")
    aggregator = about(ready)["services"]["aggregator"]
    start = aggregator["argv"][: aggregator["argv"].index("aggregator")]
    asked = [*start, "aggregator", "--config", "nowhere.toml"]
    done = subprocess.run(asked, env=aggregator["env"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (
        done.stderr.strip()
        == "vcsreplicator: nowhere.toml: cannot be read: No such file or directory; vcsreplicator config example prints one"
    )


def test_its_master_shows_mercurials_page_of_help(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    assert prepared(tmp_path, "--ready", str(ready)).exit_code == 0
    master, web = about(ready)["master"], about(ready)["services"]["web-master"]
    subprocess.run([shared_hg(), "init", f"{master['root']}/first"], env=master["env"], capture_output=True, check=True)
    with subprocess.Popen(web["argv"], env=web["env"], stderr=subprocess.DEVNULL) as process:
        try:
            place = urlsplit(master["url"])
            with socket.socket() as client:
                eventually(lambda: client.connect_ex((place.hostname, place.port)) == 0, what="the master is served")
            with urlopen(f"{master['url']}first/help") as answer:
                assert "bookmarks" in answer.read().decode()
        finally:
            process.terminate()


def test_a_service_that_dies_starts_again_and_all_end_with_the_demo(tmp_path: Path) -> None:
    with staying(tmp_path, is_warm=True) as (process, ready):
        before = about(ready)["services"]["aggregator"]["pid"]
        os.kill(before, signal.SIGKILL)
        eventually(lambda: about(ready)["services"]["aggregator"]["pid"] not in (before, None), what="a new process id")
        eventually(lambda: len(working_in(tmp_path)) >= len(ROLES), what="all services run")
        process.kill()
        process.communicate()
        eventually(lambda: working_in(tmp_path) == [], what="all services ended")


def test_the_commands_that_it_prints_run_in_any_shell(tmp_path: Path) -> None:
    """Where neither `hg` nor `vcsreplicator` is on the PATH, or others of these names."""
    folder = tmp_path / "my demo"
    folder.mkdir()
    with staying(folder, is_warm=True) as (process, ready):
        assert process.stdout is not None
        lines = itertools.takewhile(lambda line: not line.startswith("Ctrl-C"), process.stdout)
        printed = "".join(lines).replace("\\\n", "")
        [creates] = re.findall(r"\(new repository: (.*)\)$", printed, re.MULTILINE)
        [status] = re.findall(r"^status +(.*)$", printed, re.MULTILINE)
        for typed in (creates, status):
            environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
            done = subprocess.run(["sh", "-c", typed], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        assert (Path(about(ready)["master"]["root"]) / "NAME/.hg").is_dir()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run([*DEMO, "--dir", str(tmp_path / "file")], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr.strip() == f"vcsreplicator: --dir: {tmp_path}/file cannot be used: File exists"


PASSWORD = ("--pulse", "amqps://u:hunter2@broker.example", "--insecure", "password-in-url")


def prepared(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(program, ["demo", "--dir", str(folder), "--prepare", *words])


def test_a_password_that_is_meant_stays_with_its_user(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for name in ("vcsreplicator.toml", "master.hgrc"):  # of an earlier run
        folder.mkdir(exist_ok=True)
        (folder / name).touch(0o644)
    assert prepared(folder, *PASSWORD, "--ready", str(tmp_path / "ready")).exit_code == 0
    for file in (tmp_path / "ready", folder / "vcsreplicator.toml", folder / "master.hgrc"):
        assert file.stat().st_mode & 0o777 == 0o600, file
    checked = CliRunner().invoke(program, ["config", "check", "-c", str(folder / "vcsreplicator.toml")])
    assert checked.exit_code == 0, checked.exception


def test_a_demo_in_a_new_folder_may_fill_its_roots_from_an_earlier_log(
    tmp_path: Path,
) -> None:
    log, chain = f"sqlite://{tmp_path}/log.db", Chain("one")
    for folder in ("earlier", "new"):
        assert prepared(tmp_path / folder, "--log", log).exit_code == 0
    with open_log(log) as opened:
        state = state_of(chain.next(), released=1)
        opened.append([NewRecord(topic=STATE, key=chain.repository, value=to_json(state))])
        table = read_table(opened, ACKS, STATE)
    root = MountedRoot(MirrorSettings(name="alpha", root=f"{tmp_path}/new/repos/alpha"))
    root.refuse_empty(lambda: {chain.repository: chain.ack("alpha", 1)}, table)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a%20b", "a#b", "a?b", "a=b", "a\nb", "a\udcff"])
def test_a_folder_that_no_configuration_can_name_is_refused(tmp_path: Path, name: str) -> None:
    done = prepared(tmp_path / name)
    assert isinstance(done.exception, BadConfig)
    assert str(done.exception).startswith("--dir: ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named_before_anything_is_made(tmp_path: Path) -> None:
    done = prepared(tmp_path / "demo", "--ready", str(tmp_path / "missing" / "x"))
    assert isinstance(done.exception, BadConfig)
    assert str(done.exception) == f"--ready: {tmp_path}/missing/x: expected a file in an existing folder"
    assert list((tmp_path / "demo").iterdir()) == []


def test_an_address_of_sns_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    done = prepared(tmp_path / "demo", "--sns-endpoint", endpoint)
    assert isinstance(done.exception, Unavailable)
    assert str(done.exception).startswith(f"--sns-endpoint: {endpoint}: ")


def test_ctrl_c_ends_a_demo_that_starts(tmp_path: Path) -> None:
    process = subprocess.Popen([*DEMO, "--dir", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        eventually((tmp_path / "output" / "aggregator.log").exists, what="the first service is started")
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "The notice" not in printed
    eventually(lambda: running_in(tmp_path) == [], what="all services ended")
