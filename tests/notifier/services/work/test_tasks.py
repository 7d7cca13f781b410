# SPDX-License-Identifier: GPL-2.0-or-later
"""The parallel variant: a real worker of Celery between a real RabbitMQ, a real `hg serve`, and SQLite."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import signals

from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.retry import Backoff
from notifier.messages.pushes import QueuedPush
from notifier.services.work import clones, tasks
from notifier.services.work.database import RepositoryKey, WorkDatabase
from notifier.services.work.settings import WorkSettings
from notifier.services.work.tasks import TaskRecorder
from testing.builders.notifier.working import HgHost, HgQueueSender, hg, recorded
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.timeout(600)]

PATIENCE = 120.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


class ParallelWorker:
    """`vcsreplicator work --parallel` with a file of its own."""

    def __init__(self, folder: Path, broker: HgQueueSender, host: HgHost) -> None:
        self.database = f"sqlite:///{folder}/work.db"
        self.log, self.file = folder / "worker.log", folder / "v.toml"
        self.file.write_text(
            f'[work]\nurl = "{broker.url}"\nrepositories = ["{host.root}"]\nclones = "{folder}/clones"\n'
            f'database-url = "{self.database}"\nmigrate = "at-start"\nmax-hg-retries = 1\n'
            "retry = { first = 0.1, longest = 0.1 }\n"
        )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it in a process group of its own, killed at the end."""
        command = [*PROGRAM, CLI, "work", "--parallel", "-c", str(self.file)]
        with self.log.open("ab") as log, warm_starts():
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def has_recorded(self, expected: dict[str, dict[int, list[str]]]) -> bool:
        try:
            return recorded(self.database) == expected
        except Exception:
            return False  # no tables yet


@pytest.fixture
def parallel(tmp_path: Path, broker: HgQueueSender, host: HgHost) -> ParallelWorker:
    return ParallelWorker(tmp_path, broker, host)


def test_each_push_is_a_task_and_what_fails_becomes_a_dead_letter(
    host: HgHost, broker: HgQueueSender, parallel: ParallelWorker
) -> None:
    pushes = {name: {number + 1: [node] for number, node in enumerate(host.add(name, 4))} for name in ("a", "b")}
    for number, name in enumerate(pushes):
        broker.send(number, host.url(name), pushes[name])
    broker.send(0, host.url("a"), {9: ["e" * 40]})
    broker.send_raw("nonsense", {})
    with parallel.running() as process:
        expected = {host.url(name): pushes[name] for name in pushes}
        eventually(lambda: parallel.has_recorded(expected), "all pushes", timeout=PATIENCE)
        letters = [eventually(lambda: broker.take("hg.dead"), "a letter", timeout=PATIENCE) for _ in range(2)]
        process.terminate()
        assert process.wait(PATIENCE) == 0, parallel.log.read_text()
    senseless, failed = sorted(letters, key=lambda letter: len(letter.headers))
    assert senseless.body in ("nonsense", b"nonsense")
    assert "not JSON" in senseless.headers["error"]
    assert json.loads(failed.body)["pushes"][0]["id"] == 9
    assert failed.headers["repository"] == host.url("a")
    assert failed.headers["error"].endswith(f"has no changeset {'e' * 40}")
    assert [broker.waiting(), broker.waiting("hg.tasks"), broker.waiting("hg.dead")] == [0, 0, 0]


def test_message_whose_properties_cannot_be_read_becomes_a_dead_letter(
    host: HgHost, broker: HgQueueSender, parallel: ParallelWorker
) -> None:
    nodes = host.add("u", 1)
    broker.send_unreadable(b"nonsense")
    broker.send(1, host.url("u"), {1: nodes})
    with parallel.running() as process:
        eventually(lambda: parallel.has_recorded({host.url("u"): {1: nodes}}), "the other's push", timeout=PATIENCE)
        letter = eventually(lambda: broker.take("hg.dead"), "a letter", timeout=PATIENCE)
        process.terminate()
        assert process.wait(PATIENCE) == 0, parallel.log.read_text()
    assert letter.body in ("nonsense", b"nonsense")


@pytest.mark.parametrize("killed_after", [(5,), pytest.param((1, 10), marks=pytest.mark.slow)])
def test_killed_with_its_processes_it_loses_no_push(
    host: HgHost, broker: HgQueueSender, parallel: ParallelWorker, killed_after: tuple[int, ...]
) -> None:
    name = f"killed{len(killed_after)}"
    pushes = {number + 1: [node] for number, node in enumerate(host.add(name, 20 * len(killed_after)))}
    for number, nodes in pushes.items():
        broker.send(1, host.url(name), {number: nodes})
    for count in killed_after:
        with parallel.running():
            wait_for_pushes(parallel, host.url(name), count)
    with parallel.running():
        eventually(lambda: parallel.has_recorded({host.url(name): pushes}), "all pushes", timeout=PATIENCE)
    broker.send(1, host.url(name), pushes)  # all of them again
    with parallel.running() as process:
        eventually(lambda: parallel.has_recorded({host.url(name): pushes}), "all pushes", timeout=PATIENCE)
        eventually(lambda: broker.waiting() + broker.waiting("hg.tasks") == 0, timeout=PATIENCE)
        process.terminate()
        assert process.wait(PATIENCE) == 0, parallel.log.read_text()
    assert parallel.has_recorded({host.url(name): pushes})
    assert broker.take("hg.dead") is None


def test_a_folder_of_clones_that_takes_no_lock_uses_no_retry(tmp_path: Path) -> None:
    (tmp_path / "clones").write_text("a file")
    with closing(WorkDatabase(f"sqlite:///{tmp_path}/work.db")) as database:
        database.migrate()
    settings = WorkSettings(
        url="amqp://127.0.0.1/",
        repositories=("http://127.0.0.1:1/",),
        clones=str(tmp_path / "clones"),
        database_url=f"sqlite:///{tmp_path}/work.db",
    )
    key = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")
    with (
        closing(TaskRecorder(settings)) as recorder,
        pytest.raises(Unavailable, match=f"^work.clones: {tmp_path}/clones: "),
    ):
        recorder.record(key, QueuedPush(id=1, date=1, user="dana", changesets=("a" * 40,)))


def test_a_broker_that_takes_no_letter_ends_no_worker(
    host: HgHost, broker: HgQueueSender, parallel: ParallelWorker
) -> None:
    nodes = host.add("r", 1)
    broker.declare_full("hg.dead")
    broker.send_raw("nonsense", {})
    with parallel.running() as process:
        eventually(lambda: "not sent" in parallel.log.read_text(), "a refused letter", timeout=PATIENCE)
        broker.send(1, host.url("r"), {1: nodes})
        wait_for_pushes(parallel, host.url("r"), 1)
        broker.delete("hg.dead")
        letter = eventually(lambda: broker.take("hg.dead"), "a letter", timeout=PATIENCE)
        process.terminate()
        assert process.wait(PATIENCE) == 0, parallel.log.read_text()
    assert letter.body in ("nonsense", b"nonsense")
    assert [broker.waiting(), broker.waiting("hg.tasks"), broker.waiting("hg.dead")] == [0, 0, 0]


def test_a_deleted_dead_queue_is_declared_again_for_the_next_letter(
    broker: HgQueueSender, parallel: ParallelWorker, rabbitmq: Any
) -> None:
    broker.send_raw("first", {})
    with parallel.running():
        assert eventually(lambda: broker.take("hg.dead"), "a letter", timeout=PATIENCE).body in ("first", b"first")
        broker.delete("hg.dead")
        broker.send_raw("second", {})
        eventually(lambda: parallel.log.read_text().count("message kept") == 2, "the next letter", timeout=PATIENCE)
        eventually(lambda: rabbitmq.held(broker.url, "hg") == 0, "its acknowledgement", timeout=PATIENCE)
        letter = broker.take("hg.dead")
    assert letter is not None
    assert letter.body in ("second", b"second")


def test_task_that_no_queue_takes_is_not_taken_for_sent(broker: HgQueueSender) -> None:
    app = tasks.make_app(
        WorkSettings(url=broker.url, repositories=("http://h/",), clones="/c", database_url="sqlite:////x")
    )
    send = app.tasks["vcsreplicator.record_push"].delay
    send("poll", 1, "http://h/x", {})
    broker.delete("hg.tasks")
    with pytest.raises(Unavailable, match="no such queue"):
        send("poll", 1, "http://h/x", {})
    app.close()


def test_a_task_whose_clone_is_in_use_is_sent_again_without_a_retry(
    broker: HgQueueSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "PATIENCE", 0.0)
    settings = WorkSettings(
        url=broker.url,
        repositories=("http://h/",),
        clones=str(tmp_path),
        database_url=f"sqlite:///{tmp_path}/work.db",
        retry=Backoff(first=1.0, longest=float(DAY)),
    )
    with closing(WorkDatabase(settings.database_url)) as database:
        database.migrate()
    app = tasks.make_app(settings)
    push = {"id": 1, "date": 1, "user": "dana", "changesets": ["a" * 40]}
    with (tmp_path / ".poll-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        app.tasks["vcsreplicator.record_push"]("poll", 1, "http://h/x", push, 3)
    sent = eventually(lambda: broker.take("hg.tasks"), "the next attempt")
    signals.worker_process_shutdown.send(sender=None)
    app.close()
    assert sent.payload[0] == ["poll", 1, "http://h/x", push, 3]
    due = datetime.fromisoformat(sent.headers["eta"]) - datetime.now(UTC)
    assert timedelta(0) < due <= timedelta(seconds=tasks.LONGEST_DELAY)


A_PUSH = {"id": 1, "date": 1, "user": "dana", "changesets": ["a" * 40]}
A_TASK = {"source": "poll", "number": 1, "url": "http://127.0.0.1:1/x", "push": A_PUSH}


@pytest.mark.parametrize(
    "forged",
    [
        {"source": "{}/precious", "number": 7},
        {"url": "{}/private"},
        {"number": "1/../../precious"},
        {"number": 2**70},
        {"push": {"id": 1}},
        {"push": {**A_PUSH, "more": 2}},
        {"push": {**A_PUSH, "user": "é" * 4_000_000}},
        {"attempt": "0"},
        {"attempt": -(10**9)},
    ],
    ids=["source", "url", "number", "large number", "push", "more", "large push", "attempt", "negative attempt"],
)
def test_a_task_that_no_message_made_becomes_a_dead_letter(
    broker: HgQueueSender, tmp_path: Path, forged: dict[str, Any]
) -> None:
    """Whoever may write to `hg` on the default exchange may write tasks too."""
    precious = tmp_path / "precious-7" / "a file"
    precious.parent.mkdir()
    precious.touch()
    settings = WorkSettings(
        url=broker.url,
        repositories=("http://127.0.0.1:1/",),
        clones=str(tmp_path / "clones"),
        database_url=f"sqlite:///{tmp_path}/work.db",
        max_hg_retries=0,
    )
    with closing(WorkDatabase(settings.database_url)) as database:
        database.migrate()
    hg("init", str(tmp_path / "private"))
    before = sorted(tmp_path.rglob("*"))
    made = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in forged.items()}
    app = tasks.make_app(settings)
    app.tasks["vcsreplicator.record_push"](**{**A_TASK, **made})
    letter = broker.take("hg.dead")
    signals.worker_process_shutdown.send(sender=None)
    app.close()
    assert letter is not None
    assert letter.headers.keys() == {"error"}
    assert sorted(tmp_path.rglob("*")) == before


NAMED = {"task": tasks.TASK, "id": "1"}
BODY = [["poll", 1, "http://127.0.0.1:1/x", A_PUSH], {}, {}]
# Messages by the name of their case, each with its headers, its body, and the reason in its letter.
FORGED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no id": ({"task": tasks.TASK}, BODY, "id: expected text"),
    "id": ({**NAMED, "id": [1]}, BODY, "id: expected text"),
    "name": ({**NAMED, "task": {"a": 1}}, BODY, "task: expected vcsreplicator"),
    "other task": ({**NAMED, "task": "celery.map"}, BODY, "task: expected vcsreplicator"),
    "first protocol": ({}, {"task": tasks.TASK, "id": "1", "args": []}, "task: expected vcsreplicator"),
    "number": (NAMED, 5, "list of its arguments"),
    "too few": (NAMED, [1, 2], "list of its arguments"),
    "follower": (NAMED, [[], {}, {"callbacks": [{"task": tasks.TASK}]}], "nothing follows"),
    "time limit": ({**NAMED, "timelimit": 5}, BODY, "connection refused"),
    "time": ({**NAMED, "eta": "9999-12-31T23:59:59-23:00"}, BODY, "connection refused"),
    "stamps": ({**NAMED, "stamped_headers": 5}, BODY, "connection refused"),
    "compression": ({**NAMED, "compression": "zlib"}, BODY, "connection refused"),
}


def test_no_message_in_place_of_a_task_ends_the_worker(
    host: HgHost, broker: HgQueueSender, parallel: ParallelWorker
) -> None:
    """Celery ends at most of these, again at each start, or connects again without an end."""
    parallel.file.write_text(
        parallel.file.read_text().replace('repositories = ["', 'repositories = ["http://127.0.0.1:1/", "')
    )
    for headers, body, _ in FORGED.values():
        broker.send_raw(json.dumps(body), headers, queue="hg.tasks")
    nodes = host.add("forged", 1)
    broker.send(1, host.url("forged"), {1: nodes})
    with parallel.running() as process:
        eventually(lambda: parallel.has_recorded({host.url("forged"): {1: nodes}}), "the push", timeout=PATIENCE)
        letters = [eventually(lambda: broker.take("hg.dead"), "a letter", timeout=PATIENCE) for _ in FORGED]
        process.terminate()
        assert process.wait(PATIENCE) == 0, parallel.log.read_text()
    said = [letter.headers["error"].lower() for letter in letters]
    expected = [reason for _, _, reason in FORGED.values()]
    assert {reason: sum(reason.lower() in each for each in said) for reason in expected} == {
        reason: expected.count(reason) for reason in expected
    }


def test_a_message_is_not_unpacked_by_a_header_of_its_sender(broker: HgQueueSender, tmp_path: Path) -> None:
    packed = zlib.compress(bytes(1_000_000))
    broker.send_raw(packed, {"compression": "zlib"})
    app = tasks.make_app(
        WorkSettings(
            url=broker.url,
            repositories=("http://127.0.0.1:1/",),
            clones=str(tmp_path),
            database_url=f"sqlite:///{tmp_path}/work.db",
        )
    )
    with app.connection_for_read() as connection:
        found = eventually(lambda: connection.default_channel.basic_get("hg", no_ack=True), "the message")
        assert connection.default_channel.message_to_python(found).body == packed
    app.close()


def test_tasks_are_confirmed() -> None:
    settings = WorkSettings(
        url="amqp://127.0.0.1:1/", repositories=("http://127.0.0.1:1/",), clones="/c", database_url="sqlite:////x"
    )
    configured = tasks.make_app(settings).conf
    assert configured.broker_transport_options == {"confirm_publish": True}


def wait_for_pushes(parallel: ParallelWorker, url: str, count: int) -> None:
    def are_there() -> bool:
        try:
            return len(recorded(parallel.database).get(url, {})) >= count
        except Exception:
            return False  # no tables yet

    eventually(are_there, f"{count} pushes", timeout=PATIENCE)


def test_a_broker_that_is_away_is_waited_for_without_end() -> None:
    settings = WorkSettings(
        url="amqp://127.0.0.1:1/", repositories=("http://127.0.0.1:1/",), clones="/c", database_url="sqlite:////x"
    )
    assert tasks.make_app(settings).conf.broker_connection_max_retries is None


# A worker that does not wait for its broker.
IMPATIENT = """
import sys, threading
from notifier.services.work import tasks
from notifier.services.work.settings import Migrate, WorkSettings

made = tasks._make_configuration
tasks._make_configuration = lambda settings: {**made(settings), "broker_connection_max_retries": 1}
settings = WorkSettings(
    url="amqp://127.0.0.1:1/", repositories=("http://127.0.0.1:1/",), clones=f"{sys.argv[1]}/clones",
    database_url=f"sqlite:///{sys.argv[1]}/work.db", migrate=Migrate.AT_START,
)
tasks.run(settings, stop=threading.Event(), ready=lambda: None)
"""


def test_a_worker_of_celery_that_gives_up_is_an_error(tmp_path: Path) -> None:
    words = [sys.executable, "-c", IMPATIENT, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith("Celery's worker ended with exit code 1")
