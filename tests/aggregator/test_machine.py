# SPDX-License-Identifier: GPL-2.0-or-later
"""No order of pushes, acks, requests, crashes, takeovers and losses of the log breaks a promise.

The aggregator is the real one, on a log in memory that can lose the answer to a commit, and its newest records; a test moves the
clock. The machine plays the master, the relay, the mirrors and the operator; a checker looks for notices that are early, lost,
doubled or misordered. A failure prints its steps and how to reproduce them.
"""

import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from hgext.vcsreplicator.aggregator.decisions.succession import DEPARTURE_PATIENCE
from hgext.vcsreplicator.aggregator.loading import IDENTITY
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import (
    ACKS,
    EVENTS,
    PENDING,
    ROSTER_REQUESTS,
    STATE,
    NewRecord,
    Record,
    partition_of,
    topics,
)
from hgext.vcsreplicator.words import wire
from hgext.vcsreplicator.words.errors import Expired, Fenced, Unavailable
from hgext.vcsreplicator.words.event import MOST_REPLACED, Event, Type
from hgext.vcsreplicator.words.records import RepositoryState
from hgext.vcsreplicator.words.roster import KEY, MirrorRole, MirrorState, RosterRequest, Verb
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.aggregator.chains import Chain, identifier
from testing.builders.log.memorylog import MemoryCopy, MemoryLog
from testing.checks.checker import check, steps_of
from testing.clock import HandClock
from tests.aggregator.decisions.test_outstanding import kept, walk

# Hypothesis makes a failing example smaller for up to five minutes.
pytestmark = pytest.mark.timeout(1200)

NAMES = ("a", "b", "c")
MIRRORS = ("alpha", "beta", "gamma")
SETTLED = 12
# More than the notices of any example would need, at three in each step.
MANY_BATCHES = 10_000


class RememberingLog(MemoryLog):
    """Keeps every record that was ever appended, and lets time pass with each transaction."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.journal: list[Record] = []
        self.ticking = clock

    def append(self, messages: list[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:  # type: ignore[override]
        self.ticking.advance(0.001)
        return super().append(messages, timeout=timeout)

    def commit(self, *arguments: object) -> list[tuple[int, int]]:  # type: ignore[override]
        self.ticking.advance(0.001)
        return super().commit(*arguments)  # type: ignore[arg-type]

    def put(self, message: NewRecord) -> tuple[int, int]:
        partition, offset = super().put(message)
        self.journal.append(self._records[message.topic, partition][offset])
        return partition, offset


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.log = RememberingLog(self.clock)
        self.log.create(topics(partitions=2))
        self.chains = {name: [Chain(name)] for name in NAMES}
        self.levels: dict[tuple[str, str], tuple[Chain, int]] = {}
        self.stopped: set[str] = set()
        self.requests = 0
        self.asked: RosterRequest
        self.settings = AggregatorSettings(group_time=0.0, batch=3)
        self.session: Session | None = None
        self.olds: list[Session] = []
        self.copy: MemoryCopy | None = None
        self.has_state_gone_back = False
        self.has_lost_unseen = False

    @initialize(members=st.sets(st.sampled_from(MIRRORS), min_size=1), group_time=st.sampled_from((0.0, 0.005)))
    def found(self, members: set[str], group_time: float) -> None:
        self.settings = AggregatorSettings(group_time=group_time, batch=3)
        for name in sorted(members):
            self.ask(Verb.ADD, name)

    # Master and relay

    @rule(count=st.integers(1, 60), seed=st.integers(0, 2**16))
    def work_goes_on(self, count: int, seed: int) -> None:
        """Many small things at once, so that the rarer ones meet a busy installation."""
        chance = random.Random(seed)
        for _ in range(count):
            act, name, mirror = chance.randrange(10), chance.choice(NAMES), chance.choice(MIRRORS)
            if act <= 1:
                self.push(name, act + 1)
            elif act >= 7:
                self.step()
            elif mirror in self.stopped:
                continue
            elif act <= 4:
                self.apply(mirror, name, act)
            else:
                self.serve_what_is_released(mirror)

    @rule(
        what=st.sampled_from(("rename", "delete", "replace", "adopt", "repeat", "fork", "newer")),
        name=st.sampled_from(NAMES),
        number=st.integers(1, 9),
    )
    def at_the_master(self, what: str, name: str, number: int) -> None:
        chain = self.chains[name][-1]
        if not chain.events or chain.events[-1].type is Type.DELETED:
            return
        match what:
            case "rename":
                was, chain.path = chain.path, f"{('kept', 'moved')[number % 2]}/{name}"
                self.send(chain.next(Type.RENAMED, detail={"from": was}))
            case "delete":
                self.send(chain.next(Type.DELETED))
                self.chains[name].append(Chain(name, generation=chain.generation + 1))
                self.send(self.chains[name][-1].next())
            case "replace":  # removed without a word, and made again
                self.chains[name].append(Chain(chain.path, generation=chain.generation + 1))
                self.send(self.chains[name][-1].next())
            case "adopt":
                same = [other for other in self.chains[name] if other.repository == chain.repository]
                replaces = " ".join(other.incarnation for other in reversed(same))
                detail = {"reason": "adopted", "replaces": replaces}
                self.send(self.restored(name, chain).next(Type.SYNC, detail=detail))
            case "repeat":
                same = [other for other in self.chains[name] if other.repository == chain.repository]
                self.send(*[event for other in same for event in other.events][-number:])
            case "newer":
                self.send(chain.next(version=2))
            case "fork" if len(chain.events) >= number and self.is_read(chain, chain.events[-number]):
                self.send(replace(chain.events[-number], id=identifier("fork", chain.events[-number].id)))

    @rule(
        what=st.sampled_from(("stop", "stop", "start", "restore", "forget")),
        mirror=st.sampled_from(MIRRORS),
        name=st.sampled_from(NAMES),
        number=st.integers(1, 9),
    )
    def at_a_mirror(self, what: str, mirror: str, name: str, number: int) -> None:
        repository = self.chains[name][-1].repository
        followed, applied = self.levels.get((mirror, repository), (None, 0))
        match what:
            case "stop":
                self.stopped.add(mirror)
            case "start":
                self.stopped.discard(mirror)
            case "restore" if followed:
                self.tell(mirror, followed, max(0, applied - number))
            case "forget" if followed:
                del self.levels[mirror, repository]
                self.log.append([NewRecord(topic=ACKS, key=f"{mirror}/{repository}", value=None)])

    @rule(
        verbs=st.lists(st.sampled_from(Verb), min_size=1, max_size=4),
        mirror=st.sampled_from(MIRRORS),
        name=st.none() | st.sampled_from(NAMES),
        include=st.sampled_from(((), ("re:[ab]",), ("re:moved/",))),
        flag=st.booleans(),
        again=st.booleans(),
    )
    def the_operator_asks(
        self, verbs: list[Verb], mirror: str, name: str | None, include: tuple[str, ...], flag: bool, again: bool
    ) -> None:
        for verb in verbs:
            one = name if verb in (Verb.ACTIVATE, Verb.DEACTIVATE) else None
            self.ask(
                verb,
                mirror,
                repository=self.chains[one][-1].repository if one else None,
                rules=Rules(include=include) if verb in (Verb.ADD, Verb.RULES) else None,
                allow=flag,
                inactive=flag,
                role=MirrorRole.BACKUP if flag and name else None,
            )
            self.work_goes_on(9, sum(record.key != KEY or record.topic != PENDING for record in self.log.journal))
        if again:
            self.submit(self.asked)

    @rule(
        what=st.sampled_from(
            ("kill", "lose", "lose the answer", "replace", "another release", "old one wakes", "time", "long time")
        )
    )
    def at_the_aggregator(self, what: str) -> None:
        match what:
            case "kill":
                self.session = None
            case "another release":
                self.session, wire.VERSION = None, 3 - wire.VERSION
            case "lose" | "lose the answer":
                self.log.fail_commits.append(what == "lose the answer")
            case "replace" if self.session:
                self.olds.append(self.session)
                self.session = None
                self.step()
            case "old one wakes" if self.olds:
                self.session = self.session or self.opened()
                old = self.olds.pop()
                self.clock.advance(self.settings.beat)
                with pytest.raises(Fenced):
                    self.wake_up(old)
            case "time" | "long time":
                self.clock.advance(6.0 if what == "time" else 100.0)
                self.step()

    @rule(what=st.sampled_from(("copy", "state goes back", "events lost")), is_seen=st.booleans())
    def at_the_log(self, what: str, is_seen: bool) -> None:
        """A part of it is restored; the relay sends what `events` lost again, before or after the aggregator sees the loss.

        As an outbox has it: of each repository the newest incarnation, and nothing that an adoption replaced.
        """
        match what:
            case "copy":
                self.copy = self.log.copied(STATE)
            case "state goes back" if self.copy:
                self.session = None
                self.has_state_gone_back = True
                self.log.restore(STATE, self.copy)
            case "events lost":
                for partition in (0, 1):
                    self.log.lose(EVENTS, partition, 4)
                if is_seen:
                    self.step()
                self.has_lost_unseen |= not is_seen
                for chains in self.chains.values():
                    for chain in {chain.repository: chain for chain in chains}.values():
                        self.send(*chain.events)

    # In the end

    def teardown(self) -> None:
        self.session, wire.VERSION = None, 2
        try:
            self.judge()
        finally:
            wire.VERSION = 1

    def judge(self) -> None:
        assert self.violations(complete=False) == []
        self.settle()
        assert self.violations(complete=True) == []
        assert not [record for record in self.log.records(PENDING) if record.value is not None and record.key != KEY]
        assert self.replaced() == []
        assert self.session is not None
        roster = self.session.aggregation.roster
        assert [mirror.name for mirror in roster.mirrors if mirror.state is MirrorState.JOINING] == []

    def violations(self, *, complete: bool) -> list[str]:
        """The broken promises; where `state` lost its newest records, releases without a notice may go back with it."""
        found = check(steps_of(self.log.journal), complete=complete).violations
        return [text for text in found if not (self.has_state_gone_back and "release went back" in text)]

    def replaced(self) -> list[str]:
        """The repositories that count as living at a path where a later one is released."""
        newest: dict[str, RepositoryState] = {}
        for record in self.log.records(STATE):
            if record.key != IDENTITY and record.value:
                state = from_json(RepositoryState, record.value)
                newest[state.repository] = state
        living = [state for state in newest.values() if not state.deleted]
        latest = {state.path: state.generation for state in sorted(living, key=lambda state: state.generation)}
        return [state.repository for state in living if state.generation < latest[state.path]]

    def settle(self) -> None:
        """Everything gets through: every mirror follows and serves, and where none gates it is allowed."""
        self.log.fail_commits.clear()
        self.ask(Verb.ALLOW_EMPTY, None, allow=True)
        self.step()
        for number in range(SETTLED):
            if number in (0, SETTLED // 2):  # an event that is found late, by the levels of mirrors, waits anew
                self.clock.advance(DEPARTURE_PATIENCE)
            for mirror in MIRRORS:
                for name in NAMES:
                    for _ in self.chains[name]:
                        self.apply(mirror, name, 1000)
                self.serve_what_is_released(mirror)
            self.step()
            self.clock.advance(self.settings.beat)
            self.step()
            batches = 0
            while self.session is not None and self.session.aggregation.is_undecided and batches < MANY_BATCHES:
                self.step()
                batches += 1

    # Inside

    def push(self, name: str, count: int) -> None:
        chain = self.chains[name][-1]
        if not (chain.events and chain.events[-1].type is Type.DELETED):
            self.send(*chain.take(count))

    def restored(self, name: str, chain: Chain) -> Chain:
        """Another incarnation of the same repository."""
        restored = Chain(name, generation=chain.generation, incarnation=len(self.chains[name]) + 1)
        restored.repository, restored.path = chain.repository, chain.path
        self.chains[name].append(restored)
        return restored

    def apply(self, mirror: str, name: str, count: int) -> None:
        """The mirror applies the next events of all repositories that have this name, newer incarnations instead of older.

        It begins none that has ended.
        """
        for chain in self.chains[name]:
            state = self.state(chain)
            if (mirror, chain.repository) not in self.levels and state and state.deleted and state.noticed >= state.seq:
                continue
            followed, applied = self.levels.get((mirror, chain.repository), (chain, 0))
            if self.chains[name].index(chain) > self.chains[name].index(followed):
                followed, applied = chain, 0
            if followed is chain and applied < len(chain.events):
                self.tell(mirror, chain, min(applied + count, len(chain.events)))

    def serve_what_is_released(self, mirror: str) -> None:
        for chain, applied in [level for (name, _), level in self.levels.items() if name == mirror]:
            self.tell(mirror, chain, applied)

    def opened(self) -> Session:
        while True:
            try:
                return Session(self.settings, self.log, self.log.transactor(IDENTITY), self.clock)
            except Unavailable:
                continue

    def step(self) -> None:
        if self.session is None:
            self.session = self.opened()
        try:
            self.session.step(0.0)
        except (Unavailable, Expired):
            self.session = None
        else:
            assert kept(self.session.aggregation) == walk(self.session.aggregation)

    def wake_up(self, old: Session) -> None:
        """What the loop of an older service does, which may first find out that the log lost records."""
        try:
            old.step(0.0)
        except Expired:
            old._transactor.renew()

    def send(self, *events: Event) -> None:
        if events:
            self.log.append(
                [NewRecord(topic=EVENTS, key=event.repository, value=wire.encode(event)) for event in events]
            )

    def ask(self, verb: Verb, mirror: str | None, **members: object) -> None:
        self.requests += 1
        request = RosterRequest(
            id=str(self.requests),
            verb=verb,
            mirror=mirror,
            who="dana",
            time=1.0,
            reason="",
            **members,  # type: ignore[arg-type]
        )
        self.asked = request
        self.submit(request)

    def submit(self, request: RosterRequest) -> None:
        self.log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request))])

    def tell(self, mirror: str, chain: Chain, applied: int) -> None:
        """The mirror acks its level; it serves what it has, as far as that is released."""
        self.levels[mirror, chain.repository] = (chain, applied)
        serving = min(applied, self.released(chain))
        ack = chain.ack(mirror, applied, serving, time=self.clock.now())
        self.log.append([NewRecord(topic=ACKS, key=f"{mirror}/{chain.repository}", value=to_json(ack))])

    def released(self, chain: Chain) -> int:
        state = self.state(chain)
        return state.released if state else 0

    def is_read(self, chain: Chain, event: Event) -> bool:
        """Whether the aggregator reads this event before a fork of it; else it is unknown which of the two was the first."""
        state = self.state(chain)
        return not self.has_lost_unseen or (state is not None and event.seq <= state.seq)

    def state(self, chain: Chain) -> RepositoryState | None:
        for record in self.log.records(STATE):
            if record.key == chain.repository and record.value:
                state = from_json(RepositoryState, record.value)
                return state if state.incarnation == chain.incarnation else None
        return None


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def test_a_history_renamed_and_replaced_at_once_had_its_last_paths_gates() -> None:
    world = World()
    world.ask(Verb.ADD, "beta")
    world.ask(Verb.ADD, "alpha", rules=Rules(include=("re:a",)))
    world.step()
    world.push("a", 2)
    world.step()
    for mirror in ("alpha", "beta"):
        world.apply(mirror, "a", 2)
    world.step()
    world.serve_what_is_released("beta")
    world.step()
    world.at_the_master("rename", "a", 1)
    world.at_the_master("adopt", "a", 1)
    world.teardown()
    assert "moved/a" in world.chains["a"][0].path


def names_in_one_partition(world: World) -> tuple[str, str]:
    pairs = itertools.combinations(NAMES, 2)
    places = {name: partition_of(world.chains[name][0].repository, 2) for name in NAMES}
    return next((name, other) for name, other in pairs if places[name] == places[other])


def test_no_order_breaks_where_others_fill_the_places_of_lost_events() -> None:
    """An event that stands before the position when it comes for the first time is found, and announced in its turn."""
    world = World()
    for mirror in MIRRORS:
        world.ask(Verb.ADD, mirror)
    name, other = names_in_one_partition(world)
    world.push(other, 6)
    world.step()
    chain = world.chains[name][-1]
    chain.take(2)
    for partition in (0, 1):
        world.log.lose(EVENTS, partition, 4)
    world.send(chain.events[0], *world.chains[other][-1].events, chain.events[1])
    for mirror in MIRRORS:
        world.apply(mirror, name, 2)
    world.step()
    world.teardown()


def test_an_adoption_in_place_of_a_lost_event_is_found_without_gates() -> None:
    """The aggregator had read that far, so it sees the loss by the levels of mirrors alone."""
    world = World()
    world.push("a", 1)
    world.step()
    world.push("a", 1)
    world.at_the_master("adopt", "a", 1)
    world.at_the_log("events lost", is_seen=False)
    world.teardown()


def test_an_event_before_a_mirrors_joining_point_does_not_wait_for_it() -> None:
    """The log lost the event, which had stood behind that point, before the aggregator read it."""
    world = World()
    world.found({"alpha"}, 0.005)
    world.work_goes_on(48, 16826)
    world.at_the_aggregator("kill")
    world.the_operator_asks([Verb.JOIN, Verb.REMOVE, Verb.REMOVE, Verb.ADD], "beta", None, (), flag=False, again=True)
    world.at_the_master("adopt", "a", 8)
    world.at_the_log("events lost", is_seen=False)
    world.work_goes_on(44, 65535)
    assert world.released(world.chains["a"][-1]) == 1
    world.teardown()


def test_streams_go_on_after_a_state_was_lost_before_its_first_position() -> None:
    world = World()
    world.found({"alpha"}, 0.0)
    world.at_the_log("copy", is_seen=False)
    world.work_goes_on(26, 0)
    world.at_the_log("state goes back", is_seen=False)
    world.teardown()


def test_a_mirror_that_joins_later_needs_nothing_that_was_replaced() -> None:
    world = World()
    world.found({"alpha"}, 0.0)
    world.push("a", 2)
    world.at_the_master("replace", "a", 1)
    for _ in range(4):
        world.apply("alpha", "a", 9)
        world.serve_what_is_released("alpha")
        world.at_the_aggregator("long time")
    world.ask(Verb.ADD, "beta")
    world.teardown()
    assert ("beta", world.chains["a"][0].repository) not in world.levels


def test_a_successor_found_by_levels_waits_for_the_departure_before_it() -> None:
    """The log lost the place of its event, so that it comes after the others have settled."""
    world = World()
    world.found(set(MIRRORS), 0.005)
    world.at_the_log("copy", is_seen=False)
    world.at_the_log("events lost", is_seen=True)
    world.the_operator_asks([Verb.ADD], "alpha", None, (), flag=False, again=True)
    world.at_the_log("state goes back", is_seen=False)
    world.at_the_log("events lost", is_seen=True)
    world.the_operator_asks([Verb.ADD], "alpha", None, (), flag=False, again=False)
    world.at_the_log("events lost", is_seen=False)
    world.at_the_master("replace", "a", 1)
    assert world.session is not None
    assert [name for name in world.session.aggregation.repositories if name == world.chains["a"][-1].repository] == []
    world.teardown()


@pytest.mark.parametrize("adoptions", [2, pytest.param(MOST_REPLACED, marks=pytest.mark.more)])
def test_an_adoption_is_announced_whose_forerunners_the_log_lost_unread(adoptions: int) -> None:
    """The outbox sends the newest alone again, and that stands where the first history was read."""
    world = World()
    world.found({"alpha"}, 0.005)
    world.push("b", 2)
    world.step()
    for _ in range(adoptions):
        world.at_the_master("adopt", "b", 1)
    for partition in (0, 1):
        world.log.lose(EVENTS, partition, adoptions)
    world.at_the_log("events lost", is_seen=False)
    world.teardown()


def explore(examples: int, steps: int) -> None:
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=checks,
        database=None,
    )
    run_state_machine_as_test(World, settings=profile)


def test_no_order_of_events_breaks_a_promise() -> None:
    explore(min(25, settings.default.max_examples), 25)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_orders_of_events_break_no_promise() -> None:
    explore(10_000, 25)
