# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror from its start to its end: what is on disk and in the log is put together, then the supervisor runs."""

import fcntl
import os
import queue
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from ..log import ACKS, EVENTS, ROSTER, STATE, Log
from ..words.clock import Clock
from ..words.errors import BadConfig, Expired, Unavailable
from ..words.levels import Ack
from ..words.retry import RECONNECT
from ..words.roster import KEY as ROSTER_KEY
from ..words.shape import from_json
from .namesake import Namesakes, instance_of
from .notes import Notes
from .pool import Answered, Lane
from .settings import MirrorSettings
from .sources import Source, read_whole
from .supervisor import Supervisor
from .task import READY, Scan

T = TypeVar("T")

TURN = 0.1
DRAIN = 6.0
logger = structlog.get_logger()


def follow(
    settings: MirrorSettings, events: Log, *, stop: threading.Event, ready: Callable[[], None], clock: Clock
) -> None:
    """Runs the mirror until `stop` is set."""
    with alone(settings):
        notes = Notes(Path(settings.folder) / "mirror.db")
        try:
            _follow(settings, events, notes, stop=stop, ready=ready, clock=clock)
        finally:
            notes.close()


def _follow(
    settings: MirrorSettings,
    events: Log,
    notes: Notes,
    *,
    stop: threading.Event,
    ready: Callable[[], None],
    clock: Clock,
) -> None:
    positions = _patiently(stop, lambda: _positions(settings, events))
    told_before = _patiently(stop, lambda: read_whole(events, ACKS, stop))
    roster = _patiently(stop, lambda: read_whole(events, ROSTER, stop))
    # Of states only the newest: an older one may name a path that this mirror does not carry.
    states = _patiently(stop, lambda: read_whole(events, STATE, stop))
    if positions is None or told_before is None or roster is None or states is None:
        return
    instance = instance_of(Path(settings.folder))
    namesakes = Namesakes(settings, instance, events, told_before[1])
    _patiently(stop, lambda: namesakes.wait(told_before[0].get(settings.name), stop))
    acks = _own_acks(settings, told_before[0])
    supervisor = Supervisor(settings, events, notes, clock, positions)
    supervisor.instance = instance
    supervisor.take_roster(roster[0].get(ROSTER_KEY))
    told = Source(events, {(ROSTER, 0): roster[1], (STATE, 0): states[1]}, supervisor.inbox.put)
    try:
        if not _scan(supervisor, acks, stop):
            return
        supervisor.settle(acks)
        for key, value in states[0].items():
            supervisor.take_state(key, value)
        supervisor.pool.fill()
        supervisor.sender.start()
        namesakes.watch(supervisor.inbox.put)
        told.start()
        supervisor.reader = Source(
            events, {(EVENTS, partition): offset for partition, offset in positions.items()}, supervisor.inbox.put
        ).start()
        ready()
        while not stop.is_set():
            supervisor.turn(TURN)
    finally:
        told.stop()
        namesakes.stop()
        supervisor.close(DRAIN)


@contextmanager
def alone(settings: MirrorSettings) -> Iterator[None]:
    """The state folder is this process's alone; raises BadConfig if another mirror uses it."""
    folder = Path(settings.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadConfig(f"mirror.{settings.name}.root: {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise BadConfig(f"mirror.{settings.name}.root: another mirror works in {settings.root} already") from error
    try:
        yield
    finally:
        os.close(lock)


def _positions(settings: MirrorSettings, events: Log) -> dict[int, int]:
    """Where to read on; from the beginning where nothing is stored."""
    return {**events.beginnings(EVENTS), **events.stored(settings.group, EVENTS)}


def _own_acks(settings: MirrorSettings, newest: Mapping[str, bytes]) -> dict[str, Ack]:
    """What this mirror said last, by repository."""
    prefix = f"{settings.name}/"
    acks = {}
    for key, value in newest.items():
        if key.startswith(prefix):
            try:
                acks[key.removeprefix(prefix)] = from_json(Ack, value)
            except Exception as error:  # what it says is found out again
                logger.error("ack not understood", key=key, reason=str(error)[:300])
    return acks


def _scan(supervisor: Supervisor, acks: dict[str, Ack], stop: threading.Event) -> bool:
    """Finds what is on disk, by a worker; False if stopped. A worker that somebody kills is replaced."""
    supervisor.pool.give(supervisor.pool.start(Lane.LIGHT), Scan())
    while not stop.is_set():
        try:
            answered = supervisor.inbox.get(timeout=TURN)
        except queue.Empty:
            continue
        assert isinstance(answered, Answered)
        supervisor.pool.freed(answered)
        if answered.answer == READY:
            continue
        if answered.answer is not None:
            for found in answered.answer:
                supervisor.adopt(found, acks.get(found.checkpoint.repository) if found.checkpoint else None)
            return True
        if answered.worker.process.wait() >= 0:
            raise BadConfig("mirror: its workers cannot start; their output says why")
        logger.warning("worker died", repository=None, path=None)
        supervisor.pool.give(supervisor.pool.start(Lane.LIGHT), Scan())
    return False


def _patiently(stop: threading.Event, ask: Callable[[], T]) -> T | None:
    """What the log answers, however long it takes; None if stopped meanwhile. One that lost records is asked from its beginning."""
    attempt = 0
    while not stop.is_set():
        try:
            return ask()
        except (Unavailable, Expired) as error:
            attempt += 1
            logger.warning("log unavailable", reason=str(error), attempt=attempt)
            stop.wait(RECONNECT.delay(attempt, random.random()))
    return None
