# SPDX-License-Identifier: GPL-2.0-or-later
"""The watch over queues of a real broker, with a real mail server: one mail for each crossing, despite kills in between."""

import itertools
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog

from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.log import WATCHES, Log, owned
from hgext.vcsreplicator.log.owned import CHECK_EVERY
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Fenced, Unavailable
from hgext.vcsreplicator.words.records import ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from notifier.services.guardian import management, watching
from notifier.services.guardian.broker import DeletionOutcome, connected, delete_queue
from notifier.services.guardian.filling import QueueStep
from notifier.services.guardian.settings import Deletion, GuardianSettings
from notifier.services.guardian.state import GuardianState
from notifier.services.guardian.watching import LOST_REPORTS, QUEUES, WAITING, QueueFinding, QueueWatch, keep_watching
from testing.builders.log.memorylog import MemoryLog
from testing.builders.notifier.mailbox import Mailbox
from testing.builders.notifier.notices import with_topics
from testing.clock import HandClock
from testing.metrics import value_of
from testing.waiting import eventually
from tests.notifier.services.guardian.conftest import FILE, OPERATOR, Guarded, some_settings

pytestmark = pytest.mark.processes

NEAR, BEYOND, DELETED = "near its limit", "beyond its limit", "deleted"


@pytest.fixture
def watch(settings: GuardianSettings, log: Log) -> Iterator[QueueWatch]:
    with closing(QueueWatch(settings, FILE, log)) as watch:
        yield watch


def watching_with(settings: GuardianSettings, log: Log, **changed: Any) -> Any:
    return closing(QueueWatch(replace(settings, **changed), FILE, log))


def counted(guarded: Guarded, queue: str, messages: int) -> None:
    """Wait until the broker's statistics have caught up with the queue."""
    vhost = guarded.settings.vhost
    eventually(lambda: (guarded.management.get("queues", vhost, queue) or {}).get("messages") == messages, "the count")


def filled(guarded: Guarded, client: str, messages: int, name: str = "q", **arguments: Any) -> str:
    queue = guarded.queue(client, name, messages, **arguments)
    counted(guarded, queue, messages)
    return queue


def drained(guarded: Guarded, queue: str) -> None:
    guarded.channel().queue_purge(queue)
    counted(guarded, queue, 0)


def exists(guarded: Guarded, queue: str) -> bool:
    return guarded.management.get("queues", guarded.settings.vhost, queue) is not None


def subjects(mailbox: Mailbox, address: str) -> list[str]:
    return [mail["Subject"] for mail in mailbox.to(address)]


def found(watch: QueueWatch, queue: str) -> QueueFinding:
    [each] = [each for each in watch.round() if each.queue.name == queue]
    return each


def test_the_owner_is_mailed_once_for_each_crossing(guarded: Guarded, watch: QueueWatch, mailbox: Mailbox) -> None:
    me = guarded.add("alice", "alice@owners.example")
    queue = filled(guarded, me, 4)
    for _ in range(3):
        watch.round()
    assert subjects(mailbox, "alice@owners.example") == [f"Pulse: {queue}: {NEAR}"]
    drained(guarded, queue)
    watch.round()
    guarded.fill(queue, 5)
    counted(guarded, queue, 5)
    watch.round()
    assert len(mailbox.mails) == 2
    guarded.fill(queue, 4)
    counted(guarded, queue, 9)
    watch.round()
    assert subjects(mailbox, "alice@owners.example")[2:] == [f"Pulse: {queue}: {BEYOND}"]
    assert exists(guarded, queue)


def test_a_queue_that_is_declared_anew_is_warned_of_again(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    me = guarded.add()
    for _ in range(2):
        queue = filled(guarded, me, 4)
        watch.round()
        guarded.channel().queue_delete(queue)
        eventually(lambda: not exists(guarded, queue))  # noqa: B023
        watch.round()
    assert len(mailbox.mails) == 2


def test_a_watch_that_starts_again_knows_what_was_mailed(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    filled(guarded, guarded.add(), 4)
    for _ in range(2):
        with watching_with(settings, log) as watch:
            watch.round()
    assert len(mailbox.mails) == 1


def test_reports_of_a_round_are_one_mail_for_each_owner(guarded: Guarded, watch: QueueWatch, mailbox: Mailbox) -> None:
    me = guarded.add("alice", "alice@owners.example")
    for name in "ab":
        filled(guarded, me, 4, name)
    watch.round()
    [text] = [mail.get_content() for mail in mailbox.to("alice@owners.example")]
    assert f"queue/{me}/a: 4 messages" in text
    assert f"queue/{me}/b: 4 messages" in text


def test_a_queue_of_no_client_is_reported_to_the_operator(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    queue = filled(guarded, "stranger", 4)
    watch.round()
    assert subjects(mailbox, OPERATOR) == [f"Pulse: {queue}: {NEAR}"]


def test_a_queue_beyond_the_limit_is_deleted_and_its_owner_reads_it(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    me = guarded.add("alice", "alice@owners.example")
    queue, other = filled(guarded, me, 9), filled(guarded, me, 3, "other")
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        assert found(watch, queue).step is QueueStep.DELETE
        watch.round()
    assert not exists(guarded, queue)
    assert exists(guarded, other)
    assert subjects(mailbox, "alice@owners.example") == [f"Pulse: {queue}: {DELETED}"]


def test_a_queue_that_shrank_after_the_list_was_made_is_not_deleted(
    guarded: Guarded, settings: GuardianSettings, monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox, log: Log
) -> None:
    queue = filled(guarded, guarded.add(), 9)

    def shrink_first(settings: GuardianSettings, name: str) -> tuple[DeletionOutcome, int]:
        guarded.channel().basic_get(queue, no_ack=True)
        return delete_queue(settings, name)

    monkeypatch.setattr(watching, "delete_queue", shrink_first)
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        assert found(watch, queue).step is QueueStep.REPORT
    assert exists(guarded, queue)
    assert "deleted" not in mailbox.mails[0]["Subject"]


def test_a_queue_with_a_consumer_is_kept_where_unused_ones_go(guarded: Guarded, settings: GuardianSettings) -> None:
    queue = filled(guarded, guarded.add(), 20)
    channel = guarded.channel()
    channel.basic_qos(0, 1, False)
    tag = channel.basic_consume(queue, callback=lambda message: None)
    assert delete_queue(replace(settings, delete=Deletion.UNUSED), queue)[0] is DeletionOutcome.IN_USE
    assert exists(guarded, queue)
    channel.basic_cancel(tag)
    assert delete_queue(replace(settings, delete=Deletion.UNUSED), queue)[0] is DeletionOutcome.DELETED


def test_another_connections_exclusive_queue_is_kept(guarded: Guarded, settings: GuardianSettings) -> None:
    guarded.channel().queue_declare("queue/x/mine", exclusive=True)
    assert delete_queue(replace(settings, delete=Deletion.YES), "queue/x/mine")[0] is DeletionOutcome.IN_USE


class Killed(BaseException):
    """The process ends here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool) -> Callable[[], None]:
    """End the process when it calls this, before or after it is done; returns what lets the next one live."""
    real = getattr(owner, name)

    def kill(*arguments: Any, **named: Any) -> Any:
        if not before:
            real(*arguments, **named)
        raise Killed

    monkeypatch.setattr(owner, name, kill)
    return lambda: monkeypatch.setattr(owner, name, real)


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [
        (GuardianState, "begin_deletion", False),
        (watching, "delete_queue", False),
        (GuardianState, "end_deletion", False),
        (watching, "compose", True),
        (GuardianState, "forget_reports", True),
    ],
)
def test_a_deletion_is_mailed_wherever_the_watch_is_killed(
    guarded: Guarded,
    settings: GuardianSettings,
    mailbox: Mailbox,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: bool,
    log: Log,
) -> None:
    queue = filled(guarded, guarded.add("alice", "alice@owners.example"), 9)
    live = killed_at(monkeypatch, owner, name, before=before)
    with pytest.raises(Killed), watching_with(settings, log, delete=Deletion.YES) as watch:
        watch.round()
    live()
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        watch.round()
        assert watch.state.reports() == {}
        assert watch.state.deletions() == []
    assert not exists(guarded, queue)
    mails = subjects(mailbox, "alice@owners.example")
    assert set(mails) == {f"Pulse: {queue}: {DELETED}"}
    assert len(mails) == (2 if name == "forget_reports" else 1)


def test_a_queue_made_anew_after_a_broken_deletion_is_reported(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    me = guarded.add("alice", "alice@owners.example")
    queue = filled(guarded, me, 9)
    live = killed_at(monkeypatch, watching, "delete_queue", before=False)
    with pytest.raises(Killed), watching_with(settings, log, delete=Deletion.YES) as watch:
        watch.round()
    live()
    guarded.queue(me)
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        watch.round()
    assert exists(guarded, queue)
    assert "deleted, perhaps" in mailbox.to("alice@owners.example")[0].get_content()


def test_mails_wait_for_a_mail_server_that_is_away(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    filled(guarded, guarded.add(), 4)
    with watching_with(settings, log, smtp_url=f"smtp://127.0.0.1:{free_port()}") as watch:
        watch.round()
        assert value_of(WAITING) == 1
    with watching_with(settings, log) as watch:
        watch.round()
        assert value_of(WAITING) == 0
    assert len(mailbox.mails) == 1


def test_what_an_owners_address_refuses_goes_to_the_operator(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    mailbox.replies["alice@owners.example"] = "550 no such mailbox"
    queue = filled(guarded, guarded.add("alice", "alice@owners.example"), 4)
    for _ in range(3):
        watch.round()
    assert subjects(mailbox, OPERATOR) == [f"Pulse: {queue}: {NEAR}"]
    assert watch.state.reports() == {}


class HurriedClock(SystemClock):
    """A clock by which there is time for one mail in each round."""

    def __init__(self) -> None:
        self._readings = itertools.count()

    def monotonic(self) -> float:
        return 29.0 * next(self._readings)


def test_a_slow_mail_server_holds_up_no_round_and_each_owner_has_a_turn(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    owners = [f"{name}@owners.example" for name in ("alice", "bob", "carol")]
    mailbox.replies[owners[0]] = "451 4.3.0 temporary lookup failure"
    for owner in owners:
        filled(guarded, guarded.add(owner.partition("@")[0], owner), 4)
    with closing(QueueWatch(settings, FILE, log, HurriedClock())) as watch:
        sent = [watch.round() and [len(mailbox.to(owner)) for owner in owners] for _ in range(4)]
    assert sent == [[0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1]]


def test_an_address_that_takes_nothing_now_holds_up_no_other(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    mailbox.replies["alice@owners.example"] = "452 4.2.2 mailbox full"
    full = filled(guarded, guarded.add("alice", "alice@owners.example"), 4)
    other = filled(guarded, guarded.add("bob", "bob@owners.example"), 4)
    with structlog.testing.capture_logs() as lines:
        watch.round()
        watch.round()
    assert subjects(mailbox, "bob@owners.example") == [f"Pulse: {other}: {NEAR}"]
    assert [line["owner"] for line in lines if line["event"] == "mail not sent"] == ["alice@owners.example"]
    del mailbox.replies["alice@owners.example"]
    watch.round()
    assert subjects(mailbox, "alice@owners.example") == [f"Pulse: {full}: {NEAR}"]


def test_reports_for_which_a_mail_has_no_room_are_in_the_next(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LISTED", 2)
    queues = {filled(guarded, "stranger", 4, f"q{number}") for number in range(3)}
    for _ in range(2):
        watch.round()
    assert len(mailbox.to(OPERATOR)) == 2
    told = " ".join(mail.get_content() for mail in mailbox.to(OPERATOR))
    assert all(queue in told for queue in queues)
    assert watch.state.reports() == {}


def test_what_the_operators_address_refuses_is_not_tried_for_ever(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    mailbox.replies[OPERATOR] = "550 no such mailbox"
    filled(guarded, "stranger", 4)
    watch.round()
    assert watch.state.reports() == {}


def test_what_every_address_refuses_is_in_the_log_and_counted(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    mailbox.replies["alice@owners.example"] = mailbox.replies[OPERATOR] = "550 no such mailbox"
    queue = filled(guarded, guarded.add("alice", "alice@owners.example"), 4)
    before = value_of(LOST_REPORTS)
    with structlog.testing.capture_logs() as lines:
        watch.round()
        watch.round()
    refused = [(line["owner"], line["queues"]) for line in lines if line["event"] == "mail refused"]
    assert refused == [("alice@owners.example", [queue]), (OPERATOR, [queue])]
    [lost] = [line for line in lines if line["event"] == "report lost"]
    assert (lost["log_level"], lost["queue"], lost["messages"], lost["what"]) == ("error", queue, 4, NEAR)
    assert value_of(LOST_REPORTS) == before + 1


def test_a_dry_run_mails_deletes_and_remembers_nothing(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, tmp_path: Any
) -> None:
    queue = filled(guarded, guarded.add(), 9)
    with closing(QueueWatch(replace(settings, delete=Deletion.YES), FILE, None)) as watch:
        assert found(watch, queue).step is QueueStep.DELETE
    assert exists(guarded, queue)
    assert mailbox.mails == []
    assert list(tmp_path.glob("guardian*")) == []


def test_odd_queues_are_counted(guarded: Guarded, watch: QueueWatch) -> None:
    me = guarded.add()
    filled(guarded, me, 1, "bounded", **{"x-max-length": 5})
    guarded.channel(me).queue_declare(f"exchange/{me}/queue", durable=True, auto_delete=False)
    watch.round()
    values = {state: value_of(QUEUES.labels(state)) for state in ("all", "unconsumed", "unbounded", "misnamed")}
    assert values == {"all": 2, "unconsumed": 2, "unbounded": 1, "misnamed": 1}


def test_queues_are_read_page_by_page(guarded: Guarded, watch: QueueWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.services.guardian.management.PAGE", 2)
    me = guarded.add()
    names = {guarded.queue(me, name) for name in "abcde"}
    assert {each.queue.name for each in watch.round()} == names


def test_a_deletion_that_fails_does_not_hold_up_other_queues(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    me = guarded.add("alice", "alice@owners.example")
    bad, good = filled(guarded, me, 9, "bad"), filled(guarded, me, 9, "good")

    def fail(settings: GuardianSettings, name: str) -> tuple[DeletionOutcome, int]:
        if name == bad:
            raise Unavailable("541 INTERNAL_ERROR")
        return delete_queue(settings, name)

    monkeypatch.setattr(watching, "delete_queue", fail)
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        watch.round()
        watch.round()
    assert (exists(guarded, bad), exists(guarded, good)) == (True, False)
    assert f"{good}: 9 messages: deleted" in mailbox.to("alice@owners.example")[0].get_content()


def test_a_guardian_that_was_replaced_neither_mails_nor_deletes(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    clock = HandClock()
    with closing(QueueWatch(replace(settings, delete=Deletion.YES), FILE, log, clock)) as former:
        queue = filled(guarded, guarded.add(), 9)
        with watching_with(settings, log, delete=Deletion.YES):
            with pytest.raises(Fenced):
                former.round()
            clock.advance(CHECK_EVERY)
            with pytest.raises(Fenced):
                former.round()
    assert exists(guarded, queue)
    assert mailbox.mails == []


def test_a_guardian_replaced_amid_a_round_repeats_at_most_one_mail(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice", "bob"):
        filled(guarded, guarded.add(name, f"{name}@owners.example"), 4)
    compose, others = watching.compose, list[QueueWatch]()

    def replace_first(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(watching, "compose", compose)
        with watching_with(settings, log) as other:
            others.append(other)
            other.round()
        return compose(*arguments, **named)

    monkeypatch.setattr(watching, "compose", replace_first)
    with watching_with(settings, log) as former, pytest.raises(Fenced):
        former.round()
    assert [len(mailbox.to(f"{name}@owners.example")) for name in ("alice", "bob")] == [2, 1]
    assert others[0].state.reports() == {}


def test_nothing_is_mailed_or_deleted_before_the_log_has_it(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox
) -> None:
    log = MemoryLog()
    with_topics(log)
    queue = filled(guarded, guarded.add(), 9)
    with watching_with(settings, log, delete=Deletion.YES) as watch:
        for is_taken in (False, True):
            log.fail_commits = [is_taken]
            with pytest.raises(Unavailable):
                watch.round()
            assert exists(guarded, queue)
            assert mailbox.mails == []
        watch.round()
    assert not exists(guarded, queue)
    assert len(mailbox.mails) == 1


ELSEWHERE = "00000000-0000-0000-0000-000000000000/4026531836/17/99"


@contextmanager
def serving(settings: GuardianSettings, log: Log, instance: str) -> Iterator[threading.Event]:
    """Run a guardian of another machine during the block, or until the event is set."""
    stop, ready = threading.Event(), threading.Event()
    with ThreadPoolExecutor() as threads:
        running = threads.submit(
            watching.run, settings, log, file=FILE, stop=stop, ready=ready.set, instance=f"{ELSEWHERE}{instance}"
        )
        try:
            eventually(lambda: ready.is_set() or running.done(), "the guardian")
            yield stop
        finally:
            stop.set()
            running.result()


def reported(log: Log) -> dict[str, tuple[str | None, bool]]:
    """Return which processes report, and whether they stand by."""
    found = read_table(log, WATCHES, keep=lambda each: (each.key or "").startswith("guardian ")).records.items()
    reports = {key: from_json(ServiceReport, record.value or b"") for (_, key), record in found}
    return {key: (report.instance, report.is_standby) for key, report in reports.items()}


def test_a_second_guardian_stands_by_until_the_first_is_stopped(
    guarded: Guarded, settings: GuardianSettings, mailbox: Mailbox, log: Log
) -> None:
    settings, me = replace(settings, every=1.0), guarded.add("alice", "alice@owners.example")
    queues, key = [filled(guarded, me, 4, "a")], f"guardian {socket.gethostname()} {settings.name}"
    with serving(settings, log, "1") as stop_first:
        eventually(lambda: mailbox.mails)
        with serving(settings, log, "2"):
            both = {key: (f"{ELSEWHERE}1", False), f"{key} spare": (f"{ELSEWHERE}2", True)}
            eventually(lambda: reported(log) == both, "both reports")
            stop_first.set()
            queues.append(filled(guarded, me, 4, "b"))
            eventually(lambda: len(mailbox.mails) == 2, "the mail of the second")
            eventually(lambda: reported(log) == {key: (f"{ELSEWHERE}2", False)}, "the report of the second")
    assert reported(log) == {}
    assert subjects(mailbox, "alice@owners.example") == [f"Pulse: {queue}: {NEAR}" for queue in queues]


def test_a_guardian_that_is_fenced_between_its_rounds_stands_by(
    guarded: Guarded, settings: GuardianSettings, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "CHECK_EVERY", 0.05)
    monkeypatch.setattr(owned, "CHECK_EVERY", 0.0)
    with serving(replace(settings, every=3600.0), log, "1"):
        eventually(lambda: value_of(watching.ACTIVE) == 1)
        with watching_with(settings, log):
            eventually(lambda: value_of(watching.ACTIVE) == 0)


def test_a_lost_connection_is_unavailable(settings: GuardianSettings) -> None:
    with pytest.raises(Unavailable), connected(replace(settings, broker_url=f"amqp://127.0.0.1:{free_port()}//")):
        pass


class Scripted:
    """A watch whose rounds end as the list says; then it stops the loop."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends, self.stop = list(ends), threading.Event()
        self.settings, self.state = replace(some_settings(), every=1.0), GuardianState()

    def round(self) -> list[QueueFinding]:
        end = self.ends.pop(0)
        if not self.ends:
            self.stop.set()
        if end is not None:
            raise end
        return []

    def log_odd_queues(self, found: list[QueueFinding]) -> None:
        pass


def lines_of(watch: Any) -> list[str]:
    """The log lines of the loop, and whether it became ready."""
    with structlog.testing.capture_logs() as lines:
        keep_watching(watch, watch.stop, lambda: lines.append({"event": "ready", "log_level": "info"}))
    return [line["event"] for line in lines]


def test_a_broker_that_is_away_is_one_line_and_another_when_it_is_back() -> None:
    away, again = "round not complete; retried until it is", "rounds are complete again"
    gone = Unavailable("refused")
    assert lines_of(Scripted(gone, gone, None)) == [away, "ready", again]
    assert lines_of(Scripted(None, gone, gone, None)) == ["ready", away, again]


def test_a_refused_password_ends_the_service_at_its_start_only() -> None:
    with pytest.raises(BadConfig):
        lines_of(Scripted(BadConfig("401"), None))
    with pytest.raises(BadConfig):
        lines_of(Scripted(Unavailable("away"), BadConfig("401"), None))
    assert lines_of(Scripted(None, BadConfig("401"), None))[-1] == "rounds are complete again"


def test_a_queue_whose_name_is_no_unicode_is_reported_like_others(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox
) -> None:
    client = guarded.add()
    guarded.queue(client, "\ud800", messages=4)  # three bytes that are no UTF-8
    eventually(lambda: any(each.queue.messages == 4 for each in watch.round()), "the count")
    [mail] = mailbox.to(f"{client}@owners.example")
    assert mail["Subject"].startswith(f"Pulse: queue/{client}/")


def test_no_argument_of_a_queue_keeps_the_guardian_from_others(
    guarded: Guarded, watch: QueueWatch, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "LARGEST_ANSWER", 64 * 1024)
    alice, mallory = guarded.add("alice"), guarded.add("mallory")
    deep: dict[str, Any] = {}
    for _ in range(1500):  # more than Python's parser of JSON takes
        deep = {"x": deep}
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        guarded.queue(mallory, "deep", **{"x-note": deep})
    finally:
        sys.setrecursionlimit(usual)
    guarded.queue(mallory, "large", **{"x-note": "x" * 100_000})
    guarded.queue(alice, messages=4, **{"x-max-length": 100})
    eventually(lambda: any(each.queue.messages == 4 for each in watch.round()), "the count")
    assert subjects(mailbox, f"{alice}@owners.example") == [f"Pulse: queue/{alice}/q: {NEAR}"]
