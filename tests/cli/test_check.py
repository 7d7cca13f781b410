# SPDX-License-Identifier: GPL-2.0-or-later
"""`vcsreplicator check` on a master: what the relay reports to the log or, while it is silent, what is in the outboxes."""

import contextlib
import errno
import json
import math
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli import asking, status
from hgext.vcsreplicator.cli.options import relay_of
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.config import load
from hgext.vcsreplicator.log import SERVICES, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.reports import ServiceReporter
from hgext.vcsreplicator.status.services import START
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import ServiceTrouble
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state
from testing.faults.folding import ignore_case
from testing.faults.system import System


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a relay."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "relay.sock"))
        listener.listen()
        yield listener


@pytest.fixture
def master(tmp_path: Path, relay: socket.socket) -> Path:
    """A master with one repository, whose outbox cannot be read."""
    store = tmp_path / "repos" / "one" / ".hg" / "store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    (store / "outbox.0001.log").write_bytes(b"damaged")
    (tmp_path / "x.toml").write_text(
        f'log = "sqlite://{tmp_path}/log.db"\n[relay]\nsocket = "{tmp_path}/relay.sock"\nsource = "hg://master"\n'
        f'[relay.roots]\n"{tmp_path}/repos" = ""\n'
    )
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create(topics())
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [["check"], ["config", "check"], ["relay"]])
def test_a_master_on_a_disk_that_ignores_case_is_refused(master: Path, words: list[str]) -> None:
    root = ignore_case(master / "repos")
    done = subprocess.run(
        [sys.executable, "-m", "hgext.vcsreplicator.cli", *words, "--config", str(master / "x.toml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"x.toml: relay.roots: {root} is on a disk that does not distinguish names that differ only in case" in last


def said(master: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(program, ["check", "--config", str(master / "x.toml"), *words])
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def report(master: Path, *troubles: ServiceTrouble, source: str = "hg://master") -> None:
    with open_log(f"sqlite://{master}/log.db", creates=True) as log:
        ServiceReporter(log, f"relay {source}").report(troubles, now=time.time())


def test_a_silent_relay_is_named_and_the_outboxes_are_read_in_its_place(master: Path) -> None:
    code, text = said(master)
    assert code == 2
    assert "the relay hg://master has never sent a heartbeat" in text
    assert f"{master}/repos/one: its outbox cannot be read" in text


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_relay_that_has_just_stopped_is_named_at_once(master: Path, relay: socket.socket, how: str) -> None:
    report(master)
    stopped = f"the relay is not reachable at {master}/relay.sock: pushes wait in the outboxes; start it: systemctl"
    assert stopped not in said(master)[1]
    relay.close()
    if how == "stopped":
        (master / "relay.sock").unlink()
    code, text = said(master)
    assert code == 2
    assert stopped in text
    (master / "repos/one/.hg/store/outbox.0001.log").unlink()
    assert stopped not in said(master)[1], "a mirror with the same roots"


def test_the_card_of_a_stopped_relay_has_the_command_that_starts_it(master: Path, relay: socket.socket) -> None:
    report(master)
    relay.close()
    [finding] = [each for each in json.loads(said(master, "--json")[1])["findings"] if "relay.sock" in each["text"]]
    assert (finding.get("command"), finding.get("entry")) == (f"{START}relay", "VcsreplicatorServiceDown")


Disks = dict[str, int | Callable[[], object]]


@pytest.fixture
def disks(master: Path, system: System) -> Disks:
    """Bytes that are left on the disks of folders, below 0 if inodes are lacking; or what a disk does, and its flags."""
    left: Disks = {}
    (master / "blobs").mkdir()
    file = master / "x.toml"
    file.write_text(f'blobs = "file://{master}/blobs"\n' + file.read_text())

    def measure(folder: str) -> SimpleNamespace:
        free = left.get(folder, 1 << 20)
        flags, free = (free(), 1 << 20) if callable(free) else (0, free)
        counts = {"f_bavail": abs(free), "f_files": 9, "f_favail": 9 * (free >= 0)}
        return SimpleNamespace(f_blocks=1 << 20, f_frsize=1, f_flag=flags, **counts)

    system.measure_disks(measure)
    return left


def test_a_full_disk_of_the_log_is_named_alone(master: Path, disks: Disks) -> None:
    assert "no space" not in said(master)[1]
    disks[str(master)] = 4096
    text = f"CRITICAL - {master}: no space left on its disk: no service can write to the log; free some space\n"
    assert said(master) == (2, text)


def test_a_full_disk_of_the_blobs_is_named_with_all_else(master: Path, disks: Disks) -> None:
    disks[f"{master}/blobs"] = 0
    code, text = said(master)
    assert code == 2
    assert f"CRITICAL - {master}/blobs: no space left on its disk: pushes with large bundles wait in" in text
    assert "its outbox cannot be read" in text


def test_a_disk_without_inodes_is_named(master: Path, disks: Disks) -> None:
    disks[f"{master}/blobs"] = -(1 << 20)
    assert f"CRITICAL - {master}/blobs: no inodes left on its disk: pushes with large" in said(master)[1]


def test_a_masters_disk_that_refuses_pushes_is_named(master: Path, disks: Disks) -> None:
    root = f"{master}/repos"
    report(master)
    disks[root] = 4096
    code, text = said(master)
    assert code == 2
    assert f"{root}: no space left on its disk: the master refuses pushes; free some space" in text
    (master / "repos/one/.hg/store/outbox.0001.log").unlink()
    assert root not in said(master)[1], "a mirror with the same roots"


@pytest.mark.parametrize(("number", "reason"), [(errno.EIO, "Input/output error"), (0, "")], ids=["fails", "read-only"])
def test_a_masters_disk_that_fails_is_named(master: Path, disks: Disks, number: int, reason: str) -> None:
    root = f"{master}/repos"
    failure = OSError(number, os.strerror(number), root) if number else None
    disks[root] = Mock(side_effect=failure, return_value=os.ST_RDONLY)
    report(master)
    code, text = said(master)
    assert code == 2
    said_of_it = f"its disk fails: {reason}" if number else "its disk is mounted read-only"
    assert f"{root}: {said_of_it}: the master refuses pushes; see: journalctl -k" in text


@contextlib.contextmanager
def failing_writes() -> Iterator[None]:
    """Let no file of this process grow: a disk that fails at writes alone."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("store", ["log", "blobs", "roots"])
def test_a_disk_that_fails_at_writes_alone_is_named(master: Path, disks: Disks, store: str) -> None:
    config = load(master / "x.toml")
    relay = relay_of(config)
    assert relay is not None
    find, folder, what = {
        "log": (lambda: [asking.find_full_log(config)], "", "no service can write to the log"),
        "blobs": (lambda: [asking.find_full_blobs(config)], "/blobs", "pushes with large bundles wait in their"),
        "roots": (lambda: asking.find_full_roots(relay), "/repos", "the master refuses pushes"),
    }[store]
    assert [found for found in find() if found] == []
    with failing_writes():
        [found] = find()
    assert found is not None
    assert found.text.startswith(f"{master}{folder}: its disk fails: File too large: {what}")


def test_a_disk_that_hangs_is_named_and_all_else_too(
    master: Path, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(asking, "PATIENCE", 0.1)
    disks[f"{master}/blobs"] = answers.wait
    text = said(master)[1]
    answers.set()
    assert f"CRITICAL - {master}/blobs: its disk does not answer: pushes with large bundles wait in" in text
    assert "its outbox cannot be read" in text


def seen_by_status(master: Path) -> tuple[str, list[str]]:
    """What `status` shows, and the findings for programs."""
    words = ["status", "--config", str(master / "x.toml")]
    shown, data = CliRunner().invoke(program, words), CliRunner().invoke(program, [*words, "--json"])
    return shown.output, [finding["text"] for finding in json.loads(data.stdout)["findings"]]


def test_status_names_what_check_finds_in_the_outboxes(master: Path) -> None:
    shown, found = seen_by_status(master)
    assert f"critical: {master}/repos/one: its outbox cannot be read" in shown
    assert sum(f"{master}/repos/one: its outbox cannot be read" in text for text in found) == 1


@pytest.mark.parametrize("folder", ["", "/blobs"])
def test_status_names_the_full_disks_that_check_names(master: Path, disks: Disks, folder: str) -> None:
    disks[f"{master}{folder}"] = 0
    shown, found = seen_by_status(master)
    text = f"{master}{folder}: no space left on its disk: "
    assert f"critical: {text}" in shown
    assert found[0].startswith(text)
    assert "its outbox cannot be read" in shown


def test_a_watched_status_names_what_is_found_on_this_machine(
    master: Path, disks: Disks, between_views: Callable[..., None]
) -> None:
    disks[f"{master}/blobs"] = 0
    between_views()
    shown = CliRunner().invoke(program, ["status", "--watch", "--config", str(master / "x.toml")]).output
    assert "its outbox cannot be read" in shown
    assert "no space left on its disk" in shown


@pytest.mark.parametrize(("look", "still"), [(math.inf, True), (0.0, False)])
def test_a_watched_status_does_not_read_all_outboxes_for_each_view(
    master: Path, monkeypatch: pytest.MonkeyPatch, between_views: Callable[..., None], look: float, still: bool
) -> None:
    monkeypatch.setattr(status, "LOOK", look)
    between_views((master / "repos/one/.hg/store/outbox.0001.log").unlink)
    shown = CliRunner().invoke(program, ["status", "--watch", "--config", str(master / "x.toml")]).output
    assert shown.count("the relay hg://master has never sent a heartbeat") == 2
    assert shown.count("its outbox cannot be read") == 1 + still


def test_what_a_running_relay_reports_is_said_and_no_outbox_is_read(master: Path) -> None:
    waits = ServiceTrouble(text="red: events wait", since=time.time() - 800, is_urgent=True)
    report(master, waits)
    text = said(master)[1]
    assert "red: events wait (for 13 min, since " in text
    assert "a heartbeat: pushes" not in text
    assert "its outbox" not in text


def test_a_relay_that_has_nothing_to_report_adds_nothing(master: Path) -> None:
    report(master)
    assert said(master)[1].count(" - ") == 1
    assert "relay" not in said(master)[1]


def test_a_trouble_that_may_pass_is_said_once_it_has_lasted(master: Path) -> None:
    report(master, ServiceTrouble(text="red is gone", since=time.time() - 40))
    assert "red is gone" not in said(master)[1]
    report(master, ServiceTrouble(text="red is gone", since=time.time() - 70), ServiceTrouble(text="x", since=0.0))
    assert re.search(r"red is gone \(for [7-9]\d s", said(master)[1])


def test_a_report_names_the_oldest_troubles_and_counts_the_rest(master: Path) -> None:
    report(master, *(ServiceTrouble(text=f"<{number}>", since=number, is_urgent=True) for number in range(100, 0, -1)))
    text = said(master)[1]
    assert "<1>" in text
    assert "<21>" not in text
    assert "relay hg://master: 80 more troubles" in text


def test_a_relay_of_another_source_is_named_while_it_reports(master: Path) -> None:
    report(master)
    report(master, ServiceTrouble(text="its trouble", since=0.0), source="hg://other")
    assert "its trouble" in said(master)[1]


@pytest.mark.parametrize("gone", ["repos", "repos/one/.hg/store/outbox.0001.log"], ids=["roots", "outboxes"])
def test_a_machine_without_outboxes_says_that_the_relay_is_silent(master: Path, gone: str) -> None:
    (master / gone).rename(master / "elsewhere")
    code, text = said(master)
    assert code == 2
    assert "the relay hg://master has never sent a heartbeat" in text
    assert "its outbox" not in text


def test_a_log_without_the_topic_of_reports_is_named_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f'log = "sqlite://{tmp_path}/log.db"\n')
    with open_log(f"sqlite://{tmp_path}/log.db", creates=True) as log:
        log.create([topic for topic in topics() if topic.name != SERVICES])
    assert (
        "no topic `services`, so nothing is known about the relay; run: vcsreplicator topics create"
        in said(tmp_path)[1]
    )


@pytest.mark.parametrize(
    "verb",
    [
        *("status", "trace one", "roster list", "errors list", "config check", "topics list", "topics check"),
        *("aggregator", "edge", "decode"),
    ],
)
def test_a_missing_embedded_log_is_named_and_only_topics_create_makes_it(master: Path, verb: str) -> None:
    """Services that wait for the lost log would go on with an empty one."""
    with (master / "x.toml").open("a") as file:
        file.write(f'[aggregator]\n[edge]\nlisten = "127.0.0.1:1"\nqueue = "{master}"\n[decode]\nrepeats = "none"\n')
    for made in (*master.glob("log.db-wal"), *master.glob("log.db-shm"), master / "log.db"):
        made.unlink()
    invoked = CliRunner().invoke(program, [*verb.split(), "--config", str(master / "x.toml")])
    assert isinstance(invoked.exception, Unavailable)
    assert str(invoked.exception) == (
        f"sqlite://{master}/log.db: the log is missing; if it was there, stop all services and restore it "
        "(docs/operating.md, Restore); in a new installation run: vcsreplicator topics create"
    )
    assert not (master / "log.db").exists()
    again = CliRunner().invoke(program, ["topics", "create", "--config", str(master / "x.toml")])
    assert (again.exit_code, again.output[:15]) == (0, "created events,")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_missing_log_is_critical_for_the_monitoring_system(master: Path, words: tuple[str, ...]) -> None:
    (master / "log.db").unlink()
    code, text = said(master, *words)
    assert code == 2
    assert text.startswith(
        '{\n  "state": "CRITICAL"' if words else f"CRITICAL - sqlite://{master}/log.db: the log is missing"
    )
    assert not (master / "log.db").exists()


def test_a_log_without_topics_is_critical(master: Path) -> None:
    (master / "log.db").unlink()
    with open_log(f"sqlite://{master}/log.db", creates=True):
        pass
    code, text = said(master)
    assert code == 2
    assert text.startswith("CRITICAL - topic ")
    assert text.endswith("run `vcsreplicator topics create`\n")


def test_trace_on_the_master_does_not_send_its_reader_to_the_master(master: Path) -> None:
    state = some_state(path="one")
    with open_log(f"sqlite://{master}/log.db", creates=True) as log:
        log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])
    (master / "repos/one/.hg/store/outbox.0001.log").unlink()
    words = ["trace", "one", "--push", "77", "--config", str(master / "x.toml")]
    missing = str(CliRunner().invoke(program, words).exception)
    assert missing.startswith("one: no push 77 in the log, which has seen events up to ")
    assert missing.endswith(
        "nor does it wait in an outbox on this machine: it was never made, or is older than the retention of the log"
    )
    (master / "repos").rename(master / "elsewhere")
    assert str(CliRunner().invoke(program, words).exception).endswith("on the master: run this there")
