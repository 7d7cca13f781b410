# SPDX-License-Identifier: GPL-2.0-or-later
"""The seals and signatures of this mirror's acks, and others' acks in its name.

Once the roster has a key of this mirror, it seals every record that it writes to `acks`, for each key of an aggregator in the
roster. A record under one of its keys that it did not write, or an older one of its own behind the newest, is overwritten.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from ..keys.pairs import KeyPair, agree, read_keys
from ..keys.seal import SEAL, SealKey, is_sealed, make_seal, read_seal
from ..keys.signed import sign_ack
from ..log import ACKS, STATE, NewRecord, Record
from ..log.table import Table
from ..words.errors import BadConfig
from ..words.records import Ack, RepositoryState
from ..words.roster import Roster
from ..words.shape import try_json

# The file in the mirror's folder with its private keys.
KEY_FILE = "key"
# The file beside it that is there once this mirror has sealed a record.
_SEALED = "sealed"

logger = structlog.get_logger()


class OwnSeals:
    """Seals records, and finds overwritten ones. Any thread may use it.

    Serials grow over restarts: they begin at the time in microseconds, and behind every serial that was ever read.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._file, self._mark = name, folder / KEY_FILE, folder / _SEALED
        self._has_sealed = self._mark.exists()
        self._lock = threading.Lock()
        self._epoch = 0
        # Secrets by pair: those with which this mirror seals now, and all with which its records may be sealed.
        self._present: dict[str, SealKey] = {}
        self._known: dict[str, SealKey] = {}
        # The key with which it signs, while the aggregator signs notices.
        self._signer: KeyPair | None = None
        self._serial = 0

    @property
    def is_active(self) -> bool:
        """Whether the roster has a key of this mirror."""
        return bool(self._present)

    def take_roster(self, roster: Roster) -> bool:
        """Follow the keys of a roster; return whether all acks must be sealed anew.

        The file is read again, because it may have another key.
        """
        with self._lock:
            before = self._epoch, self._present
            mirror = roster.mirror(self._name)
            wanted, aggregators = (mirror.keys or () if mirror else ()), roster.aggregator_keys or ()
            own = [pair for pair in self._read_keys() if pair.public in wanted] if wanted else []
            if wanted and not own:
                see = f"vcsreplicator key {self._name}"
                logger.error("no key of this mirror is in the roster: its acks do not count", keys=wanted, see=see)
            agreed = [[agree(pair, mirror=pair.public, aggregator=other) for other in aggregators] for pair in own]
            self._known = {each.pair: each for some in agreed for each in some if each is not None}
            self._present = {each.pair: each for some in agreed[:1] for each in some if each is not None}
            self._signer = own[0] if own and roster.signing_keys else None
            self._epoch = (mirror.epoch if mirror else None) or 0
            return bool(self._present) and before != (self._epoch, self._present)

    def seal(self, record: NewRecord) -> NewRecord:
        """Return the record with a seal.

        While the roster has no key of this mirror, it is returned as it is.
        """
        with self._lock:
            if not self._present or record.key is None:
                return record
            if not self._has_sealed:
                self._has_sealed = True
                with contextlib.suppress(OSError):  # else the next start may take acks of others for its own
                    self._mark.touch()
            self._serial = max(self._serial + 1, time.time_ns() // 1000)
            keys = tuple(self._present.values())
            seal = make_seal(keys, key=record.key, value=record.value, epoch=self._epoch, serial=self._serial)
            return replace(record, headers={**record.headers, SEAL: seal})

    def sign(self, ack: Ack) -> Ack:
        """Return the ack with a signature for notices, if the aggregator signs them."""
        with self._lock:
            signer = self._signer
        return ack if signer is None else sign_ack(signer, ack)

    def is_own(self, record: Record) -> bool:
        """Return whether this mirror wrote the record.

        While the roster has no key of this mirror, every record counts as its own.
        """
        with self._lock:
            return not self._present or self._read_serial(record) is not None

    def choose(self, table: Table, records: Mapping[str, Record]) -> tuple[dict[str, Record], set[str]]:
        """Return the acks that this mirror wrote itself, and the keys to write again.

        `records` are all acks in its name, by key. If none is sealed, and this mirror never sealed one, it has just got its key:
        then all are its own.
        """
        if not self.is_active:
            return dict(records), set()
        heartbeat = table.records.get((ACKS, self._name))
        has_sealed = self._has_sealed or (heartbeat is not None and self.is_own(heartbeat))
        overwritten = {key for key, record in records.items() if not self.is_own(record)}
        if overwritten == records.keys() and not has_sealed:
            return dict(records), set(records)
        own = {key: record for key, record in records.items() if key not in overwritten}
        stale = {key for key, record in own.items() if self._must_renew(key, record, table)}
        return own, overwritten | stale

    def _must_renew(self, key: str, record: Record, table: Table) -> bool:
        """Return whether the aggregator would not count a record.

        It knows a newer one, or checks with another key.
        """
        seal = read_seal(record.headers.get(SEAL))
        assert seal is not None
        state = try_json(RepositoryState, table.value(STATE, key.partition("/")[2]))
        known = (state.serials or {}).get(self._name, 0) if state is not None else 0
        with self._lock:
            self._serial = max(self._serial, known)
            return seal.serial < known or not self._present.keys() <= seal.macs.keys()

    def _read_serial(self, record: Record) -> int | None:
        """Return the serial of a record that this mirror sealed in its present life.

        None for another record.
        """
        seal = read_seal(record.headers.get(SEAL))
        if seal is None or seal.epoch != self._epoch:
            return None
        if not is_sealed(seal, self._known, key=record.key or "", value=record.value):
            return None
        self._serial = max(self._serial, seal.serial)
        return seal.serial

    def _read_keys(self) -> Iterable[KeyPair]:
        try:
            return read_keys(self._file)
        except BadConfig as error:
            logger.error("key not read", reason=str(error))
            return ()
