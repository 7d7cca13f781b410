# SPDX-License-Identifier: GPL-2.0-or-later
"""The seals of a mirror's acks: it seals what it writes, and writes again what another program overwrote."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hgext.vcsreplicator.aggregator.gate import AckGate, GateVerdict
from hgext.vcsreplicator.keys.pairs import KeyPair, make_key
from hgext.vcsreplicator.keys.signed import sign_ack
from hgext.vcsreplicator.log import ACKS, ROSTER, STATE, Log, NewRecord, Record, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records, read_table
from hgext.vcsreplicator.mirror.seals import KEY_FILE, OwnSeals
from hgext.vcsreplicator.words.records import AGGREGATOR, Ack, AggregatorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.states import some_state
from testing.builders.mirror.mirroring import NAME, Bench
from testing.waiting import eventually

REPOSITORY = "a" * 32
ACK = f"{NAME}/{REPOSITORY}"
OTHER = f"{NAME}/{'b' * 32}"


class Sealing:
    """A mirror's seals, and an aggregator that checks them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aggregator = make_key(folder / "aggregator")
        self.key = make_key(folder / KEY_FILE)
        self.seals = OwnSeals(NAME, folder)

    def roster(self, *keys: KeyPair, aggregators: tuple[KeyPair, ...] = (), **members: object) -> Roster:
        mirror = Mirror(name=NAME, state=MirrorState.ACTIVE, keys=tuple(key.public for key in keys) or None, epoch=3)
        known = tuple(pair.public for pair in aggregators or (self.aggregator,))
        return Roster(version=5, mirrors=(replace(mirror, **members),), aggregator_keys=known)  # type: ignore[arg-type]

    def judge(self, roster: Roster, record: NewRecord, *own: KeyPair) -> GateVerdict:
        """What an aggregator says of a record after a first one that counts."""
        gate = AckGate(roster, own or (self.aggregator,))
        return gate.judge(as_read(record), 0.0)


def as_read(record: NewRecord, offset: int = 1) -> Record:
    return Record(
        topic=ACKS, partition=0, offset=offset, key=record.key, value=record.value, headers=record.headers, time=1.0
    )


@pytest.fixture
def sealing(tmp_path: Path) -> Sealing:
    return Sealing(tmp_path)


@pytest.mark.parametrize("value", [b"{}", None], ids=["level", "tombstone"])
def test_what_a_mirror_seals_counts_for_the_aggregator(sealing: Sealing, value: bytes | None) -> None:
    roster = sealing.roster(sealing.key)
    assert sealing.seals.take_roster(roster)
    sealed = sealing.seals.seal(NewRecord(topic=ACKS, key=ACK, value=value))
    assert sealing.judge(roster, sealed) is GateVerdict.COUNTS
    assert sealing.seals.is_own(as_read(sealed))


def test_a_mirror_without_a_key_in_the_roster_seals_nothing(sealing: Sealing) -> None:
    assert not sealing.seals.take_roster(sealing.roster())
    record = NewRecord(topic=ACKS, key=ACK, value=b"{}")
    assert sealing.seals.seal(record) is record


def test_a_mirror_seals_with_its_newest_key_that_the_roster_has(sealing: Sealing) -> None:
    old, new = sealing.key, make_key(sealing.folder / KEY_FILE)
    record = NewRecord(topic=ACKS, key=ACK, value=b"{}")
    assert sealing.seals.take_roster(sealing.roster(old))
    assert sealing.judge(sealing.roster(old), sealing.seals.seal(record)) is GateVerdict.COUNTS
    assert sealing.seals.take_roster(sealing.roster(old, new)), "everything is sealed anew"
    assert sealing.judge(sealing.roster(new), sealing.seals.seal(record)) is GateVerdict.COUNTS
    assert not sealing.seals.take_roster(sealing.roster(new)), "nothing has changed for it"


def test_a_mirror_seals_for_each_key_of_an_aggregator(sealing: Sealing) -> None:
    other = make_key(sealing.folder / "standby")
    roster = sealing.roster(sealing.key, aggregators=(sealing.aggregator, other))
    sealing.seals.take_roster(roster)
    sealed = sealing.seals.seal(NewRecord(topic=ACKS, key=ACK, value=b"{}"))
    assert [sealing.judge(roster, sealed, each) for each in (sealing.aggregator, other)] == [GateVerdict.COUNTS] * 2


def test_serials_grow_also_if_the_clock_was_set_back(sealing: Sealing, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = sealing.roster(sealing.key)
    gate = AckGate(roster, (sealing.aggregator,))
    sealing.seals.take_roster(roster)
    record = NewRecord(topic=ACKS, key=ACK, value=b"{}")
    newest = as_read(sealing.seals.seal(record))
    assert gate.judge(newest, 0.0) is GateVerdict.COUNTS
    monkeypatch.setattr("time.time_ns", lambda: 5)
    again = OwnSeals(NAME, sealing.folder)
    again.take_roster(roster)
    assert again.is_own(newest)
    assert gate.judge(as_read(again.seal(record), 2), 0.0) is GateVerdict.COUNTS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:///{str(tmp_path / 'log.db').lstrip('/')}", creates=True) as log:
        log.create(topics(partitions=1))
        yield log


def test_at_a_start_only_its_own_records_are_a_mirrors_acks(sealing: Sealing, log: Log) -> None:
    sealing.seals.take_roster(sealing.roster(sealing.key))
    own = sealing.seals.seal(NewRecord(topic=ACKS, key=ACK, value=b"{}"))
    log.append([own, NewRecord(topic=ACKS, key=OTHER, value=b"{}")])
    table = read_table(log, ACKS, STATE)
    records = {key: record for (topic, key), record in table.records.items() if topic == ACKS}
    again = OwnSeals(NAME, sealing.folder)
    again.take_roster(sealing.roster(sealing.key))
    assert [set(each) for each in again.choose(table, records)] == [{ACK}, {OTHER}]


def test_a_mirror_with_its_first_key_takes_its_former_acks_and_seals_them(sealing: Sealing, log: Log) -> None:
    log.append([NewRecord(topic=ACKS, key=key, value=b"{}") for key in (ACK, OTHER)])
    table = read_table(log, ACKS, STATE)
    records = {key: record for (topic, key), record in table.records.items() if topic == ACKS}
    sealing.seals.take_roster(sealing.roster(sealing.key))
    assert [set(each) for each in sealing.seals.choose(table, records)] == [{ACK, OTHER}, {ACK, OTHER}]


def test_a_stopped_mirror_takes_no_acks_of_others_that_replaced_all_its_own(sealing: Sealing, log: Log) -> None:
    sealing.seals.take_roster(sealing.roster(sealing.key))
    log.append([sealing.seals.seal(NewRecord(topic=ACKS, key=key, value=b"{}")) for key in (ACK, NAME)])
    log.append([NewRecord(topic=ACKS, key=key, value=b"{}") for key in (ACK, OTHER, NAME)])
    table = read_table(log, ACKS, STATE)
    records = {key: record for (topic, key), record in table.records.items() if topic == ACKS and key != NAME}
    again = OwnSeals(NAME, sealing.folder)
    again.take_roster(sealing.roster(sealing.key))
    assert [set(each) for each in again.choose(table, records)] == [set(), {ACK, OTHER}]


def test_acks_that_would_not_count_are_written_again_at_a_start(sealing: Sealing, log: Log) -> None:
    sealing.seals.take_roster(sealing.roster(sealing.key))
    log.append([sealing.seals.seal(NewRecord(topic=ACKS, key=key, value=b"{}")) for key in (ACK, OTHER)])
    known = some_state(repository=REPOSITORY, serials={NAME: 2**60})  # of an ack that the log lost since
    log.append([NewRecord(topic=STATE, key=REPOSITORY, value=to_json(known))])
    table = read_table(log, ACKS, STATE)
    records = {key: record for (topic, key), record in table.records.items() if topic == ACKS}
    again = OwnSeals(NAME, sealing.folder)
    again.take_roster(sealing.roster(sealing.key))
    assert [set(each) for each in again.choose(table, records)] == [{ACK, OTHER}, {ACK}]
    other = OwnSeals(NAME, sealing.folder)
    other.take_roster(sealing.roster(sealing.key, aggregators=(sealing.aggregator, make_key(sealing.folder / "new"))))
    assert [set(each) for each in other.choose(table, records)] == [{ACK, OTHER}, {ACK, OTHER}]


def newest_ack(bench: Bench, repository: str) -> Record | None:
    return read_table(bench.log, ACKS).records.get((ACKS, f"{NAME}/{repository}"))


@pytest.mark.processes
def test_a_running_mirror_seals_its_acks_and_overwrites_foreign_ones(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        author = bench.author("x")
        author.push()
        bench.send(author)
        folder = Path(bench.settings().folder)
        with bench.mirror():
            bench.wait_applied(author)
            sealing = Sealing(make_folder(folder))
            roster = sealing.roster(sealing.key)
            before = newest_ack(bench, author.repository)
            assert before is not None
            assert not before.headers
            bench.log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])
            gate = AckGate(roster, (sealing.aggregator,))

            def is_sealed() -> bool:
                record = newest_ack(bench, author.repository)
                return record is not None and gate.judge(record, 0.0) is GateVerdict.COUNTS

            eventually(is_sealed, "all acks are sealed once the roster has the key")
            level = from_json(Ack, before.value or b"")
            forged = to_json(replace(level, serving=level.applied + 5, applied=level.applied + 5))
            bench.log.append([NewRecord(topic=ACKS, key=f"{NAME}/{author.repository}", value=forged)])
            assert not is_sealed()
            beat = AggregatorHeartbeat(time=1.0, roster=5, held=0, overwritten=(f"{NAME}/{author.repository}",))
            bench.log.append([NewRecord(topic=STATE, key=AGGREGATOR, value=to_json(beat))])
            eventually(is_sealed, "the mirror has written its own again")
            record = newest_ack(bench, author.repository)
            assert record is not None
            assert record.value == before.value
        bench.log.append([NewRecord(topic=ACKS, key=f"{NAME}/{author.repository}", value=forged)])
        with bench.mirror():
            eventually(is_sealed, "and at a start")
            author.push()
            bench.send(author)
            bench.wait_applied(author)


@pytest.mark.processes
def test_a_mirror_signs_what_it_serves_while_notices_are_signed(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        sealing = Sealing(make_folder(Path(bench.settings().folder)))
        roster = replace(sealing.roster(sealing.key), signing_keys=(sealing.aggregator.signing,))
        bench.log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(roster))])
        author = bench.author("x")
        author.push()
        bench.send(author)
        with bench.mirror():
            bench.wait_applied(author)
            bench.release(author)
            bench.wait_served(author)
        records = [*read_records(bench.log, find_beginnings(bench.log, ACKS))]
        acks = [from_json(Ack, record.value or b"") for record in records if "/" in (record.key or "")]
        assert [ack.signature for ack in acks if not ack.serving] == [None] * sum(not ack.serving for ack in acks)
        assert acks[-1].signature == sign_ack(sealing.key, replace(acks[-1], signature=None)).signature
        bench.log.append([NewRecord(topic=ROSTER, key=KEY, value=to_json(sealing.roster(sealing.key)))])
        with bench.mirror():
            author.push()
            bench.send(author)
            bench.release(author)
            bench.wait_served(author)
        last = newest_ack(bench, author.repository)
        assert last is not None
        assert b"signature" not in (last.value or b"")


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
