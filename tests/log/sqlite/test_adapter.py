# SPDX-License-Identifier: GPL-2.0-or-later
"""What only the embedded log promises: clear words about a sick database, removal in small steps, wake-ups, several processes."""

import contextlib
import errno
import itertools
import os
import resource
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgext.vcsreplicator.log import ERRORS, EVENTS, LATEST, NOTICES, STATE, NewRecord, Record, Topic, topics
from hgext.vcsreplicator.log.sqlite import doorbell as bells
from hgext.vcsreplicator.log.sqlite.adapter import STEP, TOMBSTONES_KEPT, SqliteLog
from hgext.vcsreplicator.log.sqlite.filesystem import kind_of, refuse_network
from hgext.vcsreplicator.log.sqlite.reader import FALLBACK_POLL, SqliteReader
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, Rewound, Unavailable
from testing.faults.permission import closed, under
from testing.faults.system import System
from testing.services.cache import CHECKOUT

pytestmark = pytest.mark.processes

TOPICS = (Topic(name=EVENTS, retention=100.0), Topic(name=NOTICES), Topic(name=STATE, compacted=True))
ROOT = CHECKOUT
# A user that this machine does not have.
STRANGER = 65533


class HandClock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path, clock: HandClock) -> Iterator[SqliteLog]:
    with SqliteLog(path, clock=clock, creates=True) as log:
        log.create(TOPICS)
        yield log


def message(value: bytes | None, *, topic: str = NOTICES, key: str = "x") -> NewRecord:
    return NewRecord(topic=topic, key=key, value=value)


def everything(log: SqliteLog, topic: str) -> list[Record]:
    reader = log.reader({(topic, 0): log.beginnings(topic)[0]})
    try:
        return reader.poll(0, limit=100_000)
    finally:
        reader.close()


# A database that is not well


def test_a_missing_folder_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"expected the folder .*nowhere to exist"):
        SqliteLog(tmp_path / "nowhere" / "log.db", creates=True)


def test_a_place_where_nothing_can_be_made_is_named(path: Path) -> None:
    with pytest.raises(Unavailable, match=r"sqlite:///proc/log\.db: .*check that it exists, and owner and mode"):
        SqliteLog(Path("/proc/log.db"), creates=True)
    path.with_name(path.name + "-wake").touch()
    with pytest.raises(BadConfig, match=r"to create the folder log\.db-wake in it: File exists"):
        SqliteLog(path, creates=True)


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    with pytest.raises(BadConfig, match="expected a log of vcsreplicator"):
        SqliteLog(path)


def test_a_database_of_a_newer_release_is_refused(path: Path, log: SqliteLog) -> None:
    log.close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(BadConfig, match="has schema 99, expected at most 2; it was written by a newer release"):
        SqliteLog(path)


def test_a_database_without_topics_takes_a_commit_of_no_records(path: Path) -> None:
    """An aggregator renews its epoch in a log that was made in place of a lost one."""
    with contextlib.closing(SqliteLog(path, creates=True)) as log:
        log.transactor("aggregator").renew()


def test_a_file_that_is_no_database_is_unavailable_and_says_what_to_do(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(Unavailable, match=r"file is not a database; .*restore it from a backup"):
        SqliteLog(path)


def test_a_damaged_database_is_unavailable_and_says_what_to_do(path: Path, log: SqliteLog) -> None:
    log.append([message(b"." * 1000) for _ in range(100)])
    log.close()
    with path.open("r+b") as file:  # all pages but the first, which holds the schema
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with SqliteLog(path) as again, pytest.raises(Unavailable, match="malformed; stop all services, then restore"):
        again.append([message(b"more")])


@pytest.mark.parametrize(
    ("column", "hostile", "expected"),
    [
        ("key", 7, ("7", b"1", {}, 1_000_000.0)),
        ("key", b"\xff", ("\udcff", b"1", {}, 1_000_000.0)),
        ("value", "text", ("x", b"text", {}, 1_000_000.0)),
        ("value", 2.5, ("x", b"2.5", {}, 1_000_000.0)),
        ("headers", "no JSON", ("x", b"1", {}, 1_000_000.0)),
        ("headers", b"\xff", ("x", b"1", {}, 1_000_000.0)),
        ("headers", "[" * 100_000, ("x", b"1", {}, 1_000_000.0)),
        ("headers", '["list"]', ("x", b"1", {}, 1_000_000.0)),
        ("headers", '{"x": 1e999, "y": null}', ("x", b"1", {"x": "inf", "y": "None"}, 1_000_000.0)),
        ("time", float("inf"), ("x", b"1", {}, LATEST)),
        ("time", -1e300, ("x", b"1", {}, 0.0)),
        ("time", "yesterday", ("x", b"1", {}, 0.0)),
    ],
)
def test_what_another_program_wrote_stops_no_reader(
    path: Path, log: SqliteLog, column: str, hostile: object, expected: tuple[object, ...]
) -> None:
    log.append([message(b"1")])
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"UPDATE records SET {column} = ?", (hostile,))
        other.commit()
    log.append([message(b"2")])
    reader = log.reader({(NOTICES, 0): 0})
    [found, good] = reader.poll(0)
    assert (found.key, found.value, found.headers, found.time) == expected
    assert good.value == b"2"
    log.append([message(b"3")])
    assert [record.value for record in reader.poll(0)] == [b"3"]
    reader.close()


def test_a_database_locked_by_another_is_unavailable_after_the_time_given(path: Path, log: SqliteLog) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.raises(Unavailable, match="another process keeps it locked"):
        log.append([message(b"1")], timeout=0.05)
    assert time.monotonic() - start < 10
    other.execute("ROLLBACK")
    other.close()
    assert log.append([message(b"1")]) == [(0, 0)]


def test_a_read_only_database_is_unavailable_and_says_what_to_check(path: Path, log: SqliteLog) -> None:
    log.close()
    path.chmod(0o444)
    program = f"""
from pathlib import Path
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.log import NewRecord
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
try:
    SqliteLog(Path({str(path)!r})).append([NewRecord(topic="notices", key="x", value=b"1")])
except Unavailable as error:
    print(error)
"""
    assert "readonly database; check owner and mode" in run_without_privileges(program)


def test_a_full_disk_is_unavailable_until_there_is_room(path: Path, log: SqliteLog) -> None:
    program = f"""
import resource
from pathlib import Path
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.log import NewRecord
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
log = SqliteLog(Path({str(path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
try:
    while True:
        log.append([NewRecord(topic="notices", key="x", value=b"." * 50_000)])
except Unavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(log.append([NewRecord(topic="notices", key="x", value=b"room")]))
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    refused, written = out.splitlines()
    assert "no space left on its disk" in refused or "disk I/O error" in refused
    stored = everything(log, NOTICES)
    assert stored[-1].value == b"room"
    assert written == f"[(0, {stored[-1].offset})]"
    assert [record.offset for record in stored] == list(range(len(stored)))


def run_without_privileges(program: str) -> str:
    """What it prints; root's power over file modes is dropped where there is any."""
    command = [sys.executable, "-c", program]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_a_database_replaced_by_another_is_noticed_at_the_next_append(
    path: Path, log: SqliteLog, clock: HandClock
) -> None:
    log.append([message(b"old")])
    for name in path.parent.glob("log.db*"):
        if name.is_file():
            name.unlink()
    with SqliteLog(path, clock=clock, creates=True) as fresh:
        fresh.create([Topic(name=STATE), Topic(name=NOTICES)])
        log.append([message(b"new")])
        assert [record.value for record in everything(fresh, NOTICES)] == [b"new"]


def test_a_wal_removed_beside_a_running_service_is_named(path: Path, log: SqliteLog) -> None:
    log.append([message(b"1")])
    path.with_name("log.db-wal").unlink()
    with (
        contextlib.closing(SqliteLog(path)) as other,
        pytest.raises(Unavailable, match="if its -wal file was removed, restart all services"),
    ):
        other.ends(NOTICES)


def test_a_reader_finds_its_topic_in_a_database_that_has_others_before_it(path: Path, log: SqliteLog) -> None:
    reader = log.reader({(NOTICES, 0): 0})
    assert reader.poll(0) == []
    with SqliteLog(path.with_name("other.db"), creates=True) as other:
        other.create([Topic(name="first"), *reversed(TOPICS)])
        other.append([message(b"1"), message(b"wrong", topic="first")])
    for beside in ("log.db-wal", "log.db-shm"):  # they belong to the database that goes
        path.with_name(beside).unlink()
    path.with_name("other.db").rename(path)
    assert [record.value for record in reader.poll(0)] == [b"1"]
    reader.close()


@pytest.mark.parametrize("copied", [0, 1], ids=["no instance", "an older instance"])
def test_a_copy_that_lacks_the_newest_instance_fences_only_the_older_ones(
    path: Path, log: SqliteLog, copied: int
) -> None:
    older = [log.transactor("one") for _ in range(copied)]
    copy = path.with_name("copy.db")
    back_up(path, copy)
    newest = log.transactor("one")
    restore(copy, path)
    with pytest.raises(Unavailable, match="restored"):
        newest.commit([message(b"1")])
    newest.renew()
    newest.commit([message(b"2")])
    for transactor in older:
        with pytest.raises(Fenced):
            transactor.renew()
    newer = log.transactor("one")
    with pytest.raises(Fenced):
        newest.renew()
    newer.commit([message(b"3")])
    assert [record.value for record in everything(log, NOTICES)] == [b"2", b"3"]


def test_of_two_instances_that_began_with_the_same_copy_one_goes_on(path: Path, log: SqliteLog) -> None:
    copy = path.with_name("copy.db")
    back_up(path, copy)
    one = log.transactor("one")
    restore(copy, path)
    other = log.transactor("one")
    fenced = 0
    for transactor in (one, other, one, other):
        try:
            transactor.renew()
        except Fenced:
            fenced += 1
    assert fenced == 2


def back_up(path: Path, copy: Path) -> None:
    """Copy the log while others may have it open."""
    with contextlib.closing(sqlite3.connect(path)) as log, contextlib.closing(sqlite3.connect(copy)) as target:
        log.backup(target)


def restore(copy: Path, path: Path) -> None:
    """Put the copy where the log was, while others may have that open."""
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    copy.rename(path)


def test_a_reader_notices_a_copy_that_grew_past_its_position(path: Path, log: SqliteLog) -> None:
    log.append([message(b"%d" % number) for number in range(2)])
    copy = path.with_name("copy.db")
    back_up(path, copy)
    log.append([message(b"lost")])
    log.append([message(b"lost too")])
    with contextlib.closing(log.reader({(NOTICES, 0): 4})) as reader:
        restore(copy, path)
        log.append([message(b"%d" % number, key="new") for number in range(3)])
        with pytest.raises(Rewound):
            reader.poll(0)


def test_a_reader_that_missed_the_file_finds_its_place_in_another(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    with contextlib.closing(SqliteLog(path, creates=True)) as log:
        log.create(topics(partitions=4))
        log.append([message(b"1", topic=ERRORS)])
        with contextlib.closing(log.reader({(ERRORS, 0): 0})) as reader:
            assert len(reader.poll(0)) == 1
            path.rename(tmp_path / "away.db")
            with pytest.raises(Unavailable):
                reader.poll(0)
            with contextlib.closing(SqliteLog(path, creates=True)) as anew:
                anew.create(topics(partitions=1))
            with pytest.raises(Rewound):
                reader.poll(0)


def test_a_database_that_vanished_is_not_made_anew(path: Path, log: SqliteLog) -> None:
    path.unlink()
    with pytest.raises(Unavailable, match="No such file"):
        log.append([message(b"1")])
    assert not path.exists()


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:40 / /srv rw - nfs4 server:/export rw
41 40 254:1 / /srv/my\\040disk rw - xfs /dev/vdb rw
42 22 0:41 / /srvother rw shared:7 master:2 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/var/log.db", "ext4"), ("/srv/log.db", "nfs4"), ("/srv/my disk/log.db", "xfs"), ("/srvother/log.db", "tmpfs")],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(place: str, kind: str) -> None:
    assert kind_of(place, MOUNTS) == kind


def test_a_network_file_system_is_refused() -> None:
    refuse_network(Path("/var/log.db"), MOUNTS)
    with pytest.raises(BadConfig, match=r"network file system \(nfs4\); expected a path on a local disk"):
        refuse_network(Path("/srv/log.db"), MOUNTS)


# Removal


def test_records_go_after_their_retention_in_small_steps(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"old", topic=EVENTS) for _ in range(3 * STEP)])
    clock.time += 101
    log.append([message(b"young", topic=EVENTS)])
    beginnings = [log.beginnings(EVENTS)[0]]
    while beginnings[-1] < 3 * STEP:
        log.append([message(b"")])
        beginnings.append(log.beginnings(EVENTS)[0])
    assert max(later - earlier for earlier, later in itertools.pairwise(beginnings)) <= STEP + 1
    assert [record.value for record in everything(log, EVENTS)] == [b"young"]


def pass_in_use(log: SqliteLog, clock: HandClock, seconds: float) -> None:
    """Time passes, and the services go on to write."""
    while seconds > 0:
        clock.time += min(1800.0, seconds)
        seconds -= 1800.0
        log.append([message(b"")])


def test_a_clock_that_jumps_ahead_takes_nothing_that_could_not_be_read(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"unread", topic=EVENTS)])
    clock.time += 400 * DAY
    for _ in range(10):
        log.append([message(b"")])
    assert [record.value for record in everything(log, EVENTS)] == [b"unread"]
    clock.time -= 400 * DAY
    for _ in range(10):
        log.append([message(b"")])
    assert [record.value for record in everything(log, EVENTS)] == [b"unread"]


def test_what_is_old_enough_without_a_pause_goes(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"old", topic=EVENTS)])
    clock.time += 70
    log.append([message(b"")])
    clock.time += 400 * DAY
    log.append([message(b"later", topic=EVENTS)])
    clock.time += 60
    for _ in range(10):
        log.append([message(b"")])
    assert [record.value for record in everything(log, EVENTS)] == [b"later"]


def test_records_go_after_their_retention_though_the_clock_was_ahead_once(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"before", topic=EVENTS)])
    clock.time += 400 * DAY
    log.append([message(b"ahead", topic=EVENTS) for _ in range(3 * STEP)])
    clock.time -= 400 * DAY
    log.append([message(b"after", topic=EVENTS)])
    clock.time += 101
    log.append([message(b"young", topic=EVENTS)])
    for _ in range(10):
        log.append([message(b"")])
    assert [record.value for record in everything(log, EVENTS)] == [b"young"]


def test_a_pause_still_counts_after_the_clock_is_corrected(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"unread", topic=EVENTS)])
    clock.time += 400 * DAY
    log.append([message(b"")])
    clock.time -= 70
    for _ in range(10):
        log.append([message(b"")])
    assert [record.value for record in everything(log, EVENTS)] == [b"unread"]


def test_a_topic_without_retention_is_kept(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"1")])
    clock.time += 10_000 * DAY
    for _ in range(10):
        log.append([message(b"2")])
    assert log.beginnings(NOTICES) == {0: 0}


def test_compaction_removes_at_once_what_was_replaced(log: SqliteLog) -> None:
    log.append([message(b"1", topic=STATE, key="a"), message(b"1", topic=STATE, key="b")])
    log.append([message(b"2", topic=STATE, key="a"), message(b"3", topic=STATE, key="a")])
    assert [(record.key, record.value) for record in everything(log, STATE)] == [("b", b"1"), ("a", b"3")]


def test_a_tombstone_stays_for_a_while_and_its_key_may_come_back(log: SqliteLog, clock: HandClock) -> None:
    log.append([message(b"1", topic=STATE), message(None, topic=STATE)])
    assert [record.value for record in everything(log, STATE)] == [None]
    pass_in_use(log, clock, TOMBSTONES_KEPT + 1)
    while everything(log, STATE):
        log.append([message(b"")])
    reader = log.reader({(STATE, 0): 0})
    assert reader.poll(0) == []
    assert reader.positions() == {(STATE, 0): log.ends(STATE)[0]}
    reader.close()
    log.append([message(b"2", topic=STATE)])
    log.append([message(b"3", topic=STATE)])
    assert [record.value for record in everything(log, STATE)] == [b"3"]


# Bells


def test_a_reader_is_woken_by_a_bell_and_does_not_wait_for_its_slow_poll(
    path: Path, log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hgext.vcsreplicator.log.sqlite.reader.FALLBACK_POLL", 3600)
    assert FALLBACK_POLL <= 1
    reader = log.reader({(NOTICES, 0): 0})
    program = f"""
from pathlib import Path
from hgext.vcsreplicator.log import NewRecord
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
SqliteLog(Path({str(path)!r})).append([NewRecord(topic="notices", key="x", value=b"from elsewhere")])
"""
    writer = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    assert [record.value for record in reader.poll(3600)] == [b"from elsewhere"]
    assert writer.wait() == 0
    reader.close()


def test_a_lost_ring_only_costs_time(log: SqliteLog, system: System) -> None:
    system.refuse(errno.EACCES, "os.listdir", at="*-wake")
    reader = log.reader({(NOTICES, 0): 0})
    timer = threading.Timer(0.1, lambda: log.append([message(b"1")]))
    timer.start()
    assert [record.value for record in reader.poll(3600)] == [b"1"]
    timer.join()
    assert reader.poll(0) == []
    log.append([message(b"2")])
    assert [record.value for record in reader.poll(0)] == [b"2"]
    reader.close()


def test_a_reader_that_found_nothing_waits_until_something_is_written(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = log.reader({(NOTICES, 0): 0})
    assert reader.poll(0) == []
    with monkeypatch.context() as without_reading:
        without_reading.setattr(reader, "_read_batch", lambda limit: pytest.fail("it read"))
        assert reader.poll(0) == []
    log.append([message(b"1")])
    assert [record.value for record in reader.poll(0)] == [b"1"]
    reader.close()


def test_a_reader_that_took_all_records_looks_again_after_a_write(
    path: Path, log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([message(b"1"), message(b"2")])
    reader = log.reader({(NOTICES, 0): 0})
    with contextlib.closing(reader):
        assert len(reader.poll(0, limit=1)) == 1
        assert [record.value for record in reader.poll(0, limit=1)] == [b"2"], "the rest without a write"
        with monkeypatch.context() as without_reading:
            without_reading.setattr(reader, "_read_batch", lambda limit: pytest.fail("it read"))
            assert reader.poll(0) == []
        with SqliteLog(path) as other:
            other.append([message(b"3")])
        assert [record.value for record in reader.poll(0)] == [b"3"]


def test_a_reader_of_many_partitions_asks_once_where_they_end(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "many.db", creates=True) as log:
        log.create([Topic(name=NOTICES), Topic(name=EVENTS, partitions=16)])
        with contextlib.closing(log.reader({(EVENTS, partition): 0 for partition in range(16)})) as reader:
            assert reader.poll(0) == []
            statements: list[str] = []
            assert isinstance(reader, SqliteReader)
            assert reader._connection is not None
            reader._connection._sqlite.set_trace_callback(statements.append)
            log.append([NewRecord(topic=EVENTS, partition=11, key="x", value=b"1")])
            assert [record.partition for record in reader.poll(0)] == [11]
        # Whether anything changed, the transaction, the ends, and the records of one partition.
        assert len(statements) == 6, statements


def test_a_commit_of_nothing_looks_at_no_stream_and_rings_no_bell(log: SqliteLog, system: System) -> None:
    """As a destination asks every few seconds whether it is fenced."""
    transactor = log.transactor("x")
    system.watch(lambda _: pytest.fail("it rang"), "os.listdir")
    statements: list[str] = []
    assert log._connection is not None
    log._connection._sqlite.set_trace_callback(statements.append)
    transactor.commit(())
    assert len(statements) == 3, statements


def test_a_reader_is_not_woken_for_topics_it_does_not_read(tmp_path: Path) -> None:
    bell = bells.Bell(tmp_path, [1, 5])
    bells.ring(tmp_path, [2, 3])
    assert not rung(bell)
    bells.ring(tmp_path, [3, 5])
    assert rung(bell)
    bell.close()


def rung(bell: bells.Bell) -> bool:
    bell.wait(0)
    return bell.has_rung


def test_bells_of_dead_processes_are_taken_down_by_the_next_ring(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(tmp_path / "1-0-ff"))
    dead.close()
    (tmp_path / "not a bell").touch()
    bell = bells.Bell(tmp_path, [1])
    bells.ring(tmp_path, [1])
    assert rung(bell)
    bell.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["not a bell"]


def test_a_bell_hangs_beside_those_of_a_dead_process_of_the_same_id(tmp_path: Path) -> None:
    with contextlib.closing(bells.Bell(tmp_path, [1])):
        [newest] = os.listdir(tmp_path)
    for further in range(1, 4):
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        dead.bind(str(tmp_path / f"{os.getpid()}-{int(newest.split('-')[1]) + further}-2"))
        dead.close()
    bell = bells.Bell(tmp_path, [1])
    assert len(os.listdir(tmp_path)) == 4
    bells.ring(tmp_path, [1])
    assert rung(bell)
    bell.close()


def test_a_process_with_very_many_files_open_is_woken_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        bell = bells.Bell(tmp_path, [1])
        bell.wake()
        assert bell.wait(3600)
        bell.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_bell_neither_blocks_nor_fails_and_still_wakes(tmp_path: Path) -> None:
    bell = bells.Bell(tmp_path, [1])
    for _ in range(5000):
        bells.ring(tmp_path, [1])
    bell.wake()
    assert bell.wait(3600)
    assert not bell.wait(0)
    bell.close()


def test_a_database_may_lie_deeper_than_a_socket_may_be_named(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    with SqliteLog(folder / "log.db", creates=True) as log:
        log.create(TOPICS)
        bell = bells.Bell(log.bells, range(len(TOPICS) + 1))
        log.append([message(b"1")])
        assert rung(bell)
        bell.close()


@pytest.mark.parametrize(("umask", "expected"), [(0, 0o660), (0o022, 0o640), (0o002, 0o660), (0o077, 0o600)])
def test_no_other_user_may_read_the_log_under_any_umask(tmp_path: Path, umask: int, expected: int) -> None:
    with under(umask), SqliteLog(tmp_path / "log.db", creates=True) as log:
        log.create(TOPICS)
        log.append([message(b"1")])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop("log.db-wake") == expected | (expected & 0o440) >> 2
    assert modes == {"log.db": expected, "log.db-wal": expected, "log.db-shm": expected}


def test_a_log_of_an_earlier_version_is_closed_to_other_users(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db", creates=True) as log:
        log.create(TOPICS)
        for path in tmp_path.glob("log.db*"):
            path.chmod(0o775 if path.is_dir() else 0o664)
        SqliteLog(tmp_path / "log.db").close()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"log.db": 0o660, "log.db-wal": 0o660, "log.db-shm": 0o660, "log.db-wake": 0o770}


def test_whoever_may_write_the_database_may_ring(tmp_path: Path) -> None:
    with under(0o002), SqliteLog(tmp_path / "log.db", creates=True) as log:
        log.create(TOPICS)
        reader = log.reader({(NOTICES, 0): 0})
        [bell] = log.bells.iterdir()
        assert oct(log.bells.stat().st_mode & 0o777) == oct(0o770)
        assert oct(bell.stat().st_mode & 0o777) == oct(0o660)
        reader.close()


def test_a_writer_removes_nothing_where_a_link_names_another_folder(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db", creates=True) as log:
        log.create(TOPICS)
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "ffffffff").touch()
        log.bells.rmdir()
        log.bells.symlink_to("precious")
        log.append([message(b"1")])
    assert (tmp_path / "precious" / "ffffffff").exists()


def test_a_log_that_root_makes_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    """Services run as that user; an administrator often runs the first verb."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    with SqliteLog(folder / "log.db", creates=True) as log:
        log.create(TOPICS)
        reader = log.reader({(NOTICES, 0): 0})
        log.append([message(b"1")])
        made = {file.name.partition("-")[0] if file.is_socket() else file.name: file for file in folder.rglob("*")}
        assert made.keys() == {"log.db", "log.db-wal", "log.db-shm", "log.db-wake", str(os.getpid())}
        assert {owner_of(file) for file in made.values()} == {owner_of(folder)}
        reader.close()


def test_a_file_in_place_of_a_bell_keeps_its_mode(tmp_path: Path, system: System) -> None:
    """As the folder's owner could do while root hangs a bell."""
    victim, place = tmp_path / "victim", tmp_path / "bells"
    victim.touch(0o600)
    place.mkdir()

    def swap(name: str) -> None:
        (place / name).unlink()
        (place / name).symlink_to(victim)

    system.watch(swap, "os.open", at=f"{os.getpid()}-*-2")
    with pytest.raises(OSError, match="socket"):
        bells.Bell(place, [1])
    assert victim.stat().st_mode & 0o777 == 0o600


def test_a_link_in_place_of_the_bells_folder_leaves_its_target_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(0o700)
    (tmp_path / "log.db-wake").symlink_to(victim)
    SqliteLog(tmp_path / "log.db", creates=True).close()
    assert victim.stat().st_mode & 0o777 == 0o700


def owner_of(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


# Several processes


def test_processes_append_at_once_and_each_keeps_its_order(path: Path, log: SqliteLog) -> None:
    program = """
import sys
from pathlib import Path
from hgext.vcsreplicator.log import NewRecord
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
log = SqliteLog(Path(sys.argv[1]))
for number in range(100):
    log.append([NewRecord(topic="notices", key=sys.argv[2], value=b"%d" % number)])
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), name], cwd=ROOT) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    records = everything(log, NOTICES)
    assert [record.offset for record in records] == list(range(300))
    for name in "abc":
        own = [record.value for record in records if record.key == name]
        assert own == [b"%d" % number for number in range(100)]


def test_processes_open_a_new_database_at_once(path: Path) -> None:
    program = """
import sys
from pathlib import Path
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.sqlite.adapter import SqliteLog
print(len(SqliteLog(Path(sys.argv[1]), creates=True).create(topics())))
"""
    command = [sys.executable, "-c", program, str(path)]
    openers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert sorted(opener.communicate()[0].strip() for opener in openers) == ["0", "0", "0", str(len(topics()))]


def test_a_reader_with_much_to_read_takes_it_in_bites_of_bounded_size(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hgext.vcsreplicator.log.sqlite.reader.POLL_BYTES", 2500)
    log.append([message(b"%04d" % number * 250) for number in range(7)])
    reader = log.reader({(NOTICES, 0): 0})
    bites: list[int] = []
    while records := reader.poll(0):
        bites.append(len(records))
    assert bites == [3, 3, 1]
    reader.close()


def test_no_partition_starves_another(log: SqliteLog) -> None:
    log.create([Topic(name="wide", partitions=3)])
    log.append([NewRecord(topic="wide", key="x", value=b"", partition=part) for part in range(3) for _ in range(50)])
    reader = log.reader({("wide", part): 0 for part in range(3)})
    bites = [{record.partition for record in reader.poll(0, limit=10)} for _ in range(3)]
    assert set().union(*bites) == {0, 1, 2}
    reader.close()


@pytest.mark.parametrize("shut", [".", ".."])
def test_a_log_in_a_folder_that_may_not_be_entered_is_not_called_missing(tmp_path: Path, shut: str) -> None:
    path = tmp_path / "disk/log/log.db"
    path.parent.mkdir(parents=True)
    SqliteLog(path, creates=True).close()
    with closed(path.parent / shut), pytest.raises(Unavailable) as refused:
        SqliteLog(path)
    assert str(refused.value) == f"sqlite://{path}: Permission denied; check owner and mode of the folders above it"
    SqliteLog(path).close()
