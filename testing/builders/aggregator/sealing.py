# SPDX-License-Identifier: GPL-2.0-or-later
"""A mirror with a key, as the aggregator sees it: it writes sealed records, and others can write in its name."""

import itertools
from pathlib import Path

from hgext.vcsreplicator.keys.pairs import KeyPair, agree, make_key
from hgext.vcsreplicator.keys.seal import SEAL, make_seal
from hgext.vcsreplicator.keys.signed import sign_ack
from hgext.vcsreplicator.log import ACKS, ROSTER, Log, NewRecord
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.records import MIRROR_FORMAT, Ack, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json


def roster_of(log: Log) -> Roster:
    """The newest roster in the log."""
    value = read_table(log, ROSTER).value(ROSTER, KEY)
    return Roster() if value is None else from_json(Roster, value)


class SealingMirror:
    """Writes acks that it seals with its newest key."""

    def __init__(self, name: str, log: Log, folder: Path) -> None:
        self.name, self._log, self._file = name, log, folder / f"{name}.key"
        self._serials = itertools.count(1)
        self.pair: KeyPair = make_key(self._file)

    @property
    def key(self) -> str:
        """Its public key."""
        return self.pair.public

    def change_key(self) -> str:
        """Make another key, with which it seals from now on."""
        self.pair = make_key(self._file)
        return self.key

    def seal(self, key: str, value: bytes | None) -> NewRecord:
        """A sealed record, by the roster of the moment."""
        roster = roster_of(self._log)
        mirror = roster.mirror(self.name)
        agreed = [agree(self.pair, mirror=self.key, aggregator=other) for other in roster.aggregator_keys or ()]
        seal = make_seal(
            tuple(each for each in agreed if each),
            key=key,
            value=value,
            epoch=(mirror.epoch if mirror else None) or 0,
            serial=next(self._serials),
        )
        return NewRecord(topic=ACKS, key=key, value=value, headers={SEAL: seal})

    def ack(self, ack: Ack) -> NewRecord:
        """Write a sealed level, signed while the aggregator signs notices; return its record."""
        if roster_of(self._log).signing_keys:
            ack = sign_ack(self.pair, ack)
        return self._write(f"{self.name}/{ack.repository}", to_json(ack))

    def beat(self) -> NewRecord:
        """Write a sealed heartbeat; return its record."""
        return self._write(
            self.name,
            to_json(MirrorHeartbeat(mirror=self.name, time=1.0, positions={}, version="1", format=MIRROR_FORMAT)),
        )

    def _write(self, key: str, value: bytes) -> NewRecord:
        record = self.seal(key, value)
        self._log.append([record])
        return record


def write_foreign(log: Log, ack: Ack, headers: dict[str, str] | None = None) -> None:
    """Write a level as any program can that may write the topic."""
    key = f"{ack.mirror}/{ack.repository}"
    log.append([NewRecord(topic=ACKS, key=key, value=to_json(ack), headers=headers or {})])
