# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of several processes works on what: on a log in memory and a clock moved by hand."""

import threading
from collections.abc import Callable, Iterator

import pytest

from hgext.vcsreplicator.log import SERVICES, STATE, WATCHES, Log, NewRecord, topics
from hgext.vcsreplicator.log.owned import CHECK_EVERY, OwnedRecords
from hgext.vcsreplicator.log.standby import name_process
from hgext.vcsreplicator.log.turns import BEAT, Turns, work_in_turns
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, Unavailable
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import from_json, to_json
from testing.builders.log.memorylog import MemoryLog
from testing.clock import HandClock
from testing.waiting import eventually

PATIENCE = 10.0


def some_turns(log: Log, clock: Clock, instance: str, *names: str) -> Turns:
    return Turns(
        log,
        set(names),
        instance,
        topic=SERVICES,
        kind="notifier ",
        patience=PATIENCE,
        stop=threading.Event(),
        clock=clock,
    )


def own(name: str, log: Log, clock: Clock) -> OwnedRecords:
    """What a process that works on this name writes."""
    return OwnedRecords(log, STATE, f"{name}/", name, clock)


class Machine:
    """A notifier on a machine of its own: it sends heartbeats, takes its turns, and fences others.

    While `is_stopped`, as by SIGSTOP, it does nothing.
    """

    def __init__(self, log: Log, clock: Clock, number: int, *names: str, instance: str | None = None) -> None:
        self.log, self.clock, self.key = log, clock, f"notifier host-{number}"
        self.instance = instance or f"00000000-0000-0000-0000-{number:012}/4026531836/17/99"
        self.turns = some_turns(log, clock, self.instance, *names)
        self.works: dict[str, OwnedRecords] = {}
        self.is_stopped = False

    def take_turn(self) -> None:
        """What the publisher does in a second."""
        if self.is_stopped:
            return
        for name, position in list(self.works.items()):
            try:
                position.check()
            except Fenced:
                del self.works[name]
                self.turns.lose(name)
            except Unavailable:
                continue
        self.works |= {name: own(name, self.log, self.clock) for name in self.turns.find_turns()}
        self.report()

    def report(self) -> None:
        works = tuple(sorted(self.works))
        report = ServiceReport(time=1.0, version="1", instance=self.instance, works=works, is_standby=not works)
        self.log.append([NewRecord(topic=SERVICES, key=self.key, value=to_json(report))])

    def end(self) -> None:
        self.works.clear()
        self.report()
        self.log.append([NewRecord(topic=SERVICES, key=self.key, value=None)])
        self.is_stopped = True


class Site:
    """Machines that share a log; each second each of them takes a turn."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.log = MemoryLog(self.clock)
        self.log.create(topics())
        self.machines: list[Machine] = []

    def add(self, *names: str, instance: str | None = None) -> Machine:
        self.machines.append(Machine(self.log, self.clock, len(self.machines), *names, instance=instance))
        return self.machines[-1]

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            for machine in self.machines:
                machine.take_turn()

    def works(self) -> list[list[str]]:
        """What each machine delivers to; its own view of that."""
        return [sorted(machine.works) for machine in self.machines]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("hgext.vcsreplicator.log.standby.POLL", 0.0)
    monkeypatch.setattr("hgext.vcsreplicator.log.turns.LOOK_EVERY", 0.0)
    made = Site()
    yield made
    for machine in made.machines:
        machine.turns.close()


def test_a_notifier_alone_delivers_at_once(site: Site) -> None:
    site.add("x", "y")
    site.pass_time(1)
    assert site.works() == [["x", "y"]]


def test_a_second_notifier_stands_by_while_the_first_delivers(site: Site) -> None:
    site.add("x", "y")
    site.pass_time(1)
    site.add("x", "y")
    site.pass_time(600)
    assert site.works() == [["x", "y"], []]


def test_a_standby_takes_over_at_once_from_a_notifier_that_ends(site: Site) -> None:
    first = site.add("x", "y")
    site.pass_time(1)
    site.add("x", "y")
    site.pass_time(1)
    first.end()
    site.pass_time(1)
    assert site.works() == [[], ["x", "y"]]


def test_a_silent_notifier_is_replaced_after_the_time_that_is_set(site: Site) -> None:
    first = site.add("x")
    site.pass_time(1)
    second = site.add("x")
    site.pass_time(5)
    first.is_stopped = True
    site.pass_time(PATIENCE - 1)
    assert not second.works
    site.pass_time(1)
    assert list(second.works) == ["x"]


def test_a_killed_notifier_of_this_machine_is_replaced_at_once(site: Site) -> None:
    gone = site.add("x", instance=f"{name_process().rpartition('/')[0]}/0")
    gone.works["x"] = own("x", site.log, site.clock)
    gone.report()
    gone.is_stopped = True
    second = site.add("x")
    site.pass_time(1)
    assert list(second.works) == ["x"]


def test_a_notifier_that_returns_after_a_pause_finds_itself_fenced(site: Site) -> None:
    first, second = site.add("x"), site.add("x")
    site.pass_time(1)
    first.is_stopped = True
    site.pass_time(PATIENCE + 1)
    old = first.works["x"]
    assert list(second.works) == ["x"]
    with pytest.raises(Fenced):
        old.write({"position": b"7"})
    with pytest.raises(Fenced):
        old.check()
    first.is_stopped = False
    site.pass_time(600)
    assert site.works() == [[], ["x"]]
    second.works["x"].write({"position": b"3"})
    assert own("x", site.log, site.clock).values == {"position": b"3"}


def test_of_two_standbys_that_try_at_once_a_single_one_delivers(site: Site) -> None:
    first, *others = site.add("x"), site.add("x"), site.add("x")
    site.pass_time(1)
    first.is_stopped = True
    site.pass_time(PATIENCE - 1)
    site.clock.advance(1.0)
    taken = [machine.turns.find_turns() for machine in others]  # both before either has sent a heartbeat
    assert taken == [["x"], ["x"]]
    for machine in others:
        machine.works["x"] = own("x", site.log, site.clock)
    site.pass_time(600)
    assert site.works() == [["x"], [], ["x"]]


def test_each_destination_has_a_turn_of_its_own(site: Site) -> None:
    site.add("x", "y")
    site.pass_time(1)
    site.add("y", "z")
    site.add("x", "y", "z")
    site.pass_time(600)
    assert site.works() == [["x", "y"], ["z"], []]
    site.machines[0].end()
    site.pass_time(1)
    assert site.works() == [[], ["y", "z"], ["x"]]


def test_silence_counts_only_while_the_log_answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = site.add("x"), site.add("x")
    site.pass_time(1)
    first.is_stopped = True

    def refuse(*_: object) -> None:
        raise Unavailable("no answer")

    site.pass_time(PATIENCE - 1)
    with monkeypatch.context() as patch:
        for question in ("collect", "ends", "append"):
            patch.setattr(MemoryLog, question, refuse)
        site.clock.advance(600.0)
        second.turns.find_turns()
    site.pass_time(PATIENCE - 1)
    assert not second.works
    site.pass_time(2)
    assert list(second.works) == ["x"]


def test_a_beginner_waits_for_a_notifier_whose_process_it_cannot_see(site: Site) -> None:
    first = site.add("x")
    site.pass_time(1)
    first.is_stopped = True
    second = site.add("x")
    site.pass_time(PATIENCE)
    assert not second.works
    site.pass_time(1)
    assert list(second.works) == ["x"]


def test_two_that_fence_each_other_come_to_rest(site: Site) -> None:
    """As after a log that was restored without their reports."""
    first, second = site.add("x"), site.add("x")
    site.pass_time(1)
    second.turns = some_turns(site.log, site.clock, second.instance, "x")
    second.works["x"] = own("x", site.log, site.clock)
    site.pass_time(CHECK_EVERY + BEAT)
    assert site.works() == [[], ["x"]]
    before = first.turns
    site.pass_time(600)
    assert site.works() == [[], ["x"]]
    assert first.turns is before


@pytest.mark.parametrize("others", [(), ("y",)], ids=["delivers to all", "stands by for another"])
def test_a_notifier_that_is_fenced_waits_for_the_first_heartbeat(site: Site, others: tuple[str, ...]) -> None:
    site.add(*others)
    site.pass_time(1)
    first = site.add("x", *others)
    site.pass_time(1)
    own("x", site.log, site.clock)
    site.pass_time(PATIENCE)
    assert not first.works
    site.pass_time(CHECK_EVERY)
    assert list(first.works) == ["x"]


def test_a_notifier_does_not_take_its_own_last_report_for_anothers(site: Site) -> None:
    first = site.add("x")
    site.pass_time(1)
    own("x", site.log, site.clock)
    first.turns.lose("x")
    assert first.turns.find_turns() == []
    first.works.clear()
    first.report()
    assert first.turns.find_turns() == []


def test_a_log_without_the_topic_of_heartbeats_is_named(site: Site) -> None:
    log = MemoryLog(site.clock)
    turns = some_turns(log, site.clock, "other", "x")
    with pytest.raises(BadConfig, match="services"):
        turns.find_turns()


class HurriedClock(HandClock):
    """Each look at it takes a second."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


@pytest.mark.parametrize("reason", [Fenced("a newer one"), Unavailable("cannot begin")], ids=["fenced", "cannot begin"])
def test_a_process_that_lost_its_turn_stands_by_and_works_again(site: Site, reason: Exception) -> None:
    clock, stop, events = HurriedClock(), threading.Event(), list[str]()

    def report() -> ServiceReport:
        [record] = [each for each in site.log.records(WATCHES) if each.value is not None]
        return from_json(ServiceReport, record.value or b"")

    def work(ready: Callable[[], None]) -> None:
        ready()
        events.append("works")
        eventually(lambda: report().works == ("it",))
        if events.count("works") == 1:
            raise reason
        stop.set()

    work_in_turns(
        site.log,
        "guardian ",
        "it",
        work,
        patience=PATIENCE,
        stop=stop,
        ready=lambda: events.append("ready"),
        clock=clock,
    )
    assert events == ["ready", "works", "works"]
    assert clock.monotonic() > PATIENCE
    assert {record.value for record in site.log.records(WATCHES)} == {None}


def test_a_false_report_with_an_endless_number_ends_no_standby(site: Site) -> None:
    """Any writer of the topic may name a process of this machine, and Python reads no number of so many digits."""
    space = name_process().rsplit("/", 2)[0]
    false = ServiceReport(time=1.0, version="1", instance=f"{space}/{'9' * 5000}/1", works=("x",))
    site.log.append([NewRecord(topic=SERVICES, key="notifier nowhere", value=to_json(false))])
    first = site.add("x")
    site.pass_time(1)
    assert list(first.works) == ["x"]
