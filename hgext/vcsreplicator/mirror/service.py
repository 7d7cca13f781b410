# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror from its start, which combines disk and log, to its end."""

import errno
import fcntl
import os
import queue
import random
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from ..log import ACKS, EVENTS, ROSTER, STATE, Log, Record
from ..log.names import expect_exact_names
from ..log.ownership import name_user
from ..log.table import ReadStopped, Table, read_table
from ..words.clock import SystemClock
from ..words.errors import BadConfig, Expired, Unavailable
from ..words.records import ACK_KEY_LIMIT, ACK_LIMIT, AGGREGATOR, HEARTBEAT_LIMIT, Ack, AggregatorHeartbeat
from ..words.retry import FAILOVER
from ..words.roster import KEY as ROSTER_KEY
from ..words.roster import Roster
from ..words.shape import from_json, try_json
from .mounts import MountedRoot
from .namesake import Namesakes, instance_of
from .notes import Notes
from .pool import Answered, Lane, Worker, WorkerPool
from .seals import OwnSeals
from .settings import MirrorSettings
from .sources import Source
from .supervision.state import DOUBT
from .supervision.supervisor import Supervisor, SupervisorMessage
from .task import READY, FoundRepository, Scan
from .writer import AckWriter

T = TypeVar("T")

# Seconds that the start waits for something to arrive.
TURN = 0.1
# Seconds between two looks for a roster that the log lost.
LOOK = 1.0
# Seconds that workers get at the end to finish their tasks.
DRAIN = 6.0
logger = structlog.get_logger()


def run(settings: MirrorSettings, log: Log, *, stop: threading.Event, ready: Callable[[], None]) -> None:
    """Follow the log until `stop`; raises BadConfig if the mirror cannot begin."""
    notes_file = Path(settings.folder) / "mirror.db"
    _refuse_master_root(settings)
    inbox: queue.SimpleQueue[SupervisorMessage] = queue.SimpleQueue()
    with (
        lock_folder(settings),
        closing(_look_at_root(settings)) as root,
        closing(Notes(notes_file)) as notes,
        ExitStack() as ends,
    ):
        positions = _ask_until_available(stop, lambda: _find_positions(log, settings.group))
        pool = WorkerPool(settings, inbox.put)
        ends.callback(pool.close, 1.0)
        if not pool.prepare(stop):
            raise BadConfig("mirror: its workers cannot start; their output says why")
        # Another processor reads the disk while this one reads the log.
        scanner = _begin_scan(pool)
        table = read_log(log, settings.name, stop)
        if positions is None or table is None:
            return
        seals, records, unsealed = _open_seals(settings, table, root)
        # The values alone: the other half of a table would be as large as all that the supervisor keeps.
        states = {key: table.records.pop((topic, key)).value for topic, key in [*table.records] if topic == STATE}
        own_acks = _read_acks(settings, _take_out(records))
        writer = AckWriter(log, settings.group, inbox.put, seals)
        namesakes = Namesakes(settings, instance_of(Path(settings.folder)), table.positions[ACKS, 0])
        last_beat = table.records.get((ACKS, settings.name))
        if _ask_until_available(stop, partial(namesakes.wait, log, seals, last_beat, stop)):
            _scan(pool, scanner, inbox, stop)  # what the former mirror did meanwhile is seen by another scan
            scanner = None
        supervisor = Supervisor(
            settings,
            log,
            notes,
            SystemClock(),
            positions,
            inbox=inbox,
            pool=pool,
            writer=writer,
            namesakes=namesakes,
            file_system=root.file_system,
        )
        supervisor.control.load(ROSTER, ROSTER_KEY, table.value(ROSTER, ROSTER_KEY))
        control = {place: table.positions[place] for place in [(ROSTER, 0), (STATE, 0)]}
        control_reader = Source(log, control, inbox.put)
        try:
            if not _adopt(supervisor, pool, scanner, states, own_acks, inbox, stop):
                return
            with _naming_folder(settings, "root", settings.root):
                supervisor.losses.compare(own_acks)
            supervisor.control.write_again(unsealed)
            writer.start()
            root.watch(inbox.put)
            control_reader.start()
            start = {(EVENTS, partition): offset for partition, offset in positions.items()}
            supervisor.reader = Source(log, start, inbox.put).start()
            del table, own_acks
            threading.Thread(target=lambda: inbox.put(stop.wait()), name="stop", daemon=True).start()
            ready()
            while not stop.is_set():
                supervisor.turn(supervisor.turn_time())
        finally:
            control_reader.stop()
            supervisor.close(DRAIN)
        try:
            root.check()
        except Unavailable as error:  # it serves nothing, and was not synced: after a power cut everything is compared
            logger.warning("root not synced", reason=str(error))
        else:
            supervisor.losses.end()


def _refuse_master_root(settings: MirrorSettings) -> None:
    """Raise BadConfig for the root of a mirror that was promoted."""
    if os.path.isdir(os.path.join(settings.root, ".vcsreplicator")):
        raise BadConfig(
            f"mirror.{settings.name}.root: {settings.root} is a master's root: a promoted mirror is no mirror any more, "
            "and another one needs a root of its own"
        )


def read_log(log: Log, mirror: str, stop: threading.Event) -> Table | None:
    """Read this mirror's acks and heartbeat, states and the newest roster; None if stopped.

    Leaves out acks in its name that are larger than a mirror writes, or have longer keys: another program wrote them, and they
    could fill the memory.
    """

    def keep(record: Record) -> bool:
        if record.topic != ACKS:
            return True
        key = record.key or ""
        name, _, repository = key.partition("/")
        size = len(record.value or b"")
        limit = ACK_LIMIT if repository else HEARTBEAT_LIMIT
        return name == mirror and len(key) <= ACK_KEY_LIMIT and size <= limit

    # Only the newest state of each repository: an older one may name a path that this mirror does not carry.
    read = partial(_ask_until_available, stop, partial(read_table, log, ACKS, ROSTER, STATE, stop=stop, keep=keep))
    table = read()
    return read() if table is not None and _wait_for_roster(log, table, stop) else table


def _wait_for_roster(log: Log, table: Table, stop: threading.Event) -> bool:
    """Wait for a roster that the log lost, and return whether it was lost.

    A running aggregator writes it again. Else repositories would leave because of an older one, or come without one. After DOUBT
    seconds that counts, as on a running mirror.
    """
    beat = try_json(AggregatorHeartbeat, table.value(STATE, AGGREGATOR))
    if beat is None or _has_roster(table, beat.roster):
        return False
    logger.warning("waits for the roster that the log lost", version=beat.roster)
    until = time.monotonic() + DOUBT
    while not stop.wait(LOOK):
        with suppress(Unavailable, Expired, ReadStopped):
            if _has_roster(read_table(log, ROSTER, stop=stop), beat.roster):
                break
        if time.monotonic() >= until:
            logger.warning("older roster followed", newest=beat.roster)
            break
    return True


def _has_roster(table: Table, version: int) -> bool:
    """Return whether the roster is of this version or a later one, or unreadable."""
    value = table.value(ROSTER, ROSTER_KEY)
    roster = Roster() if value is None else try_json(Roster, value)
    return roster is None or roster.version >= version


def _look_at_root(settings: MirrorSettings) -> MountedRoot:
    with _naming_folder(settings, "root", settings.root):
        return MountedRoot(settings)


def _adopt(
    supervisor: Supervisor,
    pool: WorkerPool,
    scanner: Worker | None,
    states: dict[str, bytes | None],
    own_acks: Mapping[str, Ack],
    inbox: "queue.SimpleQueue[SupervisorMessage]",
    stop: threading.Event,
) -> bool:
    """Combine disk and log, keeping no other list of either; return False if stopped."""
    found = _scan(pool, scanner, inbox, stop)
    if found is None:
        return False
    left = [*found]
    del found
    # What is taken over makes room.
    supervisor.startup.adopt_all((left.pop() for _ in range(len(left))), own_acks)
    for key, value in _take_out(states):
        supervisor.control.load(STATE, key, value)
    supervisor.startup.prune_deletions(own_acks)
    pool.fill()
    return True


@contextmanager
def lock_folder(settings: MirrorSettings) -> Iterator[None]:
    """Hold the state folder for this process within the block.

    Raises BadConfig if another process works in it, if it or the root cannot be made, used or locked, or if nothing can be moved
    from it to the root.
    """
    with _naming_folder(settings, "root", settings.root):
        _make_folder(settings.root)
        os.scandir(settings.root).close()
    expect_exact_names(settings.root, f"mirror.{settings.name}.root")
    place = ("state", settings.state) if settings.state else ("root", settings.root)
    with _naming_folder(settings, *place):
        _make_folder(settings.folder, 0o750)
        lock = os.open(os.path.join(settings.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        with _naming_folder(settings, *place):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadConfig(
                    f"mirror.{settings.name}.root: another mirror, or this one's service or bootstrap, works in "
                    f"{settings.root}; stop it first"
                ) from error
        _expect_one_mount(settings)
        yield
    finally:
        os.close(lock)


def _make_folder(folder: str, mode: int = 0o777) -> None:
    """Make the folder if it is missing, with this mode less the umask.

    Raises the error of a mount that does not answer, which `os.makedirs` takes for a file.
    """
    try:
        os.makedirs(folder, mode, exist_ok=True)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise


@contextmanager
def _naming_folder(settings: MirrorSettings, key: str, folder: str) -> Iterator[None]:
    """Turn an OSError of the block into a BadConfig with what is expected."""
    try:
        yield
    except OSError as error:
        what = os.fsdecode(error.filename or folder)
        inside = "" if what == folder else f"{what}: "
        reason = os.strerror(errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or 0)
        raise BadConfig(
            f"mirror.{settings.name}.{key}: {folder} cannot be used: {inside}{reason}; "
            f"expected a folder that user {name_user(os.geteuid())} may list and write to, or may make"
        ) from error


def _expect_one_mount(settings: MirrorSettings) -> None:
    """Raise BadConfig if a folder cannot be moved from the state folder to the root.

    It tries a move, because two mounts of one file system have the same device, too. A full or failing disk is not a reason to
    refuse: the mirror waits for it later. A kill leaves an empty folder, which the next start uses and removes.
    """
    made, moved = os.path.join(settings.folder, "probe"), os.path.join(settings.root, "~probe")
    try:
        os.makedirs(made, exist_ok=True)
        os.rename(made, moved)
        os.rmdir(moved)
    except OSError as error:
        if error.errno == errno.EXDEV:
            os.rmdir(made)
            raise BadConfig(
                f"mirror.{settings.name}.state: {settings.folder} is on another file system or mount than {settings.root}; "
                "repositories are moved between the two: expected a folder on the mount of the root, such as the default"
            ) from error


def _open_seals(
    settings: MirrorSettings, table: Table, root: MountedRoot
) -> tuple[OwnSeals, dict[str, Record], set[str]]:
    """Return this mirror's seals, its acks by key, and repositories to acknowledge again.

    Raises Unavailable if the root is empty, but acks in the mirror's name say that it had repositories.
    """
    seals = OwnSeals(settings.name, Path(settings.folder))
    seals.take_roster(try_json(Roster, table.value(ROSTER, ROSTER_KEY)) or Roster())
    records = _find_own_records(settings, table)
    beat = table.records.get((ACKS, settings.name))
    if beat is not None and not seals.is_own(beat):
        del table.records[ACKS, settings.name]  # another program's: it says nothing of this root
    with _naming_folder(settings, "root", settings.root):
        root.refuse_empty(partial(_read_acks, settings, records.items()), table)
    own, unsealed = seals.choose(table, records)
    return seals, own, {key.partition("/")[2] for key in unsealed}


def _find_own_records(settings: MirrorSettings, table: Table) -> dict[str, Record]:
    """Take the newest acks in this mirror's name out of the table, by key."""
    prefix = f"{settings.name}/"
    keys = [key for topic, key in table.records if topic == ACKS and key.startswith(prefix)]
    return {key: table.records.pop((ACKS, key)) for key in keys}


def _take_out(items: dict[str, T]) -> Iterator[tuple[str, T]]:
    """Yield the items in order, and keep none: what is made of them takes their room."""
    keys = [*items][::-1]
    while keys:
        key = keys.pop()
        yield key, items.pop(key)


def _read_acks(settings: MirrorSettings, records: Iterable[tuple[str, Record]]) -> dict[str, Ack]:
    """Return the acks in these records by repository, without unreadable ones."""
    acks = {}
    for key, record in records:
        try:
            acks[sys.intern(key.removeprefix(f"{settings.name}/"))] = from_json(Ack, record.value or b"")
        except Exception as error:
            logger.error("ack not understood", key=key, reason=str(error)[:300])
    return acks


def _begin_scan(pool: WorkerPool) -> Worker | None:
    """Let a worker find what is on the disk; None if none can be started now."""
    if (worker := pool.start(Lane.LIGHT)) is not None:
        pool.give(worker, Scan())
    return worker


def _scan(
    pool: WorkerPool, worker: Worker | None, inbox: "queue.SimpleQueue[SupervisorMessage]", stop: threading.Event
) -> tuple[FoundRepository, ...] | None:
    """Return what this worker, or its successor, finds on the disk; None if stopped."""
    while not stop.is_set():
        worker = worker or _begin_scan(pool)
        try:
            answered = inbox.get(timeout=TURN)
        except queue.Empty:
            continue
        # Only workers have begun.
        assert isinstance(answered, Answered)
        pool.freed(answered)
        if answered.answer == READY:
            continue
        if answered.answer is not None:
            return tuple(answered.answer)
        if answered.worker.process.wait() >= 0:
            raise BadConfig("mirror: its workers cannot start; their output says why")
        logger.warning("worker died", repository=None, path=None)
        worker = None
    return None


def _find_positions(log: Log, group: str) -> dict[int, int]:
    """Return where to read on.

    That is the beginning of a partition without a stored position; the others are not asked for theirs.
    """
    stored = log.stored(group, EVENTS)
    missing = [partition for partition in range(log.partitions(EVENTS)) if partition not in stored]
    return {**(log.beginnings(EVENTS, missing) if missing else {}), **stored}


def _ask_until_available(stop: threading.Event, ask: Callable[[], T]) -> T | None:
    """Ask until the log is available and has the records; None if stopped."""
    attempt = 0
    while not stop.is_set():
        try:
            return ask()
        except ReadStopped:
            return None
        except (Unavailable, Expired) as error:
            attempt += 1
            logger.warning("log unavailable", reason=str(error), attempt=attempt)
            stop.wait(FAILOVER.delay(attempt, random.random()))
    return None
