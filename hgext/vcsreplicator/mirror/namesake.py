# SPDX-License-Identifier: GPL-2.0-or-later
"""The refusal of a second mirror that has the same name.

Two mirrors of one name would take each other's acks for their own, so the second one refuses to start. Each heartbeat names the
instance that sends it: a number kept in the mirror's folder, and the machine's name. A restart with the same folder on the same
machine is the same instance and begins at once. Another one waits to see whether the former still sends heartbeats, and takes
over if it is silent. If both began at the same moment, both find out, and the one with the greater instance ends.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import structlog

from ..log import ACKS, Log, Reader, Record
from ..log.table import BATCH, ReadStopped, read_on
from ..words.errors import BadConfig, Expired, Unavailable
from ..words.records import MirrorHeartbeat
from ..words.shape import try_json
from .seals import OwnSeals
from .settings import MirrorSettings
from .sources import SkippedRecords

# The file in the mirror's folder that keeps its number.
INSTANCE = "instance"
# Heartbeats that a living mirror is certain to send while another one waits.
PATIENCE_BEATS = 3
# Seconds to wait for records since the last look: this mirror's own heartbeat is among them, so the log answers at once.
RECENT = 1.0
# With fewer records than this in an answer, there were no more.
FEW = 50
# Most answers that are read at one look: an endless stream is read bit by bit.
MOST_ANSWERS = 20
logger = structlog.get_logger()


def instance_of(folder: Path) -> str:
    """Return this folder's instance, made at the first call. Raises BadConfig."""
    file = folder / INSTANCE
    try:
        if not file.exists():
            new = folder / f"{INSTANCE}.new"
            new.write_text(secrets.token_hex(8) + "\n", encoding="ascii")
            new.replace(file)
        return f"{file.read_text(encoding='ascii').strip()[:40]}@{socket.gethostname()}"
    except (OSError, ValueError) as error:
        raise BadConfig(f"{file}: cannot be kept: {error}") from error


class Namesakes:
    """Finds heartbeats of this mirror's name that another instance sends.

    It reads from a position in `acks` on, in a thread while it runs. Heartbeats that lack this mirror's seal do not count, if the
    roster has its key. `seals` looks at each record, and `write_again` gets the keys of those that another program has overwritten.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        instance: str,
        log: Log,
        position: int,
        seals: OwnSeals,
        write_again: Callable[[Iterable[str]], None],
    ) -> None:
        self._settings, self._instance, self._log = settings, instance, log
        self._position, self._seals, self._write_again = position, seals, write_again
        self._stop = threading.Event()

    def wait(self, last: Record | None, stop: threading.Event) -> None:
        """Return once no other mirror has this name, or `stop` is set.

        Raises BadConfig if another mirror sends a heartbeat meanwhile. The age of the newest heartbeat, `last`, is unknown, because
        it has the time of another machine's clock; so the mirror waits for another heartbeat.
        """
        former = self._read_beat(last)
        if former is None:
            return
        logger.warning("waits for a mirror of the same name to be silent", instance=former.instance)
        while not stop.wait(PATIENCE_BEATS * self._settings.beat_interval):
            try:
                with contextlib.closing(self._open_reader()) as reader:
                    other = self._find_other(reader, read_on(self._log, reader, stop=stop))
            except Expired as error:
                self._skip_to_end(error)
                continue
            if other is not None:
                raise self._make_refusal(other)
            return

    def watch(self, report: Callable[[SkippedRecords | Exception], None]) -> None:
        """Report from now on if this mirror must end because of another one.

        Also report a log that lost acks: nothing else reads them here, and this mirror's may be among them.
        """
        threading.Thread(target=self._watch, args=(report,), name="namesakes", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, report: Callable[[SkippedRecords | Exception], None]) -> None:
        lost: Expired | None = None
        while not self._stop.wait(self._settings.beat_interval):
            try:
                if lost is not None:
                    self._skip_to_end(lost)
                    lost = None
                    report(SkippedRecords(positions={}))
                with contextlib.closing(self._open_reader()) as reader:
                    self._refuse_others(reader)
            except Expired as error:
                lost = error
            except (Unavailable, ReadStopped):
                continue
            except Exception as error:
                report(error)
                return

    def _refuse_others(self, reader: Reader) -> None:
        """Read every heartbeat until stopped.

        Raises BadConfig once this mirror must end because of another one.
        """
        records = read_on(self._log, reader, stop=self._stop)
        while True:
            other = self._find_other(reader, records)
            if other is not None and other.instance < self._instance:
                raise self._make_refusal(other)
            if other is not None:
                logger.error("another mirror has this name", instance=other.instance)
            if overwritten := self._seals.take_overwritten():
                self._write_again(overwritten)
            if self._stop.wait(self._settings.beat_interval):
                return
            records = _read_recent(reader)

    def _open_reader(self) -> Reader:
        return self._log.reader({(ACKS, 0): self._position})

    def _skip_to_end(self, error: Expired) -> None:
        """Go on at the end: a mirror that lives sends another heartbeat."""
        logger.warning("heartbeats lost", reason=str(error))
        self._position = self._log.ends(ACKS)[0]

    def _find_other(self, reader: Reader, records: Iterator[Record]) -> MirrorHeartbeat | None:
        """Read these records, and return the newest heartbeat of another instance."""
        found = None
        for record in records:
            self._seals.look(record)
            if record.key == self._settings.name:
                found = self._read_beat(record) or found
        self._position = reader.positions()[ACKS, 0]
        return found

    def _read_beat(self, record: Record | None) -> MirrorHeartbeat | None:
        """Return the heartbeat if another instance of this mirror sent it."""
        if record is None or not self._seals.is_own(record):
            return None
        beat = try_json(MirrorHeartbeat, record.value)
        return beat if beat is not None and beat.instance not in ("", self._instance) else None

    def _make_refusal(self, other: MirrorHeartbeat) -> BadConfig:
        machine = other.instance.rpartition("@")[2]
        return BadConfig(
            f"mirror.{self._settings.name}: another mirror of this name works on {machine}; stop it, or give this one another name"
        )


def _read_recent(reader: Reader) -> Iterator[Record]:
    """Yield the records that came since the last look.

    Unlike `read_on` it does not ask the log where it ends, which costs more than the records.
    """
    for _ in range(MOST_ANSWERS):
        records = reader.poll(RECENT, limit=BATCH)
        yield from records
        if len(records) < FEW:
            return
