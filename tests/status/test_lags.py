# SPDX-License-Identifier: GPL-2.0-or-later
"""The lags of mirrors: measured for what changed, they are those of a picture that was read whole."""

import random
from dataclasses import replace

import pytest

from hgext.vcsreplicator.log import ACKS, ROSTER, STATE, Record
from hgext.vcsreplicator.status import UNLISTED, Picture
from hgext.vcsreplicator.status.findings import as_data
from hgext.vcsreplicator.status.services import Expectations
from hgext.vcsreplicator.words.records import ACK_KEY_LIMIT, ACK_LIMIT, AggregatorHeartbeat, Lag, MirrorHeartbeat
from hgext.vcsreplicator.words.roster import KEY, Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.chains import Chain
from testing.seeds import seeds
from tests.status.test_status import Installation

MIRRORS = ("alpha", "beta", "gamma")
# Of the same time as the heartbeats.
NOW = 1.0


def test_a_mirror_that_is_not_in_the_roster_must_have_nothing() -> None:
    state = Installation().state
    for mirrors in ((), (Mirror(name="alpha", state=MirrorState.ACTIVE),)):
        picture = Picture(states={state.repository: state}, roster=Roster(mirrors=mirrors))
        assert picture.must_have("alpha", state) is bool(mirrors)
        assert bool(picture.measure_lags("alpha")) is bool(mirrors)


class Drawn:
    """Records of three repositories and three mirrors, drawn by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._model = Installation().state
        self._chains = [Chain(f"group/{number}") for number in range(3)]
        for chain in self._chains:
            chain.take(4)
        self._offset = 0

    def draw(self) -> Record:
        topic, key, value = self._random.choice((*[self._state] * 4, *[self._ack] * 4, self._roster, self._other))()
        self._offset += 1
        return Record(
            topic=topic, partition=0, offset=self._offset, key=key, value=value, headers={}, time=float(self._offset)
        )

    def _state(self) -> tuple[str, str, bytes | None]:
        chain, seq = self._random.choice(self._chains), self._random.randint(1, 4)
        event, released = chain.events[seq - 1], self._random.randint(0, seq)
        state = replace(
            self._model,
            repository=event.repository,
            incarnation=self._random.choice((event.incarnation, "f" * 32)),
            path=event.path,
            seq=seq,
            released=released,
            noticed=self._random.randint(0, released),
            deleted=self._random.random() < 0.1,
        )
        value = self._random.choice((to_json(state), to_json(state), None, b"no state"))
        return STATE, event.repository, value

    def _ack(self) -> tuple[str, str, bytes | None]:
        chain, name, seq = self._random.choice(self._chains), self._random.choice(MIRRORS), self._random.randint(1, 4)
        ack = chain.ack(name, seq, serving=self._random.randint(0, seq))
        value = self._random.choice((to_json(ack), to_json(ack), None, b"no ack"))
        return ACKS, f"{name}/{chain.events[0].repository}", value

    def _roster(self) -> tuple[str, str, bytes | None]:
        mirrors = []
        for name in self._random.sample(MIRRORS, self._random.randint(1, 3)):
            given_up = tuple(
                c.events[0].repository for c in self._random.sample(self._chains, self._random.randint(0, 1))
            )
            rules = self._random.choice((Rules(), Rules(exclude=("path:group/1",))))
            mirrors.append(Mirror(name=name, state=MirrorState.ACTIVE, deactivated=given_up, rules=rules))
        return ROSTER, KEY, to_json(Roster(mirrors=tuple(mirrors)))

    def _other(self) -> tuple[str, str, bytes | None]:
        if self._random.random() < 0.5:
            return STATE, "aggregator", to_json(AggregatorHeartbeat(time=1.0, roster=1, held=0))
        name = self._random.choice(MIRRORS)
        beat = MirrorHeartbeat(mirror=name, time=1.0, positions={}, version="1")
        return ACKS, name, self._random.choice((to_json(beat), None))


def measure(picture: Picture) -> dict[str, dict[str, tuple[int, Lag]]]:
    return {
        name: {state.repository: (state.seq, lag) for state, lag in lags}
        for name, lags in picture.measure_all_lags(NOW).items()
    }


@pytest.mark.parametrize("seed", seeds(20))
def test_lags_measured_after_some_records_are_those_of_the_whole(seed: int) -> None:
    drawn, followed, came = Drawn(seed), Picture(), list[Record]()
    seen = set()
    for _ in range(60):
        for record in [drawn.draw() for _ in range(1 + seed % 4)]:
            followed.absorb(record)
            came.append(record)
        whole = Picture()
        for record in came:
            whole.absorb(record)
        found = measure(followed)
        assert found == measure(whole)
        assert found == {
            name: {state.repository: (state.seq, lag) for state, lag in followed.measure_lags(name)} for name in found
        }
        seen.add(repr(found))
    assert len(seen) > 10


def test_invented_mirrors_are_not_all_compared_with_the_repositories() -> None:
    picture = Picture(roster=Roster(mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE),)))
    for number in range(1000):
        beat = MirrorHeartbeat(mirror=f"a{number}", time=NOW, positions={}, version="1")
        picture.absorb(absorbed(beat.mirror, to_json(beat)))
    assert len(picture.measure_all_lags(NOW)) == 1 + UNLISTED
    assert len(as_data(picture, NOW, Expectations())["mirrors"]) == UNLISTED  # type: ignore[arg-type]


def test_a_level_that_no_mirror_writes_takes_no_memory() -> None:
    picture, chain = Picture(), Chain("x")
    ack = replace(chain.ack("alpha", 0), note="x" * ACK_LIMIT)
    picture.absorb(absorbed(f"alpha/{chain.repository}", to_json(ack)))
    assert not picture.acks


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_key_that_no_mirror_writes_takes_no_memory(slash: str) -> None:
    picture, chain = Picture(), Chain("x")
    value = (
        to_json(chain.ack("alpha", 0))
        if slash
        else to_json(MirrorHeartbeat(mirror="alpha", time=NOW, positions={}, version="1"))
    )
    for length, kept in ((ACK_KEY_LIMIT + 1, 0), (ACK_KEY_LIMIT, 1)):
        picture.absorb(absorbed(f"alpha{slash}".ljust(length, "a"), value))
        assert (len(picture.acks), len(picture.heartbeats), len(picture.heard)) == (
            kept * bool(slash),
            kept * (not slash),
            kept,
        )


def absorbed(key: str, value: bytes) -> Record:
    return Record(topic=ACKS, partition=0, offset=0, key=key, value=value, headers={}, time=NOW)
