# SPDX-License-Identifier: GPL-2.0-or-later
"""When a load balancer may send clients to a mirror: each reason against it, and that it passes."""

import json
import os
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from hgext.vcsreplicator.log import ACKS, ROSTER, SERVICES, Log, NewRecord, topics
from hgext.vcsreplicator.log import STATE as STATES
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.reports import INTERVAL
from hgext.vcsreplicator.service import application
from hgext.vcsreplicator.service.listening import create_server
from hgext.vcsreplicator.status import Picture, health
from hgext.vcsreplicator.status.health import Endpoint, HealthSettings, HealthVerdict, judge, late
from hgext.vcsreplicator.words.clock import Silence
from hgext.vcsreplicator.words.errors import Unavailable
from hgext.vcsreplicator.words.records import Ack, AggregatorHeartbeat, MirrorHeartbeat, ServiceReport
from hgext.vcsreplicator.words.roster import Mirror, MirrorState, Roster
from hgext.vcsreplicator.words.rules import Rules
from hgext.vcsreplicator.words.shape import to_json
from testing.builders.aggregator.states import some_state
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually

# Seconds that nothing here takes.
PATIENCE = 60

NOW = 1000.0
SETTINGS = HealthSettings(behind=10, late=5.0, silence=30.0)
REPOSITORY, INCARNATION = "1" * 32, "2" * 32
STATE = some_state(
    repository=REPOSITORY,
    incarnation=INCARNATION,
    path="folder/one",
    seq=7,
    event="3" * 32,
    digest="4" * 64,
    released=7,
    noticed=7,
)
ACK = Ack(
    mirror="alpha",
    repository=REPOSITORY,
    incarnation=INCARNATION,
    applied=7,
    serving=7,
    event="3" * 32,
    digest="4" * 64,
    applied_at=NOW,
    served_at=NOW,
)


class Answers(threading.Event):
    """Whether something answers; while it does not, requests wait a moment for it, else until it has answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        self.set()

    def set(self) -> None:
        super().set()
        self._wait_at_most(PATIENCE)

    def clear(self) -> None:
        super().clear()
        self._wait_at_most(0.1)

    def _wait_at_most(self, seconds: float) -> None:
        for name in ("PATIENCE", "GLANCE"):
            self._monkeypatch.setattr(health, name, seconds)


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """A call that waits for an answer is released at the end."""
    answers = Answers(monkeypatch)
    yield answers
    answers.set()


def picture(**members: object) -> Picture:
    """A mirror that serves everything, and what shall be otherwise."""
    usual = {
        "roster": Roster(mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE),)),
        "states": {REPOSITORY: STATE},
        "acks": {("alpha", REPOSITORY): ACK},
        "heartbeats": {"alpha": MirrorHeartbeat(mirror="alpha", time=NOW - 1, positions={}, version="1")},
        "aggregator": AggregatorHeartbeat(time=NOW - 1, roster=1, held=0),
    }
    return Picture(**{**usual, **members})  # type: ignore[arg-type]


def verdict(seen: Picture, since: float = NOW, settings: HealthSettings = SETTINGS, **silent: float) -> HealthVerdict:
    """How alpha is; `silent` says of whom the last new sign was seen how many seconds ago."""
    silence = Silence(NOW)
    for who, seconds in silent.items():
        silence.heard(who, "a sign", NOW - seconds)
    begun = dict.fromkeys(late(seen, "alpha"), since)
    return judge(seen, "alpha", since=begun, silence=silence, now=NOW, settings=settings)


def reasons(seen: Picture, since: float = NOW, **silent: float) -> tuple[str, ...]:
    """Why alpha is not ready."""
    return verdict(seen, since, **silent).reasons  # type: ignore[arg-type]


def test_a_mirror_that_serves_everything_is_ready() -> None:
    assert reasons(picture()) == ()


@pytest.mark.parametrize("state", [MirrorState.JOINING, MirrorState.INACTIVE, MirrorState.REMOVED])
def test_only_an_active_mirror_is_ready(state: MirrorState) -> None:
    assert reasons(picture(roster=Roster(mirrors=(Mirror(name="alpha", state=state),)))) == (state.value,)


def test_a_stranger_is_not_ready() -> None:
    assert reasons(picture(roster=Roster())) == ("not in the roster",)


def test_a_mirror_without_a_fresh_sign_of_life_is_not_ready() -> None:
    assert reasons(picture(heartbeats={})) == ("the mirror has sent no heartbeat",)
    assert reasons(picture(), alpha=30.0) == ()
    assert reasons(picture(), alpha=31.0) == ("the mirror is silent for 31 s",)


def test_without_the_aggregator_for_30_seconds_it_is_degraded_and_ready() -> None:
    assert verdict(picture(aggregator=None)).degraded == ("the aggregator has sent no heartbeat",)
    assert verdict(picture(), aggregator=30.0) == HealthVerdict()
    assert verdict(picture(), aggregator=31.0) == HealthVerdict(degraded=("the aggregator is silent for 31 s",))


def test_a_silent_aggregator_makes_it_not_ready_where_that_is_set() -> None:
    silent = ("the aggregator is silent for 31 s",)
    strict = replace(SETTINGS, refuse_when_silent=True)
    assert verdict(picture(), NOW, strict, aggregator=31.0) == HealthVerdict(reasons=silent, degraded=silent)
    assert verdict(picture(heartbeats={}), aggregator=31.0).reasons == ("the mirror has sent no heartbeat",)


def test_more_events_behind_than_allowed_is_not_ready() -> None:
    assert reasons(picture(states={REPOSITORY: replace(STATE, seq=17)})) == ()
    assert reasons(picture(states={REPOSITORY: replace(STATE, seq=18)})) == (
        "11 events behind, at most 10 are allowed",
    )


def test_showing_less_than_is_released_counts_once_it_lasts() -> None:
    seen = picture(acks={("alpha", REPOSITORY): replace(ACK, serving=6)})
    assert reasons(seen, since=NOW - 5.0) == ()
    assert reasons(seen, since=NOW - 5.1) == ("shows less than is released of folder/one",)


def test_a_level_of_a_former_incarnation_does_not_count() -> None:
    assert late(picture(acks={("alpha", REPOSITORY): replace(ACK, incarnation="5" * 32)}), "alpha") == {REPOSITORY}


@pytest.mark.parametrize(
    "members",
    [
        {"states": {REPOSITORY: replace(STATE, deleted=True)}},
        {"states": {REPOSITORY: replace(STATE, released=0)}},
        {"roster": Roster(mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, deactivated=(REPOSITORY,)),))},
        {
            "roster": Roster(
                mirrors=(Mirror(name="alpha", state=MirrorState.ACTIVE, rules=Rules(include=("path:other",))),)
            )
        },
    ],
    ids=["deleted", "nothing released", "given up for this mirror", "not carried"],
)
def test_what_is_not_expected_of_the_mirror_makes_it_not_late(members: dict[str, object]) -> None:
    assert late(picture(acks={}, **members), "alpha") == frozenset()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of an embedded log that says: the mirror is active and serves everything."""
    folder = tmp_path / "log"
    folder.mkdir()
    with open_log(f"sqlite://{folder}/log.db", creates=True) as log:
        log.create(topics())
        say(log, picture())
    return folder


def say(log: Log, seen: Picture) -> None:
    """Writes the picture as the aggregator and the mirror would."""
    assert seen.aggregator is not None
    written = [
        (ROSTER, "roster", seen.roster),
        (STATES, "aggregator", seen.aggregator),
        *((STATES, name, state) for name, state in seen.states.items()),
        *((ACKS, f"{mirror}/{name}", ack) for (mirror, name), ack in seen.acks.items()),
        *((ACKS, mirror, beat) for mirror, beat in seen.heartbeats.items()),
    ]
    log.append([NewRecord(topic=topic, key=key, value=to_json(value)) for topic, key, value in written])


def copy_database(source: Path, target: Path) -> None:
    """In one step: what has the former target open keeps that."""
    fresh = target.with_name("fresh")
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(fresh)) as new:
        old.backup(new)
    for name in ("-wal", "-shm"):
        target.with_name(target.name + name).unlink(missing_ok=True)
    fresh.rename(target)


def ended_with(opened: ExitStack, endpoint: Endpoint) -> Endpoint:
    """An endpoint that a service would keep until its end: what reads the log is closed with the log."""
    opened.callback(lambda: endpoint._follower and endpoint._follower.close())
    return endpoint


def test_after_the_log_was_away_the_endpoint_knows_what_it_says_now(place: Path) -> None:
    with ExitStack() as opened:
        log, other = (opened.enter_context(open_log(f"sqlite://{place}/log.db", creates=True)) for _ in range(2))
        ask = ended_with(opened, Endpoint(log, "alpha", SETTINGS))
        strict = ended_with(opened, Endpoint(log, "alpha", replace(SETTINGS, refuse_when_silent=True)))
        assert strict()["ready"]
        assert ask() == {"alive": True, "ready": True, "reasons": [], "degraded": [], "mirror": "alpha"}
        place.rename(place.with_name("away"))
        away = ask()
        assert away["ready"], "what it shows is still the last release"
        assert away["degraded"][0].startswith("the log cannot be read: ")
        assert Endpoint(log, "alpha", SETTINGS)()["ready"] is False, "it does not know what was released"
        refused = strict()
        assert refused["reasons"] == refused["degraded"]
        assert refused["reasons"][0].startswith("the log cannot be read: ")
        place.with_name("away").rename(place)
        say(other, picture(roster=Roster(mirrors=(Mirror(name="alpha", state=MirrorState.INACTIVE),))))
        eventually(lambda: ask()["reasons"] == ["inactive"])


def test_a_mirror_is_not_ready_while_its_folder_is_missing(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "alpha"
    with open_log(f"sqlite://{place}/log.db", creates=True) as log, ExitStack() as opened:
        ask = ended_with(opened, Endpoint(log, "alpha", SETTINGS, root=str(root)))
        assert (ask()["ready"], ask()["reasons"]) == (False, [f"the folder {root} is missing"])
        root.mkdir()
        assert ask()["ready"]


@pytest.fixture
def hanging_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers) -> tuple[Path, Answers]:
    """A folder of repositories, and whether its disk answers."""
    root, isdir = tmp_path / "alpha", os.path.isdir

    def hang(path: str | Path) -> bool:
        return isdir(path) if str(path) != str(root) else answers.wait(PATIENCE) and isdir(path)

    root.mkdir()
    monkeypatch.setattr(os.path, "isdir", hang)
    return root, answers


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer a request hangs."""
    monkeypatch.setattr(health, "HANG", 0.0)


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_a_folder_on_a_disk_that_hangs_is_named_and_the_log_is_read(hanging_disk: Any) -> None:
    root, answers = hanging_disk
    log = MemoryLog()
    log.create(topics())
    say(log, picture())
    ask = Endpoint(log, "alpha", SETTINGS, root=str(root))
    eventually(lambda: ask()["ready"])
    answers.clear()
    say(log, picture(roster=Roster(mirrors=(Mirror(name="alpha", state=MirrorState.JOINING),))))
    # The log may take longer to answer, too, than a request waits.
    answer = eventually(lambda: (found := ask()) and "joining" in found["reasons"] and not found["degraded"] and found)
    [reason] = answer["reasons"][1:]
    assert reason.startswith(f"the folder {root} has not answered for ")
    answers.set()
    eventually(lambda: ask()["reasons"] == ["joining"])


@pytest.mark.processes
def test_a_folder_that_answers_slowly_changes_no_verdict_but_the_first(
    hanging_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, answers = hanging_disk
    log = MemoryLog()
    log.create(topics())
    say(log, picture())
    answers.clear()
    ask = Endpoint(log, "alpha", SETTINGS, root=str(root))
    [reason] = eventually(lambda: len(found := ask()["reasons"]) == 1 and found)
    assert reason.startswith(f"the folder {root} has not answered for ")
    answers.set()
    assert eventually(lambda: (found := ask()) and found["ready"] and found)["degraded"] == []
    answers.clear()
    assert ask()["ready"]


def test_after_a_long_outage_of_the_log_no_mirror_counts_as_silent(place: Path) -> None:
    clock = HandClock()
    with open_log(f"sqlite://{place}/log.db", creates=True) as log, ExitStack() as opened:
        ask = ended_with(opened, Endpoint(log, "alpha", SETTINGS, clock))
        assert ask()["ready"]
        place.rename(place.with_name("away"))
        clock.advance(1000.0)
        assert ask()["degraded"]
        place.with_name("away").rename(place)
        answer = eventually(lambda: (found := ask()) and not found["degraded"] and found)
        assert answer["ready"]


def test_a_log_that_was_restored_from_a_copy_is_looked_at_anew(place: Path) -> None:
    copy_database(place / "log.db", place / "copy")
    with open_log(f"sqlite://{place}/log.db", creates=True) as log, ExitStack() as opened:
        ask = ended_with(opened, Endpoint(log, "alpha", SETTINGS))
        late_elsewhere = {**picture().states, "9" * 32: replace(STATE, repository="9" * 32, path="folder/lost")}
        say(
            log,
            picture(states=late_elsewhere, roster=Roster(mirrors=(Mirror(name="alpha", state=MirrorState.JOINING),))),
        )
        assert "joining" in ask()["reasons"]
        copy_database(place / "copy", place / "log.db")
        eventually(lambda: ask()["ready"])  # nothing of what the log held is believed any more


class HangingLog:
    """A log that answers only while `answers` is set, and no longer than the test lasts."""

    def __init__(self, answers: Answers) -> None:
        self._log, self.answers = MemoryLog(), answers
        self._log.create(topics())
        say(self._log, picture())

    def __getattr__(self, name: str) -> Any:
        assert self.answers.wait(PATIENCE)
        return getattr(self._log, name)


@pytest.fixture
def hanging(answers: Answers) -> Any:
    """A log that answers at first."""
    return HangingLog(answers)


@contextmanager
def serving(**pages: Callable[[], Mapping[str, Any]]) -> Iterator[int]:
    """The port of a service's HTTP server with these pages, by path."""
    server = create_server(
        application({**pages, "/live": lambda: {"alive": True}}), host="127.0.0.1", port=0, threads=2, largest_body=0
    )
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server.effective_port
    finally:
        server.close()


def get(port: int, path: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            return dict(json.load(error))


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_while_the_log_hangs_health_and_live_are_answered(hanging: Any) -> None:
    with serving(**{"/health": Endpoint(hanging, "alpha", SETTINGS)}) as port, ThreadPoolExecutor(8) as balancers:
        assert get(port, "/health")["degraded"] == []
        hanging.answers.clear()
        answers = list(balancers.map(lambda _: get(port, "/health"), range(4)))
        assert get(port, "/live") == {"alive": True}
        assert all(answer["ready"] for answer in answers), "what it shows is still the last release"
        assert all(answer["degraded"][0].startswith("the log cannot be read: no answer for ") for answer in answers)
        assert not hanging.answers.is_set()
        hanging.answers.set()
        eventually(lambda: get(port, "/health")["degraded"] == [])


@pytest.mark.processes
def test_a_mirror_whose_log_hangs_from_the_start_is_not_ready(hanging: Any) -> None:
    hanging.answers.clear()
    ask = Endpoint(hanging, "alpha", SETTINGS)
    answer = ask()
    assert not answer["ready"]
    assert answer["reasons"][0].startswith("the log cannot be read: no answer for ")
    hanging.answers.set()
    eventually(lambda: ask()["ready"])


@pytest.mark.processes
def test_a_log_that_lacks_a_topic_or_a_right_to_it_degrades() -> None:
    log = MemoryLog()
    log.create([topic for topic in topics() if topic.name != ROSTER])
    answer = Endpoint(log, "alpha", SETTINGS)()
    assert not answer["ready"]
    assert answer["reasons"][0].startswith("the log cannot be read: topic roster")


@pytest.mark.processes
def test_a_reading_for_which_the_system_had_no_thread_is_made_up_for(
    hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Endpoint(hanging, "alpha", SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_to_start)
        with pytest.raises(RuntimeError):
            ask()
    assert ask()["ready"]


def refuse_to_start(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


@pytest.mark.processes
def test_a_log_that_is_slow_changes_no_verdict(hanging: Any) -> None:
    ask = Endpoint(hanging, "alpha", HealthSettings(refuse_when_silent=True))
    assert ask()["ready"]
    hanging.answers.clear()
    answer = ask()
    assert answer["ready"]
    assert answer["degraded"] == []


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_the_time_for_which_the_log_hung_is_no_silence(hanging: Any) -> None:
    clock = HandClock()
    ask = Endpoint(hanging, "alpha", SETTINGS, clock)
    assert ask()["ready"]
    hanging.answers.clear()
    assert ask()["degraded"]
    clock.advance(1000.0)
    hanging.answers.set()
    answer = eventually(lambda: (found := ask()) and not found["degraded"] and found)
    assert answer["ready"]
    clock.advance(31.0)
    assert ask()["reasons"] == ["the mirror is silent for 31 s"]


@pytest.mark.processes
def test_an_unexpected_exception_of_a_reading_is_no_verdict(hanging: Any) -> None:
    ask = Endpoint(hanging, "alpha", SETTINGS)
    assert ask()["ready"]
    hanging.ends = None  # as of a client with a bug
    with pytest.raises(TypeError):
        ask()
    del hanging.ends
    assert ask()["ready"]


@pytest.mark.processes
def test_after_a_failed_reading_a_request_does_not_wait_for_the_log(
    hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Endpoint(hanging, "alpha", SETTINGS)
    assert ask()["ready"]
    hanging.ends = Mock(side_effect=Unavailable("no broker answers"))
    failed = ask()
    assert failed["degraded"] == ["the log cannot be read: no broker answers"]
    del hanging.ends
    hanging.answers.clear()
    monkeypatch.setattr(health, "PATIENCE", 2.0 * PATIENCE)  # for so long no call waits here
    assert ask() == failed
    assert not hanging.answers.is_set()


@pytest.fixture
def beating() -> tuple[Endpoint, Callable[..., None]]:
    """An endpoint, and what lets time pass, then has a relay, the aggregator or the mirror send a heartbeat.

    The log's clock may jump between the two.
    """
    clock, clock_of_log = HandClock(), HandClock()
    log = MemoryLog(clock=clock_of_log)
    log.create(topics())
    say(log, picture())
    count = iter(range(1, 1000))

    def wait(seconds: float, *who: str, jump: float = 0.0) -> None:
        clock.advance(seconds)
        clock_of_log.advance(seconds)
        if "relay" in who:
            report = ServiceReport(time=NOW + next(count), version="1")
            log.append([NewRecord(topic=SERVICES, key="relay hg://master", value=to_json(report))])
        if "aggregator" in who:
            beat = AggregatorHeartbeat(time=NOW + next(count), roster=1, held=0)
            log.append([NewRecord(topic=STATES, key="aggregator", value=to_json(beat))])
        clock_of_log.advance(jump)
        if "alpha" in who:
            own = MirrorHeartbeat(mirror="alpha", time=NOW + next(count), positions={}, version="1")
            log.append([NewRecord(topic=ACKS, key="alpha", value=to_json(own))])

    return Endpoint(log, "alpha", SETTINGS, clock), wait


@pytest.mark.processes
def test_silence_counts_from_the_last_heartbeat_before_any_question(beating: Any) -> None:
    ask, wait = beating
    wait(95.0, "alpha")
    assert ask()["degraded"] == ["the aggregator is silent for 95 s"]
    wait(0.0, "aggregator")
    assert ask()["degraded"] == []
    wait(1.0, "aggregator")
    wait(40.0, "alpha")
    assert ask()["degraded"] == ["the aggregator is silent for 40 s"]


@pytest.mark.processes
def test_a_sign_of_life_is_never_older_than_the_question_before_it(beating: Any) -> None:
    """Also if the clock of the aggregator's broker is slow."""
    ask, wait = beating
    wait(1.0, "aggregator", "alpha")
    assert ask()["degraded"] == []
    wait(1.0, "aggregator", "alpha", jump=1000.0)
    assert ask()["degraded"] == []


@pytest.mark.processes
def test_the_first_reading_after_a_clock_went_back_silences_no_mirror(beating: Any) -> None:
    ask, wait = beating
    wait(0.0, jump=-1000.0)
    wait(1.0, "aggregator", "alpha")
    answer = ask()
    assert (answer["reasons"], answer["degraded"]) == ([], [])


@pytest.mark.processes
def test_the_first_reading_after_an_outage_finds_services_silent(beating: Any) -> None:
    """Their last heartbeats are as old as each other; a relay's report shows how old."""
    ask, wait = beating
    wait(3600.0, "relay")
    wait(INTERVAL)
    answer = ask()
    assert answer["reasons"] == ["the mirror is silent for 3600 s"]
    assert answer["degraded"] == ["the aggregator is silent for 3600 s"]
    wait(1.0, "alpha", "aggregator")
    answer = ask()
    assert (answer["reasons"], answer["degraded"]) == ([], [])


@pytest.mark.processes
def test_the_first_reading_finds_the_aggregator_silent_after_an_outage(
    beating: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, wait = beating
    wait(3600.0, "alpha")
    with monkeypatch.context() as patch:
        patch.setattr(ask._log, "ends", Mock(side_effect=Unavailable("away")))
        assert not ask()["ready"]
    wait(1.0, "alpha")
    answer = ask()
    assert (answer["reasons"], answer["degraded"]) == ([], ["the aggregator is silent for 3601 s"])


@pytest.mark.processes
@pytest.mark.parametrize("jump", [-1000.0, 1000.0], ids=["back", "forward"])
def test_the_first_reading_takes_no_time_where_clocks_differ(beating: Any, jump: float) -> None:
    ask, wait = beating
    wait(1.0, "relay", jump=jump)
    wait(1.0, "relay", "aggregator", "alpha")
    answer = ask()
    assert (answer["reasons"], answer["degraded"]) == ([], [])


@pytest.mark.processes
def test_a_report_from_before_the_clock_went_back_silences_no_mirror(beating: Any) -> None:
    """Neither if this machine's clock agrees with the log's new time, nor later."""
    ask, wait = beating
    wait(0.0, jump=1000.0)
    wait(1.0, "relay")
    wait(1.0, jump=-1000.0)
    for _ in range(3):
        wait(1.0, "aggregator", "alpha")
        answer = ask()
        assert (answer["reasons"], answer["degraded"]) == ([], [])
