# SPDX-License-Identifier: GPL-2.0-or-later
"""The aggregator as a process on the real logs: killed at random under load, two at once, a mirror away, a large restart."""

import itertools
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import structlog

from hgext.vcsreplicator.aggregator import loop
from hgext.vcsreplicator.aggregator.loading import GROUP
from hgext.vcsreplicator.aggregator.loop import run
from hgext.vcsreplicator.aggregator.metrics import EVENTS_TOTAL
from hgext.vcsreplicator.aggregator.session import Session
from hgext.vcsreplicator.aggregator.settings import AggregatorSettings
from hgext.vcsreplicator.log import (
    EVENTS,
    NOTICES,
    PENDING,
    ROSTER,
    ROSTER_REQUESTS,
    STATE,
    Log,
    Topic,
    TopicComparison,
    TopicDifference,
    topics,
)
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import Fenced, Unavailable
from hgext.vcsreplicator.words.records import Notice
from hgext.vcsreplicator.words.roster import Verb
from hgext.vcsreplicator.words.shape import from_json
from testing.builders.aggregator.aggregating import (
    Aggregator,
    all_noticed,
    ask,
    fill,
    mirrors,
    patiently,
    push_everywhere,
    send,
)
from testing.builders.aggregator.chains import Chain
from testing.builders.log.memorylog import MemoryLog
from testing.checks.checker import check, history, remembering_topics
from testing.metrics import value_of
from testing.services.kafka import Kafka
from testing.waiting import eventually

SOON = 60.0

pytestmark = pytest.mark.processes


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with open_log(url, creates=True) as log:
        log.create(remembering_topics(partitions=4))
        yield log


def notices(log: Log) -> list[Notice]:
    reader = log.reader({(NOTICES, part): at for part, at in log.beginnings(NOTICES).items()})
    found: list[Notice] = []
    try:
        while any(reader.positions()[NOTICES, part] < end for part, end in log.ends(NOTICES).items()):
            found += [from_json(Notice, record.value or b"") for record in reader.poll(0.2)]
    finally:
        reader.close()
    return found


def repositories(count: int) -> list[Chain]:
    return [Chain(f"group/{number}") for number in range(count)]


def die_at_random(url: str, log: Log, folder: Path, kills: int, seed: int) -> str:
    """Kills the aggregator repeatedly while pushes come in, lets it finish, and checks the history; what happened."""
    chance, chains = random.Random(seed), repositories(12)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.ADD, "beta")
    stop = threading.Event()

    def pushes() -> None:
        while not stop.is_set():
            send(log, [chance.choice(chains).next()])
            stop.wait(0.01)

    traffic = threading.Thread(target=pushes)
    with mirrors(url, "alpha", "beta"):
        traffic.start()
        try:
            for _ in range(kills):
                with Aggregator(url, folder) as aggregator:
                    aggregator.ready()
                    time.sleep(chance.random() * 0.3)
                    aggregator.kill()
        finally:
            stop.set()
            traffic.join()
        with Aggregator(url, folder) as aggregator:
            aggregator.ready()
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
    report = check(history(log))
    assert not report.violations
    assert report.notices == report.events == sum(len(chain.events) for chain in chains)
    return f"{url.partition(':')[0]}: {kills} kills of the aggregator, {report.notices} notices, none early, twice or missing"


def test_kills_at_random_lose_nothing_and_announce_nothing_early_or_twice(url: str, log: Log, tmp_path: Path) -> None:
    die_at_random(url, log, tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_kills_lose_nothing_and_announce_nothing_early(
    url: str, log: Log, tmp_path: Path, told: Callable[[object], None]
) -> None:
    told(die_at_random(url, log, tmp_path, kills=300, seed=2))


def break_off(log: Log, kafka: Kafka, folder: Path, ways: list[str], seed: int) -> None:
    """Ends the broker in each of these ways while pushes come in; one aggregator and its mirrors outlive them all."""
    chance, chains = random.Random(seed), repositories(12)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.ADD, "beta")
    stop = threading.Event()

    def pushes() -> None:
        while not stop.is_set():
            send(log, [chance.choice(chains).next()])
            stop.wait(0.01)

    traffic = threading.Thread(target=pushes)
    with mirrors(kafka.url, "alpha", "beta"), Aggregator(kafka.url, folder) as aggregator:
        aggregator.ready()
        traffic.start()
        try:
            for way in ways:
                time.sleep(chance.random())
                getattr(kafka, way)()
                kafka.start()
        finally:
            stop.set()
            traffic.join()
        eventually(lambda: patiently(lambda: all_noticed(log, chains)), timeout=SOON)
        assert aggregator.process.poll() is None
    report = check(history(log))
    assert not report.violations
    assert report.notices == report.events == sum(len(chain.events) for chain in chains)


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.timeout(1800)
def test_a_broker_stopped_and_killed_again_and_again_costs_no_notice(
    own_service: Callable[[type[Kafka]], Kafka], tmp_path: Path
) -> None:
    kafka = own_service(Kafka)
    with open_log(kafka.url) as log:
        log.create(remembering_topics(partitions=4))
        break_off(log, kafka, tmp_path, ["kill", "stop"] * 10, seed=4)


@pytest.mark.sample(1, keep=("sqlite",))
def test_a_standby_waits_until_the_other_aggregator_ends(url: str, log: Log, tmp_path: Path) -> None:
    chains = repositories(4)
    ask(log, Verb.ADD, "alpha")
    with mirrors(url, "alpha"), Aggregator(url, tmp_path) as older:
        older.ready()
        push_everywhere(log, chains, 3)
        with Aggregator(url, tmp_path) as newer:
            newer.ready()
            push_everywhere(log, chains, 3)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
            older.process.terminate()
            assert older.process.wait(SOON) == 0
            push_everywhere(log, chains, 3)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
            assert newer.process.poll() is None
    report = check(history(log))
    assert not report.violations
    assert report.notices == 36


def suspend(aggregator: Aggregator, url: str) -> None:
    """Stops it outside of a transaction: stopped in the middle, it holds the lock of a SQLite log against all others."""
    aggregator.process.send_signal(signal.SIGSTOP)
    while is_locked(url):
        aggregator.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)  # it writes on
        aggregator.process.send_signal(signal.SIGSTOP)


def is_locked(url: str) -> bool:
    if not url.startswith("sqlite:"):
        return False
    with closing(sqlite3.connect(urlsplit(url).path, timeout=0.2, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


@pytest.mark.sample(1, keep=("sqlite",))
def test_an_aggregator_suspended_during_a_takeover_writes_nothing_more(url: str, log: Log, tmp_path: Path) -> None:
    chains = repositories(4)
    ask(log, Verb.ADD, "alpha")
    with mirrors(url, "alpha"), Aggregator(url, tmp_path) as older:
        older.ready()
        push_everywhere(log, chains, 3)
        suspend(older, url)
        with Aggregator(url, tmp_path) as newer:
            newer.ready()
            push_everywhere(log, chains, 3)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
            older.process.send_signal(signal.SIGCONT)
            push_everywhere(log, chains, 3)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
            eventually(lambda: older.said("fenced"), timeout=SOON)
            newer.process.kill()
            push_everywhere(log, chains, 3)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
    assert not check(history(log)).violations


@pytest.mark.sample(1, keep=("kafka",))
def test_a_mirror_that_is_away_holds_all_until_it_is_back(url: str, log: Log, tmp_path: Path) -> None:
    chains = repositories(20)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.ADD, "beta")
    with mirrors(url, "alpha", "beta") as (_, beta), Aggregator(url, tmp_path) as aggregator:
        aggregator.ready()
        push_everywhere(log, chains, 1)
        eventually(lambda: all_noticed(log, chains), timeout=SOON)
        beta.hold.set()
        push_everywhere(log, chains, 10)
        eventually(lambda: all(pending(log).get(chain.repository) == 11 for chain in chains), timeout=SOON)
        assert len(notices(log)) == 20
        beta.hold.clear()
        eventually(lambda: all_noticed(log, chains), timeout=SOON)
    assert len(notices(log)) == 220
    assert not check(history(log)).violations


def pending(log: Log) -> dict[str, int]:
    """The newest pending event of each repository."""
    reader = log.reader({(PENDING, part): at for part, at in log.beginnings(PENDING).items()})
    newest: dict[str, int] = {}
    try:
        while any(reader.positions()[PENDING, part] < end for part, end in log.ends(PENDING).items()):
            for record in reader.poll(0.2, limit=5000):
                repository, _, seq = (record.key or "").partition("/")
                if record.value is not None and seq:
                    newest[repository] = max(int(seq), newest.get(repository, 0))
    finally:
        reader.close()
    return newest


@contextmanager
def running(settings: AggregatorSettings, log: Log) -> Iterator[tuple[threading.Thread, list[Fenced]]]:
    """The loop in a thread of its own, past its first heartbeat; and what it was left with."""
    stop, ready, left = threading.Event(), threading.Event(), []

    def work() -> None:
        try:
            run(settings, log, stop=stop, ready=ready.set)
        except Fenced as error:
            left.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(SOON)
        eventually(lambda: sum(log.ends(STATE).values()) > 0, timeout=SOON)
        yield thread, left
    finally:
        stop.set()
        thread.join()


@pytest.mark.sample(1, keep=("sqlite",))
def test_an_older_one_in_the_same_process_leaves_its_loop_with_fenced(url: str, log: Log) -> None:
    with running(AggregatorSettings(beat=0.2), log) as (thread, left), open_log(url, creates=True) as other:
        other.transactor("aggregator").close()
        thread.join(SOON)
        assert len(left) == 1


@pytest.mark.sample(1, keep=("sqlite",))
def test_a_stop_ends_the_wait_for_records(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL", 3600.0)
    with running(AggregatorSettings(beat=3600.0), log) as (thread, _):
        pass
    assert not thread.is_alive()


@pytest.mark.sample(1, keep=("kafka",))
def test_of_two_in_trouble_the_older_leaves_and_the_newer_goes_on(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, step = itertools.count(1), Session.step

    def troubled(session: Session, timeout: float) -> None:
        if next(calls) % 5 == 0:
            raise Unavailable("too slow")
        step(session, timeout)

    monkeypatch.setattr(Session, "step", troubled)
    settings, chains = AggregatorSettings(beat=3600.0), repositories(4)  # it is trouble that makes them meet
    ask(log, Verb.ALLOW_EMPTY, allow=True)
    with (
        open_log(url, creates=True) as other,
        running(settings, log) as (older, left),
        running(settings, other) as (newer, leaving),
    ):
        older.join(SOON)
        assert len(left) == 1
        push_everywhere(log, chains, 2)
        eventually(lambda: all_noticed(log, chains), timeout=SOON)
        assert newer.is_alive()
        assert leaving == []


@pytest.mark.sample(1, keep=("kafka",))
def test_a_log_that_lost_its_newest_records_is_followed_on(url: str, log: Log) -> None:
    chains = repositories(4)
    ask(log, Verb.ADD, "alpha")
    with mirrors(url, "alpha"):
        with running(AggregatorSettings(beat=0.05), log):
            push_everywhere(log, chains, 2)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
        for topic in (EVENTS, ROSTER_REQUESTS):
            log.acknowledge(GROUP, topic, {part: end + 1000 for part, end in log.ends(topic).items()})
        with running(AggregatorSettings(beat=0.05), log):
            push_everywhere(log, chains, 2)
            eventually(lambda: all_noticed(log, chains), timeout=SOON)
    report = check(history(log))
    assert not report.violations
    assert report.notices == 16


@pytest.mark.sample(1, keep=("sqlite",))
def test_stopping_commits_what_was_taken(url: str, log: Log) -> None:
    [chain], taken = repositories(1), EVENTS_TOTAL.labels(outcome="taken")
    before = value_of(taken)
    with running(AggregatorSettings(group_time=3600.0, beat=3600.0), log):
        push_everywhere(log, [chain], 3)
        eventually(lambda: value_of(taken) == before + 3, timeout=SOON)
        assert pending(log) == {}
    assert pending(log) == {chain.repository: 3}


@pytest.mark.slow
def test_a_hundred_thousand_waiting_notices_are_loaded_and_go_on(url: str, log: Log, tmp_path: Path) -> None:
    chains = repositories(10_000)
    fill(log, chains, 10)
    ask(log, Verb.ADD, "alpha")
    ask(log, Verb.ALLOW_EMPTY, allow=True)
    ask(log, Verb.DEACTIVATE, "alpha")
    with Aggregator(url, tmp_path) as aggregator:
        aggregator.ready()
        [loaded] = [line for line in aggregator.lines() if line["event"] == "loaded"]
        assert (loaded["repositories"], loaded["held"]) == (10_000, 100_000)
        eventually(lambda: all_noticed(log, chains), timeout=900)


def test_the_start_logs_each_topic_whose_needed_records_expire() -> None:
    class Losing(MemoryLog):
        def compare(self, wanted: Sequence[Topic]) -> list[TopicComparison]:
            policy = TopicDifference(setting="cleanup.policy", found="delete", needed="compact", is_must=True)
            other = TopicDifference(setting="segment.ms", found="9", needed="1", is_must=False)
            return [
                TopicComparison(name=ROSTER, differences=(policy,), remedies=("alter cleanup.policy",)),
                TopicComparison(name=STATE, differences=(other,)),
            ]

    log, stop = Losing(), threading.Event()
    log.create(topics(partitions=1))
    with structlog.testing.capture_logs() as lines:
        run(AggregatorSettings(), log, stop=stop, ready=stop.set)
    assert [
        (line["topic"], line["log_level"], line["reason"]) for line in lines if line["event"].startswith("topic")
    ] == [
        (
            ROSTER,
            "error",
            "topic roster: cleanup.policy is delete, must be compact, so the log removes records that are needed; "
            "fix it: alter cleanup.policy",
        )
    ]
