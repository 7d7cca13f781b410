# SPDX-License-Identifier: GPL-2.0-or-later
"""The refusal of a second mirror that has the same name.

Two mirrors of one name would take each other's acks for their own, so the second one refuses to start. Each heartbeat names the
instance that sends it: a number kept in the mirror's folder, and the machine's name. A restart with the same folder on the same
machine is the same instance and begins at once. Another one waits to see whether the former still sends heartbeats, and takes
over if it is silent. `bootstrap` waits so before notices wait for the new mirror, whose service then begins at once. If both run
nevertheless, because they began at the same moment or one was stopped for a while, the aggregator's heartbeats say so, and the
mirror with the greater instance ends.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from ..log import ACKS, Log, Record
from ..log.table import read_on
from ..words.errors import BadConfig, Expired
from ..words.records import AggregatorHeartbeat, MirrorHeartbeat
from ..words.shape import try_json
from .seals import OwnSeals
from .settings import MirrorSettings

# The file in the mirror's folder that keeps its number.
INSTANCE = "instance"
# The file there that keeps the position in `acks` before which all heartbeats are of mirrors that were found silent.
SILENT = "silent"
# Heartbeats that a living mirror is certain to send while another one waits.
PATIENCE_BEATS = 3
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

    At the start it reads them, from a position in `acks` on; while this mirror runs, the aggregator does. Heartbeats that lack this
    mirror's seal do not count, if the roster has its key. Used by one thread.
    """

    def __init__(self, settings: MirrorSettings, instance: str, position: int = 0) -> None:
        self.instance = instance
        self._settings, self._position = settings, position
        self._silent = Path(settings.folder) / SILENT
        # Where the newest heartbeat of each instance is, as the aggregator last said.
        self._heard: Mapping[str, int] = {}

    def wait(self, log: Log, seals: OwnSeals, last: Record | None, stop: threading.Event) -> bool:
        """Return, once no other mirror has this name or `stop` is set, whether it waited for one.

        Raises BadConfig if another mirror sends a heartbeat meanwhile. The age of the newest heartbeat, `last`, is unknown, because
        it has the time of another machine's clock; so the mirror waits for another heartbeat.
        """
        former = None if last is None or last.offset < self._read_silent() else self._find_other(seals, [last])
        if former is None:
            return False
        logger.warning("waits for a mirror of the same name to be silent", instance=former)
        while not stop.wait(PATIENCE_BEATS * self._settings.beat_interval):
            try:
                with contextlib.closing(log.reader({(ACKS, 0): self._position})) as reader:
                    other = self._find_other(seals, read_on(log, reader, stop=stop))
                    self._position = reader.positions()[ACKS, 0]
            except Expired as error:
                logger.warning("heartbeats lost", reason=str(error))
                self._position = log.ends(ACKS)[0]  # a mirror that lives sends another heartbeat
                continue
            if other is not None:
                raise self._make_refusal(other)
            with contextlib.suppress(OSError):  # else the next start waits again
                self._silent.write_text(f"{self._position}\n", encoding="ascii")
            break
        return True

    def take(self, beat: AggregatorHeartbeat) -> None:
        """Take a new heartbeat of the aggregator.

        Raises BadConfig if this mirror must end because of another mirror. That mirror lives if it has sent a heartbeat since the
        aggregator's last one, and since this mirror began.
        """
        before, self._heard = self._heard, (beat.namesakes or {}).get(self._settings.name, {})
        for instance, offset in self._heard.items():
            lives = offset >= self._position and offset > before.get(instance, offset)
            if instance == self.instance or not lives:
                continue
            if instance < self.instance:
                raise self._make_refusal(instance)
            logger.error("another mirror has this name", instance=instance)

    def forget(self) -> None:
        """Go on with a log that lost acks: offsets may be lower from now on."""
        self._position, self._heard = 0, {}

    def _read_silent(self) -> int:
        try:
            return int(self._silent.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _find_other(self, seals: OwnSeals, records: Iterable[Record]) -> str | None:
        """Return who sent the newest heartbeat of another instance; None if there is none."""
        found = None
        for record in records:
            if record.key == self._settings.name and seals.is_own(record):
                beat = try_json(MirrorHeartbeat, record.value)
                found = beat.instance if beat and beat.instance not in ("", self.instance) else found
        return found

    def _make_refusal(self, other: str) -> BadConfig:
        machine = other.rpartition("@")[2]
        return BadConfig(
            f"mirror.{self._settings.name}: another mirror of this name works on {machine}; stop it, or give this one another name"
        )
