# SPDX-License-Identifier: GPL-2.0-or-later
"""The gate of `acks`: a mirror with a key must have sealed its records.

Kafka grants rights on topics, not on keys, so any program that may write `acks` can write a record in another mirror's name. The
gate looks at each record before anything reads it. The newest authentic record of each key counts, even if others follow it.
A mirror that has just got its key has sealed nothing: until its first sealed record, whose offset the roster keeps, others of it
are passed over without an alarm.

Any number of records can be invented: of repositories that no event has, or in the names of mirrors that the roster does not have.
The gate keeps room for STRANGERS of each kind, because a log that lost its newest records lacks events that mirrors have. What has
no room is passed over, and read again by a later session.

A change of the keys is decided like any other change of the roster, and ends the session: the next one reads all records anew.
"""

import enum
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from ..keys.pairs import KeyPair, agree, make_key, read_keys
from ..keys.seal import SEAL, SealKey, is_sealed, read_seal
from ..log import Record
from ..words.errors import BadConfig
from ..words.records import ACK_KEY_LIMIT
from ..words.roster import Mirror, MirrorState, Roster

logger = structlog.get_logger()

# Seconds for which an alarm names a foreign record after the mirror has overwritten it.
SHOWN = 3600.0
# How many records a mirror is asked to write again at a time.
ASKED = 20
# How many records of unknown repositories there is room for, by mirror; each takes about a kilobyte. A session counts them anew.
STRANGERS = 10_000


class GateVerdict(enum.StrEnum):
    """What the gate says of a record.

    It counts; or it is `early`: of a mirror that has sealed nothing yet, or that was removed; or `foreign`: the mirror did not
    write it; or `replayed`: the mirror did once, and a newer record of this key is known; or `beyond`: there is no room for it.
    """

    COUNTS = "counts"
    EARLY = "early"
    FOREIGN = "foreign"
    REPLAYED = "replayed"
    BEYOND = "beyond"

    @property
    def is_refused(self) -> bool:
        """Whether another program than the mirror wrote the record where it stands."""
        return self in (GateVerdict.FOREIGN, GateVerdict.REPLAYED)

    @property
    def reason(self) -> str:
        """What is wrong with a refused record, for `errors`."""
        if self is GateVerdict.REPLAYED:
            return "an older record of this mirror, written again behind a newer one: it is ignored"
        return "not sealed by a key that this mirror has in the roster, so another program wrote it: it is ignored"


@dataclass(slots=True, kw_only=True)
class ForeignRecord:
    """The newest record under a key that the mirror did not write there.

    `written` is the time by the log, `found` by the monotonic clock. `is_open` until the mirror has written another one.
    """

    offset: int
    written: float
    found: float
    verdict: GateVerdict
    is_open: bool = True


class AckGate:
    """Decides which records of `acks` count; used by one thread.

    `foreign` has the records of others that it found, by key. `first_sealed` has the offset of a mirror's first sealed record if
    the roster does not have it yet. `crowded` names the mirrors for whose records there was no room, "" for all that the roster
    does not have. Its methods raise nothing.
    """

    def __init__(
        self,
        roster: Roster,
        own: tuple[KeyPair, ...] = (),
        serials: Iterable[tuple[str, str, int]] = (),
        expects: Callable[[str, str], bool] = lambda mirror, repository: True,
    ) -> None:
        """Open the gate for the mirrors of a roster.

        `serials` are those that were known before, each with the mirror and the repository of its record: no older record counts.
        `expects` says whether a record of this mirror and repository, or "" for a heartbeat, always has room.
        """
        self.foreign: dict[str, ForeignRecord] = {}
        self.crowded: set[str] = set()
        self._expects, self._names = expects, {mirror.name for mirror in roster.mirrors}
        # The keys that have room, by mirror ("" for all others), and by whether the mirror may have written the record.
        self._strangers: dict[tuple[str, bool], set[str]] = {}
        self.first_sealed: dict[str, int] = {}
        self._secures = _list_keys(roster)
        self._requires = bool(roster.requires_keys)
        # The mirrors that must seal, each with what its seals must agree with; without that, no record of it counts.
        self._sealing = {
            mirror.name: (mirror, _agree_all(mirror.name, mirror.keys or (), own))
            for mirror in roster.mirrors
            if mirror.keys or roster.requires_keys
        }
        # By mirror and repository ("" for heartbeats), the serial of the newest authentic record of that key.
        self._serials: dict[str, dict[str, int]] = {}
        for name, repository, serial in serials:
            self._serials.setdefault(name, {})[repository] = serial
        # The mirrors that wrote an authentic record, and the mirrors that wrote other records before.
        self._sealed: set[str] = set()
        self._unsealed: set[str] = set()
        self._is_loading = True

    def is_outdated(self, roster: Roster) -> bool:
        """Return whether this roster has other keys: all must be judged anew."""
        return _list_keys(roster) != self._secures

    def judge(self, record: Record, now: float) -> GateVerdict:
        """Judge a record of `acks`, at the monotonic time `now`.

        Call it once for each record, in order.
        """
        key = record.key or ""
        name = key.partition("/")[0]
        if name not in self._sealing:
            if self._requires:
                return GateVerdict.EARLY
            return GateVerdict.COUNTS if self._has_room(key, is_own=True) else GateVerdict.BEYOND
        mirror, keys = self._sealing[name]
        verdict = self._compare(record, key, mirror, keys)
        if verdict is GateVerdict.COUNTS:
            if name not in self._sealed:
                self._sealed.add(name)
                if mirror.sealed_from is None:
                    self.first_sealed[name] = record.offset
            self._close_foreign(key)
        elif verdict.is_refused and self._is_early(record, mirror):
            if record.value is not None and mirror.state is not MirrorState.REMOVED:
                self._unsealed.add(name)
            return GateVerdict.EARLY
        elif verdict.is_refused and not self._has_room(key, is_own=False):
            return GateVerdict.BEYOND
        elif verdict.is_refused:
            found = ForeignRecord(offset=record.offset, written=record.time, found=now, verdict=verdict)
            self.foreign[key] = found
        return verdict

    def find_serial(self, record: Record) -> int | None:
        """Return the serial of the newest record that counts under this key.

        None if its mirror need not seal.
        """
        name, _, repository = (record.key or "").partition("/")
        return self._serials.get(name, {}).get(repository) if name in self._sealing else None

    def end_loading(self) -> None:
        """Judge each record alone from here on: all records of the log have passed."""
        self._is_loading = False

    def list_foreign(self, now: float) -> dict[str, ForeignRecord]:
        """Return the foreign records that an operator must know of, by key."""
        shown = {key: each for key, each in self.foreign.items() if each.is_open or now - each.found < SHOWN}
        self.foreign = shown
        return shown

    def list_overwritten(self) -> tuple[str, ...]:
        """Return the keys of records that their mirrors must write again, at most ASKED of each.

        Heartbeats are not among them: another one follows anyway.
        """
        counts, found = Counter[str](), []
        for key, each in self.foreign.items():
            name, _, repository = key.partition("/")
            if each.is_open and repository and len(key) <= ACK_KEY_LIMIT and counts[name] < ASKED:
                counts[name] += 1
                found.append(key)
        return tuple(found)

    def make_room(self) -> None:
        """Free the room of records that roster and log have come to know: a mirror may be ahead of the aggregator."""
        for keys in self._strangers.values():
            if len(keys) > STRANGERS // 2:
                keys -= {key for key in keys if self._is_expected(key)}

    def find_unsealed(self, roster: Roster) -> list[str]:
        """Name the mirrors that write and seal nothing; notices may wait for them."""
        unsealed = self._unsealed - self._sealed
        return [mirror.name for mirror in roster.mirrors if mirror.gates("", None) and mirror.name in unsealed]

    def _close_foreign(self, key: str) -> None:
        """Note that the mirror has written a record behind the foreign one.

        While everything is read, an older record in front of the newest is no replay.
        """
        found = self.foreign.get(key)
        if found is not None and self._is_loading and found.verdict is GateVerdict.REPLAYED:
            del self.foreign[key]
        elif found is not None:
            found.is_open = False

    def _is_early(self, record: Record, mirror: Mirror) -> bool:
        """Return whether the mirror may not have begun to seal before this record."""
        has_begun = mirror.sealed_from is not None and record.offset >= mirror.sealed_from
        return mirror.state is MirrorState.REMOVED or not (has_begun or mirror.name in self._sealed)

    def _has_room(self, key: str, *, is_own: bool) -> bool:
        """Return whether there is room for the record of this key; remember its mirror if not."""
        if self._is_expected(key):
            return True
        name = key.partition("/")[0]
        mirror = name if name in self._names else ""
        keys = self._strangers.setdefault((mirror, is_own), set())
        if key not in keys and (len(keys) >= STRANGERS or len(key) > ACK_KEY_LIMIT):
            self.crowded.add(mirror)
            return False
        keys.add(key)
        return True

    def _is_expected(self, key: str) -> bool:
        name, _, repository = key.partition("/")
        return self._expects(name, repository)

    def _compare(self, record: Record, key: str, mirror: Mirror, keys: Mapping[str, SealKey]) -> GateVerdict:
        seal = read_seal(record.headers.get(SEAL))
        if seal is None or not is_sealed(seal, keys, key=key, value=record.value):
            return GateVerdict.FOREIGN
        if seal.epoch != (mirror.epoch or 0):  # of an earlier life under this name
            return GateVerdict.EARLY
        if not self._has_room(key, is_own=True):
            return GateVerdict.BEYOND
        serials, repository = self._serials.setdefault(mirror.name, {}), key.partition("/")[2]
        if seal.serial < serials.get(repository, -1):
            return GateVerdict.REPLAYED
        serials[sys.intern(repository)] = seal.serial
        return GateVerdict.COUNTS


def open_keys(file: str | None, roster: Roster) -> tuple[KeyPair, ...]:
    """Return the aggregator's keys, made if their file is missing.

    Raises BadConfig, also without a file if the roster needs one.
    """
    if file is None:
        if roster.needs_seals:
            raise BadConfig("aggregator.key: expected a file, because the roster has keys of mirrors, got none")
        return ()
    found = read_keys(Path(file))
    if not found:
        found = (make_key(Path(file)),)
        logger.info("key made", file=file, key=found[0].public)
    return found


def _agree_all(mirror: str, keys: tuple[str, ...], own: tuple[KeyPair, ...]) -> dict[str, SealKey]:
    found = {}
    for key in keys:
        for pair in own:
            agreed = agree(pair, mirror=key, aggregator=pair.public)
            if agreed is None:
                logger.error("key cannot be used", mirror=mirror, key=key[:100])
                continue
            found[agreed.pair] = agreed
    return found


def _list_keys(roster: Roster) -> tuple[object, ...]:
    mirrors = tuple((one.name, one.keys, one.epoch, one.state is MirrorState.REMOVED) for one in roster.mirrors)
    keyed = tuple(each for each in mirrors if each[1] or roster.requires_keys)
    return keyed, bool(roster.requires_keys), roster.aggregator_keys or ()
