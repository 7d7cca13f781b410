# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier's loop: each destination on its own, positions after confirmation, rejects kept, operators obeyed."""

import base64
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from hgext.vcsreplicator.log import ERRORS, NOTICES, NOTIFIER, SERVICES, Log, Record, topics
from hgext.vcsreplicator.log import NewRecord as LogMessage
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import read_table
from hgext.vcsreplicator.words.clock import Clock, SystemClock
from hgext.vcsreplicator.words.errors import BadConfig, Rejected, Unavailable
from hgext.vcsreplicator.words.event import Type
from hgext.vcsreplicator.words.records import NOTIFIER_KEY, ServiceReport
from hgext.vcsreplicator.words.shape import from_json
from notifier.clients.secret import Secret
from notifier.delivery.destination import DOWN
from notifier.destinations.pulse.destination import PulseSettings
from notifier.destinations.state import Kind
from notifier.messages.message import Message
from notifier.publishing import publisher
from notifier.publishing.position import StoredPosition, group
from notifier.publishing.settings import read
from testing.builders.certificates import certificate
from testing.builders.log.memorylog import MemoryLog, MemoryReader, MemoryTransactor
from testing.builders.notifier.notices import a_notice, an_event, identifier, publish, publish_pushes, with_topics
from testing.builders.notifier.notifying import FAST, Notifier, Scripted
from testing.metrics import value_of
from testing.waiting import eventually

pytestmark = pytest.mark.processes

# A process of a machine that is not this one.
OTHER = "00000000-0000-0000-0000-000000000000/4026531836/17/99"


def message_id(path: str, seq: int, stream: str = "changegroup.1") -> str:
    return f"{identifier(path, seq)}.{stream}"


def test_every_notice_reaches_every_destination_in_order(log: Log, notifier: Notifier) -> None:
    first, second = Scripted(), Scripted()
    notifier.start(first=first, second=second)
    for path in ("x", "y"):
        publish_pushes(log, path, 1, 20)
    notifier.settled("first")
    notifier.settled("second")
    for destination in (first, second):
        assert destination.told("x") == destination.told("y") == list(range(1, 21))


def test_destination_gets_the_types_it_asked_for(log: Log, notifier: Notifier) -> None:
    all_types, pushes_only = Scripted(), Scripted(types=("changegroup.1",))
    notifier.start(all=all_types, pushes=pushes_only)
    publish(log, a_notice(an_event("x", 1, type=Type.CREATED)), a_notice(an_event("x", 2)))
    notifier.settled("all")
    notifier.settled("pushes")
    assert [message.type for message in all_types.got] == ["newrepo.1", "changegroup.1"]
    assert [message.type for message in pushes_only.got] == ["changegroup.1"]


def test_repository_that_is_not_public_is_passed_over(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    notifier.start(it=destination)
    publish_pushes(log, "private/plan", 1, 3)
    notifier.settled("it")
    assert destination.tried == []


def test_position_waits_for_the_destination(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    destination.hold.set()
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 1)
    eventually(lambda: destination.tried)
    assert notifier.position("it") == log.beginnings(NOTICES)[0]
    destination.hold.clear()
    notifier.settled("it")


def test_restart_goes_on_where_the_position_stands(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    publish_pushes(log, "x", 1, 3)
    notifier.start(it=destination)
    notifier.settled("it")
    notifier.stop()
    publish_pushes(log, "x", 4, 5)
    notifier.start(it=destination)
    notifier.settled("it")
    assert destination.told("x") == [1, 2, 3, 4, 5]


def test_new_destination_may_begin_at_the_end(log: Log, notifier: Notifier) -> None:
    publish_pushes(log, "x", 1, 3)
    destination = Scripted(start_at="end")
    notifier.start(it=destination)
    publish_pushes(log, "x", 4, 4)
    notifier.settled("it")
    assert destination.told("x") == [4]


def test_a_destination_put_back_goes_on_where_it_was(log: Log, notifier: Notifier) -> None:
    destination, other = Scripted(start_at="end"), Scripted()
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    notifier.stop()
    notifier.start(other=other)
    publish_pushes(log, "x", 2, 3)
    notifier.settled("other")
    notifier.stop()
    notifier.start(it=destination, other=other)
    publish_pushes(log, "x", 4, 4)
    notifier.settled("it")
    assert destination.told("x") == [1, 2, 3, 4]


def test_outage_is_waited_out_and_loses_nothing(log: Log, notifier: Notifier) -> None:
    destination, other = Scripted(down=Unavailable("no answer")), Scripted()
    notifier.start(it=destination, other=other)
    publish_pushes(log, "x", 1, 50)
    notifier.settled("other")
    assert destination.got == []
    destination.down = None
    notifier.settled("it")
    assert destination.told("x") == list(range(1, 51))


def test_a_message_that_fails_is_tried_for_ever_and_blocks_its_own_alone(log: Log, notifier: Notifier) -> None:
    broken = [True]
    destination = Scripted(answer=lambda m: Unavailable("busy") if broken and m.repo_url.endswith("/x") else None)
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 2)
    publish_pushes(log, "y", 1, 5)
    eventually(lambda: len(destination.tried) > 5 + 3 * FAST.attempts)
    assert destination.told("y") == [1, 2, 3, 4, 5]
    assert notifier.position("it") == log.beginnings(NOTICES)[0]
    broken.clear()
    notifier.settled("it")
    assert destination.told("x") == [1, 2]


def test_a_refused_message_is_tried_a_few_times_then_a_reject(log: Log, notifier: Notifier) -> None:
    destination = Scripted(answer=lambda m: Rejected("too odd") if m.id == message_id("x", 1) else None)
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("it")
    assert destination.told("x") == [2]
    assert len([m for m in destination.tried if m.sequence == 1]) == FAST.attempts
    [kept] = notifier.errors()
    assert (kept.service, kept.destination, kept.topic) == ("notifier", "it", NOTICES)
    assert kept.reason == f"{message_id('x', 1)}: too odd"
    assert json.loads(base64.b64decode(kept.value))["data"]["repo_url"] == "https://hg.example/x"


def test_record_that_is_no_notice_is_kept_and_passed_over(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    notifier.start(it=destination)
    log.append([LogMessage(topic=NOTICES, key="junk", value=b'{"event": 1}')])
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    assert destination.told("x") == [1]
    [kept] = notifier.errors()
    assert base64.b64decode(kept.value) == b'{"event": 1}'


def test_record_with_an_endless_key_holds_up_nothing(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    notifier.start(it=destination)
    log.append([LogMessage(topic=NOTICES, key="k" * 7_000_000, value=b"no notice")])
    publish_pushes(log, "x", 1, 1)
    notifier.settled("it")
    assert destination.told("x") == [1]


def test_destination_that_breaks_unforeseen_begins_again(log: Log, notifier: Notifier) -> None:
    failures = [ZeroDivisionError("bug")]

    def answer(message: Message) -> None:
        if failures:
            raise failures.pop()

    destination = Scripted(answer=answer)
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    assert destination.told("x") == [1, 2, 3]


def test_a_reject_that_the_log_refuses_is_a_line_without_a_traceback(log: Log, notifier: Notifier) -> None:
    """As on Kafka, while an operator's mistake has made `errors` a compacted topic."""
    append, refusals = log.append, [Rejected("a compacted topic needs a key")]

    def refuse(records: Sequence[LogMessage], **options: Any) -> list[tuple[int, int]]:
        if refusals and records[0].topic == ERRORS:
            raise refusals.pop()
        return append(records, **options)

    log.append = refuse  # type: ignore[method-assign]
    destination = Scripted()
    with capture_logs() as lines:
        notifier.start(it=destination)
        log.append([LogMessage(topic=NOTICES, key="x", value=b"no notice")])
        publish_pushes(log, "x", 1, 1)
        notifier.settled("it")
    assert destination.told("x") == [1]
    found = [(line["reason"], line["exc_info"]) for line in lines if line["event"] == "courier failed"]
    assert found == [("a compacted topic needs a key", False)]


def test_a_destination_that_cannot_be_opened_is_in_trouble_alone(log: Log, notifier: Notifier) -> None:
    class Wrong(Scripted):
        def open(self, name: str, clock: Clock, log: Log) -> Scripted:
            if self.down is not None:
                raise self.down
            return Scripted.open(self, name, clock, log)

    wrong, other = Wrong(down=BadConfig("database: cannot be used")), Scripted()
    notifier.start(it=wrong, other=other)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("other")
    assert notifier.state.conditions()["it"]["trouble"] == "database: cannot be used"
    assert value_of(DOWN.labels("it")) == 1
    wrong.down = None
    notifier.settled("it")
    assert wrong.told("x") == other.told("x") == [1, 2]
    assert value_of(DOWN.labels("it")) == 0


def test_a_destination_that_answers_again_is_reported_at_once(log: Log, notifier: Notifier) -> None:
    destination = Scripted(down=Unavailable("no route to host"))
    notifier.start(it=destination)
    eventually(lambda: notifier.state.conditions().get("it", {}).get("trouble") == "no route to host")
    assert value_of(DOWN.labels("it")) == 1
    destination.down = None
    eventually(lambda: notifier.state.conditions()["it"]["trouble"] is None)
    assert value_of(DOWN.labels("it")) == 0


def test_a_secret_that_cannot_be_read_troubles_its_destination_alone(
    log: Log, notifier: Notifier, tmp_path: Path
) -> None:
    pulse = PulseSettings(
        url="amqp://u@127.0.0.1:1//",
        exchange="exchange/hgpushes/v2",
        stream="v2",
        password=Secret(file=str(tmp_path / "missing")),
    )
    other = Scripted()
    notifier.start(pulse=pulse, other=other)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("other")
    eventually(lambda: "missing cannot be read" in str(notifier.state.conditions().get("pulse")))
    assert other.told("x") == [1, 2]


@pytest.mark.parametrize("kind", ["webhook", "pulse"])
def test_missing_authorities_trouble_their_destination_alone(
    log: Log, notifier: Notifier, tmp_path: Path, kind: str
) -> None:
    ca_file, other = tmp_path / "ca.pem", Scripted()
    url, exchange = "amqps://u@127.0.0.1:1//", "exchange/hgpushes/v2"
    keys = {"database": str(tmp_path / "d.db")} if kind == "webhook" else {"url": url, "exchange": exchange}
    table = {"type": kind, "ca-file": str(ca_file), **keys}
    settings = read({"public": {"urls": {}}, "notifier": {"it": table}}, "f.toml")
    notifier.start(it=settings.destinations["it"], other=other)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("other")

    def trouble() -> str:
        return str(notifier.state.conditions().get("it", {}).get("trouble"))

    eventually(lambda: trouble() == f"ca-file: {ca_file} cannot be read: No such file or directory")
    certificate(tmp_path, "ca", "DNS:localhost")
    if kind == "webhook":
        notifier.settled("it")
    else:
        eventually(lambda: "Connection refused" in trouble())
    assert other.told("x") == [1, 2]


def test_a_second_notifier_with_the_same_state_is_refused(log: Log, notifier: Notifier) -> None:
    notifier.start(it=Scripted())
    second = Notifier(log, notifier.folder)
    with closing(second.state), pytest.raises(BadConfig, match="another notifier works with"):
        second.start(it=Scripted())


def test_a_position_that_does_not_move_is_stored_again_in_time(
    log: Log, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifier.publishing.reading.RENEW_EVERY", 0.05)
    stored: list[object] = []
    store = StoredPosition.store

    def note(position: StoredPosition, *what: Any) -> None:
        stored.append(what)
        store(position, *what)

    monkeypatch.setattr(StoredPosition, "store", note)
    notifier.start(it=Scripted())
    eventually(lambda: len(stored) > 3)
    assert set(stored) == {(0, None)}
    assert notifier.position("it") == 0


def reports_work(log: Log, name: str) -> bool:
    """Return whether a notifier has reported that it works for this destination."""
    reports = [
        from_json(ServiceReport, record.value)
        for (_, key), record in read_table(log, SERVICES).records.items()
        if record.value is not None and key.startswith(NOTIFIER_KEY)
    ]
    return any(name in report.works for report in reports)


def test_a_second_notifier_delivers_once_the_first_ends(log: Log, notifier: Notifier, tmp_path: Path) -> None:
    first, second = Scripted(), Scripted()
    notifier.start(it=first)
    eventually(lambda: reports_work(log, "it"), "the second one can know of the first")
    other = Notifier(log, tmp_path / "other", host="other", instance=OTHER)
    with closing(other.state):
        other.start(it=second)
        publish_pushes(log, "x", 1, 3)
        notifier.settled("it")
        notifier.stop()
        publish_pushes(log, "x", 4, 6)
        other.settled("it")
        notifier.start(it=first)
        publish_pushes(log, "x", 7, 9)
        other.settled("it")
        other.stop()
    assert (first.told("x"), second.told("x")) == ([1, 2, 3], [4, 5, 6, 7, 8, 9])


def test_notifiers_of_different_destinations_all_deliver(log: Log, notifier: Notifier, tmp_path: Path) -> None:
    first, second, shared = Scripted(), Scripted(), Scripted()
    notifier.start(first=first, shared=shared)
    publish_pushes(log, "x", 1, 1)
    notifier.settled("shared")  # before that, each of the two may be the first
    other = Notifier(log, tmp_path / "other", host="other", instance=OTHER)
    with closing(other.state):
        other.start(second=second, shared=Scripted(down=Unavailable("never tried")))
        publish_pushes(log, "x", 2, 3)
        for name in ("first", "second", "shared"):
            notifier.settled(name)
        assert presence(log) == {"notifier here": ("first", "shared"), "notifier other": ("second",)}
        other.stop()
    assert first.told("x") == second.told("x") == shared.told("x") == [1, 2, 3]


def test_a_notifier_that_is_fenced_stands_by_and_shows_no_condition(log: Log, notifier: Notifier) -> None:
    destination, kept = Scripted(), Scripted()
    notifier.start(it=destination, kept=kept)
    eventually(lambda: REGISTRY.get_sample_value("vcsreplicator_notifier_active", {"destination": "it"}) == 1)
    publish_pushes(log, "x", 1, 1)
    eventually(lambda: REGISTRY.get_sample_value("vcsreplicator_notifier_position_offset", {"destination": "it"}) == 1)
    newer = StoredPosition("it", log, SystemClock())
    publish_pushes(log, "x", 2, 3)
    eventually(lambda: REGISTRY.get_sample_value("vcsreplicator_notifier_active", {"destination": "it"}) == 0)
    notifier.settled("kept")
    assert REGISTRY.get_sample_value("vcsreplicator_notifier_position_offset", {"destination": "it"}) is None
    assert presence(log) == {"notifier here": ("kept",)}
    newer.store(1, None)
    assert notifier.error is None


def test_a_destination_that_cannot_begin_fences_others_once(
    log: Log, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notifier that began meanwhile is not fenced by each further attempt."""
    made, opened = list[str](), list[str]()

    class Counted(StoredPosition):
        def __init__(self, name: str, *more: Any) -> None:
            made.append(name)
            super().__init__(name, *more)

    class Wrong(Scripted):
        def open(self, name: str, clock: Clock, log: Log) -> Scripted:
            opened.append(name)
            raise Unavailable("database: locked")

    monkeypatch.setattr(publisher, "StoredPosition", Counted)
    notifier.start(it=Wrong())
    eventually(lambda: len(opened) > 2)
    assert made == ["it"]


def presence(log: Log) -> dict[str, tuple[str, ...]]:
    """What each notifier reports that it delivers to."""
    found = read_table(log, SERVICES).records.items()
    return {
        key: from_json(ServiceReport, record.value or b"").works
        for (_, key), record in found
        if key.startswith(NOTIFIER_KEY)
    }


def test_paused_destination_waits_for_resume_also_over_a_restart(log: Log, notifier: Notifier) -> None:
    destination, other = Scripted(), Scripted()
    notifier.start(it=destination, other=other)
    notifier.ask("it", Kind.PAUSE)
    publish_pushes(log, "x", 1, 2)
    notifier.settled("other")
    notifier.stop()
    notifier.start(it=destination, other=other)
    publish_pushes(log, "x", 3, 3)
    notifier.settled("other")
    assert destination.tried == []
    notifier.ask("it", Kind.RESUME)
    notifier.settled("it")
    assert destination.told("x") == [1, 2, 3]


def test_skip_passes_over_one_message_and_records_who(log: Log, notifier: Notifier) -> None:
    destination = Scripted(answer=lambda m: Unavailable("no") if m.sequence == 1 else None)
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: len(destination.tried) > 1)  # the first attempt has failed
    done = notifier.ask("it", Kind.SKIP)
    assert done.result == f"skipped {message_id('x', 1)} of https://hg.example/x"
    notifier.settled("it")
    assert destination.told("x") == [2]
    [kept] = notifier.errors()
    assert kept.reason == f"{message_id('x', 1)}: skipped by dana"


def test_skipped_message_stays_skipped_after_a_restart(log: Log, notifier: Notifier) -> None:
    destination = Scripted(answer=lambda m: Unavailable("no") if "/stuck" in m.repo_url or m.sequence == 1 else None)
    notifier.start(it=destination)
    publish_pushes(log, "stuck", 1, 1)
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: len(destination.tried) > 2)
    notifier.ask("it", Kind.SKIP, message=message_id("x", 1))
    eventually(lambda: destination.told("x") == [2])
    notifier.stop()
    destination.answer = lambda m: None
    notifier.start(it=destination)
    notifier.settled("it")
    assert message_id("x", 1) not in {message.id for message in destination.got}
    assert destination.told("stuck") == [1]


def test_a_skip_of_a_replay_leaves_the_message_to_the_live_stream(log: Log, notifier: Notifier) -> None:
    destination = Scripted(answer=lambda m: Unavailable("no") if m.replay or m.sequence == 1 else None)
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 2)
    eventually(lambda: destination.tried)
    notifier.state.requests.ask("it", Kind.REPLAY, {"repository": "x", "since_push": 2}, who="dana", now=0)
    eventually(lambda: any(message.replay for message in destination.tried))
    done = notifier.ask("it", Kind.SKIP, message=message_id("x", 2))
    assert done.result == f"skipped {message_id('x', 2)} of https://hg.example/x"
    notifier.stop()
    destination.answer = lambda message: None
    notifier.start(it=destination)
    notifier.settled("it")
    assert destination.told("x") == [1, 2]


def test_skip_with_nothing_to_skip_says_so(notifier: Notifier) -> None:
    notifier.start(it=Scripted())
    assert (notifier.ask("it", Kind.SKIP).result or "").startswith("nothing skipped")


def test_replay_reaches_one_destination_and_is_marked(log: Log, notifier: Notifier) -> None:
    wanted, other = Scripted(), Scripted()
    notifier.start(wanted=wanted, other=other)
    publish_pushes(log, "x", 1, 5)
    publish_pushes(log, "y", 1, 2)
    notifier.settled("wanted")
    notifier.settled("other")
    done = notifier.ask("wanted", Kind.REPLAY, repository="x", since_push=4)
    assert done.result == "sent 2 messages again"
    assert [(m.sequence, (m.replay or "").split()[0]) for m in wanted.got[7:]] == [(4, "dana"), (5, "dana")]
    assert len(other.got) == 7
    assert wanted.got[7].id == message_id("x", 4)


def test_replay_since_a_time(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    notifier.start(it=destination)
    publish_pushes(log, "x", 1, 3)
    notifier.settled("it")
    notifier.ask("it", Kind.REPLAY, repository=identifier("x"), since_time=an_event("x", 3).time)
    assert destination.told("x") == [1, 2, 3, 3]


def test_notices_that_left_the_log_are_reported_and_passed(tmp_path: Path) -> None:
    with open_log(f"sqlite://{tmp_path}/short.db", creates=True) as log:
        log.create([replace(topic, retention=0.001) if topic.name == NOTICES else topic for topic in topics()])
        destination, notifier = Scripted(), Notifier(log, tmp_path)
        notifier.start(it=destination)
        publish_pushes(log, "x", 1, 1)
        notifier.settled("it")
        notifier.stop()
        position = notifier.position("it")
        for seq in range(2, 200):
            publish_pushes(log, "x", seq, seq)
        assert log.beginnings(NOTICES)[0] > (position or 0)
        notifier.start(it=destination)
        notifier.settled("it")
        notifier.stop()
        assert "left the log before they were delivered to it" in notifier.errors()[0].reason
        assert notifier.position("it") == log.ends(NOTICES)[0]
        notifier.state.close()


def test_position_beyond_the_end_of_a_log_that_lost_notices_goes_back(log: Log, notifier: Notifier) -> None:
    publish_pushes(log, "x", 1, 3)
    log.acknowledge(group("it"), NOTICES, {0: 100})
    destination = Scripted()
    notifier.start(it=destination)
    eventually(lambda: destination.told("x") == [1, 2, 3])
    notifier.settled("it")
    [kept] = notifier.errors()
    assert kept.reason == "the log lost notices: it ends at 3, it had read to 100; everything from 0 on is sent again"
    notifier.stop()
    publish_pushes(log, "x", 4, 120)
    notifier.start(it=destination)
    notifier.settled("it")
    assert destination.told("x") == [*range(1, 121)]


def test_a_thread_that_cannot_start_ends_the_service_with_its_error(
    notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, threads = threading.Thread.start, list[str]()

    def start_one(thread: threading.Thread) -> None:
        if thread.name.startswith("notifier_"):
            threads.append(thread.name)
            if len(threads) > 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        notifier.start(one=Scripted(), two=Scripted())


def test_stop_takes_in_what_is_under_way(log: Log, notifier: Notifier) -> None:
    destination = Scripted()
    notifier.start(it=destination)
    destination.hold.set()
    publish_pushes(log, "x", 1, 1)
    eventually(lambda: destination.tried)
    destination.hold.clear()
    notifier.stop()
    assert notifier.position("it") == log.ends(NOTICES)[0]


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ({}, r"f\.toml: section \[public\] is missing"),
        ({"public": {"urls": {"": "ftp://x"}}}, r"f\.toml: public\.urls\.: expected an http or https URL"),
        *(
            ({"public": {"urls": {"": url}}}, r"f\.toml: public\.urls\.: expected an http or https URL with a host")
            for url in (
                "https://",
                "https:///hg",
                "https://hg:99999/",
                "https://u:p@hg/",
                "https://hg/?a",
                "https://hg/#a",
            )
        ),
        (
            {"public": {"urls": {}, "ignore": ["users/", "/private/"]}},
            r"public\.ignore: expected prefixes .* no slash, got '/private/'",
        ),
        ({"public": {"urls": {}, "policies": 1}}, r"f\.toml: public: unknown key 'policies'"),
        (
            {"public": {"urls": {}}, "notifier": {"x": {"type": "smoke"}}},
            r"notifier\.x\.type: expected one of jsonlines,",
        ),
        (
            {"public": {"urls": {}}, "notifier": {"x": {"type": ["jsonlines"]}}},
            r"notifier\.x\.type: expected one of jsonlines, .*, got \['jsonlines'\]",
        ),
        ({"public": {"urls": {}}, "notifier": {"x": {"type": "jsonlines"}}}, r"notifier\.x: key 'file' is missing"),
        ({"public": {"urls": {}}, "notifier": {"X": {}}}, r"notifier\.X: expected a name of lower-case"),
        ({"public": {"urls": {}}, "notifier": {"state": 1}}, r"f\.toml: notifier\.state: expected text, got 1"),
        (
            {"public": {"urls": {}}, "notifier": {"state": "n.db"}},
            r"f\.toml: notifier\.state: expected an absolute path",
        ),
        (
            {"public": {"urls": {}}, "notifier": {"takeover-after": 0}},
            r"f\.toml: notifier\.takeover-after: expected a number of seconds from 0\.01 to 3600, got 0",
        ),
        (
            {"public": {"urls": {}}, "notifier": {"x": {"type": "stdout", "patience": {"in-flight": "many"}}}},
            r"notifier\.x\.patience\.in-flight: expected a whole number, got 'many'",
        ),
    ],
)
def test_configuration_errors_say_file_key_and_expectation(toml: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadConfig, match=complaint):
        read(toml, "f.toml")


@pytest.mark.parametrize(
    "notifier",
    [
        {"state": "/v/the log.db"},
        {"x": {"type": "jsonlines", "file": "/v/../v/the log.db"}},
        {"x": {"type": "webhook", "database": "/v/the log.db"}},
    ],
)
def test_the_file_of_the_log_is_its_own(notifier: dict[str, object]) -> None:
    toml = {"log": "sqlite:///v/the%20log.db", "public": {"urls": {}}, "notifier": notifier}
    with pytest.raises(BadConfig, match=r"f\.toml: notifier\..*: expected a file of its own, log has /v"):
        read(toml, "f.toml")


PULSE = {"type": "pulse", "url": "amqp://u@h//", "exchange": "exchange/u/v2"}
SNS = {"type": "sns", "topic-arn": "arn:aws:sns:us-west-2:1:t", "bucket": "b", "region": "us-west-2"}
WEBHOOK = {"type": "webhook", "database": "/d.db"}


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"type": "stdout", "types": ["push"]}, "types: expected some of .*, got push"),
        ({"type": "stdout", "types": []}, r"types: expected some of .*, got none"),
        ({"type": "stdout", "types": "changegroup.1"}, r"types: expected a list, got 'changegroup\.1'"),
        ({**SNS, "types": ["newrepo.1", "newrepo"]}, r"types: expected some of .*, got newrepo\.1, newrepo"),
        ({"type": "stdout", "start-at": "begining"}, "start-at: expected beginning or end, got 'begining'"),
        ({"type": "stdout", "nosuch": 1}, "unknown key 'nosuch'"),
        ({"type": "stdout", "patience": {"held": 0}}, r"patience\.held: expected a number from 1 to .*, got 0"),
        ({"type": "stdout", "patience": {"attempts": True}}, r"patience\.attempts: expected a whole number, got True"),
        (
            {"type": "stdout", "patience": {"in-flight": -1}},
            r"patience\.in-flight: expected a number from 1 .*, got -1",
        ),
        (
            {"type": "stdout", "patience": {"retry": {"first": float("nan")}}},
            r"retry\.first: expected a number of seconds .*, got nan",
        ),
        ({"type": "stdout", "patience": {"retry": {"jitter": -1}}}, r"retry\.jitter: expected a number .*, got -1"),
        ({"type": "stdout", "patience": {"retry": {"more": 1}}}, r"patience\.retry: unknown key 'more'"),
        ({**PULSE, "url": "amqp://u@h:99999//"}, "url: expected amqp://"),
        ({**PULSE, "url": "amqp://"}, "url: expected amqp://"),
        ({**PULSE, "confirm-timeout": 0}, "confirm-timeout: expected a number of seconds from 0.001 to .*, got 0"),
        ({**PULSE, "heartbeat": float("inf")}, "heartbeat: expected a number of seconds from 1 to 3600, got inf"),
        ({**PULSE, "max-bytes": -1}, "max-bytes: expected a number of bytes from 1 to 2147483648, got -1"),
        ({**PULSE, "mandatory": 1}, "mandatory: expected true or false, got 1"),
        ({**SNS, "bucket": ""}, "bucket: expected a name"),
        ({**SNS, "bucket": "my bucket"}, "bucket: expected a name .*, got 'my bucket'"),
        ({**SNS, "bucket": "arn:aws:s3:us-west-2:1:accesspoint/b"}, "bucket: expected a name"),
        ({**SNS, "topic-arn": "arn:aws:sqs:us-west-2:1:t"}, "topic-arn: expected arn:…:sns:REGION:ACCOUNT:NAME, got"),
        ({**SNS, "topic-arn": "arn:aws:sns:us-west-2:1"}, "topic-arn: expected arn:…:sns:"),
        ({**SNS, "topic-arn": "arn:aws:sns:us-west-2:1:t\u00e4"}, "topic-arn: expected arn:…:sns:"),
        ({**SNS, "region": "us-east-1"}, "region: expected us-west-2, as in topic-arn, got 'us-east-1'"),
        ({**SNS, "sns-endpoint-url": "sns.example"}, "sns-endpoint-url: expected an http or https URL"),
        ({**SNS, "limit": 10}, "limit: expected a number of bytes from 1024 to .*, got 10"),
        ({**SNS, "read-timeout": -1}, r"read-timeout: expected a number of seconds .*, got -1"),
        ({**WEBHOOK, "ladder": [0, "1m"]}, "ladder: expected a number of seconds, got '1m'"),
        ({**WEBHOOK, "ladder": [0, float("nan")]}, "ladder: expected a number of seconds from 0 .*, got nan"),
        ({**WEBHOOK, "ladder": [0, -1]}, "ladder: expected a number of seconds from 0 .*, got -1"),
        ({**WEBHOOK, "jitter": 2}, "jitter: expected a number from 0 to 1, got 2"),
        ({**WEBHOOK, "pause-after": -1}, "pause-after: expected a number of seconds from 0 .*, got -1"),
        ({**WEBHOOK, "database": "d.db"}, "database: expected an absolute path, got 'd.db'"),
        (
            {**WEBHOOK, "subscriptions": {"a": {"url": "https://x/", "types": ["x"]}}},
            "subscriptions.a.types: expected some",
        ),
        (
            {**WEBHOOK, "subscriptions": {"a": {"url": "https://x/", "speed": 1}}},
            "subscriptions.a: unknown key 'speed'",
        ),
        (
            {**WEBHOOK, "subscriptions": {"a": {"url": "https://x/", "order": "fast"}}},
            "order: expected one of strict, speed",
        ),
    ],
)
def test_wrong_value_is_never_accepted_silently(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadConfig, match=rf"^f\.toml: notifier\.it.*{complaint}[^\n]*\Z"):
        read({"public": {"urls": {}}, "notifier": {"it": table}}, "f.toml")


def test_configuration_is_read(tmp_path: Path) -> None:
    settings = read(
        {
            "public": {"urls": {"a-b": "https://hg.example/"}, "policy": "deny"},
            "notifier": {
                "state": "/s.db",
                "lines": {"type": "jsonlines", "file": "/x", "start-at": "end", "patience": {"retry": {"first": 2}}},
            },
        },
        "f.toml",
    )
    assert settings.state == "/s.db"
    assert settings.public.urls == {"a-b": "https://hg.example/"}
    assert settings.destinations["lines"].patience.retry.first == 2.0


def test_a_stop_ends_the_wait_for_notices(log: Log, notifier: Notifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifier.publishing.courier.IDLE_WAIT", 3600.0)
    notifier.start(it=Scripted())
    notifier.stop()


class CutOffLog(MemoryLog):
    """The same log, by which a process reaches the broker of the topics, and not the one that coordinates its transactions."""

    def __init__(self, log: MemoryLog) -> None:
        vars(self).update(vars(log))

    def transactor(self, identity: str, *, group: str | None = None) -> MemoryTransactor:
        raise Unavailable("the coordinator does not answer")


def test_a_notifier_that_cannot_begin_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    log, destination = MemoryLog(), Scripted()
    with_topics(log)
    publish_pushes(log, "x", 1, 1)
    notifiers = []
    for name, its_log in (("cut-off", CutOffLog(log)), ("well", log)):
        (tmp_path / name).mkdir()
        notifiers.append(Notifier(its_log, tmp_path / name, host=name, instance=OTHER.replace("17", name)))
    try:
        notifiers[0].start(it=Scripted())
        notifiers[1].start(it=destination)
        eventually(lambda: destination.told("x") == [1], timeout=20.0)
    finally:
        for each in notifiers:
            each.stop()
            each.state.close()


class UnreadLog(MemoryLog):
    """The same log, by which a process reaches all brokers but the one of this topic, once that is `away`."""

    def __init__(self, log: MemoryLog, topic: str, away: threading.Event) -> None:
        vars(self).update(vars(log))
        self._topic, self._away = topic, away

    def ends(self, topic: str, partitions: Collection[int] | None = None) -> dict[int, int]:
        self._refuse([topic])
        return super().ends(topic, partitions)

    def wait_for_transactions(self, topic: str) -> None:
        self._refuse([topic])

    def reader(self, positions: Mapping[tuple[str, int], int]) -> MemoryReader:
        reader: Any = super().reader(positions)
        asked, poll = [topic for topic, _ in positions], reader.poll

        def refuse_or_poll(*given: Any, **options: Any) -> list[Record]:
            self._refuse(asked)
            found: list[Record] = poll(*given, **options)
            self._refuse(asked)  # it was away while the call waited
            return found

        reader.poll = refuse_or_poll
        return reader  # type: ignore[no-any-return]

    def _refuse(self, topics: Collection[str]) -> None:
        if self._topic in topics and self._away.is_set():
            raise Unavailable(f"{self._topic} has no leader")


@pytest.mark.parametrize(("topic", "begins"), [(NOTICES, "before"), (NOTICES, "meanwhile"), (NOTIFIER, "before")])
def test_a_notifier_that_reads_no_notices_keeps_no_other_from_its_turn(tmp_path: Path, topic: str, begins: str) -> None:
    log, away, first, second = MemoryLog(), threading.Event(), Scripted(), Scripted()
    with_topics(log)
    notifiers = []
    for name, its_log in (("cut-off", UnreadLog(log, topic, away)), ("well", log)):
        (tmp_path / name).mkdir()
        instance = OTHER.replace("17", name)
        notifiers.append(Notifier(its_log, tmp_path / name, host=name, instance=instance, takeover_after=0.1))
    try:
        if begins == "before":
            away.set()
        notifiers[0].start(it=first)
        eventually(lambda: reports_work(log, "it"))
        notifiers[1].start(it=second)
        if begins == "meanwhile":
            publish_pushes(log, "x", 1, 1)
            notifiers[0].settled("it")
            assert first.told("x") == [1]
            away.set()
        publish_pushes(log, "x", 2, 2)
        eventually(lambda: second.told("x") == [2], timeout=20.0)
    finally:
        for each in notifiers:
            each.stop()
            each.state.close()
