# SPDX-License-Identifier: GPL-2.0-or-later
"""Records of `acks` that another program wrote in a mirror's name: of a mirror with a key, none counts."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hgext.vcsreplicator.aggregator.gate import ASKED, AckGate, GateVerdict
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.loop import read_state
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.keys.pairs import agree, make_key
from hgext.vcsreplicator.keys.seal import SEAL, make_seal
from hgext.vcsreplicator.log import ACKS, ERRORS, NOTICES, STATE, Log, NewRecord, Record, Transactor, topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.records import ACK_KEY_LIMIT, AGGREGATOR, AggregatorHeartbeat, ErrorRecord, Notice
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster, Verb
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.aggregating import ask, list_silent, send
from testing.builders.aggregator.chains import Chain
from testing.builders.aggregator.sealing import SealingMirror, roster_of, write_foreign
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock


class Installation:
    """An aggregator with a key on a log, whose sessions follow each other as in the service."""

    def __init__(self, log: Log, folder: Path, clock: HandClock) -> None:
        self.log, self.clock = log, clock
        self.settings = AggregatorSettings(key=str(folder / "aggregator.key"), beat=1.0)
        self._transactor: Transactor | None = None
        self.session: Session | None = None

    def turn(self, count: int = 3) -> None:
        """Step until all is taken, with a new session where the service begins one."""
        for _ in range(count):
            if self.session is not None and self.session.is_outdated:
                self.stop()
            if self.session is None:
                self.start()
            assert self.session is not None
            self.clock.advance(1.0)
            self.session.step(0.5 if not isinstance(self.log, MemoryLog) else 0.0)

    def start(self) -> None:
        read_state(self.log, None)  # type: ignore[arg-type]
        if self._transactor is None:
            self._transactor = self.log.transactor(GROUP)
        else:
            self._transactor.renew()
        self.session = Session(self.settings, self.log, self._transactor, self.clock)

    def stop(self) -> None:
        """End the session; the next turn begins one."""
        if self.session is not None:
            self.session.finish()
            self.session.close()
            self.session = None

    def ask(self, verb: Verb, mirror: str | None = None, **members: Any) -> None:
        """Make a request, and see it decided."""
        ask(self.log, verb, mirror, **members)
        self.turn()

    def level(self, mirror: str, chain: Chain) -> tuple[int, int] | None:
        """What counts: applied and serving."""
        assert self.session is not None
        repository = self.session.aggregation.repositories.get(chain.repository)
        ack = repository.acks.get(mirror) if repository else None
        return None if ack is None else (ack.applied, ack.serving)

    def noticed(self) -> list[int]:
        return [from_json(Notice, record.value or b"").event.seq for record in self._records(NOTICES)]

    def released(self, chain: Chain) -> int:
        assert self.session is not None
        state = self.session.aggregation.repositories[chain.repository].state
        return state.released if state else 0

    def rejects(self) -> list[str]:
        return [from_json(ErrorRecord, record.value or b"").reason for record in self._records(ERRORS)]

    def alarms(self) -> str:
        """The alarms of the newest heartbeat."""
        return "\n".join(self.beat().alarms)

    def beat(self) -> AggregatorHeartbeat:
        """The newest heartbeat."""
        beats = [record for record in self._records(STATE) if record.key == AGGREGATOR]
        return from_json(AggregatorHeartbeat, beats[-1].value or b"")

    def _records(self, topic: str) -> list[Any]:
        return list(read_records(self.log, find_beginnings(self.log, topic)))


@contextmanager
def installed(log: Log, folder: Path, clock: HandClock) -> Iterator[Installation]:
    installation = Installation(log, folder, clock)
    try:
        installation.turn()
        yield installation
    finally:
        if installation.session is not None:
            installation.session.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Installation]:
    clock = HandClock()
    log = MemoryLog(clock)
    log.create(topics(partitions=1))
    with installed(log, tmp_path, clock) as installation:
        yield installation


def keyed(installation: Installation, folder: Path, *names: str) -> list[SealingMirror]:
    """Mirrors of these names, with keys, that are active."""
    mirrors = [SealingMirror(name, installation.log, folder) for name in names]
    for mirror in mirrors:
        installation.ask(Verb.ADD, mirror.name, key=mirror.key)
        mirror.beat()
    installation.turn()
    assert [one.state for one in roster_of(installation.log).mirrors] == [MirrorState.ACTIVE] * len(names)
    return mirrors


@pytest.fixture
def real(url: str, tmp_path: Path) -> Iterator[Installation]:
    with open_log(url, creates=True) as log:
        log.create(topics(partitions=1))
        with installed(log, tmp_path, HandClock()) as installation:
            yield installation


@pytest.mark.sample(1, keep=("sqlite",))
@pytest.mark.processes
def test_a_foreign_level_neither_releases_nor_announces(real: Installation, tmp_path: Path) -> None:
    alpha, beta = keyed(real, tmp_path, "alpha", "beta")
    chain = Chain("x")
    send(real.log, chain.take(1))
    alpha.ack(chain.ack("alpha", 1, 0))
    write_foreign(real.log, chain.ack("beta", 1, 0))
    real.turn()
    assert real.released(chain) == 0
    beta.ack(chain.ack("beta", 1, 0))
    real.turn()
    assert real.released(chain) == 1
    alpha.ack(chain.ack("alpha", 1, 1))
    write_foreign(real.log, chain.ack("beta", 1, 1))
    real.turn()
    assert real.noticed() == []
    beta.ack(chain.ack("beta", 1, 1))
    real.turn()
    assert real.noticed() == [1]
    assert [reason.partition(",")[0] for reason in real.rejects()] == [
        "not sealed by a key that this mirror has in the roster"
    ] * 2
    assert "foreign acks beta: another program wrote" in real.alarms()


@pytest.mark.sample(1, keep=("sqlite",))
@pytest.mark.processes
def test_a_level_counts_after_a_restart_though_a_foreign_one_follows_it(real: Installation, tmp_path: Path) -> None:
    alpha, beta = keyed(real, tmp_path, "alpha", "beta")
    chain = Chain("x")
    send(real.log, chain.take(2))
    for mirror in (alpha, beta):
        mirror.ack(chain.ack(mirror.name, 1, 0))
    real.turn()
    write_foreign(real.log, chain.ack("beta", 2, 2))
    real.stop()
    real.turn()
    # A log that has removed the older record of the key knows no level; otherwise the sealed one counts.
    assert real.level("beta", chain) in ((1, 0), None)
    assert "foreign acks beta" in real.alarms()
    beta.ack(chain.ack("beta", 1, 1))
    real.turn()
    assert real.level("beta", chain) == (1, 1)
    assert "written its own again" in real.alarms()


def test_a_level_that_the_log_lost_to_a_foreign_one_raises_an_alarm(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    beta.ack(chain.ack("beta", 1, 0))
    write_foreign(memory.log, chain.ack("beta", 1, 1))
    beta.beat()
    memory.stop()
    assert isinstance(memory.log, MemoryLog)
    memory.turn()
    assert memory.level("beta", chain) is None
    assert (
        f"foreign acks beta: another program wrote records in its name under 1 key, the newest under beta/{chain.repository}"
        in (memory.alarms())
    )


@pytest.mark.sample(1, keep=("sqlite",))
@pytest.mark.processes
def test_older_records_that_the_log_still_has_are_no_replays_at_a_start(real: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(real, tmp_path, "beta")
    chain = Chain("x")
    send(real.log, chain.take(3))
    for applied in (1, 2, 3):
        beta.ack(chain.ack("beta", applied, applied - 1))
        real.turn()
    real.stop()
    real.turn()
    assert (real.level("beta", chain), real.rejects(), real.alarms()) == ((3, 2), [], "")


@pytest.mark.parametrize("headers", [{}, {SEAL: ""}, {SEAL: "0 1 99 "}, {SEAL: "2 1 99 " + "a" * 16 + ":" + "b" * 64}])
def test_no_older_or_other_form_of_a_seal_counts(memory: Installation, tmp_path: Path, headers: dict[str, str]) -> None:
    keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    write_foreign(memory.log, chain.ack("beta", 1), headers)
    memory.turn()
    assert memory.level("beta", chain) is None


def test_the_seal_of_another_mirror_does_not_count(memory: Installation, tmp_path: Path) -> None:
    alpha, _ = keyed(memory, tmp_path, "alpha", "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    memory.log.append([alpha.seal(f"beta/{chain.repository}", to_json(chain.ack("beta", 1)))])
    memory.turn()
    assert memory.level("beta", chain) is None
    assert len(memory.rejects()) == 1


Change = Callable[[NewRecord], NewRecord]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: replace(record, value=(record.value or b"").replace(b'"serving":0', b'"serving":1')),
        lambda record: replace(record, key=f"{(record.key or '')[:-1]}0"),
        lambda record: replace(record, value=None),
        lambda record: replace(record, headers={SEAL: record.headers[SEAL].replace("1 ", "1 9", 1)}),
        lambda record: replace(record, headers={SEAL: record.headers[SEAL][:-2] + "00"}),
    ],
    ids=["level", "repository", "tombstone", "numbers", "mac"],
)
def test_a_sealed_record_that_was_changed_does_not_count(memory: Installation, tmp_path: Path, change: Change) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    record = beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    memory.log.append([change(record)])
    memory.turn()
    assert memory.level("beta", chain) == (1, 0)
    assert len(memory.rejects()) == 1


def test_a_mirror_is_asked_for_what_another_program_overwrote(memory: Installation, tmp_path: Path) -> None:
    alpha, _ = keyed(memory, tmp_path, "alpha", "beta")
    chains = [Chain(str(number)) for number in range(ASKED + 5)]
    keys = ["alpha", "beta/" + "b" * ACK_KEY_LIMIT, *(f"alpha/{chain.repository}" for chain in chains)]
    memory.log.append([NewRecord(topic=ACKS, key=key, value=b"{}") for key in keys])
    memory.turn()
    asked = keys[2:]
    assert memory.beat().overwritten == tuple(asked[:ASKED])
    memory.stop()
    memory.turn()
    assert memory.beat().overwritten == tuple(asked[:ASKED]), "also after a restart"
    send(memory.log, [event for chain in chains for event in chain.take(1)])
    for chain in chains[:ASKED]:
        alpha.ack(chain.ack("alpha", 1))
    memory.turn()
    assert memory.beat().overwritten == tuple(asked[ASKED:])


@pytest.mark.parametrize("restarts", [False, True])
def test_an_old_level_written_again_changes_nothing(memory: Installation, tmp_path: Path, *, restarts: bool) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(3))
    lower = beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    higher = beta.ack(chain.ack("beta", 3, 0))
    memory.turn()
    beta.ack(chain.ack("beta", 2, 0))  # the mirror was restored from a copy
    memory.turn()
    for old in (higher, lower):
        memory.log.append([old])
        if restarts:  # this log keeps the newest record of a key alone
            memory.stop()
        memory.turn()
        assert memory.level("beta", chain) == (None if restarts else (2, 0))
    assert set(memory.rejects()) == {"an older record of this mirror, written again behind a newer one: it is ignored"}


def test_a_record_that_its_writer_repeated_is_no_foreign_one(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    memory.log.append([beta.ack(chain.ack("beta", 1, 0))])
    memory.turn()
    assert (memory.level("beta", chain), memory.rejects()) == ((1, 0), [])


def test_a_foreign_heartbeat_is_no_sign_of_life(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    with capture_logs() as lines:
        for _ in range(70):
            memory.log.append([replace(beta.seal("beta", b"{}"), headers={})])
            memory.turn(1)
    assert "beta" in list_silent(lines)


def test_records_of_a_dead_mirror_written_again_are_no_sign_of_life(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    sealed = [beta.ack(chain.ack("beta", 1, 0)), beta.seal("beta", b"{}")]
    memory.log.append(sealed[1:])
    with capture_logs() as lines:
        for _ in range(70):
            memory.log.append(sealed)
            memory.turn(1)
        assert "beta" in list_silent(lines)
        memory.log.append([beta.seal("beta", b"{}")])
        memory.turn(1)
        assert "beta" not in list_silent(lines)


def test_a_foreign_tombstone_removes_no_level(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    memory.log.append([NewRecord(topic=ACKS, key=f"beta/{chain.repository}", value=None)])
    memory.turn()
    assert memory.level("beta", chain) == (1, 0)
    memory.log.append([beta.seal(f"beta/{chain.repository}", None)])
    memory.turn()
    assert memory.level("beta", chain) is None


def test_both_keys_count_while_a_mirror_changes_its_key(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain, old = Chain("x"), beta.pair
    send(memory.log, chain.take(3))
    beta.ack(chain.ack("beta", 1, 0))
    new = beta.change_key()
    memory.ask(Verb.ADD_KEY, "beta", key=new)
    assert memory.level("beta", chain) == (1, 0)
    beta.ack(chain.ack("beta", 2, 0))
    memory.turn()
    assert memory.level("beta", chain) == (2, 0)
    memory.ask(Verb.REMOVE_KEY, "beta", key=old.public)
    assert memory.level("beta", chain) == (2, 0)
    beta.pair = old
    beta.ack(chain.ack("beta", 3, 0))
    memory.turn()
    assert memory.level("beta", chain) == (2, 0)


def test_levels_from_before_a_mirrors_first_key_do_not_count(memory: Installation, tmp_path: Path) -> None:
    memory.ask(Verb.ADD, "beta")
    beta, chain = SealingMirror("beta", memory.log, tmp_path), Chain("x")
    send(memory.log, chain.take(1))
    write_foreign(memory.log, chain.ack("beta", 1, 0))
    memory.turn()
    assert memory.level("beta", chain) == (1, 0), "a mirror without a key is taken at its word"
    memory.ask(Verb.ADD_KEY, "beta", key=beta.key)
    assert memory.level("beta", chain) is None
    assert memory.rejects() == []
    assert "mirror without seal beta" in memory.alarms()
    beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    assert memory.level("beta", chain) == (1, 0)
    assert "mirror without seal" not in memory.alarms()


def test_a_restart_while_a_mirror_seals_its_acks_raises_no_alarm(memory: Installation, tmp_path: Path) -> None:
    memory.ask(Verb.ADD, "beta")
    beta, chain = SealingMirror("beta", memory.log, tmp_path), Chain("x")
    send(memory.log, chain.take(1))
    write_foreign(memory.log, chain.ack("beta", 1, 0))
    memory.ask(Verb.ADD_KEY, "beta", key=beta.key)
    beta.beat()
    for _ in range(2):
        memory.stop()
        memory.turn()
    assert (memory.level("beta", chain), memory.rejects(), memory.alarms()) == (None, [], "")
    write_foreign(memory.log, chain.ack("beta", 1, 0))
    assert isinstance(memory.log, MemoryLog)
    memory.stop()
    memory.turn()
    assert "foreign acks beta" in memory.alarms()


def test_a_key_that_returns_makes_nothing_foreign_that_came_without_it(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain, other = Chain("x"), Chain("y")
    send(memory.log, [*chain.take(1), *other.take(1)])
    beta.ack(other.ack("beta", 1, 0))
    wrong = make_key(tmp_path / "wrong").public
    memory.ask(Verb.ADD_KEY, "beta", key=wrong)
    memory.ask(Verb.REMOVE_KEY, "beta", key=beta.key)
    write_foreign(memory.log, chain.ack("beta", 1, 0))  # the mirror itself, which has no key in the roster now
    memory.ask(Verb.ADD_KEY, "beta", key=beta.key)
    assert (memory.level("beta", chain), memory.rejects()) == (None, [])
    beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    assert (memory.level("beta", chain), memory.alarms()) == ((1, 0), "")


def test_levels_of_a_mirrors_earlier_life_do_not_count(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    old = beta.ack(chain.ack("beta", 1, 0))
    memory.ask(Verb.DEACTIVATE, "beta")
    memory.ask(Verb.REMOVE, "beta")
    memory.ask(Verb.ADD, "beta", key=beta.key)
    memory.log.append([old])
    memory.turn()
    assert memory.level("beta", chain) is None


def test_with_required_keys_no_mirror_without_one_counts(memory: Installation, tmp_path: Path) -> None:
    memory.ask(Verb.ADD, "alpha")
    memory.ask(Verb.REQUIRE_KEYS, allow=True)
    chain = Chain("x")
    send(memory.log, chain.take(1))
    write_foreign(memory.log, chain.ack("alpha", 1, 0))
    write_foreign(memory.log, chain.ack("unknown", 1, 0))
    memory.turn()
    assert (memory.level("alpha", chain), memory.level("unknown", chain)) == (None, None)
    assert "mirror without seal alpha" in memory.alarms()
    memory.ask(Verb.REQUIRE_KEYS, allow=False)
    assert memory.level("alpha", chain) == (1, 0)


def test_an_aggregator_without_its_key_does_not_start(memory: Installation, tmp_path: Path) -> None:
    keyed(memory, tmp_path, "beta")
    memory.stop()
    memory.settings = AggregatorSettings()
    with pytest.raises(BadConfig, match=r"aggregator\.key: expected a file"):
        memory.start()


def test_an_aggregator_with_another_key_counts_what_is_sealed_for_it(memory: Installation, tmp_path: Path) -> None:
    (beta,) = keyed(memory, tmp_path, "beta")
    chain = Chain("x")
    send(memory.log, chain.take(1))
    beta.ack(chain.ack("beta", 1, 0))
    memory.stop()
    memory.settings = AggregatorSettings(key=str(tmp_path / "standby.key"), beat=1.0)
    memory.turn()
    assert (memory.level("beta", chain), memory.rejects()) == (None, [])
    beta.ack(chain.ack("beta", 1, 0))
    memory.turn()
    assert (memory.level("beta", chain), memory.alarms()) == ((1, 0), "")
    assert len(roster_of(memory.log).aggregator_keys or ()) == 2


def test_an_aggregator_without_seals_takes_over_from_none_with_them(
    memory: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as former:
        former.setattr("hgext.vcsreplicator.aggregator.loading.AGGREGATOR_FORMAT", 2)
        read_state(memory.log, None)  # type: ignore[arg-type]
    keyed(memory, tmp_path, "beta")
    monkeypatch.setattr("hgext.vcsreplicator.aggregator.loading.AGGREGATOR_FORMAT", 2)
    with pytest.raises(BadConfig, match="newer release"):
        read_state(memory.log, None)  # type: ignore[arg-type]


def test_the_serial_of_a_level_takes_no_key_of_its_own(tmp_path: Path) -> None:
    """A million sealed levels have 100,000 repositories and ten mirrors."""
    own, names = make_key(tmp_path / "aggregator"), [f"mirror{number}" for number in range(10)]
    pairs = {name: make_key(tmp_path / name) for name in names}
    mirrors = [
        Mirror(name=name, state=MirrorState.ACTIVE, keys=(pair.public,), epoch=1) for name, pair in pairs.items()
    ]
    sealing = {name: agree(pair, mirror=pair.public, aggregator=own.public) for name, pair in pairs.items()}
    gate = AckGate(Roster(version=1, mirrors=tuple(mirrors), aggregator_keys=(own.public,)), (own,))
    gate.first_sealed = dict.fromkeys(names, 0)
    tracemalloc.start()
    try:
        for number in range(1000):
            name, repository = names[number % 10], f"{number // 10:032x}"
            key, headers = f"{name}/{repository}", dict[str, str]()
            if (keys := sealing[name]) is not None:
                headers[SEAL] = make_seal((keys,), key=key, value=b"{}", epoch=1, serial=2**50 + number)
            record = Record(topic=ACKS, partition=0, offset=number, key=key, value=b"{}", headers=headers, time=1.0)
            assert gate.judge(record, 0.0) is GateVerdict.COUNTS
            assert gate.find_serial(record) == 2**50 + number
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 1000 < 130
