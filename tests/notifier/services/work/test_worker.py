# SPDX-License-Identifier: GPL-2.0-or-later
"""The worker between a real RabbitMQ, a real `hg serve`, and SQLite or a real PostgreSQL."""

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from mercurial import bundle2, ui
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from hgext.vcsreplicator.words.errors import BadConfig, Unavailable
from hgext.vcsreplicator.words.retry import Backoff
from notifier.clients.amqp.channel import BLOCKED
from notifier.delivery.destination import DOWN
from notifier.messages.pushes import QueuedPush
from notifier.services.work import backlog, clones, parking, worker
from notifier.services.work import database as database_module
from notifier.services.work.database import RepositoryKey, WorkDatabase
from notifier.services.work.settings import Migrate, WorkSettings
from testing.builders.notifier.working import HgHost, HgQueueSender, recorded, recorded_changesets
from testing.faults import PythonSteps, first_visits
from testing.metrics import value_of
from testing.services.rabbitmq import RabbitMQ
from testing.waiting import eventually
from testing.warm import CLI, PROGRAM, warm_starts

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

FAST = Backoff(first=0.02, longest=0.1)
PATIENCE = 120.0
# Kills in the slow suite.
KILLS = int(os.environ.get("VCSREPLICATOR_TEST_KILLS", "100"))
A_KEY = RepositoryKey(source="poll", number=1, url="http://127.0.0.1:1/x")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HgHost]:
    with HgHost(tmp_path_factory.mktemp("host")) as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    return str(request.getfixturevalue("postgresql").database())


class Working:
    """A worker at work in this process; `stop` ends it, and it may be started again."""

    def __init__(self, queue_url: str, host: HgHost, database: str, folder: Path) -> None:
        self.settings: dict[str, Any] = {
            "url": queue_url,
            "repositories": (host.root, "http://127.0.0.1:1/"),
            "clones": str(folder / "clones"),
            "database_url": database,
            "migrate": Migrate.AT_START,
            "retry": FAST,
            "max_hg_retries": 2,
        }
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self, **more: Any) -> None:
        settings, self._stop = WorkSettings(**self.settings, **more), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(settings, self._stop))
        self._thread.start()

    def _run(self, settings: WorkSettings, stop: threading.Event) -> None:
        try:
            worker.run(settings, stop=stop, ready=lambda: None)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
        if self.error is not None:
            raise self.error


@pytest.fixture
def working(broker: HgQueueSender, host: HgHost, database: str, tmp_path: Path, warm_pulls: None) -> Iterator[Working]:
    made = Working(broker.url, host, database, tmp_path)
    yield made
    made.stop()


def some_pushes(nodes: list[str], first: int = 1) -> dict[int, list[str]]:
    """One or two changesets in each push."""
    found, left, number = {}, list(nodes), first
    while left:
        size = 1 + number % 2
        found[number], left, number = left[:size], left[size:], number + 1
    return found


def a_name(request: pytest.FixtureRequest) -> str:
    return f"r{os.urandom(4).hex()}"


def is_recorded(database: str, expected: dict[str, dict[int, list[str]]]) -> bool:
    try:
        return recorded(database) == expected
    except Exception:
        return False  # no tables yet


def rows(database: str, question: str) -> list[tuple[Any, ...]]:
    engine = create_engine(database)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(question))]
    finally:
        engine.dispose()


def change(database: str, *statements: str) -> None:
    """Do what an operator does to a database."""
    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def test_pushes_are_recorded_with_changesets_files_and_branches(
    host: HgHost,
    broker: HgQueueSender,
    working: Working,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (clones, database_module):
        monkeypatch.setattr(module, "AT_ONCE", 3)
    name = a_name(request)
    pushes = some_pushes(host.add(name, 10))
    broker.send(7, host.url(name), pushes)
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), "all pushes", timeout=PATIENCE)
    assert rows(database, "SELECT source, number, url FROM repositories") == [("poll", 7, host.url(name))]
    assert rows(database, "SELECT name FROM branches") == [(name,)]
    assert sorted(rows(database, "SELECT path FROM files")) == [(f"nf{number}",) for number in range(10)]
    assert rows(database, 'SELECT date, "user" FROM pushes WHERE id = 1') == [(1456826401, "dana@example.com")]
    assert rows(database, "SELECT count(*) FROM changesets WHERE author = 'debugbuilddag'") == [(10,)]
    eventually(lambda: broker.waiting() == 0)


@pytest.mark.sample(1)
def test_repeats_and_a_restart_change_nothing(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    pushes = some_pushes(host.add(name, 4))
    working.start()
    for _ in range(2):
        for number, nodes in pushes.items():
            broker.send(1, host.url(name), {number: nodes})
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), timeout=PATIENCE)
    working.stop()
    more = some_pushes(host.extend(name, 2)[4:], first=len(pushes) + 1)
    broker.send(1, host.url(name), {**pushes, **more})
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): {**pushes, **more}}), "the new pushes", timeout=PATIENCE)
    assert rows(database, "SELECT count(*) FROM repositories") == [(1,)]


@pytest.mark.sample(1)
def test_a_message_that_fails_is_tried_as_set_and_kept_with_its_reason(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    good, bad = a_name(request), a_name(request)
    pushes = some_pushes(host.add(good, 3))
    host.add(bad, 2)
    before = value_of(worker.FAILED)
    broker.send(1, host.url(bad), {1: host.nodes[bad][:1]})
    broker.send(1, host.url(bad), {2: ["e" * 40]})
    broker.send(1, host.url(bad), {3: host.nodes[bad][1:]})
    broker.send(2, host.url(good), pushes)
    working.start()
    expected = {host.url(good): pushes, host.url(bad): {1: host.nodes[bad][:1], 3: host.nodes[bad][1:]}}
    eventually(lambda: is_recorded(database, expected), "all but the bad push", timeout=PATIENCE)
    kept = eventually(lambda: broker.take("hg.dead"), "the dead letter")
    assert json.loads(kept.body)["pushes"][0]["id"] == 2
    assert kept.headers["repository"] == host.url(bad)
    assert kept.headers["error"].endswith(f"has no changeset {'e' * 40}")
    assert value_of(worker.FAILED) - before in (3, 4)  # once more if the three were tried together
    eventually(lambda: broker.waiting() == 0)


# -- a repository that fails, and the others

NEVER = Backoff(first=3600.0, longest=3600.0)


def push_ids(database: str) -> list[int] | None:
    """The ids of the parked pushes, in their order; None while there are no tables."""
    try:
        bodies = rows(database, "SELECT body FROM parked_messages ORDER BY id")
    except DBAPIError:
        return None
    return [push["id"] for (body,) in bodies for push in json.loads(bytes(body))["pushes"]]


def send_each(host: HgHost, broker: HgQueueSender, number: int, name: str, pushes: dict[int, list[str]]) -> None:
    for push, nodes in pushes.items():
        broker.send(number, host.url(name), {push: nodes})


@pytest.mark.sample(1)
def test_a_repository_with_more_failures_than_prefetch_holds_up_no_other(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    bad, good = a_name(request), a_name(request)
    pushes = {number: ["e" * 40] for number in range(1, 601)}  # the repository does not exist yet
    send_each(host, broker, 1, bad, pushes)
    nodes = host.add(good, 1)
    broker.send(2, host.url(good), {1: nodes})
    working.settings |= {"retry": NEVER}
    working.start()
    eventually(lambda: is_recorded(database, {host.url(good): {1: nodes}}), "the other's push", timeout=PATIENCE)
    eventually(lambda: push_ids(database) == list(pushes), "all to be parked", timeout=PATIENCE)
    assert value_of(parking.MESSAGES) == 600
    working.stop()
    assert broker.waiting() == 0


@pytest.mark.sample(1)
def test_parked_messages_without_retries_become_dead_letters(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    send_each(host, broker, 1, name, {number: ["e" * 40] for number in range(1, 5)})
    working.settings |= {"retry": NEVER}
    working.start()
    eventually(lambda: push_ids(database) == [1, 2, 3, 4], "all to be parked", timeout=PATIENCE)
    working.stop()
    pushes = some_pushes(host.add(name, 3), first=5)
    send_each(host, broker, 1, name, pushes)
    working.settings |= {"retry": FAST}
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), "the newest pushes", timeout=PATIENCE)
    eventually(lambda: rows(database, "SELECT id FROM parked_messages") == [], "all to be done", timeout=PATIENCE)
    working.stop()
    letters = [broker.take("hg.dead") for _ in range(4)]
    assert [json.loads(each.body)["pushes"][0]["id"] for each in letters] == [1, 2, 3, 4]
    assert letters[0].headers["repository"] == host.url(name)
    assert letters[0].headers["error"].endswith(f"has no changeset {'e' * 40}")
    assert broker.take("hg.dead") is None
    assert broker.waiting() == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_parked_messages_are_recorded_in_order_once_it_is_back(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name, moved = a_name(request), a_name(request)
    pushes = some_pushes(host.add(name, 12))
    (host.folder / name).rename(host.folder / moved)
    send_each(host, broker, 1, name, {number: pushes[number] for number in (1, 2, 3)})
    working.settings |= {"max_hg_retries": 1000}
    working.start()
    eventually(lambda: push_ids(database) == [1, 2, 3], "three to be parked", timeout=PATIENCE)
    send_each(host, broker, 1, name, {number: pushes[number] for number in list(pushes)[3:]})
    eventually(lambda: push_ids(database) == list(pushes), "all to be parked", timeout=PATIENCE)
    assert rows(database, "SELECT count(*) FROM pushes") == [(0,)]
    (host.folder / moved).rename(host.folder / name)
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), "all pushes", timeout=PATIENCE)
    eventually(lambda: push_ids(database) == [], "all to be done", timeout=PATIENCE)
    assert rows(database, "SELECT id FROM pushes ORDER BY rowid") == [(push,) for push in pushes]
    assert value_of(parking.BYTES) == 0
    working.stop()
    assert broker.take("hg.dead") is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_parked_message_that_another_version_wrote_becomes_a_dead_letter(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    made = WorkDatabase(database)
    made.migrate()
    made.close()
    columns = "INSERT INTO parked_messages (source, number, url, body, parked_at)"
    change(database, f"{columns} VALUES ('poll', 1, '{host.url(name)}', x'6e6577', 1)")
    pushes = some_pushes(host.add(name, 1))
    send_each(host, broker, 1, name, pushes)
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), "the push", timeout=PATIENCE)
    letter = eventually(lambda: broker.take("hg.dead"), "the dead letter", timeout=PATIENCE)
    assert letter.body in ("new", b"new")
    assert "not JSON" in letter.headers["error"]
    eventually(lambda: rows(database, "SELECT id FROM parked_messages") == [], "no row")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_slow_repository_holds_up_no_other(
    host: HgHost,
    broker: HgQueueSender,
    working: Working,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "SLOW", 0.1)
    name = a_name(request)
    nodes = host.add(name, 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        for push in range(1, 21):
            broker.send(1, f"{slow}x", {push: ["e" * 40]})
        broker.send(2, host.url(name), {1: nodes})
        working.settings |= {"prefetch": 10, "repositories": (host.root, slow)}
        working.start()
        eventually(lambda: is_recorded(database, {host.url(name): {1: nodes}}), "the other's push", timeout=PATIENCE)
        eventually(lambda: push_ids(database) == list(range(1, 21)), "all to be parked", timeout=PATIENCE)
        working.stop()
    assert broker.waiting() == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_repository_whose_clone_is_in_use_uses_no_retry(
    host: HgHost,
    broker: HgQueueSender,
    working: Working,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clones, "PATIENCE", 0.0)
    name, held = a_name(request), a_name(request)
    expected = {host.url(name): {1: host.add(name, 1)}}
    pushes = {number: [node] for number, node in enumerate(host.add(held, 20), 1)}
    failed = value_of(worker.FAILED)
    folder = Path(working.settings["clones"])
    folder.mkdir()
    with (folder / ".poll-1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        send_each(host, broker, 1, held, pushes)
        broker.send(2, host.url(name), expected[host.url(name)])
        working.start(prefetch=10)
        eventually(lambda: is_recorded(database, expected), "the other's push", timeout=PATIENCE)
        eventually(lambda: push_ids(database) == list(pushes), "all to be parked", timeout=PATIENCE)
    expected[host.url(held)] = pushes
    eventually(lambda: is_recorded(database, expected), "all pushes", timeout=PATIENCE)
    assert value_of(worker.FAILED) == failed


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_messages_without_room_to_park_stay_with_the_broker(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    bad, good = a_name(request), a_name(request)
    nodes = host.add(good, 1)
    before = value_of(worker.FAILED)
    broker.send(1, host.url(bad), {1: ["e" * 40]})
    broker.send(2, host.url(good), {1: nodes})
    working.settings |= {"retry": NEVER}
    working.start(park_bytes=10)
    eventually(lambda: value_of(worker.FAILED) > before, "the failure", timeout=PATIENCE)
    eventually(lambda: is_recorded(database, {host.url(good): {1: nodes}}), "the other's push", timeout=PATIENCE)
    working.stop()
    assert push_ids(database) == []
    assert broker.waiting() == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("body", "headers", "complaint"),
    [
        ("nonsense", {}, "not JSON"),
        ('{"type": "hg-push", "repository_id": 1, "pushes": []}', {}, "expected source and repository"),
        (
            '{"type": "hg-push", "repository_id": 1, "pushes": []}',
            {"source": "../x", "repository": "http://127.0.0.1:1/x"},
            "source: expected lower-case letters",
        ),
        (
            '{"type": "hg-push", "repository_id": 1, "pushes": []}',
            {"source": "poll", "repository": "file:///etc"},
            "expected the beginning of one of work.repositories",
        ),
        ('{"type": "other", "repository_id": 1, "pushes": []}', {}, "type: expected hg-push"),
        (
            '{"type": "hg-push", "repository_id": 1, "pushes": []}',
            {"source": "poll", "repository": "http://127.0.0.1:1/" + "x" * 1000},
            "expected the beginning of one of work.repositories, and at most 1000 characters",
        ),
    ],
)
def test_message_that_makes_no_sense_is_kept_at_once(
    broker: HgQueueSender, working: Working, body: str, headers: dict[str, str], complaint: str
) -> None:
    broker.send_raw(body, headers)
    working.start()
    kept = eventually(lambda: broker.take("hg.dead"), "the dead letter")
    assert kept.body in (body, body.encode())
    assert complaint in kept.headers["error"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_dead_letter_is_the_message_byte_by_byte(broker: HgQueueSender, working: Working) -> None:
    body = b'{"type": "\xff\xfe"}'
    broker.send_raw(body, {})
    working.start()
    assert eventually(lambda: broker.take("hg.dead"), "the dead letter").body == body


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_message_whose_properties_cannot_be_read_becomes_a_dead_letter(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    nodes = host.add(name, 1)
    broker.send_unreadable(b"nonsense")
    broker.send(1, host.url(name), {1: nodes})
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes}}), "the other's push", timeout=PATIENCE)
    assert eventually(lambda: broker.take("hg.dead"), "the dead letter").body in ("nonsense", b"nonsense")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_message_that_is_too_large_becomes_a_letter_without_its_body(
    host: HgHost,
    broker: HgQueueSender,
    working: Working,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "LARGEST", 300_000)
    name = a_name(request)
    nodes = host.add(name, 2)
    broker.send(1, host.url(name), {1: nodes[:1]})
    broker.send_raw("x" * 300_001, {"source": "poll", "repository": "https://other.example/x"})
    broker.send(1, host.url(name), {2: nodes[1:]})
    working.start()
    both = {host.url(name): {1: nodes[:1], 2: nodes[1:]}}
    eventually(lambda: is_recorded(database, both), "the other pushes", timeout=PATIENCE)
    kept = eventually(lambda: broker.take("hg.dead"), "the dead letter")
    assert kept.body in ("", b"")
    assert kept.headers["error"] == (
        "message of 300001 bytes for repository 'https://other.example/x', expected at most 300000; its body was dropped"
    )
    working.stop()
    assert broker.take("hg") is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_dead_queue_that_takes_no_letter_holds_up_letters_only(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    pushes = some_pushes(host.add(name, 10))
    broker.declare_full("hg.dead")
    broker.send_raw("nonsense", {})
    send_each(host, broker, 1, name, pushes)
    working.start()
    eventually(lambda: is_recorded(database, {host.url(name): pushes}), "the good pushes", timeout=PATIENCE)
    eventually(lambda: broker.waiting() == 0, "all to be taken")
    broker.delete("hg.dead")
    letter = eventually(lambda: broker.take("hg.dead"), "the dead letter", timeout=PATIENCE)
    assert letter.body in ("nonsense", b"nonsense")
    working.stop()
    assert broker.waiting() == 0


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut index": lambda clone: os.truncate(clone / ".hg/store/00changelog.i", 100),
    "other manifest": lambda clone: (clone / ".hg/store/00manifest.i").write_bytes(os.urandom(300)),
    "no manifest": lambda clone: (clone / ".hg/store/00manifest.i").unlink(),
    "no store": lambda clone: shutil.rmtree(clone / ".hg/store"),
}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_damaged_clone_is_made_anew(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, request: pytest.FixtureRequest
) -> None:
    names = {damage: a_name(request) for damage in DAMAGES}
    nodes = {damage: host.add(name, 1) for damage, name in names.items()}
    failed = value_of(worker.FAILED)
    for number, damage in enumerate(DAMAGES):
        broker.send(number, host.url(names[damage]), {1: nodes[damage]})
    working.start()
    expected = {host.url(name): {1: nodes[damage]} for damage, name in names.items()}
    eventually(lambda: is_recorded(database, expected), "the first pushes", timeout=PATIENCE)
    for number, damage in enumerate(DAMAGES):
        DAMAGES[damage](Path(working.settings["clones"]) / f"poll-{number}")
        more = host.extend(names[damage], 1)
        broker.send(number, host.url(names[damage]), {2: more[1:]})
        expected[host.url(names[damage])][2] = more[1:]
    eventually(lambda: is_recorded(database, expected), "pushes after the damage", timeout=PATIENCE)
    assert value_of(worker.FAILED) == failed
    assert not [path for path in Path(working.settings["clones"]).glob(".*") if path.suffix != ".lock"]


class Elsewhere(BaseHTTPRequestHandler):
    """Sends clients to the server's `target`, and notes who came."""

    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(302)
        self.send_header("Location", self.server.target + self.path)  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class PointingHost(Elsewhere):
    """Speaks Mercurial's protocol; its bundle says that the changesets are at `target`."""

    def do_GET(self) -> None:
        query = urlsplit(self.path).query
        command = parse_qs(query)["cmd"][0]
        self.server.seen.append(command)  # type: ignore[attr-defined]
        body = getattr(self, f"answer_{command}")()
        self.send_response(200)
        self.send_header("Content-Type", "application/mercurial-0.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_capabilities(self) -> bytes:
        return b"branchmap bundle2=HG20 getbundle known lookup"

    def answer_batch(self) -> bytes:
        return b"a" * 40 + b"\n;"  # its head, and that it knows none of our own

    def answer_getbundle(self) -> bytes:
        bundler = bundle2.bundle20(ui.ui())
        part = bundler.newpart(b"remote-changegroup")
        part.addparam(b"url", f"{self.server.target}/changesets".encode())  # type: ignore[attr-defined]
        part.addparam(b"size", b"100")
        return zlib.compress(b"".join(bundler.getchunks()))


@contextmanager
def listening(kind: type[Elsewhere] = Elsewhere, target: str = "") -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.seen, server.target = [], target  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_redirect_of_a_host_into_another_network_is_not_followed(broker: HgQueueSender, working: Working) -> None:
    with listening() as inner, listening(target=f"http://127.0.0.1:{inner.server_port}") as outer:
        root = f"http://127.0.0.1:{outer.server_port}/"
        working.settings |= {"repositories": (root,), "max_hg_retries": 0}
        broker.send(1, f"{root}x", {1: ["a" * 40]})
        working.start()
        kept = eventually(lambda: broker.take("hg.dead"), "the dead letter", timeout=PATIENCE)
        assert f"it redirects to 'http://127.0.0.1:{inner.server_port}/x" in kept.headers["error"]
        assert outer.seen
        assert inner.seen == []


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_bundle_that_names_an_address_in_another_network_is_refused(broker: HgQueueSender, working: Working) -> None:
    with listening() as inner, listening(PointingHost, f"http://127.0.0.1:{inner.server_port}") as outer:
        root = f"http://127.0.0.1:{outer.server_port}/"
        working.settings |= {"repositories": (root,), "max_hg_retries": 0}
        broker.send(1, f"{root}x", {1: ["a" * 40]})
        working.start()
        kept = eventually(lambda: broker.take("hg.dead"), "the dead letter", timeout=PATIENCE)
        assert inner.seen == []
        assert "remote-changegroup" in kept.headers["error"]
        assert "getbundle" in outer.seen


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_full_disk_of_this_machine_uses_no_retry(
    host: HgHost,
    broker: HgQueueSender,
    working: Working,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = a_name(request)
    host.add(name, 1)
    monkeypatch.setattr(clones, "LEAST_FREE", 2**62)  # more than any disk has
    failed = value_of(worker.FAILED)
    broker.send(1, host.url(name), {1: ["e" * 40]})
    with capture_logs() as lines:
        working.start()
        eventually(
            lambda: any("bytes are free" in str(line.get("reason")) for line in lines), "the reason", timeout=PATIENCE
        )
    eventually(lambda: value_of(DOWN.labels("work")) == 1, "the alert")
    assert value_of(worker.FAILED) == failed
    assert broker.take("hg.dead") is None
    monkeypatch.undo()
    # The message fails by itself from now on, because its changeset is unknown.
    eventually(lambda: value_of(DOWN.labels("work")) == 0, "the alert ends", timeout=PATIENCE)
    working.stop()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("statements", "complaint"),
    [
        (["ALTER TABLE pushes RENAME TO others"], 'relation "pushes" does not exist'),
        (
            ["CREATE ROLE {0} LOGIN PASSWORD '{0}'", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {0}"],
            "permission denied for table repositories",
        ),
    ],
    ids=["a table is missing", "a right is missing"],
)
def test_what_an_operator_must_mend_in_the_database_is_no_messages_fault(
    database: str, statements: list[str], complaint: str
) -> None:
    role = f"r{os.urandom(4).hex()}"
    made = WorkDatabase(database)
    made.migrate()
    made.close()
    change(database, *(statement.format(role) for statement in statements))
    is_role = len(statements) > 1
    tried = WorkDatabase(database.replace("test:test@", f"{role}:{role}@") if is_role else database)
    with pytest.raises(BadConfig, match=complaint):
        tried.record(A_KEY, [QueuedPush(id=1, date=1, user="u", changesets=())])
    tried.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_database_that_only_reads_is_waited_for(database: str) -> None:
    made = WorkDatabase(database)
    made.migrate()
    change(database, f'ALTER DATABASE "{make_url(database).database}" SET default_transaction_read_only = on')
    made.close()
    tried = WorkDatabase(database)
    with pytest.raises(Unavailable, match="read-only transaction"):
        tried.record(A_KEY, [])
    tried.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_second_worker_waits_and_takes_over(
    host: HgHost, broker: HgQueueSender, working: Working, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = a_name(request)
    nodes = host.add(name, 2)
    second = Working(broker.url, host, database, tmp_path)
    working.start()
    broker.send(1, host.url(name), {1: nodes[:1]})
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes[:1]}}), timeout=PATIENCE)
    second.start()
    eventually(lambda: value_of(worker.WAITING) == 1, "the second to wait")
    working.stop()
    broker.send(1, host.url(name), {2: nodes[1:]})
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes[:1], 2: nodes[1:]}}), timeout=PATIENCE)
    second.stop()


@pytest.mark.usefixtures("warm_pulls")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_broker_that_restarts_costs_nothing(
    host: HgHost,
    own_service: Callable[[type[RabbitMQ]], RabbitMQ],
    database: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    rabbitmq, name = own_service(RabbitMQ), a_name(request)
    nodes = host.add(name, 2)
    working, broker = Working(rabbitmq.url, host, database, tmp_path), HgQueueSender(rabbitmq.url)
    working.start()
    broker.send(1, host.url(name), {1: nodes[:1]})
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes[:1]}}), timeout=PATIENCE)
    broker.close()
    rabbitmq.kill()
    rabbitmq.restart()
    broker = HgQueueSender(rabbitmq.url)
    broker.send(1, host.url(name), {2: nodes[1:]})
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes[:1], 2: nodes[1:]}}), timeout=PATIENCE)
    working.stop()
    broker.close()


@pytest.mark.usefixtures("warm_pulls")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_broker_that_blocks_publishers_holds_up_dead_letters_only(
    host: HgHost,
    own_service: Callable[[type[RabbitMQ]], RabbitMQ],
    database: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    rabbitmq, name = own_service(RabbitMQ), a_name(request)
    nodes = host.add(name, 1)
    working, broker = Working(rabbitmq.url, host, database, tmp_path), HgQueueSender(rabbitmq.url)
    broker.send_raw("nonsense", {})
    broker.send(1, host.url(name), {1: nodes})
    rabbitmq.block_publishers()
    working.start()
    eventually(lambda: value_of(BLOCKED.labels("work")) == 1, "the metric to say so")
    eventually(lambda: is_recorded(database, {host.url(name): {1: nodes}}), "the push", timeout=PATIENCE)
    working.stop()
    assert broker.waiting() == 1
    working.start()
    rabbitmq.unblock_publishers()
    assert eventually(lambda: broker.take("hg.dead"), "the dead letter").headers["error"]
    eventually(lambda: rabbitmq.held(rabbitmq.url, "hg") == 0, "the acknowledgement")
    working.stop()
    assert broker.waiting() == 0
    broker.close()


# -- the command


def write_file(folder: Path, **keys: Any) -> Path:
    known: dict[str, Any] = {
        "url": "amqp://guest:guest@127.0.0.1:1//",
        "repositories": ["http://127.0.0.1:1/"],
        "clones": f"{folder}/clones",
        "database-url": f"sqlite:///{folder}/work.db",
    }
    file = folder / "v.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**known, **keys}.items() if value is not None]
    file.write_text("\n".join(["[work]", *lines, ""]))
    return file


def command(file: Path, *more: str) -> list[str]:
    return [*PROGRAM, CLI, "work", "-c", str(file), *more]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"clones": None}, "work: key 'clones' is missing"),
        ({"clones": "here"}, "work.clones: expected an absolute path"),
        ({"database-url": "mysql://h/x"}, "work.database-url: expected sqlite:////path or postgresql+psycopg://"),
        ({"repositories": ["https://hg.example"]}, "work.repositories: expected beginnings of URLs"),
        ({"repositories": ["http://hg.example/"]}, "work.repositories: http:// to hg.example, expected https://"),
        ({"dead-queue": "hg"}, "work.dead-queue: expected another name than queue has, got 'hg'"),
        ({"repositories": []}, "work.repositories: expected at least one beginning of URLs"),
        ({"database-url": "postgresql+psycopg://u@db.example:many/x"}, "work.database-url: expected a port from 1"),
        ({"database-url": "postgresql+psycopg://u@[::1]:65536/x"}, "work.database-url: expected a port from 1"),
        ({"retry.factor": 1e300}, "work.retry.factor: expected a number from 1 to 100"),
        ({"retry.jitter": 2}, "work.retry.jitter: expected a number from 0 to 1"),
        ({"database-url": "postgresql+psycopg://u:p@db.example/x"}, "work.database-url: a password in a URL"),
        ({"max-hg-retries": -1}, "work.max-hg-retries: expected a number from 0"),
        ({}, "its tables have revision none, expected 0002: run `vcsreplicator work --migrate`"),
    ],
)
def test_wrong_configuration_is_one_line_with_file_and_key_and_exit_78(
    tmp_path: Path, keys: dict[str, Any], complaint: str
) -> None:
    file = write_file(tmp_path, **keys)
    with warm_starts():
        ended = subprocess.run(command(file), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 78, ended.stderr
    [line] = ended.stderr.splitlines()
    said = json.loads(line)["reason"] if line.startswith("{") else line.removeprefix("vcsreplicator: ")
    assert said.startswith(f"{file}: work")
    assert complaint in said


def test_credentials_that_the_broker_refuses_are_one_line_and_exit_78(rabbitmq: Any, tmp_path: Path) -> None:
    file = write_file(tmp_path, url=rabbitmq.vhost().replace("guest:guest", "guest:Wr0ng"), migrate="at-start")
    with warm_starts():
        ended = subprocess.run(command(file), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 78, ended.stderr
    last = json.loads(ended.stderr.splitlines()[-1])["reason"]
    assert last.startswith(f"{file}: work.url: ")
    assert "ACCESS_REFUSED" in last
    assert "Wr0ng" not in last


def test_credentials_that_postgresql_refuses_are_one_line_and_exit_78(postgresql: Any, tmp_path: Path) -> None:
    file = write_file(tmp_path, **{"database-url": postgresql.url.replace("test:test", "test:wrong")})
    with warm_starts():
        ended = subprocess.run(command(file), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 78, ended.stderr
    last = json.loads(ended.stderr.splitlines()[-1])["reason"]
    assert last.startswith(f"{file}: work.database-url: ")
    assert "authentication failed" in last
    assert "test:wrong" not in last


def test_migrations_make_the_tables_of_the_schema(database: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from notifier.services.work.database import WorkDatabase
    from notifier.services.work.schema import METADATA

    made = WorkDatabase(database)
    with pytest.raises(BadConfig, match="revision none, expected"):
        made.check()
    for _ in range(2):
        made.migrate()
    made.check()
    with made.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    made.close()


# -- killed


@pytest.mark.sample(1)
@pytest.mark.hunt
def test_the_database_says_what_repositories_say_after_kills_under_load(
    host: HgHost, broker: HgQueueSender, database: str, tmp_path: Path
) -> None:
    survive_kills(host, broker, database, tmp_path, kills=1)


@pytest.mark.hunt
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_database_says_what_repositories_say_after_many_kills(
    host: HgHost, broker: HgQueueSender, database: str, tmp_path: Path
) -> None:
    survive_kills(host, broker, database, tmp_path, kills=KILLS)


@pytest.mark.hunt
def test_killed_at_a_few_lines_of_parking_nothing_is_lost_or_reordered(
    host: HgHost, broker: HgQueueSender, tmp_path: Path
) -> None:
    survive_kills_while_parking(host, broker, tmp_path, every=15)


@pytest.mark.hunt
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_each_line_of_parking_nothing_is_lost_or_reordered(
    host: HgHost, broker: HgQueueSender, tmp_path: Path
) -> None:
    survive_kills_while_parking(host, broker, tmp_path, every=1)


def survive_kills_while_parking(host: HgHost, broker: HgQueueSender, folder: Path, *, every: int) -> None:
    """In each round a repository is away, gets pushes, and comes back; the worker is killed at another line."""
    name, database = f"p{os.urandom(4).hex()}", f"sqlite:///{folder}/work.db"
    count = 200 if every > 1 else 1500  # three a round
    nodes, there, away = host.add(name, count), host.folder / name, host.folder / f"{name}-away"
    file = write_file(folder, url=broker.url, repositories=[host.root], migrate="at-start", **{"max-hg-retries": 1000})
    file.write_text(f"{file.read_text()}retry = {{ first = 0.02, longest = 0.1 }}\n")
    steps = PythonSteps(files=("work/parking.py",), argument="work", record=folder / "steps")
    expected: dict[int, list[str]] = {}

    def play(environment: Mapping[str, str]) -> None:
        there.rename(away)
        shutil.rmtree(folder / "clones", ignore_errors=True)  # else the pushes need no pull
        for push in range(len(expected) + 1, len(expected) + 4):
            expected[push] = [nodes[push - 1]]
            broker.send(1, host.url(name), {push: expected[push]})
        with (folder / "worker.log").open("ab") as log, warm_starts():
            process = subprocess.Popen(command(file), env=environment, stderr=log)
        try:
            eventually(lambda: process.poll() is not None or push_ids(database), "parked or dead", timeout=PATIENCE)
            away.rename(there)
            wanted = {host.url(name): expected}
            eventually(
                lambda: process.poll() is not None or (is_recorded(database, wanted) and push_ids(database) == []),
                "recorded or dead",
                timeout=PATIENCE,
            )
        finally:
            process.kill()
            process.wait()

    points = first_visits(steps.taken(play))[every - 1 :: every]
    died = set()
    for point in points:
        places = steps.taken(play, kill_at=point)
        if len(places) >= point:
            died.add(places[point - 1])
    assert len(died) > 1
    play(os.environ)
    assert recorded(database) == {host.url(name): expected}
    assert rows(database, "SELECT id FROM pushes ORDER BY rowid") == [(push,) for push in expected]
    assert broker.take("hg.dead") is None


def survive_kills(host: HgHost, broker: HgQueueSender, database: str, folder: Path, *, kills: int) -> None:
    """A worker is killed at any moment while messages come; in the end the database says what the repositories say."""
    chance = random.Random(int(os.environ.get("VCSREPLICATOR_TEST_SEED", "0")) or None)
    names = [f"k{os.urandom(4).hex()}" for _ in range(4)]
    pushes = {name: some_pushes(host.add(name, 2 * kills, more=kills + 5)) for name in names}
    file = write_file(
        folder, url=broker.url, repositories=[host.root], migrate="at-start", **{"database-url": database}
    )
    unsent = [(number, name, push) for number, name in enumerate(names) for push in pushes[name]]
    unsent.sort(key=lambda each: each[2])
    share = len(unsent) // kills + 1
    for _ in range(kills):
        log = (folder / "worker.log").open("wb")
        with warm_starts():
            process = subprocess.Popen(command(file), stderr=log)
        for number, name, push in unsent[:share]:
            broker.send(number, host.url(name), {push: pushes[name][push]})
        del unsent[:share]
        eventually(lambda: b"consuming" in (folder / "worker.log").read_bytes(), "the worker", timeout=PATIENCE)
        threading.Event().wait(chance.random() * 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        log.close()
    expected = {host.url(name): pushes[name] for name in names}
    with (folder / "last.log").open("wb") as log, warm_starts():
        process = subprocess.Popen(command(file), stderr=log)
    try:
        eventually(lambda: b"consuming" in (folder / "last.log").read_bytes(), "the worker", timeout=PATIENCE)
        eventually(lambda: is_recorded(database, expected), "all pushes", timeout=PATIENCE, every=0.2)
        eventually(lambda: broker.waiting() == 0)
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert recorded_changesets(database) == {
        node: said for name in names for node, said in host.changesets(name).items()
    }
    assert broker.take("hg.dead") is None
