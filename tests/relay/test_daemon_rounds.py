# SPDX-License-Identifier: GPL-2.0-or-later
"""The relay's service from its start to its end: rounds, checks of the log, old blobs, and what a stop waits for."""

import errno
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import structlog
from prometheus_client import REGISTRY

from hgext.vcsreplicator.log import EVENTS, SERVICES, STATE, NewRecord, reports, topics
from hgext.vcsreplicator.log.blob_retries import BlobRetries
from hgext.vcsreplicator.log.table import find_oldest_time
from hgext.vcsreplicator.outbox.bundles import Bundle
from hgext.vcsreplicator.outbox.entry import Entry, MirrorNeeds, NewestEvent, before_first_event, next_event
from hgext.vcsreplicator.outbox.file import Fork, Outbox
from hgext.vcsreplicator.relay import daemon, fork, outside
from hgext.vcsreplicator.relay.client import RelayLine
from hgext.vcsreplicator.relay.lacking import WAITS
from hgext.vcsreplicator.relay.loss import LossWatch
from hgext.vcsreplicator.relay.mastership import Mastership, claim, read_master
from hgext.vcsreplicator.relay.outside import WOULD_REFUSE
from hgext.vcsreplicator.relay.rounds import SENDS_NOW
from hgext.vcsreplicator.relay.settings import RelaySettings
from hgext.vcsreplicator.status import SILENT
from hgext.vcsreplicator.status.services import STALLED
from hgext.vcsreplicator.words.clock import DAY
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import AGGREGATOR, MasterRecord, ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.shape import from_json, to_json
from hgext.vcsreplicator.words.wire import INLINE_LIMIT
from testing.builders.aggregator.states import some_state, state_of
from testing.builders.log.memorylog import MemoryLog
from testing.builders.master.outboxes import Folder, PlainPort, Transaction, following
from testing.clock import HandClock
from testing.waiting import eventually


class Bench:
    """A relay in a thread, whose clock stands still, over one repository that was written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.clock = folder, PlainPort(), HandClock()
        self.log = MemoryLog(clock=self.clock)
        self.log.create(topics())
        store = folder / "repos" / "one" / ".hg" / "store"
        store.mkdir(parents=True)
        (store.parent / "requires").write_text("store\n")
        self.box = Outbox(Folder(str(store)))
        self.entries = following(before_first_event("one", 1), 1)
        self.box.append(Transaction(), self.entries)
        self.stop, self.is_ready = threading.Event(), threading.Event()
        self.mastership = Mastership()
        self.thread = threading.Thread(target=lambda: None)
        # Rounds and reports before it was ready.
        self.at_ready = 0, 0

    def settings(self, **members: Any) -> RelaySettings:
        roots = {str(self.folder / "repos"): ""}
        known = {"socket": f"{self.folder}/relay.sock", "source": "hg://master", "roots": roots, "scan": 0.02}
        return RelaySettings(**{**known, **members})

    def ready(self) -> None:
        self.at_ready = self.port.rounds, len(self.reports())
        self.is_ready.set()

    @contextmanager
    def running(self, **members: Any) -> Iterator[None]:
        def run() -> None:
            daemon.run(
                self.settings(**members),
                self.log,
                self.port,
                stop=self.stop,
                ready=self.ready,
                clock=self.clock,
                mastership=self.mastership,
            )

        self.thread = threading.Thread(target=run)
        self.thread.start()
        try:
            eventually(lambda: self.is_ready.is_set() or not self.thread.is_alive())
            assert self.is_ready.is_set()
            yield
        finally:
            self.stop.set()
            self.thread.join()

    def wait_for_rounds(self, count: int) -> None:
        reached = self.port.rounds + count
        eventually(lambda: self.port.rounds >= reached)

    def sent(self) -> list[str | None]:
        return [record.key for record in self.log.records(EVENTS)]

    def reports(self) -> list[ServiceReport]:
        records = [record for record in self.log.records(SERVICES) if record.key == "relay hg://master"]
        return [from_json(ServiceReport, record.value or b"") for record in records]


@pytest.fixture
def bench() -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="relay-"))  # a socket's path may have 107 bytes
    yield Bench(folder)
    shutil.rmtree(folder)


def make_blob(bench: Bench, letter: str, age: float) -> Path:
    blob = bench.folder / "blobs" / (2 * letter) / (64 * letter + ".hg")
    blob.parent.mkdir(parents=True)
    blob.touch()
    os.utime(blob, (bench.clock.now() - age, bench.clock.now() - age))
    return blob


def test_blobs_go_once_they_are_older_than_their_age_and_no_sooner(bench: Bench) -> None:
    young, old = make_blob(bench, "a", 2 * DAY - 60), make_blob(bench, "b", 2 * DAY + 60)
    with bench.running(blobs=f"file://{bench.folder}/blobs", blob_age=2.0):
        eventually(lambda: not old.exists())
        bench.wait_for_rounds(2)
        assert young.exists()
        bench.clock.advance(daemon.BLOB_SWEEP)
        eventually(lambda: not young.exists())


def test_a_blob_that_an_event_may_name_stays_whatever_the_clock_does(bench: Bench) -> None:
    blob = make_blob(bench, "a", 60)
    with bench.running(blobs=f"file://{bench.folder}/blobs", blob_age=2.0):
        eventually(lambda: len(bench.sent()) == 1)
        bench.clock.advance(400 * DAY)
        bench.wait_for_rounds(3)
        assert blob.exists()


def test_an_event_that_expires_amid_a_round_leaves_blobs_to_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest event was there when the relay asked where the log begins, and is gone when it asks how old it is."""
    blob, failures = make_blob(bench, "a", 400 * DAY), list[Expired]()

    def find(log: MemoryLog, topic: str) -> float | None:
        if failures:
            return find_oldest_time(log, topic)
        beginnings = {partition: begins - 1 for partition, begins in log.beginnings(topic).items()}
        stale = SimpleNamespace(beginnings=lambda _: beginnings, ends=log.ends, reader=log.reader)
        with pytest.raises(Expired) as raised:
            find_oldest_time(stale, topic)  # type: ignore[arg-type]
        failures.append(raised.value)
        raise raised.value

    monkeypatch.setattr(daemon, "find_oldest_time", find)
    with bench.running(blobs=f"file://{bench.folder}/blobs", blob_age=2.0):
        eventually(lambda: not blob.exists() or not bench.thread.is_alive())
    assert failures
    assert not blob.exists()


def test_an_event_that_the_log_lost_is_sent_again_without_a_push(bench: Bench) -> None:
    with bench.running():
        eventually(lambda: len(bench.sent()) == 1 and not bench.box.has_unsent())
        bench.wait_for_rounds(2)
        [record] = bench.log.records(EVENTS)
        bench.log.lose(EVENTS, record.partition, 1)
        eventually(lambda: len(bench.sent()) == 1)


@pytest.mark.parametrize("seen", [0, 1, None])
def test_a_running_relay_sends_again_what_expires_unread_alone(bench: Bench, seen: int | None) -> None:
    bench.entries += following(NewestEvent.of(bench.entries[0].event), 1)
    bench.box.append(Transaction(), bench.entries[1:])
    with bench.running():
        eventually(lambda: len(bench.sent()) == 2 and not bench.box.has_unsent())
        if seen is not None:
            state = state_of(bench.entries[seen].event)
            bench.log.append([NewRecord(topic=STATE, key=state.repository, value=to_json(state))])
        partition = bench.log.records(EVENTS)[0].partition
        bench.log.expire(EVENTS, partition)
        again = 2 if seen == 0 else 0
        eventually(lambda: len(bench.sent()) == again)
        bench.wait_for_rounds(3)
        assert (len(bench.sent()), bench.log.ends(EVENTS)[partition]) == (again, 2 + again)


@pytest.fixture
def reports_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "INTERVAL", 0.05)


@pytest.mark.usefixtures("reports_often")
def test_relays_of_one_source_report_that_they_are_two_until_one_ends(bench: Bench) -> None:
    named = set[float]()

    def find_named() -> set[float]:
        """By whose clock a report named it."""
        text = f"two relays have the source hg://master, this one on {socket.gethostname()}, "
        named.update(
            report.time for report in bench.reports() if any(each.text.startswith(text) for each in report.troubles)
        )
        return named

    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        other = Bench(Path(folder))
        other.log = bench.log
        other.clock.advance(1.0)
        with bench.running():
            with other.running():
                eventually(lambda: find_named() == {bench.clock.now(), other.clock.now()})
            eventually(lambda: [report.troubles for report in bench.reports()] == [()])


def test_a_log_that_cannot_be_checked_ends_no_round(bench: Bench) -> None:
    with bench.running():
        eventually(lambda: not bench.box.has_unsent())

        def fail(*_: object) -> None:
            raise Unavailable("away")

        with structlog.testing.capture_logs() as lines:
            bench.log.before["beginnings"] = fail
            bench.wait_for_rounds(3)
            bench.log.before.clear()
        assert any(line["event"] == "log not readable" for line in lines)
        bench.wait_for_rounds(3)


def test_a_relay_reports_at_once_when_the_log_answers_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `check` says for twenty seconds that the relay does not run."""
    monkeypatch.setattr(reports, "REST", 3600.0)
    append, collect = bench.log.append, bench.log.collect

    def fail(*_: object, **__: object) -> NoReturn:
        raise Unavailable("away")

    bench.log.append = fail  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines, bench.running(scan=3600):
        bench.log.collect = fail  # type: ignore[method-assign]
        append([NewRecord(topic=STATE, key=AGGREGATOR, value=b"{}")])  # wakes the reader
        eventually(lambda: {"report not written", "state not readable"} <= {line["event"] for line in lines})
        bench.log.append, bench.log.collect = append, collect  # type: ignore[method-assign]
        eventually(bench.reports)


def test_a_stop_waits_for_what_is_being_sent(bench: Bench) -> None:
    append, begun, may_end = bench.log.append, threading.Event(), threading.Event()

    def hold(messages: list[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        if messages[0].topic == EVENTS:
            begun.set()
            assert may_end.wait(60)
        return append(messages, timeout=timeout)

    bench.log.append = hold  # type: ignore[method-assign, assignment]
    with bench.running():
        assert begun.wait(60)
        bench.stop.set()
        bench.thread.join(0.3)
        assert bench.thread.is_alive(), "it ended in the middle of a job"
        may_end.set()
    assert not bench.box.has_unsent(), "what the log took is marked"


def test_a_relay_that_cannot_start_leaves_no_thread_behind(bench: Bench) -> None:
    before = set(threading.enumerate())
    with pytest.raises(BadConfig):
        daemon.run(
            bench.settings(socket="/nowhere/relay.sock"), bench.log, bench.port, stop=bench.stop, ready=lambda: None
        )
    assert bench.stop.is_set()
    eventually(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()])


def test_it_is_ready_after_the_first_round_which_is_reported(bench: Bench) -> None:
    with bench.running():
        assert bench.at_ready == (1, 1)


@pytest.mark.usefixtures("reports_often")
def test_it_reports_between_rounds_too(bench: Bench) -> None:
    with bench.running(scan=3600.0):
        bench.clock.advance(20)
        eventually(lambda: bench.reports()[-1].time == bench.clock.now())
        assert bench.port.rounds == 1


class HandWoken(threading.Event):
    """An event whose waits take no time: a clock that is moved by hand passes them, and a moment more, as for any thread."""

    def __init__(self, clock: HandClock, stop: threading.Event, until: float) -> None:
        super().__init__()
        self.clock, self.stop, self.until = clock, stop, until
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.clock.advance(timeout + 0.01)
        if self.clock.monotonic() > self.until:
            self.stop.set()
        return self.stop.is_set()


def move_by_hand(
    monkeypatch: pytest.MonkeyPatch, clock: HandClock, thread_time: Callable[[], float], *modules: object
) -> None:
    """Have these modules take the time of this clock, and of the processor what the test says."""
    for module in modules:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic, thread_time=thread_time))


def run_quietly(bench: Bench, monkeypatch: pytest.MonkeyPatch, scan: float) -> tuple[list[float], list[float]]:
    """The times of the reports of a relay over a repository where nothing waits, in ten intervals of reports, and its waits."""
    clock, times = bench.clock, list[float]()
    move_by_hand(monkeypatch, clock, lambda: 0.0, daemon, reports)
    relay = daemon.Relay(bench.settings(scan=scan), bench.log, bench.port, bench.stop, clock)
    shutil.rmtree(bench.folder / "repos/one")  # nothing waits
    bench.log.before["append"] = lambda _: times.append(clock.monotonic())
    relay.start()
    relay.woken = woken = HandWoken(clock, bench.stop, clock.monotonic() + 10 * reports.INTERVAL)
    relay.make_rounds(bench.stop)
    relay.close()
    return times, woken.waits


class Rounds(PlainPort):
    """Notes when each round begins; the relay's thread uses some processor time in each, and in each comparison."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, used: float, compared: float = 0.0) -> None:
        super().__init__()
        self.bench, self.used, self.compared, self.thread_time = bench, used, compared, 0.0
        self.times: list[float] = []
        move_by_hand(monkeypatch, bench.clock, lambda: self.thread_time, daemon, outside)

    def finish(self, root: str) -> list[str]:
        self.times.append(self.bench.clock.monotonic())
        self.thread_time += self.used
        return []

    def is_changed_outside(self, folder: str) -> bool | None:
        self.thread_time += self.compared
        return None

    def make(self, seconds: float) -> list[float]:
        """Run a relay of `scan` = 30; return the seconds between rounds."""
        bench, clock = self.bench, self.bench.clock
        relay = daemon.Relay(bench.settings(scan=30.0), bench.log, self, bench.stop, clock)
        relay.start()
        relay.woken = HandWoken(clock, bench.stop, seconds)
        relay.make_rounds(bench.stop)
        relay.close()
        return [later - earlier for earlier, later in pairwise(self.times)]


@pytest.mark.parametrize(("used", "pause"), [(0.3, 30), (1.4, 30), (2.6, 52), (100.0, 120)])
def test_rounds_leave_the_processor_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, used: float, pause: float
) -> None:
    first, *others = Rounds(bench, monkeypatch, used).make(600.0)
    assert first == pytest.approx(30, abs=1)
    assert others == pytest.approx([pause] * (560 // pause), abs=1)


def test_comparisons_make_no_round_late(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Rounds(bench, monkeypatch, 0.3, compared=9.0).make(200.0) == pytest.approx([30] * 6, abs=1)


def test_a_loss_is_looked_for_however_long_a_round_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(bench, monkeypatch, 100.0)
    checks, ends, check_partitions = list[float](), [70.0], LossWatch.check_partitions

    def check(losses: LossWatch) -> None:
        checks.append(bench.clock.monotonic())
        eventually(lambda: not bench.box.has_unsent())  # by a worker, for whom no time passes
        if ends and checks[-1] > ends[0]:
            ends.clear()
            [event] = bench.log.records(EVENTS)
            bench.log.lose(EVENTS, event.partition, 1)
        check_partitions(losses)

    monkeypatch.setattr(LossWatch, "check_partitions", check)
    assert rounds.make(200.0) == pytest.approx([30, 60], abs=1)
    assert max(later - earlier for earlier, later in pairwise(checks)) < 31


@pytest.mark.parametrize("scan", [7.0, 30.0, 3600.0])
def test_no_round_makes_the_next_report_late(bench: Bench, monkeypatch: pytest.MonkeyPatch, scan: float) -> None:
    times, _ = run_quietly(bench, monkeypatch, scan)
    assert max(later - earlier for earlier, later in pairwise(times)) < reports.INTERVAL + 1


def test_a_relay_without_trouble_wakes_only_for_its_rounds_and_reports(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, waits = run_quietly(bench, monkeypatch, 3600.0)
    assert len(waits) == len(times)


def test_a_stop_ends_the_thread_that_follows_the_aggregator(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "POLL", 3600.0)
    others = set(threading.enumerate())
    with bench.running():
        bench.wait_for_rounds(1)
    eventually(lambda: all(thread.name != "relay-state" for thread in set(threading.enumerate()) - others))


def gone(name: str) -> NewRecord:
    state = some_state(
        repository=32 * name,
        incarnation="e" * 32,
        path=f"gone-{name}",
        event="d" * 32,
        digest="c" * 64,
        source="hg://master",
    )
    return NewRecord(topic=STATE, key=state.repository, value=to_json(state))


def test_reports_say_to_how_many_partitions_the_relay_writes(bench: Bench) -> None:
    with bench.running():
        eventually(bench.reports)
    assert bench.reports()[-1].partitions == bench.log.partitions(EVENTS)


def both_gone(report: ServiceReport) -> list[ServiceTrouble]:
    """The two troubles of a report if both are repositories that are gone."""
    found = report.troubles
    return (
        list(found) if len(found) == 2 and all(" is not on the master any more" in each.text for each in found) else []
    )


def test_a_repository_that_is_gone_is_reported_since_the_first_round(bench: Bench) -> None:
    bench.log.append([gone("a")])
    began = bench.clock.now()
    with bench.running():
        eventually(lambda: not bench.box.has_unsent())
        bench.wait_for_rounds(1)
        bench.clock.advance(500)
        bench.wait_for_rounds(2)  # a round that began earlier has the time of its beginning
        bench.log.append([gone("b")])
        # If the clock jumped before the relay's next look, a report says too that the event of before waits.
        first, second = eventually(lambda: both_gone(bench.reports()[-1]))
    assert "repository gone-a is not on the master any more" in first.text
    assert (first.since, second.since) == (began, began + 500)


def measure(name: str, **labels: str) -> float | None:
    """What Prometheus reads of the relay."""
    return REGISTRY.get_sample_value(f"vcsreplicator_relay_{name}", labels)


def test_prometheus_sees_a_marked_fork_while_pushes_are_refused(bench: Bench) -> None:
    bench.box.set_fork(Fork(reason="the log has another event 1 of it"))
    with bench.running():
        assert (measure("forked_repositories"), measure("troubles", severity="critical")) == (1, 1)
        bench.wait_for_rounds(2)
        assert (measure("forked_repositories"), measure("troubles", severity="warning")) == (1, 0)
        (bench.folder / "repos/one/.hg/store/outbox.fork").unlink()
        eventually(lambda: (measure("forked_repositories"), measure("troubles", severity="critical")) == (0, 0))


def test_prometheus_sees_events_that_wait_apart_from_other_troubles(bench: Bench) -> None:
    bench.log.leaderless.update((EVENTS, number) for number in range(bench.log.partitions(EVENTS)))
    bench.clock.advance(SILENT + 1)
    with bench.running():
        eventually(lambda: (measure("late_repositories"), measure("troubles", severity="critical")) == (1, 1))
        bench.log.leaderless.clear()

        def has_ended() -> bool:
            bench.clock.advance(SILENT)  # again, should an attempt of before fail only now
            return (measure("late_repositories"), measure("troubles", severity="critical")) == (0, 0)

        eventually(has_ended)


def test_prometheus_sees_a_repository_that_is_gone_as_check_does(bench: Bench) -> None:
    bench.log.append([gone("a")])
    with bench.running():
        eventually(lambda: measure("troubles", severity="warning") == 1)
        bench.clock.advance(STALLED + 1)
        eventually(lambda: [measure("troubles", severity=name) for name in ("warning", "critical")] == [0, 1])
        assert measure("forked_repositories") == 0


def test_a_deletion_that_was_sent_is_no_vanishing_while_nothing_reads(bench: Bench) -> None:
    """Nor does its root, which is empty now, count as not mounted."""
    [entry] = following(before_first_event("n/two", 1), 1)
    event, root = entry.event, bench.folder / "other"
    deletion = next_event(
        NewestEvent.of(event),
        Type.DELETED,
        time=bench.clock.now(),
        source="deleted",
        changes=event.changes,
        after=event.after,
        settings=event.settings,
    )
    store = root / ".vcsreplicator" / "deleted" / event.repository / ".hg" / "store"
    store.mkdir(parents=True)
    Outbox(Folder(str(store))).append(Transaction(), [entry, Entry(event=deletion, needs=MirrorNeeds.NOTHING)])
    known = to_json(state_of(event, source="hg://master"))
    bench.log.append([NewRecord(topic=STATE, key=event.repository, value=known)])
    with bench.running(roots={str(bench.folder / "repos"): "", str(root): "n"}):
        eventually(lambda: not store.exists() and not bench.box.has_unsent())
        bench.wait_for_rounds(3)
        assert [measure("troubles", severity=name) for name in ("warning", "critical")] == [0, 0]


def test_a_repository_that_a_twin_master_may_have_is_not_just_forgotten(
    bench: Bench,
) -> None:
    bench.log.append([gone("a")])
    with bench.running():
        [trouble] = eventually(
            lambda: [each for report in bench.reports() for each in report.troubles if "gone-a" in each.text][:1]
        )
    assert trouble.text.endswith(
        ": vcsreplicator forget gone-a --yes; if another master has it, give that one's relay a `source` of its own, not hg://master"
    )


@pytest.mark.usefixtures("reports_often")
def test_a_root_not_mounted_yet_is_reported_and_nothing_in_it_is_gone(bench: Bench) -> None:
    roots, began = {str(bench.folder / "repos"): "", str(bench.folder / "none"): "n"}, bench.clock.now()
    record = gone("b")
    bench.log.append([NewRecord(topic=record.topic, key=record.key, value=record.value.replace(b"gone-b", b"n/b"))])
    with bench.running(roots=roots):
        eventually(lambda: bench.reports())
        bench.clock.advance(500)
        eventually(lambda: bench.reports()[-1].time > began)
        [trouble] = bench.reports()[-1].troubles
    assert trouble.text.startswith(f"{bench.folder}/none: cannot be read: ")
    assert (trouble.is_urgent, trouble.since) == (True, began)


def reported(bench: Bench, text: str) -> list[ServiceTrouble]:
    """The troubles of the newest report that have the text."""
    return [each for report in bench.reports()[-1:] for each in report.troubles if text in each.text]


@pytest.mark.usefixtures("reports_often")
def test_an_empty_mount_point_is_reported_and_nothing_in_it_is_gone(bench: Bench) -> None:
    """The log has its repositories; to announce their deletion would delete them on all mirrors."""
    empty, began = bench.folder / "empty", bench.clock.now()
    empty.mkdir()
    for letter in "bc":
        record, path = gone(letter), f"n/{letter}".encode()
        value = (record.value or b"").replace(f"gone-{letter}".encode(), path)
        bench.log.append([NewRecord(topic=record.topic, key=record.key, value=value)])
    with bench.running(roots={str(bench.folder / "repos"): "", str(empty): "n"}):
        # The event of before may wait, too.
        [trouble] = eventually(lambda: reported(bench, "mounted"))
        assert trouble.text.startswith(f"{empty}: is empty, 2 repositories were there: is its file system mounted?")
        assert "forget" not in trouble.text
        assert (trouble.is_urgent, trouble.since) == (True, began)
        assert not reported(bench, "not on the master")
        for letter in "bc":
            store = empty / letter / ".hg" / "store"
            store.mkdir(parents=True)
            (store.parent / "requires").write_text("store\n")
        eventually(lambda: not reported(bench, "mounted"))


def test_a_push_below_a_root_unknown_to_the_relay_is_reported(bench: Bench) -> None:
    other = bench.folder / "other" / "two"
    store = other / ".hg" / "store"
    store.mkdir(parents=True)
    box, [entry] = Outbox(Folder(str(store))), following(before_first_event("two", 1), 1)
    box.append(Transaction(), [entry])
    bench.clock.advance(SILENT + 1)
    with bench.running():
        line = RelayLine.open(f"{bench.folder}/relay.sock", str(other))
        assert line is not None
        line.report_commit(1)
        assert line.wait_until_sent(patience=60.0) is None
        [trouble] = eventually(lambda: [each for each in bench.reports()[-1].troubles if "other" in each.text])
        assert trouble.text.startswith(f"{other}{WAITS}hgrc has its root, [relay.roots] has not: ")
        assert (trouble.is_urgent, trouble.since) == (True, entry.event.time)
        shutil.rmtree(other)
        eventually(lambda: bench.reports()[-1].troubles == ())


def test_a_trouble_with_another_number_each_round_is_one_trouble(bench: Bench) -> None:
    began = bench.clock.now()
    bench.port.unfinished = lambda root: f"{root}/a: {bench.port.rounds} of 9 done"
    with bench.running():
        bench.clock.advance(500)
        bench.wait_for_rounds(2)
        first = bench.reports()[0]
        bench.log.append([gone("b")])  # another trouble, which is reported at once
        eventually(lambda: reported(bench, "gone-b"))
    assert [trouble.since for trouble in first.troubles if "of 9 done" in trouble.text] == [began]
    assert [trouble.since for trouble in reported(bench, "of 9 done")] == [began]


@pytest.fixture
def rechecks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "RECHECK", 0.2)


@pytest.mark.usefixtures("rechecks_soon")
def test_events_that_are_sent_leave_the_report_before_the_next_round(bench: Bench) -> None:
    """The first round finds them in the outbox, where they waited for a relay."""
    may_send = threading.Event()
    bench.log.before["append"] = lambda messages: messages[0].topic != EVENTS or may_send.wait(60)
    bench.clock.advance(SILENT + 1)
    with bench.running(scan=3600):
        assert [trouble.text for trouble in bench.reports()[0].troubles] == [
            f"{bench.folder}/repos/one: events wait in its outbox: {SENDS_NOW}"
        ]
        may_send.set()
        eventually(lambda: not bench.reports()[-1].troubles)
        assert bench.port.rounds == 1


@pytest.mark.usefixtures("rechecks_soon")
def test_a_job_that_fails_is_reported_before_the_next_round(bench: Bench) -> None:
    bench.clock.set_back(bench.clock.now() - bench.entries[0].event.time - 1.0)
    is_closed = threading.Event()
    denied = f"{bench.folder}/repos/one/.hg/store/outbox.sent"

    def fail(messages: list[NewRecord]) -> None:
        if messages[0].topic == EVENTS and is_closed.is_set():
            raise PermissionError(errno.EACCES, "Permission denied", denied)

    bench.log.before["append"] = fail
    with bench.running(scan=3600):
        eventually(lambda: not bench.box.has_unsent())
        is_closed.set()
        bench.clock.advance(1.0)
        bench.box.append(Transaction(), following(bench.box.newest(), 1))
        line = RelayLine.open(f"{bench.folder}/relay.sock", f"{bench.folder}/repos/one")
        assert line is not None
        line.report_commit(2)
        [trouble] = eventually(lambda: bench.reports()[-1].troubles)
        assert trouble.text.startswith(
            f"{bench.folder}/repos/one{WAITS}Permission denied: {denied}; as root, run: vcsreplicator rights "
        )
        assert (trouble.is_urgent, trouble.is_permanent) == (False, True)
        is_closed.clear()
        bench.clock.advance(60.0)
        eventually(lambda: not bench.reports()[-1].troubles)
        assert bench.port.rounds == 1


@pytest.mark.usefixtures("rechecks_soon")
def test_a_fork_that_a_job_finds_is_reported_before_the_next_round(bench: Bench) -> None:
    folder = f"{bench.folder}/repos/one"
    segment = Path(folder, ".hg/store/outbox.0001.log")

    def poke() -> list[ServiceTrouble]:
        line = RelayLine.open(f"{bench.folder}/relay.sock", folder)
        assert line is not None
        line.report_commit(1)
        return bench.reports()[-1].troubles

    with bench.running(scan=3600):
        eventually(lambda: not bench.box.has_unsent())
        whole = segment.read_bytes()
        segment.write_bytes(b"")
        refuses = f"{folder}: refuses pushes: the log has its event 1"
        eventually(lambda: [each.text[: len(refuses)] for each in poke()] == [refuses])  # no longer that events wait
        assert measure("forked_repositories") == 1
        segment.write_bytes(whole)
        eventually(lambda: not poke())
        assert measure("forked_repositories") == 0
        assert bench.port.rounds == 1


def refuse_events(bench: Bench, wait: Callable[[], object] = lambda: None) -> None:
    """Have every attempt to send an event fail, after a wait."""

    def fail(messages: list[NewRecord]) -> None:
        if messages[0].topic == EVENTS:
            wait()
            raise PermissionError(errno.EACCES, "Permission denied", f"{bench.folder}/repos/one/.hg/store/outbox.sent")

    bench.log.before["append"] = fail


def make_repository(bench: Bench, name: str) -> None:
    """Have a repository with an event."""
    store = bench.folder / "repos" / name / ".hg" / "store"
    store.mkdir(parents=True)
    (store.parent / "requires").write_text("store\n")
    Outbox(Folder(str(store))).append(Transaction(), following(before_first_event(name, 1), 1))


def push_to(bench: Bench, name: str) -> None:
    """Have a repository with an event, and report it to the relay."""
    make_repository(bench, name)
    line = RelayLine.open(f"{bench.folder}/relay.sock", f"{bench.folder}/repos/{name}")
    assert line is not None
    line.report_commit(1)


@pytest.fixture
def reports_only_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "INTERVAL", 3600.0)


@pytest.mark.usefixtures("reports_only_news")
def test_a_job_that_fails_is_reported_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "RECHECK", 3600.0)
    bench.clock.set_back(bench.clock.now() - bench.entries[0].event.time - 1.0)
    with bench.running(scan=3600):
        eventually(lambda: not bench.box.has_unsent())
        refuse_events(bench)
        push_to(bench, "two")
        eventually(lambda: bench.reports()[-1].troubles)
        assert bench.port.rounds == 1


def test_a_push_that_an_older_pushlog_refused_is_no_second_trouble(bench: Bench) -> None:
    make_repository(bench, "two")
    lacks = "pushlog.log lacks push 2"
    bench.port.find_refusal = lambda folder: lacks if folder.endswith("one") else None  # type: ignore[method-assign]
    expected = {
        f"{bench.folder}/repos/one{WOULD_REFUSE}{lacks}",
        f"{bench.folder}/repos/two: a push was refused: {lacks}",
    }
    with bench.running(scan=3600):
        for name in ("one", "two"):
            line = RelayLine.open(f"{bench.folder}/relay.sock", f"{bench.folder}/repos/{name}")
            assert line is not None
            line.report_refusal(lacks)
        eventually(lambda: {each.text for each in bench.reports()[-1].troubles} == expected)
    assert all({each.text for each in report.troubles} <= expected for report in bench.reports())


@pytest.mark.usefixtures("rechecks_soon", "reports_only_news")
def test_failures_beyond_those_of_one_look_are_looked_at_next(bench: Bench) -> None:
    bench.clock.set_back(bench.clock.now() - bench.entries[0].event.time - 1.0)
    may_fail = threading.Event()
    refuse_events(bench, lambda: may_fail.wait(60))
    for number in range(2 * daemon.LOOKED_AT):
        make_repository(bench, f"r{number}")
    with bench.running(scan=3600):
        may_fail.set()
        count = 2 * daemon.LOOKED_AT + 1
        eventually(lambda: sum(measure("troubles", severity=each) for each in ("warning", "critical")) == count)
        assert bench.port.rounds == 1


@pytest.mark.usefixtures("rechecks_soon")
def test_a_failure_replaces_what_the_round_said_of_the_same_trouble(bench: Bench) -> None:
    may_fail = threading.Event()
    refuse_events(bench, lambda: may_fail.wait(60))
    bench.port.unfinished = lambda root: f"{root}/one: was changed without the extension"
    bench.clock.advance(SILENT + 1)
    folder = f"{bench.folder}/repos/one"
    with bench.running(scan=3600):
        [other, waits] = sorted(bench.reports()[0].troubles, key=lambda each: WAITS in each.text)
        assert waits.text == f"{folder}{WAITS}{SENDS_NOW}"
        may_fail.set()
        eventually(lambda: "Permission denied" in str(bench.reports()[-1].troubles))
        [told, kept] = sorted(bench.reports()[-1].troubles, key=lambda each: each == other)
        assert kept == other
        assert told.text.startswith(f"{folder}{WAITS}Permission denied")
        assert told.is_permanent
        assert bench.port.rounds == 1


class Meanwhile(set[str]):
    """A set in which something happens between the moment when a worker has it in hand and when it adds to it."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def add(self, folder: str) -> None:
        act, self.act = self.act, lambda: None
        act()
        super().add(folder)


def test_events_sent_while_troubles_are_looked_for_leave_the_report(bench: Bench) -> None:
    folder = f"{bench.folder}/repos/one"
    relay = daemon.Relay(bench.settings(), bench.log, bench.port, bench.stop, bench.clock)
    relay._found = [ServiceTrouble(text=f"{folder}{WAITS}{SENDS_NOW}", since=0.0)]
    for place in bench.box.unsent():
        bench.box.prepare_sent(place.sent())
        bench.box.move_sent(place.sent())
    noted = relay._sent = Meanwhile()
    noted.act = relay._leave_out_sent
    relay._note_sent(folder, 1)
    assert relay._leave_out_sent()
    assert not relay._found
    bench.stop.set()
    relay.close()


def test_a_repository_that_is_gone_leaves_no_refused_bundle(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[BlobRetries]()

    class SeenRetries(BlobRetries):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(daemon, "BlobRetries", SeenRetries)
    bench.port.make_bundle = lambda *_: Bundle([bytes(INLINE_LIMIT + 1)])  # type: ignore[method-assign]
    entries = following(bench.box.newest(), 1)
    bench.box.append(Transaction(), [replace(each, needs=MirrorNeeds.BUNDLE) for each in entries])
    (bench.folder / "file").touch()
    repository = bench.folder / "repos" / "one"
    with bench.running(blobs=f"file://{bench.folder}/file/blobs"):
        [retries] = made
        eventually(lambda: list(retries.refused) == [str(repository)])
        repository.rename(bench.folder / "moved")
        eventually(lambda: not retries.refused)


def test_health_says_whether_it_is_the_relay_of_the_master(bench: Bench) -> None:
    assert bench.mastership() == {"ready": False, "reason": "not started yet"}
    with bench.running():
        assert bench.mastership() == {"ready": True}
        claim(bench.log, MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://other",), time=1.0), None)
        bench.wait_for_rounds(2)
        assert bench.mastership() == {"ready": True}, "another one was replaced"
        newest = read_master(bench.log)
        claim(bench.log, MasterRecord(source="hg://new", mirror="alpha", replaces=("hg://master",), time=2.0), newest)
        eventually(lambda: bench.mastership() == {"ready": False, "reason": "hg://new is the master now"})
