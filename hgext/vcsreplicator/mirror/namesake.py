# SPDX-License-Identifier: GPL-2.0-or-later
"""Two mirrors of one name would take each other's levels for their own: the second refuses to start.

Each beat carries the instance that gives it: a number kept in the mirror's folder, and the machine's name. A restart with the same
folder on the same machine is the same instance and begins at once. Another one waits whether the former still gives beats, and
takes over when it is silent. If both began at the same moment, both find out, and the one with the greater instance ends.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from ..log import ACKS, Log, Reader
from ..words.errors import BadConfig, Expired, Unavailable
from ..words.levels import Beat
from ..words.shape import from_json
from .arrivals import Broken
from .settings import MirrorSettings

_PATIENCE = 3  # beats
_LOOK = 1.0  # seconds
logger = structlog.get_logger()


def instance_of(folder: Path) -> str:
    """The instance that works with this folder on this machine; made at the first call. Raises BadConfig."""
    file = folder / "instance"
    try:
        if not file.exists():
            new = folder / "instance.new"
            new.write_text(secrets.token_hex(8) + "\n", encoding="ascii")
            new.replace(file)
        return f"{file.read_text(encoding='ascii').strip()[:40]}@{socket.gethostname()}"
    except (OSError, ValueError) as error:
        raise BadConfig(f"{file}: cannot be kept: {error}") from error


class Namesakes:
    """Looks for beats of this mirror's name that another instance gives, from a position in `acks` on; a thread while it runs."""

    def __init__(self, settings: MirrorSettings, instance: str, source: Log, position: int) -> None:
        self._settings, self._instance, self._log = settings, instance, source
        self._position = position
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wait(self, last: bytes | None, stop: threading.Event) -> None:
        """Returns once no other mirror has this name, or `stop` is set; raises BadConfig if one has. `last`: the newest beat.

        How old that one is only the clock of the machine that gave it could tell: whether another follows is waited for.
        """
        former = self._other(last)
        if former is None:
            return
        logger.warning("waits for a mirror of the same name to be silent", instance=former.instance)
        other, is_known = None, False
        while not is_known and not stop.is_set():
            stop.wait(_PATIENCE * self._settings.beat_interval)
            try:
                other, is_known = self._since(stop), True
            except Expired as error:
                self._skip(error)
        if other is not None and not stop.is_set():
            raise self._refusal(other)

    def _since(self, stop: threading.Event) -> Beat | None:
        """A beat of another instance between the position and the end."""
        reader, end = self._log.reader({(ACKS, 0): self._position}), self._log.ends(ACKS)[0]
        try:
            other = self._newest(reader)
            while other is None and self._position < end and not stop.is_set():
                other = self._newest(reader)
            return other
        finally:
            reader.close()

    def _skip(self, error: Expired) -> None:
        """Goes on at the end: who lives gives another beat, and an older one may be that of who does not."""
        logger.warning("beats lost", reason=str(error))
        self._position = self._log.ends(ACKS)[0]

    def watch(self, arrived: Callable[[object], None]) -> None:
        """From now on tells the inbox if this mirror must end because of another one."""
        self._thread = threading.Thread(target=self._watch, args=(arrived,), name="namesakes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()

    def _watch(self, arrived: Callable[[object], None]) -> None:
        reader: Reader | None = None
        lost: Expired | None = None
        while not self._stop.wait(self._settings.beat_interval):
            other = None
            try:
                if lost is not None:
                    self._skip(lost)
                    lost = None
                reader = reader or self._log.reader({(ACKS, 0): self._position})
                other = self._newest(reader)
            except Expired as error:
                lost = error
                _closed(reader)
                reader = None
            except Unavailable:
                _closed(reader)
                reader = None
            except Exception as error:
                arrived(Broken(error=error))
                break
            if other is not None and other.instance < self._instance:
                arrived(Broken(error=self._refusal(other)))
                break
            if other is not None:
                logger.error("another mirror has this name", instance=other.instance)
        _closed(reader)

    def _newest(self, reader: Reader) -> Beat | None:
        """A beat of another instance among what came since the last look; looks for a moment, however much there is."""
        found, end = None, time.monotonic() + _LOOK
        while time.monotonic() < end and (records := reader.poll(0.05, limit=5000)):
            beats = [self._other(record.value) for record in records if record.key == self._settings.name]
            found = next((beat for beat in beats if beat is not None), found)
        self._position = reader.positions()[ACKS, 0]
        return found

    def _other(self, value: bytes | None) -> Beat | None:
        """The beat, if it is another instance's."""
        try:
            beat = None if value is None else from_json(Beat, value)
        except Exception:  # whatever is wrong with it, it is no beat
            return None
        return beat if beat is not None and beat.instance not in ("", self._instance) else None

    def _refusal(self, other: Beat) -> BadConfig:
        machine = other.instance.rpartition("@")[2]
        return BadConfig(
            f"mirror.{self._settings.name}: another mirror of this name works on {machine}; stop it, or give this one another name"
        )


def _closed(reader: Reader | None) -> None:
    if reader is not None:
        with contextlib.suppress(Unavailable):
            reader.close()
