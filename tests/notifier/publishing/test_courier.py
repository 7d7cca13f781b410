# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop of one destination turn by turn, on a log in memory and a clock moved by hand: logs that are away, replays that wait."""

import errno
import shutil
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY

from hgext.vcsreplicator.log import ERRORS, NOTICES, NOTIFIER, SERVICES, NewRecord, Record
from hgext.vcsreplicator.log import Log as AnyLog
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.requests import OperatorRequest
from hgext.vcsreplicator.words.clock import Clock
from hgext.vcsreplicator.words.errors import BadConfig, Expired, Fenced, Rejected, ReplicationError, Unavailable
from hgext.vcsreplicator.words.event import PushEntry
from hgext.vcsreplicator.words.records import ErrorRecord, ServiceReport, ServiceTrouble
from hgext.vcsreplicator.words.retry import RECONNECT
from hgext.vcsreplicator.words.shape import from_json, to_json
from notifier.clients.database import NOWHERE
from notifier.delivery import window
from notifier.delivery.destination import DeliveryOutcome, Write
from notifier.delivery.window import Delivery
from notifier.destinations.state import Kind, StateDatabase
from notifier.messages import message as notifier_message
from notifier.messages.message import Message
from notifier.publishing import courier, orders, reading
from notifier.publishing.condition import REPORT_INTERVAL
from notifier.publishing.courier import Courier, _DeliveryLoop
from notifier.publishing.decoding import NoticeDecoder
from notifier.publishing.position import CHECK_EVERY, StoredPosition, group
from notifier.publishing.reading import NoticeMark
from notifier.publishing.requests import SharedRequests, restore_requests
from notifier.publishing.settings import NotifierSettings
from testing.builders.log.log_storage import kafka_storage
from testing.builders.log.memorylog import MemoryLog, MemoryReader
from testing.builders.notifier.notices import a_notice, an_event, publish, publish_pushes, with_topics
from testing.builders.notifier.notifying import PUBLIC, Scripted
from testing.clock import HandClock
from testing.services.kafka import Kafka
from testing.waiting import eventually

pytestmark = pytest.mark.processes


class Log(MemoryLog):
    """Keeps no rejects while `errors_away`, no answers while `answers_away`, says no ends while `ends_away`.

    While `commits_away` it commits nothing, while `readers_away` it opens no reader. `commits` counts what was asked for, `waits`
    is how long each reading of notices was ready to wait, `asked` has the questions and appends, and `notices` is the newest reader
    of notices.
    """

    notices: "Reader"

    def __init__(self) -> None:
        super().__init__()
        self.errors_away = self.answers_away = self.ends_away = self.commits_away = self.away = False
        self.readers_away = False
        self.beginning = self.commits = 0
        self.waits: list[float] = []
        self.asked: list[str] = []

    def append(self, messages: Sequence[NewRecord], *, timeout: float = 30.0) -> list[tuple[int, int]]:
        self.asked.append("append")
        if self.away or (self.errors_away and any(message.topic == ERRORS for message in messages)):
            raise Unavailable("the log is away")
        return super().append(messages, timeout=timeout)

    def commit(self, identity: str, epoch: int, messages: Sequence[NewRecord], *rest: Any) -> list[tuple[int, int]]:
        self.commits += 1
        if self.commits_away or (self.answers_away and any(message.topic == NOTIFIER for message in messages)):
            raise Unavailable("the log is away")
        return super().commit(identity, epoch, messages, *rest)

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self.asked.append("ends")
        if self.ends_away:
            raise Unavailable("the log is away")
        return super().ends(topic, partitions)

    def beginnings(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self.asked.append("beginnings")
        return {0: self.beginning} if topic == NOTICES else super().beginnings(topic, partitions)

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        if self.readers_away:
            raise Unavailable("the log is away")
        made = Reader(self, positions)
        if (NOTICES, 0) in positions:
            self.notices = made
        return made


class Reader(MemoryReader):
    def poll(self, timeout: float, *, limit: int = 500) -> list[Record]:
        log = self._log
        assert isinstance(log, Log)
        log.waits.append(timeout)
        if log.away:
            raise Unavailable("away")
        if self.positions().get((NOTICES, 0), log.beginning) < log.beginning:
            raise Expired("gone")
        return super().poll(0, limit=limit)


class Turns:
    """A destination named `it`, whose turns the test takes one by one."""

    def __init__(self, folder: Path, destination: Scripted, log: AnyLog | None = None) -> None:
        self.log, self.clock, self.destination = Log(), HandClock(), destination
        with_topics(log or self.log)
        settings = NotifierSettings(public=PUBLIC, destinations={"it": destination}, state=str(folder / "notifier.db"))
        self.state = StateDatabase(settings.state)
        self.courier = Courier(
            "it",
            destination,
            settings,
            log or self.log,
            self.clock,
            stop=threading.Event(),
            decoder=NoticeDecoder(PUBLIC),
            requests=SharedRequests(log or self.log),
            chance=lambda: 0.5,
        )
        self.loop = self.begin()

    def begin(self) -> _DeliveryLoop:
        """As after a restart."""
        self.stored = StoredPosition("it", self.courier.log, self.clock)
        return _DeliveryLoop(self.courier, self.destination, self.state, self.stored)

    def take(self, turns: int = 1, *, seconds: float = 1.0) -> None:
        for _ in range(turns):
            self.clock.advance(seconds)
            self.loop.orders.carry_out_requests()
            self.loop.read()
            self.loop.begin()
            self.loop.collect(0)
            self.loop.reader.store_position()

    @property
    def position(self) -> int:
        return self.log.stored(group("it"), NOTICES)[0]

    def ask(self, kind: Kind, **argument: object) -> int:
        return self.state.requests.ask("it", kind, argument, who="dana", now=self.clock.now())


@pytest.fixture
def destination() -> Scripted:
    return Scripted()


@pytest.fixture
def turns(tmp_path: Path, destination: Scripted) -> Iterator[Turns]:
    made = Turns(tmp_path, destination)
    with closing(made.state):
        yield made


def test_counters_of_a_destination_begin_at_zero_for_alerts(turns: Turns) -> None:
    turns.courier.name = "never seen before"
    _DeliveryLoop(turns.courier, turns.destination, turns.state, turns.stored)
    for counter in ("delivered_messages", "failed_attempts", "rejected_messages"):
        name = f"vcsreplicator_notifier_{counter}_total"
        assert REGISTRY.get_sample_value(name, {"destination": "never seen before"}) == 0.0


def test_notices_behind_a_malformed_one_wait_until_its_reject_is_kept(turns: Turns) -> None:
    turns.log.append([NewRecord(topic=NOTICES, key="x", value=b"no notice")])
    publish_pushes(turns.log, "x", 1, 3)
    turns.log.errors_away = True
    turns.take(5)
    publish_pushes(turns.log, "x", 4, 4)
    turns.take(5)
    assert (turns.position, turns.destination.got) == (0, [])
    turns.log.errors_away = False
    turns.take(10)
    assert turns.destination.told("x") == [1, 2, 3, 4]
    assert (turns.position, len(turns.log.records(ERRORS))) == (5, 1)


def test_a_destination_begins_once_what_was_written_before_is_seen(turns: Turns) -> None:
    """The notifier before it may have written behind a transaction of another destination, whose notifier died."""
    publish_pushes(turns.log, "x", 1, 1)
    turns.courier.stop.set()
    turns.log.undecided.add(NOTIFIER)
    with pytest.raises(Unavailable, match="a transaction of another process is open"):
        turns.courier.run(turns.stored)
    turns.log.undecided.clear()
    turns.courier.run(turns.stored)


def rejected() -> float:
    return REGISTRY.get_sample_value("vcsreplicator_notifier_rejected_messages_total", {"destination": "it"}) or 0.0


def test_an_unreadable_notice_counts_as_rejected_so_that_an_alert_sees_it(turns: Turns) -> None:
    before = rejected()
    turns.log.append([NewRecord(topic=NOTICES, key="x", value=b"no notice")])
    turns.take(5)
    assert rejected() == before + 1


def test_line_about_a_rejected_notice_names_repository_sequence_and_event(turns: Turns) -> None:
    event = replace(an_event("x", 7), path="../x")
    turns.log.append([NewRecord(topic=NOTICES, key="a" * 5000, value=b"no notice")])
    turns.log.append([NewRecord(topic=NOTICES, key=event.repository, value=to_json(a_notice(event)))])
    with structlog.testing.capture_logs() as lines:
        turns.take(5)
    unreadable, hostile = [line for line in lines if line["event"] == "notice rejected"]
    assert unreadable["repository"] == "a" * 200
    assert "seq" not in unreadable
    assert (hostile["repository"], hostile["seq"], hostile["event_id"]) == (event.repository, 7, event.id)


class FailingDecoder(NoticeDecoder):
    """Fails as the test says, at the records that it says."""

    fail: Callable[[Record], None]

    def messages_of(self, record: Record) -> tuple[Message, ...]:
        self.fail(record)
        return super().messages_of(record)


def let_fail(turns: Turns, fail: Callable[[Record], None]) -> None:
    turns.courier.decoder = decoder = FailingDecoder(PUBLIC)
    decoder.fail = fail


def test_a_record_on_which_the_code_fails_is_kept_and_passed(turns: Turns) -> None:
    let_fail(turns, lambda record: 1 // (record.offset != 1))
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(5)
    assert turns.destination.told("x") == [1, 3]
    [kept] = turns.log.records(ERRORS)
    reject = from_json(ErrorRecord, kept.value or b"")
    assert reject.reason.startswith("unexpected ZeroDivisionError: ")
    assert "in messages_of" in (reject.traceback or "")
    assert turns.position == 3


class Failing(Scripted):
    """Cannot make the second message."""

    def submit(self, delivery: Delivery) -> None:
        if delivery.message.sequence == 2:
            raise struct.error("argument out of range")
        Scripted.submit(self, delivery)


@pytest.mark.parametrize("destination", [Failing()])
def test_a_message_that_cannot_be_made_is_kept_with_its_traceback(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(10)
    assert turns.destination.told("x") == [1, 3]
    [kept] = turns.log.records(ERRORS)
    reject = from_json(ErrorRecord, kept.value or b"")
    assert "unexpected error: argument out of range" in reject.reason
    assert "in submit" in (reject.traceback or "")
    assert turns.position == 3


@pytest.mark.parametrize("trouble", [ConnectionResetError(104, "reset"), OSError(errno.ENOSPC, "full"), MemoryError()])
def test_machine_in_trouble_is_no_fault_of_the_message(turns: Turns, trouble: Exception) -> None:
    turns.destination.down = trouble  # type: ignore[assignment]
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(50)
    turns.destination.down = None
    turns.take(50)
    assert turns.destination.told("x") == [1, 2]
    assert turns.log.records(ERRORS) == []


def test_machine_in_trouble_while_a_message_is_made_is_no_fault_of_the_notice(turns: Turns) -> None:
    troubles = [MemoryError()]

    def fail(_: Record) -> None:
        if troubles:
            raise troubles.pop()

    let_fail(turns, fail)
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(50)
    assert turns.destination.told("x") == [1, 2]
    assert turns.log.records(ERRORS) == []


def test_message_that_is_refused_is_not_settled_until_its_reject_is_kept(turns: Turns) -> None:
    turns.destination.answer = lambda message: Rejected("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 2)
    turns.log.errors_away = True
    turns.take(20)
    assert (turns.position, turns.destination.got) == (0, [])
    turns.log.errors_away = False
    turns.take(20)
    assert turns.destination.told("x") == [2]
    assert (turns.position, len(turns.log.records(ERRORS))) == (2, 1)


def test_notices_lost_to_retention_are_passed_only_once_that_is_kept(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.log.beginning, turns.log.errors_away = 2, True
    turns.take(5)
    assert turns.position == 0
    turns.log.errors_away = False
    turns.take(10)
    assert turns.destination.told("x") == [3]
    assert len(turns.log.records(ERRORS)) == 1


def test_replay_that_waits_for_its_destination_lets_the_loop_rest(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(3)
    turns.destination.down = Unavailable("away")
    turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(5)
    turns.loop.window.down(turns.clock.monotonic(), 0.5)
    turns.log.waits.clear()
    turns.loop.read()
    assert turns.log.waits[0] > 0


def test_replay_of_a_paused_destination_lets_the_loop_rest(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(3)
    turns.ask(Kind.PAUSE)
    turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(5)
    turns.log.waits.clear()
    turns.loop.read()
    assert turns.log.waits[0] > 0


class Stop(threading.Event):
    """Notes how long each wait for a stop might last, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return super().wait(0)


def test_replay_of_a_log_that_is_away_lets_the_loop_rest(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(3)
    turns.log.away = True
    turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(3)
    turns.loop.reader.rest(Unavailable("away"))
    assert turns.loop.orders.replaying
    turns.courier.stop = stop = Stop()
    turns.loop.read()
    [wait] = stop.waits
    assert wait is not None
    assert wait > 0


@pytest.fixture
def replay_in_twos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "REPLAY_BATCH", 2)


@pytest.mark.usefixtures("replay_in_twos")
def test_replay_that_is_stuck_leaves_room_for_the_live_stream(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 50)
    turns.take(60)
    turns.destination.answer = lambda message: Unavailable("no") if message.replay else None
    turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(50)
    assert turns.loop.window.waiting <= 10
    publish_pushes(turns.log, "x", 51, 51)
    turns.take(3)
    assert turns.destination.told("x")[-1] == 51
    turns.destination.answer = lambda message: None
    turns.take(100)
    again = [message.sequence for message in turns.destination.got if message.replay]
    assert again == list(range(1, 51))


@pytest.mark.parametrize("is_replay", [False, True], ids=["live", "replay"])
def test_large_messages_that_wait_take_bounded_memory(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, *, is_replay: bool
) -> None:
    """A pusher can have a push announced that takes megabytes, again and again, while a destination is away."""
    for limit in ("HELD_BYTES", "REPLAYED_BYTES"):
        monkeypatch.setattr(window, limit, 50_000)
    monkeypatch.setattr(MemoryReader, "poll", poll_few(MemoryReader.poll))
    if is_replay:
        publish_large(turns, 1, 60)
        turns.take(100)
        turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.destination.answer = lambda message: Unavailable("away")
    if not is_replay:
        publish_large(turns, 1, 60)
    turns.take(100)
    assert 5 <= turns.loop.window.waiting <= 15
    assert not turns.loop.orders.replaying, "the loop rests"
    turns.destination.answer = lambda message: None
    turns.take(200)
    assert [message.sequence for message in turns.destination.got[-60:]] == list(range(1, 61))


def publish_large(turns: Turns, first: int, last: int) -> None:
    """Publish pushes of some 6 kB to one repository."""
    user = "u" * 5000
    for seq in range(first, last + 1):
        push = PushEntry(id=seq, user=user, date=1)
        publish(turns.log, a_notice(an_event("x", seq, push=push)))


def poll_few(poll: Callable[..., list[Record]]) -> Callable[..., list[Record]]:
    """Have a poll return few records, as a log does with large ones."""
    return lambda reader, timeout, limit=500: poll(reader, timeout, limit=min(limit, 4))


@pytest.mark.usefixtures("replay_in_twos")
def test_a_replay_that_the_log_forgets_does_not_move_the_live_stream(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 10)
    turns.take(12)
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(1)
    turns.log.beginning = 6
    turns.take(30)
    assert turns.position == 10
    live = [message.sequence for message in turns.destination.got if not message.replay]
    again = [message.sequence for message in turns.destination.got if message.replay]
    assert live == list(range(1, 11))
    assert again == [1, 2, 7, 8, 9, 10]
    assert turns.state.requests.read(number).result == "sent 6 messages again"
    assert turns.log.records(ERRORS) == []


@pytest.mark.usefixtures("replay_in_twos")
def test_a_replay_ends_where_a_log_that_lost_notices_ends(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 10)
    turns.take(12)
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(2)
    turns.log.lose(NOTICES, 0, 8)
    turns.take(30)
    assert not turns.loop.orders.replaying
    assert turns.state.requests.read(number).done_at is not None
    publish_pushes(turns.log, "x", 11, 12)
    turns.take(10)
    assert [message.sequence for message in turns.destination.got if not message.replay][-2:] == [11, 12]


def test_replay_cut_short_by_a_restart_is_sent_whole_in_order_and_marked(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 4)
    turns.take(6)
    number = turns.ask(Kind.REPLAY, repository="x", since_push=2)
    turns.destination.answer = lambda message: Unavailable("no") if message.replay else None
    turns.take(5)
    assert turns.state.requests.read(number).done_at is None
    turns.loop = turns.begin()
    turns.destination.answer = lambda message: None
    turns.take(10)
    again = [(m.sequence, (m.replay or "").split()[0]) for m in turns.destination.got[4:]]
    assert again == [(2, "dana"), (3, "dana"), (4, "dana")]
    assert turns.position == 4


@pytest.mark.parametrize(
    ("refused", "result"),
    [
        ({1, 2, 3}, "failed: sent 0 of 3 messages again; vcsreplicator errors shows what was rejected or skipped"),
        ({2}, "failed: sent 2 of 3 messages again; vcsreplicator errors shows what was rejected or skipped"),
        (set(), "sent 3 messages again"),
    ],
)
def test_replay_counts_what_its_destination_confirmed(turns: Turns, refused: set[int], result: str) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(5)
    turns.destination.answer = lambda message: Rejected("no") if message.sequence in refused else None
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(30)
    assert turns.state.requests.read(number).result == result
    assert len(turns.log.records(ERRORS)) == len(refused)


def test_replay_of_which_a_message_was_skipped_says_so(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(5)
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(5)
    turns.ask(Kind.SKIP, message=None)
    turns.take(5)
    assert (turns.state.requests.read(number).result or "").startswith("failed: sent 1 of 2 messages again")


@contextmanager
def no_answers(turns: Turns) -> Iterator[None]:
    """The database takes no answers, as a full disk."""
    turns.state.run("CREATE TRIGGER full BEFORE UPDATE ON requests BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    yield
    turns.state.run("DROP TRIGGER full")


def test_replay_whose_end_cannot_be_recorded_is_not_sent_again(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(4)
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    with no_answers(turns):
        turns.take(10)
    turns.take(10)
    assert turns.state.requests.read(number).result == "sent 2 messages again"
    assert len(turns.destination.got) == 4


@pytest.mark.parametrize(
    ("argument", "result"),
    [
        (
            {"repository": "caf\udce9", "since_push": 1},
            "nothing sent: the log has no message for it about caf\ufffd since then",
        ),
        ({"repository": "x"}, "failed: unexpected KeyError: 'since_time'"),
        (
            {"repository": "x", "since_time": "soon"},
            "failed: unexpected ValueError: could not convert string to float: 'soon'",
        ),
    ],
    ids=["no UTF-8", "no begin", "no time"],
)
def test_a_replay_that_can_never_work_is_answered_and_holds_up_nothing(
    turns: Turns, argument: Mapping[str, object], result: str
) -> None:
    publish_pushes(turns.log, "x", 1, 2)
    number, pause = turns.ask(Kind.REPLAY, **argument), turns.ask(Kind.PAUSE)
    turns.take(5)
    assert turns.state.requests.read(number).result == result
    assert turns.state.requests.read(number).has_failed
    assert turns.state.requests.read(pause).result == "paused"
    turns.ask(Kind.RESUME)
    turns.take(5)
    assert turns.destination.told("x") == [1, 2]


def _write_request(turns: Turns, kind: str, argument: str) -> int:
    """A row as another version or a damaged disk may leave it."""
    number = turns.ask(Kind.SKIP)
    turns.state.run("UPDATE requests SET kind = ?, argument = ? WHERE id = ?", (kind, argument, number))
    return number


def test_a_pause_takes_effect_before_the_log_has_its_answer(turns: Turns) -> None:
    number = turns.ask(Kind.PAUSE)
    turns.log.answers_away = True
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(3)
    assert (turns.destination.got, turns.state.requests.read(number).done_at) == ([], None)
    turns.log.answers_away = False
    turns.take(1)
    assert turns.state.requests.read(number).result == "paused"


def test_a_turn_begins_with_what_operators_ask(turns: Turns) -> None:
    turns.ask(Kind.PAUSE)
    publish_pushes(turns.log, "x", 1, 1)
    turns.loop.turn()
    assert turns.loop.window.paused
    assert turns.destination.got == []


def test_a_skip_outlives_the_notifiers_file(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(3)
    turns.ask(Kind.SKIP)
    turns.take(2)
    with closing(StateDatabase(NOWHERE)) as new:
        restore_requests("it", SharedRequests(turns.log), new, turns.log.append)
        assert [each.kind for each in new.list_records("it")] == ["skip"]
        assert len(new.skipped("it", 0)) == 1


def test_request_of_an_unknown_kind_is_answered_and_holds_up_no_other(turns: Turns) -> None:
    unknown, pause = _write_request(turns, "rewind", '{"to": 7}'), turns.ask(Kind.PAUSE)
    turns.take(3)
    assert turns.state.requests.read(pause).result == "paused"
    assert (turns.state.requests.read(unknown).result or "").startswith("failed: unknown kind of request")


@pytest.mark.parametrize("kind", [Kind.SKIP, Kind.REPLAY])
@pytest.mark.parametrize("argument", ["{", "[]", "[" * 100_000], ids=["broken", "list", "deep"])
def test_a_request_with_an_unreadable_argument_is_answered(turns: Turns, kind: Kind, argument: str) -> None:
    publish_pushes(turns.log, "x", 1, 1)
    broken, pause = _write_request(turns, kind.value, argument), turns.ask(Kind.PAUSE)
    turns.take(3)
    assert turns.state.requests.read(broken).result == "failed: the argument of the request cannot be read; ask again"
    assert turns.state.requests.read(pause).result == "paused"


def test_a_running_destination_goes_back_when_the_newest_are_lost(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 5)
    turns.take(8)
    assert turns.position == 5
    turns.log.lose(NOTICES, 0, 3)
    turns.take(8)
    assert turns.position == 2
    publish_pushes(turns.log, "y", 1, 4)
    turns.take(8)
    assert (turns.destination.told("x"), turns.destination.told("y")) == ([1, 2, 3, 4, 5], [1, 2, 3, 4])


def test_a_destination_away_during_a_loss_goes_back_in_the_log_too(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 5)
    turns.take(8)
    turns.log.lose(NOTICES, 0, 3)
    turns.destination.down = Unavailable("away")
    turns.take(2)
    assert turns.position == 2  # killed now, and the log grown past 5: nothing new is passed over


def test_a_destination_goes_back_when_the_log_lost_notices_and_grew(
    turns: Turns,
) -> None:
    publish_pushes(turns.log, "x", 1, 5)
    turns.take(8)
    turns.loop.close()
    turns.log.lose(NOTICES, 0, 3)
    publish_pushes(turns.log, "y", 1, 4)
    turns.loop = turns.begin()
    turns.take(12)
    assert turns.destination.told("y") == [1, 2, 3, 4]
    assert turns.position == 6
    [error] = [from_json(ErrorRecord, record.value or b"") for record in turns.log.records(ERRORS)]
    assert "the log lost notices" in error.reason


def publish_one_by_one(turns: Turns, path: str, first: int, last: int) -> None:
    """With a stored position behind each notice."""
    for seq in range(first, last + 1):
        publish_pushes(turns.log, path, seq, seq)
        turns.take(2)


def publish_both(turns: Turns, one: str, other: str) -> None:
    """With one stored position behind both."""
    for path in (one, other):
        publish_pushes(turns.log, path, 1, 1)
    turns.take(2)


@pytest.mark.parametrize("grown", [0, 2])
@pytest.mark.parametrize("lost", [3, 9, 10])
def test_only_what_the_log_has_behind_a_loss_of_notices_is_sent(turns: Turns, lost: int, grown: int) -> None:
    publish_one_by_one(turns, "x", 1, 10)
    turns.log.lose(NOTICES, 0, lost)
    publish_pushes(turns.log, "y", 1, grown)
    with structlog.testing.capture_logs() as lines:
        turns.take(12)
    end = 10 - lost + grown
    assert (turns.destination.told("x"), turns.position) == ([*range(1, 11)], end)
    assert turns.destination.told("y") == [*range(1, grown + 1)]
    [error] = [from_json(ErrorRecord, record.value or b"") for record in turns.log.records(ERRORS)]
    assert error.reason == (
        f"the log lost notices: it ends at {end}, it had read to 10; everything from {10 - lost} on is sent again"
    )
    assert ("log lost records", error.reason) in [(line["event"], line.get("reason")) for line in lines]
    publish_one_by_one(turns, "y", grown + 1, 4)
    assert turns.destination.told("y") == [1, 2, 3, 4]


def test_each_of_several_losses_of_notices_repeats_nothing(turns: Turns) -> None:
    for path in ("x", "y", "z"):
        publish_one_by_one(turns, path, 1, 5)
        turns.log.lose(NOTICES, 0, 3)
        turns.take(5)
    assert [turns.destination.told(path) for path in ("x", "y", "z")] == [[1, 2, 3, 4, 5]] * 3
    assert turns.position == 6


def test_a_loss_right_after_a_start_repeats_nothing(turns: Turns) -> None:
    publish_one_by_one(turns, "x", 1, 3)
    turns.loop.close()
    turns.loop = turns.begin()
    publish_one_by_one(turns, "x", 4, 5)
    turns.log.lose(NOTICES, 0, 2)
    turns.take(5)
    assert (turns.destination.told("x"), turns.position) == ([1, 2, 3, 4, 5], 3)


@pytest.mark.parametrize("beginning", [0, 5, 7, 8])
def test_expired_notices_do_not_hide_where_a_loss_begins(turns: Turns, beginning: int) -> None:
    publish_one_by_one(turns, "x", 1, 8)
    publish_both(turns, "a", "b")
    turns.log.lose(NOTICES, 0, 1)
    turns.log.beginning = beginning
    turns.take(12)
    assert [turns.destination.told(path) for path in ("x", "a", "b")] == [[*range(1, 9)], [1, 1], [1]]


def test_a_message_held_up_before_the_loss_outlives_a_kill_behind_it(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 1)
    publish_one_by_one(turns, "y", 2, 6)
    turns.log.lose(NOTICES, 0, 2)
    turns.take(5)
    assert (turns.destination.told("y"), turns.position) == ([2, 3, 4, 5, 6], 0)
    turns.loop = turns.begin()
    turns.destination.answer = lambda message: None
    turns.take(30)
    assert (turns.destination.told("x"), turns.position) == ([1], 4)


def test_a_lost_notice_written_again_at_its_place_hides_no_new_one(turns: Turns) -> None:
    """On Kafka it may come to its former place: fewer transactions have fewer ends."""
    publish_one_by_one(turns, "x", 1, 1)
    publish_both(turns, "a", "b")
    publish_one_by_one(turns, "x", 2, 2)
    turns.log.lose(NOTICES, 0, 3)
    for path in ("new", "b"):
        publish_pushes(turns.log, path, 1, 1)
    turns.take(5)
    assert turns.destination.told("new") == [1]


def test_notices_that_expire_while_a_loss_is_looked_for_are_not_lost(turns: Turns) -> None:
    publish_one_by_one(turns, "x", 1, 8)
    turns.log.lose(NOTICES, 0, 2)
    turns.log.before["ends"] = lambda topic, partitions: setattr(turns.log, "beginning", 5)
    turns.take(20)
    assert (turns.destination.told("x"), turns.position) == ([*range(1, 9)], 6)
    [error] = [from_json(ErrorRecord, record.value or b"") for record in turns.log.records(ERRORS)]
    assert "everything from 6 on is sent again" in error.reason


def test_a_log_that_fails_while_the_loss_is_looked_for_is_asked_again(turns: Turns) -> None:
    publish_one_by_one(turns, "x", 1, 5)
    turns.log.lose(NOTICES, 0, 2)
    turns.log.readers_away = True
    turns.take(10)
    assert turns.log.records(ERRORS) == []
    turns.log.readers_away = False
    turns.take(30)
    publish_one_by_one(turns, "y", 1, 2)
    assert (turns.destination.told("x"), turns.destination.told("y")) == ([1, 2, 3, 4, 5], [1, 2])
    assert len(turns.log.records(ERRORS)) == 1


@pytest.mark.parametrize("settled", [0, 2, 5])
def test_a_restart_on_a_log_without_a_loss_repeats_nothing_settled(turns: Turns, settled: int) -> None:
    publish_pushes(turns.log, "x", 1, settled)
    turns.take(8)
    turns.destination.down = Unavailable("away")
    publish_pushes(turns.log, "y", 1, 3)
    turns.take(3)
    note = turns.log.metadata(group("it"), NOTICES).get(0)
    assert (-1 if note is None else from_json(NoticeMark, note.encode()).offset) == settled - 1
    for _ in range(2):
        turns.loop.close()
        turns.loop = turns.begin()
        turns.take(1)
    turns.destination.down = None
    turns.take(100)
    assert turns.destination.told("x") == [*range(1, settled + 1)]
    assert turns.destination.told("y") == [1, 2, 3]
    assert turns.log.records(ERRORS) == []


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_note_of_an_expired_notice_says_nothing(turns: Turns, *, late: bool) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    turns.loop.close()
    turns.log.beginning = 0 if late else 3
    publish_pushes(turns.log, "x", 4, 4)
    turns.loop = turns.begin()
    turns.log.beginning = 3
    turns.take(8)
    assert turns.destination.told("x") == [1, 2, 3, 4]
    assert turns.log.records(ERRORS) == []


def test_the_newest_settled_notices_note_is_kept_without_a_start(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    before = turns.log.metadata(group("it"), NOTICES)
    fail_to_start(turns)
    assert turns.log.metadata(group("it"), NOTICES) == before != {}


class Unopenable(Scripted):
    """Cannot be opened, for the reason given by `down`."""

    def open(self, name: str, clock: Clock, log: AnyLog) -> Scripted:
        assert self.down is not None
        raise self.down


def fail_to_start(turns: Turns) -> None:
    turns.courier.settings = Unopenable(down=Unavailable("no answer"))
    with pytest.raises(Unavailable, match="no answer"):
        turns.courier.run(turns.stored)
    turns.courier.settings = turns.destination


def stop_and_lose_position(turns: Turns) -> None:
    turns.loop.report()
    turns.loop.close()
    turns.log.forget(group("it"), NOTICES)


def test_a_destination_whose_position_the_log_lost_goes_on_where_it_was(turns: Turns) -> None:
    turns.destination.start_at = "end"
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    stop_and_lose_position(turns)
    publish_pushes(turns.log, "x", 4, 6)
    with structlog.testing.capture_logs() as lines:
        turns.loop = turns.begin()
    turns.take(8)
    assert turns.destination.told("x") == [1, 2, 3, 4, 5, 6]
    assert ("the log lost the position", 3) in [(line["event"], line.get("position")) for line in lines]


@pytest.mark.parametrize("count", [1, 5], ids=["shorter", "grown past the position"])
def test_a_destination_names_the_loss_of_notices_with_its_position(turns: Turns, count: int) -> None:
    turns.destination.start_at = "end"
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    stop_and_lose_position(turns)
    turns.log.lose(NOTICES, 0, 3)
    publish_pushes(turns.log, "y", 1, count)
    turns.loop = turns.begin()
    turns.take(12)
    assert turns.destination.told("y") == [*range(1, count + 1)]
    [error] = [from_json(ErrorRecord, record.value or b"") for record in turns.log.records(ERRORS)]
    assert "the log lost notices" in error.reason


def test_a_destination_that_cannot_start_keeps_its_lost_position(turns: Turns) -> None:
    turns.destination.start_at = "end"
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    stop_and_lose_position(turns)
    fail_to_start(turns)
    turns.log.forget(group("it"), NOTICES)
    publish_pushes(turns.log, "x", 4, 5)
    turns.loop = turns.begin()
    turns.take(8)
    assert turns.destination.told("x") == [1, 2, 3, 4, 5]


def test_a_reject_names_exactly_the_notices_that_expired_unread(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 3)
    turns.take(8)
    turns.log.beginning = 6
    publish_pushes(turns.log, "x", 4, 8)
    turns.take(8)
    [error] = [from_json(ErrorRecord, record.value or b"") for record in turns.log.records(ERRORS)]
    assert error.reason.startswith("notices 3 to 5 left the log")
    assert turns.destination.told("x") == [1, 2, 3, 7, 8]


def test_a_skipped_message_stays_skipped_when_the_log_goes_back(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 4)
    turns.take(2)
    number = turns.ask(Kind.SKIP)
    turns.take(12)
    assert turns.destination.told("x")[-3:] == [2, 3, 4]
    assert "skipped" in (turns.state.requests.read(number).result or "")
    turns.destination.answer = lambda message: None
    turns.destination.got.clear()
    turns.loop.close()
    turns.log.lose(NOTICES, 0, 2)
    turns.loop = turns.begin()  # and so all that the log has comes again
    turns.take(8)
    assert turns.destination.told("x") == [2]


def an_id(path: str, seq: int) -> str:
    """The id of the message of this push."""
    [message] = notifier_message.messages(a_notice(an_event(path, seq)), 0, PUBLIC)
    return message.id


X = an_id("x", 1)

NO_FAILED = "nothing skipped: no message that failed waits for another attempt; to skip one after a start, name its id"


def fail_first(message: Message) -> Unavailable | None:
    """The answer of a receiver that takes all but the first message of each repository."""
    return Unavailable("no") if message.sequence == 1 else None


@pytest.mark.parametrize("is_down", [False, True], ids=["up", "away for a moment"])
def test_a_skip_by_id_of_a_stopped_notifier_happens_after_its_start(turns: Turns, *, is_down: bool) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "w", 2, 3)
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(3)
    turns.loop.close()
    wanted = next(message.id for message in turns.destination.tried if message.sequence == 1)
    number = turns.ask(Kind.SKIP, message=wanted)
    turns.loop = turns.begin()
    turns.destination.down = Unavailable("away") if is_down else None
    turns.take(2)
    turns.destination.down = None
    turns.take(10)
    assert turns.state.requests.read(number).result == f"skipped {wanted} of https://hg.example/x"
    assert turns.destination.told("x") == [2]
    assert turns.position == 4


def test_a_skip_by_id_waits_while_the_message_before_it_is_untried(turns: Turns) -> None:
    """The message before it was delivered, and is sent again because a third one holds up the position."""
    turns.destination.answer = lambda message: (
        Unavailable("no") if message.sequence == 2 or message.repo_url.endswith("stuck") else None
    )
    publish_pushes(turns.log, "stuck", 1, 1)
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(3)
    turns.destination.down = Unavailable("away")
    turns.loop.close()
    number = turns.ask(Kind.SKIP, message=an_id("x", 2))
    turns.loop = turns.begin()
    turns.take(8)
    assert turns.state.requests.read(number).result is None
    turns.destination.down = None
    turns.take(10)
    assert turns.state.requests.read(number).result == f"skipped {an_id('x', 2)} of https://hg.example/x"


def test_skip_of_the_oldest_that_failed_skips_nothing_after_a_start(turns: Turns) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(3)
    turns.loop.close()
    number = turns.ask(Kind.SKIP)
    publish_pushes(turns.log, "z", 1, 1)
    turns.destination.answer = lambda message: (
        Unavailable("reset") if [each.id for each in turns.destination.tried].count(message.id) == 1 else None
    )
    turns.loop = turns.begin()
    turns.take(10)
    assert turns.state.requests.read(number).result == NO_FAILED
    assert (turns.destination.told("x"), turns.destination.told("z")) == ([1], [1])


@pytest.mark.parametrize("is_healed", [True, False], ids=["healed", "still stuck"])
def test_skip_means_the_message_that_had_failed_when_it_was_asked(turns: Turns, *, is_healed: bool) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(2)
    turns.clock.advance(10.0)
    turns.loop.begin()
    assert turns.loop.window.in_flight == 1
    number = turns.ask(Kind.SKIP)
    turns.loop.orders.carry_out_requests()
    assert turns.state.requests.read(number).result is None
    turns.destination.answer = lambda message: None if is_healed and message.id == X else fail_first(message)
    turns.loop.collect(0)
    publish_pushes(turns.log, "z", 1, 1)
    turns.take(5)
    expected = NO_FAILED if is_healed else f"skipped {X} of https://hg.example/x"
    assert turns.state.requests.read(number).result == expected
    turns.destination.answer = lambda message: None
    turns.take(10)
    assert (turns.destination.told("x"), turns.destination.told("z")) == ([1] if is_healed else [], [1])


def test_a_skip_of_the_oldest_failure_leaves_a_newer_message(turns: Turns) -> None:
    number = turns.ask(Kind.SKIP)
    late = a_notice(replace(an_event("z", 1), time=turns.clock.now() + 0.5))
    turns.log.append([NewRecord(topic=NOTICES, key="z", value=to_json(late))])
    turns.loop.read()
    turns.loop.begin()
    turns.destination.answer = fail_first
    turns.loop.collect(0)
    turns.take(1)
    assert turns.state.requests.read(number).result == NO_FAILED


def test_a_skip_of_a_skipped_message_waits_for_its_replays_attempt(turns: Turns) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(2)
    wanted = turns.destination.tried[0].id
    turns.ask(Kind.SKIP, message=wanted)
    turns.take(2)
    replay = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(2)
    turns.clock.advance(10.0)
    turns.loop.begin()
    assert turns.loop.window.in_flight == 1
    number = turns.ask(Kind.SKIP, message=wanted)
    turns.loop.orders.carry_out_requests()
    assert turns.state.requests.read(number).result is None
    turns.loop.collect(0)
    turns.take(3)
    assert turns.state.requests.read(number).result == f"skipped {wanted} of https://hg.example/x"
    assert (turns.state.requests.read(replay).result or "").startswith("failed: sent 0 of 1 message again")


def test_skip_of_a_message_behind_one_that_failed_is_answered(turns: Turns) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(3)
    number = turns.ask(Kind.SKIP, message=an_id("x", 2))
    turns.take(1)
    assert (
        turns.state.requests.read(number).result
        == "nothing skipped: a message that failed must be sent before this one"
    )


@pytest.mark.parametrize("kind", [Kind.SKIP, Kind.REPLAY])
def test_pause_does_not_wait_for_a_request_that_needs_a_log_that_is_away(turns: Turns, kind: Kind) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(3)
    argument = {"message": X} if kind is Kind.SKIP else {"repository": "x", "since_push": 1}
    turns.log.ends_away = turns.log.errors_away = True
    number, pause = turns.ask(kind, **argument), turns.ask(Kind.PAUSE)
    turns.take(2)
    assert turns.state.requests.read(number).result is None
    assert turns.state.requests.read(pause).result == "paused"
    assert turns.loop.window.paused
    turns.log.ends_away = turns.log.errors_away = False
    turns.ask(Kind.RESUME)
    turns.destination.answer = lambda message: None
    turns.take(3)
    assert turns.state.requests.read(number).result is not None


@pytest.mark.parametrize("kind", [Kind.SKIP, Kind.REPLAY])
def test_request_leaves_alone_a_log_that_was_away_a_moment_ago(turns: Turns, kind: Kind) -> None:
    turns.destination.answer = fail_first
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(3)
    argument = {"message": X} if kind is Kind.SKIP else {"repository": "x", "since_push": 1}
    number = turns.ask(kind, **argument)
    turns.clock.advance(orders.ASK_EVERY)
    turns.loop.reader.rest(Unavailable("away"))
    assert turns.loop.reader.is_resting
    turns.log.asked.clear()
    turns.loop.orders.carry_out_requests()
    assert (turns.log.asked, turns.state.requests.read(number).result) == ([], None)


def test_a_skip_killed_before_its_answer_happens_after_the_start(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(3)
    number = turns.ask(Kind.SKIP, message=turns.destination.tried[0].id)
    with no_answers(turns):
        turns.take(1)
    assert len(turns.log.records(ERRORS)) == 1
    turns.loop.close()
    turns.loop = turns.begin()
    turns.take(10)
    assert (turns.state.requests.read(number).result or "").startswith("skipped ")
    assert turns.destination.told("x") == [2]


@pytest.mark.parametrize("trouble", ["none", "paused", "down", "log away"])
def test_a_skip_that_finds_nothing_is_answered_once_all_was_read(turns: Turns, trouble: str) -> None:
    publish_pushes(turns.log, "x", 1, 2)
    turns.loop.close()
    turns.loop = turns.begin()
    if trouble == "paused":
        turns.ask(Kind.PAUSE)
    turns.destination.down = Unavailable("away") if trouble == "down" else None
    turns.log.away = trouble == "log away"
    number = turns.ask(Kind.SKIP, message="f" * 32 + ".changegroup.1")
    turns.take(8)
    assert turns.state.requests.read(number).has_failed == (trouble != "log away")
    turns.log.away = False
    turns.take(80)
    assert turns.state.requests.read(number).result == "nothing skipped: no such message waits for another attempt"


def test_skip_of_a_message_that_was_skipped_already_is_done(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no") if message.sequence == 1 else None
    publish_pushes(turns.log, "x", 1, 2)
    turns.take(2)
    first, second = (turns.ask(Kind.SKIP, message=turns.destination.tried[0].id) for _ in range(2))
    turns.take(5)
    assert (turns.state.requests.read(first).result or "").startswith("skipped ")
    assert turns.state.requests.read(second).result == f"skipped {turns.destination.tried[0].id} before"
    assert len(turns.log.records(ERRORS)) == 1


def test_a_log_that_took_no_position_is_asked_again_at_the_end(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 1)
    turns.log.commits_away, turns.log.commits = True, 0
    turns.take()
    for _ in range(5):
        turns.loop.reader.store_position()
    assert turns.log.commits == 1
    turns.loop.reader.store_position(at_once=True)
    assert turns.log.commits == 2
    turns.log.commits_away = False
    turns.clock.advance(10.0)
    turns.take()
    assert turns.position == 1


def test_the_reason_of_a_stuck_repository_stays_while_others_go(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no mirror") if message.repo_url.endswith("/x") else None
    publish_pushes(turns.log, "x", 1, 1)
    turns.take()
    began = turns.clock.now()
    for number in range(1, 6):
        publish_pushes(turns.log, "y", number, number)
        turns.take()
    assert turns.destination.told("y") == [1, 2, 3, 4, 5]
    assert reported_troubles(turns) == ["destination it is failing: no mirror; see: vcsreplicator destination list"]
    kept = turns.state.conditions()["it"]
    assert (kept["trouble"], kept["since"]) == ("no mirror", began)
    turns.destination.answer = lambda message: None
    turns.take(5)
    assert reported_troubles(turns) == []
    assert turns.loop.condition.trouble is None


def test_trouble_is_that_of_the_repository_that_has_been_stuck_longest(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable(message.repo_url.rsplit("/", 1)[-1])
    began = []
    for path in ("x", "y"):
        publish_pushes(turns.log, path, 1, 1)
        turns.take()
        began.append(turns.clock.now())
        turns.take(2)
    trouble = turns.loop.condition.trouble
    assert trouble is not None
    assert (trouble.text, trouble.since) == ("x", began[0])
    turns.destination.answer = lambda message: Unavailable("still y") if message.repo_url.endswith("/y") else None
    turns.take(5)
    trouble = turns.loop.condition.trouble
    assert trouble is not None
    assert (trouble.text, trouble.since) == ("still y", began[1])


def test_reason_of_a_message_that_was_skipped_is_gone(turns: Turns) -> None:
    turns.destination.answer = lambda message: Unavailable("no mirror") if message.repo_url.endswith("/x") else None
    publish_pushes(turns.log, "x", 1, 1)
    turns.take(2)
    assert turns.loop.condition.trouble is not None
    assert turns.loop.condition.trouble.text == "no mirror"
    turns.ask(Kind.SKIP, message=turns.destination.tried[0].id)
    turns.take(3)
    assert reported_troubles(turns) == []


def reported(turns: Turns) -> list[tuple[str, bool]]:
    """The troubles in the newest report, and whether waiting does not end them."""
    found = from_json(ServiceReport, turns.log.records(SERVICES)[-1].value or b"").troubles
    return [(trouble.text, trouble.is_permanent) for trouble in found]


def test_a_destination_that_cannot_say_which_parts_fail_reports_that(turns: Turns) -> None:
    wrong: list[ReplicationError] = [Unavailable("/d.db: disk I/O error")]

    class Parted(Scripted):  # a class of its own: Python remembers which classes have the method
        def find_troubles(self) -> Sequence[ServiceTrouble]:
            if wrong:
                raise wrong[0]
            return ()

    turns.loop.destination = Parted()
    turns.loop.report()
    text = "destination it does not know what fails: /d.db: disk I/O error; see: vcsreplicator destination list"
    assert reported(turns) == [(text, False)]
    wrong.clear()
    turns.clock.advance(REPORT_INTERVAL)
    turns.loop.report()
    assert reported(turns) == []


def test_a_destination_reports_at_once_when_the_log_answers_again(turns: Turns) -> None:
    """Otherwise `check` says for twenty seconds that its notifier does not run."""
    turns.log.away = True
    turns.take(1)
    turns.loop.report()
    assert turns.log.records(SERVICES) == []
    turns.log.away = False
    turns.take(3)
    turns.loop.report()
    assert reported(turns) == []


@pytest.mark.parametrize(
    ("destination", "is_permanent"),
    [(Unopenable(down=BadConfig("password: not set")), True), (Unopenable(down=Unavailable("no answer")), False)],
)
def test_what_an_operator_must_correct_is_reported_as_lasting(turns: Turns, is_permanent: bool) -> None:
    with pytest.raises(Unavailable):
        turns.courier.run(turns.stored)
    text = f"destination it is failing: {turns.destination.down}; see: vcsreplicator destination list"
    assert reported(turns) == [(text, is_permanent)]


def test_a_log_that_answered_is_asked_again_as_at_its_first_failure(turns: Turns) -> None:
    for _ in range(2):
        turns.log.away = True
        turns.take(1)
        assert turns.loop.reader.is_resting
        turns.clock.advance(RECONNECT.delay(1, 0.5))
        assert not turns.loop.reader.is_resting
        turns.take(60)
        turns.log.away = False
        turns.take(120)
        assert not turns.loop.reader.is_resting


class Backup:
    """The notices of a broker of its own, which comes back with those that it had; the destination that gets them."""

    def __init__(self, kafka: Kafka, log: AnyLog, folder: Path) -> None:
        self._kafka, self.log, self._copy = kafka, log, folder / "copy"
        self.turns = Turns(folder, Scripted(), log)

    def _find_files(self) -> Path:
        [found] = (self._kafka.folder / "data").rglob("p-notices-0")
        return found

    def keep(self) -> None:
        self._kafka.pause()
        shutil.copytree(self._find_files(), self._copy)
        self._kafka.resume()

    def restore(self) -> None:
        self._kafka.kill()
        files = self._find_files()
        shutil.rmtree(files)
        shutil.copytree(self._copy, files)
        self._kafka.start()

    def commit(self, path: str, *seqs: int, identity: str = "aggregator") -> list[tuple[int, int]]:
        """Publish in one transaction, whose end follows; return the places."""
        notices = [to_json(a_notice(an_event(path, seq))) for seq in seqs]
        with closing(self.log.transactor(identity)) as transactor:
            return transactor.commit([NewRecord(topic=NOTICES, key=path, value=notice) for notice in notices])

    def settle(self, position: int) -> None:
        eventually(lambda: self.turns.take() or (self.log.stored(group("it"), NOTICES).get(0) or 0) >= position)


@pytest.fixture
def backup(own_service: Callable[[type[Kafka]], Kafka], tmp_path: Path) -> Iterator[Backup]:
    kafka = own_service(Kafka)
    with open_log(f"{kafka.url}?topic-prefix=p-") as log:
        made = Backup(kafka, log, tmp_path)
        with closing(made.turns.state):
            yield made
            made.turns.loop.close()


def test_a_destination_goes_back_when_a_broker_came_back_older(backup: Backup) -> None:
    log, turns = backup.log, backup.turns
    publish_pushes(log, "x", 1, 2)
    backup.keep()
    publish_pushes(log, "x", 3, 5)
    backup.settle(5)
    turns.loop.close()
    backup.restore()
    assert log.ends(NOTICES) == {0: 2}
    assert log.stored(group("it"), NOTICES) == {0: 5}
    # The marker of the first transaction stands where the newest settled notice did.
    assert backup.commit("y", 1, 2) == [(0, 2), (0, 3)]
    assert backup.commit("y", 3, 4) == [(0, 5), (0, 6)]
    turns.loop = turns.begin()
    turns.clock.advance(CHECK_EVERY)
    eventually(lambda: turns.take() or turns.destination.told("y") == [1, 2, 3, 4])


def test_a_running_destination_repeats_nothing_of_a_broker_back_older(backup: Backup) -> None:
    turns = backup.turns
    for number, first in enumerate((1, 3, 5)):
        backup.commit("x", first, first + 1)
        backup.settle(3 * number + 2)
        if number == 0:
            backup.keep()
    backup.restore()
    # Another record, and the end of its transaction, stand where settled notices did.
    backup.commit("y", *range(1, 8), identity="another")
    eventually(lambda: turns.take() or turns.destination.told("y") == [*range(1, 8)])
    assert turns.destination.told("x") == [*range(1, 7)]
    with closing(backup.log.reader({(ERRORS, 0): 0})) as reader:
        [kept] = eventually(lambda: reader.poll(0.1))
    assert "everything from 2 on is sent again" in from_json(ErrorRecord, kept.value or b"").reason


def test_the_end_of_an_expired_transaction_is_no_lost_notice(kafka: Kafka, unique_name: str, tmp_path: Path) -> None:
    storage = kafka_storage(kafka, unique_name)
    with open_log(storage.url) as log:
        turns = Turns(tmp_path, Scripted(), log)
        with closing(turns.state), closing(log.transactor("aggregator")) as aggregator:

            def publish(seq: int) -> None:
                notice = to_json(a_notice(an_event("x", seq)))
                aggregator.commit([NewRecord(topic=NOTICES, key="x", value=notice)])
                eventually(lambda: log.ends(NOTICES) == {0: 2 * seq}, "the notice and the end of its transaction")

            publish(1)
            eventually(lambda: turns.take() or turns.loop.drain() or turns.loop.reader.stored == 2)
            turns.loop.close()
            storage.forget(NOTICES, 0, 2)
            turns.loop = turns.begin()
            publish(2)
            eventually(lambda: turns.take() or turns.destination.told("x") == [1, 2])
            turns.loop.close()
            assert log.ends(ERRORS) == {0: 0}


@pytest.mark.usefixtures("replay_in_twos")
def test_a_replay_says_how_far_it_is(turns: Turns) -> None:
    publish_pushes(turns.log, "x", 1, 10)
    turns.take(12)
    number = turns.ask(Kind.REPLAY, repository="x", since_push=1)
    turns.take(3)
    turns.loop.report()
    read, total = turns.state.replay_of("it", number) or (0, 0)
    assert 0 < read < total == 10
    turns.take(20)
    turns.loop.report()
    assert turns.state.replay_of("it", number) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [(Unavailable("no"), {"delivery failed"}), (Rejected("no"), {"delivery refused", "delivery rejected"})],
    ids=["failed", "rejected"],
)
def test_a_line_about_a_delivery_names_message_repository_and_event(
    turns: Turns, answer: ReplicationError, words: set[str]
) -> None:
    turns.destination.answer = lambda message: answer
    event = an_event("x", 7)
    turns.log.append([NewRecord(topic=NOTICES, key=event.repository, value=to_json(a_notice(event)))])
    with structlog.testing.capture_logs() as lines:
        turns.take(10)
    assert {line["event"] for line in lines} & {"delivery failed", "delivery refused", "delivery rejected"} == words
    for line in lines:
        if line["event"] in words:
            assert (line["repository"], line["seq"], line["event_id"]) == (event.repository, 7, event.id)
            assert line["message"].startswith(event.id)


@pytest.fixture
def ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "DRAIN", 0.0)


@pytest.mark.usefixtures("ends_at_once")
def test_room_from_a_confirmation_during_a_read_is_used_at_once(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_pushes(turns.log, "r", 1, 3 * reading.BATCH)
    confirmed: list[Delivery] = []
    tried: list[int] = []
    read = turns.loop.read

    def read_meanwhile() -> bool:
        tried.append(len(turns.destination.tried))
        confirmed[:], turns.destination.submitted = turns.destination.submitted, []
        return read()

    def answer(timeout: float) -> list[DeliveryOutcome]:
        if timeout:
            turns.courier.stop.set()
        found = [DeliveryOutcome(number=delivery.number) for delivery in confirmed]
        confirmed.clear()
        return found

    monkeypatch.setattr(turns.loop, "read", read_meanwhile)
    turns.destination.answer_wait = answer
    turns.loop.work()
    assert tried[:3] == [0, 1, 2]


@pytest.mark.usefixtures("ends_at_once")
def test_no_confirmation_is_waited_for_while_notices_come(turns: Turns) -> None:
    """A destination that works meanwhile would have nothing to do while the next notices are read."""
    publish_pushes(turns.log, "r", 1, 2 * reading.BATCH + 1)
    waits: list[tuple[float, int]] = []

    def note_wait(timeout: float) -> list[DeliveryOutcome]:
        waits.append((timeout, turns.loop.window.waiting))
        if timeout:
            turns.courier.stop.set()
        return []

    turns.destination.answer_wait = note_wait
    turns.loop.work()
    batches = [reading.BATCH, 2 * reading.BATCH, 2 * reading.BATCH + 1]
    assert waits == [*((0, read) for read in batches), (courier.BUSY_WAIT, batches[-1])]


def reported_troubles(turns: Turns) -> list[str]:
    """What the destination's newest report names."""
    turns.loop.report()
    newest = [record for record in turns.log.records(SERVICES) if record.key == "destination it"][-1]
    return [trouble.text for trouble in from_json(ServiceReport, newest.value or b"").troubles]


def test_of_two_notifiers_the_older_sends_nothing_and_moves_no_position(turns: Turns, tmp_path: Path) -> None:
    """As one that was stopped for a while, and goes on."""
    publish_pushes(turns.log, "x", 1, 1)
    turns.take()
    second = Turns(tmp_path / "elsewhere", Scripted(), turns.log)
    second.log = turns.log
    publish_pushes(turns.log, "x", 2, 3)
    turns.clock.advance(CHECK_EVERY)
    with pytest.raises(Fenced):
        turns.take()
    second.take(2)
    assert (turns.destination.told("x"), second.destination.told("x")) == ([1], [2, 3])
    with pytest.raises(Fenced):
        turns.stored.store(1, None)
    assert turns.position == 3
    second.state.close()


def test_a_fenced_notifier_answers_no_request_in_the_log(turns: Turns) -> None:
    """Another notifier carries it out, and its answer would be overwritten."""
    number = turns.ask(Kind.PAUSE)
    StoredPosition("it", turns.log, turns.clock)
    turns.clock.advance(2.0)  # it is not known yet that another one began
    with pytest.raises(Fenced):
        turns.loop.orders.carry_out_requests()
    assert (turns.log.records(NOTIFIER), turns.state.requests.read(number).done_at) == ([], None)


class Keeping(Scripted):
    """A destination that owes a record at its start, when another notifier begins."""

    turns: Turns

    def restore(self, write: Write) -> None:
        StoredPosition("it", self.turns.log, self.turns.clock)
        write([NewRecord(topic=NOTIFIER, key="owed/it/ci/m/", value=b"{}")])

    def secure(self, position: int) -> int:
        return position

    def carry_out(self, request: OperatorRequest) -> str:
        return f"{request.members['name']} added"


def test_a_fenced_notifier_puts_nothing_it_owes_into_the_log(tmp_path: Path) -> None:
    """Another one has delivered it, and would take it for owed at its next start."""
    destination = Keeping()
    destination.turns = turns = Turns(tmp_path, destination)
    with pytest.raises(Fenced):
        turns.courier.run(turns.stored)
    assert turns.log.records(NOTIFIER) == []
    turns.state.close()


def test_an_answered_request_keeps_no_header_of_a_subscription(tmp_path: Path) -> None:
    turns = Turns(tmp_path, Keeping())
    number = turns.ask(Kind.SUBSCRIBE, name="ci", subscription={"headers": {"authorization": "secret"}})
    turns.take()
    assert turns.state.requests.read(number).result == "ci added"
    [answered] = turns.state.list_records("it")
    assert [record.value for record in turns.log.records(NOTIFIER)] == [to_json(answered)]
    assert answered.argument == '{"name": "ci"}'
    turns.state.close()


def test_a_destination_without_subscriptions_gets_none(turns: Turns) -> None:
    number = turns.ask(Kind.SUBSCRIBE, name="ci", subscription={})
    turns.take()
    assert turns.state.requests.read(number).result == "failed: it is no webhook: it has no subscriptions"


@pytest.mark.parametrize("destination", [Unopenable(down=Unavailable("no route"))])
def test_a_destination_that_never_began_finds_itself_fenced(turns: Turns) -> None:
    turns.log.forget(group("it"), NOTICES)
    StoredPosition("it", turns.log, turns.clock)
    with pytest.raises(Unavailable):
        turns.courier.run(turns.stored)
    turns.clock.advance(CHECK_EVERY)
    with pytest.raises(Fenced):
        turns.courier.run(turns.stored)


def test_what_is_in_the_window_is_sent_while_the_log_does_not_answer(turns: Turns) -> None:
    turns.destination.down = Unavailable("no route")
    publish_pushes(turns.log, "x", 1, 2)
    turns.take()
    turns.log.commits_away = True
    turns.destination.down = None
    turns.clock.advance(CHECK_EVERY)
    turns.take(10)
    assert turns.destination.told("x") == [1, 2]
    assert turns.position == 0


def test_a_position_whose_storing_is_unclear_is_stored_again(turns: Turns) -> None:
    """By a transactor that was renewed: otherwise it commits nothing any more."""
    turns.log.fail_commits = [True, False]
    for number in range(1, 4):
        publish_pushes(turns.log, "x", number, number)
        turns.take(3)
    assert turns.position == 3
    assert turns.destination.told("x") == [1, 2, 3]


def test_a_batch_of_notices_costs_a_single_transaction(turns: Turns) -> None:
    turns.log.commits = 0
    for number in range(3 * reading.BATCH):
        publish_pushes(turns.log, f"x{number}", 1, 1)
    turns.clock.advance(CHECK_EVERY)
    turns.take(4)
    assert len(turns.destination.got) == turns.position == 3 * reading.BATCH
    assert turns.log.commits == 4, "one asks whether it is fenced, and one for each batch stores the position"


def test_a_steady_stream_costs_two_positions_a_second(turns: Turns) -> None:
    turns.log.commits = 0
    for number in range(1, 41):
        publish_pushes(turns.log, "x", number, number)
        turns.take(2, seconds=0.025)
    assert len(turns.destination.got) == 40
    assert 4 <= turns.log.commits <= 5, "in two seconds"
    turns.take()
    assert turns.position == 40


def test_a_courier_that_has_not_begun_is_woken_too(turns: Turns) -> None:
    turns.courier.wake()
    turns.courier.stop.set()
    turns.courier.run(turns.stored)
    turns.courier.wake()
    assert turns.log.notices.woken


def test_a_turn_sends_settles_and_stores_what_it_reads(turns: Turns) -> None:
    publish_pushes(turns.courier.log, "x", 1, 1)
    turns.loop.turn()
    assert [message.seq for message in turns.destination.tried] == [1]
    turns.clock.advance(CHECK_EVERY)
    turns.loop.turn()
    assert ([message.seq for message in turns.destination.got], turns.position) == ([1], 1)
    assert turns.state.conditions()["it"]["position"] == 1


def test_a_destination_that_is_away_is_left_alone_counted_and_asked_again(turns: Turns) -> None:
    turns.courier.name = turns.loop.name = "was away"
    turns.destination.down = Unavailable("closed")
    turns.loop.connect()
    assert turns.loop.condition.trouble is not None
    assert not turns.loop.window.idle(turns.clock.monotonic())
    failed = REGISTRY.get_sample_value("vcsreplicator_notifier_failed_attempts_total", {"destination": "was away"})
    assert failed == 1.0
    turns.destination.down = None
    turns.loop.turn()
    assert turns.loop.condition.trouble is not None
    turns.clock.advance(turns.destination.patience.retry.longest)
    turns.loop.turn()
    assert turns.loop.condition.trouble is None
