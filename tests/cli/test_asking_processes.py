# SPDX-License-Identifier: GPL-2.0-or-later
"""`status` and `check` as processes, beside a dashboard that runs, hangs, was killed, or is of another user; both logs."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import ACKS, ROSTER, SERVICES, STATE, NewRecord, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.records import AggregatorHeartbeat, MirrorHeartbeat, ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state
from testing.faults.forks import await_fork, begin_fork
from testing.services.cache import CHECKOUT
from testing.services.kafka import Kafka
from testing.waiting import eventually
from testing.warm import warm_starts

pytestmark = pytest.mark.processes

# Runs a verb, and says which of these modules it has imported.
PROGRAM = """
import sys
from hgext.vcsreplicator.cli import main
sys.argv[0] = "vcsreplicator"
try:
    main()
finally:
    adapters = [name for name in sys.modules if name in ("kafka", "sqlite3") or name.endswith("log.sqlite.adapter")]
    print(f"imported {adapters}", file=sys.stderr)
"""
STRANGER = 65533
MIRRORS = ("alpha", "beta")


class Machine:
    """A log, a dashboard, and verbs."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.path = folder, url, folder / "status.sock"
        self.config = folder / "x.toml"
        self.config.write_text(
            f'log = "{url}"\n[dashboard]\nlisten = "127.0.0.1:{free_port()}"\nanonymous = "guest"\nsocket = "{self.path}"\n'
        )
        self.config.chmod(0o644)
        self._running: subprocess.Popen[bytes] | None = None
        self._since = time.time() - 500
        with open_log(url, creates=True) as log:
            log.create(topics(partitions=1))
            mirrors = tuple(Mirror(name=name, state=MirrorState.ACTIVE) for name in MIRRORS)
            log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=1, mirrors=mirrors)))])
        self.write_state(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start the dashboard."""
        words = [sys.executable, "-P", "-m", "hgext.vcsreplicator.cli", "dashboard", "--config", str(self.config)]
        with (self.folder / "output").open("ab") as output, warm_starts():
            environment = {**os.environ, "NOTIFY_SOCKET": ""}
            self._running = subprocess.Popen(words, stderr=output, cwd=CHECKOUT, env=environment)

    def stop(self, number: int) -> None:
        if self._running is not None:
            self._running.send_signal(number)
            self._running.wait(60)
            self._running = None

    def signal(self, number: int) -> None:
        assert self._running is not None
        self._running.send_signal(number)

    def write_state(self, seq: int) -> None:
        """A repository with so many events, of which none is announced, and heartbeats."""
        state = some_state(
            repository="1" * 32,
            incarnation="2" * 32,
            path="group/one",
            seq=seq,
            event="3" * 32,
            digest="4" * 64,
            released=0,
            noticed=0,
        )
        now = time.time()
        trouble = ServiceTrouble(text="destination lines is failing: refused", since=self._since, is_urgent=True)
        report = ServiceReport(time=now, version="1", count=1, troubles=(trouble,))
        with open_log(self.url, creates=True) as log:
            log.append(
                [
                    NewRecord(topic=STATE, key=state.repository, value=to_json(state)),
                    NewRecord(
                        topic=STATE, key="aggregator", value=to_json(AggregatorHeartbeat(time=now, roster=1, held=0))
                    ),
                    *(
                        NewRecord(
                            topic=ACKS,
                            key=name,
                            value=to_json(MirrorHeartbeat(mirror=name, time=now, positions={}, version="1")),
                        )
                        for name in MIRRORS
                    ),
                    NewRecord(topic=SERVICES, key="destination lines", value=to_json(report)),
                ]
            )

    @contextmanager
    def alive(self, seq: int) -> Iterator[None]:
        """Services that send heartbeats for the length of a block.

        So the log's time is known, and none is silent, however long it lasts.
        """
        over = threading.Event()

        def live() -> None:
            while not over.wait(2.0):
                self.write_state(seq)

        self.write_state(seq)
        living = threading.Thread(target=live)
        living.start()
        try:
            yield
        finally:
            over.set()
            living.join()

    def say(self, verb: str, seq: int) -> tuple[int, str, bool]:
        """Exit code and output without ages, and whether the log was opened."""
        words = [sys.executable, "-P", "-c", PROGRAM, verb, "--config", str(self.config)]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        with self.alive(seq):
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd="/")
        assert "Traceback" not in done.stderr, done.stderr
        [imported] = re.findall(r"^imported (.*)$", done.stderr, re.MULTILINE)
        tried = [line for line in done.stderr.splitlines() if not line.startswith("imported ")]
        assert all(line.startswith(f"dashboard not asked: {self.path}: ") for line in tried)
        return done.returncode, without_ages(done.stdout), imported != "[]"

    def ask(self, verb: str, seq: int) -> tuple[int, str]:
        """What the verb says that the dashboard answers; a loaded machine may need several attempts."""

        def attempt() -> tuple[int, str] | None:
            code, text, was_opened = self.say(verb, seq)
            return None if was_opened else (code, text)

        return eventually(attempt)

    def read(self, verb: str, seq: int) -> tuple[int, str]:
        code, text, was_opened = self.say(verb, seq)
        assert was_opened
        return code, text


def without_ages(text: str) -> str:
    """Also without the second a trouble began: it is by the log's clock, so it moves with how long a record took."""
    text = re.sub(r"since [0-9]{4}-[0-9-]+ [0-9:]+ UTC", "since TIME", text)
    return re.sub(r"[0-9]+ (s|min)\b( ago)? *", "AGE ", text)


def short_folder(stack: ExitStack) -> Path:
    """A folder whose path leaves room for the name of a socket: together at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="asking-"))
    stack.callback(shutil.rmtree, folder)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        folder = short_folder(stack)
        yield stack.enter_context(Machine(folder, f"sqlite://{folder}/log.db"))


@pytest.fixture
def machine_with_kafka(kafka: Kafka, unique_name: str) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield stack.enter_context(Machine(short_folder(stack), f"{kafka.url}?topic-prefix={unique_name}-"))


def compare(machine: Machine) -> None:
    """The verbs say the same before there is a dashboard and when it answers; the answer is new each time."""
    read = {verb: machine.read(verb, 1) for verb in ("status", "check")}
    machine.start()
    assert {verb: machine.ask(verb, 1) for verb in read} == read
    for seq in (2, 3):
        assert f"{seq} in 1 repository" in machine.ask("status", seq)[1]
    code, text = read["check"]
    assert code == 2
    assert "destination lines is failing" in text


def test_a_running_dashboard_answers_and_the_embedded_log_is_not_opened(machine: Machine) -> None:
    compare(machine)


def test_a_running_dashboard_answers_and_kafka_is_not_imported(machine_with_kafka: Machine) -> None:
    compare(machine_with_kafka)


def test_what_a_dashboard_cannot_answer_is_read(machine: Machine) -> None:
    machine.start()
    asked = machine.ask("check", 1)

    machine.signal(signal.SIGSTOP)
    assert machine.read("check", 1) == asked, "it is not waited for"
    machine.signal(signal.SIGCONT)
    assert machine.ask("check", 1) == asked

    machine.stop(signal.SIGKILL)
    assert machine.path.exists()
    assert machine.read("check", 1) == asked
    machine.start()
    assert machine.ask("check", 1) == asked, "the socket that was left is replaced"

    machine.stop(signal.SIGTERM)
    assert not machine.path.exists()
    assert machine.read("check", 1) == asked


def say_as(user: int, config: Path) -> str:
    """The line of `check` as another user, who may not read our Python: in a process that has imported everything."""
    output, written = os.pipe()

    def say() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        os.write(written, CliRunner().invoke(program, ["check", "--config", str(config)]).output.encode())

    child = begin_fork(say)
    os.close(written)
    with os.fdopen(output) as read:
        text = read.read()
    assert await_fork(child) == 0
    return text


def test_a_user_who_may_not_connect_reads_the_log(machine: Machine) -> None:
    """As another user where we may become one; else as one for whom the socket is closed."""
    machine.start()
    _, asked = machine.ask("check", 1)
    if os.geteuid():
        machine.path.chmod(0o000)
        assert machine.read("check", 1)[1] == asked
    else:
        machine.write_state(1)
        CliRunner().invoke(program, ["check", "--config", str(elsewhere(machine))])  # imports everything
        for file in (machine.folder, *machine.folder.rglob("*")):  # as for a user of the log's group
            if not file.is_socket():
                file.chmod(0o777 if file.is_dir() else 0o666)
        assert without_ages(say_as(STRANGER, machine.config)) == asked


def test_a_user_whom_the_file_names_asks_and_another_reads_the_log(machine: Machine) -> None:
    """Root's dashboard, and a log that only root reads; where we may become no other user, that the dashboard answers us."""
    named = pwd.getpwnam("nobody")
    machine.config.write_text(machine.config.read_text() + f'socket-users = ["{named.pw_name}"]\n')
    machine.start()
    _, asked = machine.ask("check", 1)
    if os.geteuid():
        return
    for file in (machine.folder / "log.db", *machine.folder.glob("log.db-*")):
        file.chmod(0o600)
    CliRunner().invoke(program, ["check", "--config", str(elsewhere(machine))])  # imports everything
    machine.write_state(1)
    assert without_ages(say_as(named.pw_uid, machine.config)) == asked
    said = say_as(STRANGER, machine.config)
    assert "dashboard not asked" in said
    assert "closed without an answer; may your user ask" in said
    assert "destination lines" not in said


def elsewhere(machine: Machine) -> Path:
    """The file without the dashboard."""
    file = machine.folder / "elsewhere.toml"
    file.write_text(machine.config.read_text().partition("[dashboard]")[0])
    file.chmod(0o644)
    return file


def test_the_embedded_log_that_replaced_another_is_read(machine: Machine) -> None:
    machine.start()
    machine.ask("check", 1)
    machine.signal(signal.SIGSTOP)  # it follows the log that was there
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        if (machine.folder / name).exists():
            (machine.folder / name).rename(machine.folder / f"former-{name}")
    with open_log(machine.url, creates=True) as log:
        log.create(topics(partitions=1))
        log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(Roster(version=1, mirrors=())))])
    machine.signal(signal.SIGCONT)
    assert "2 in 1 repository" in machine.read("status", 2)[1]
